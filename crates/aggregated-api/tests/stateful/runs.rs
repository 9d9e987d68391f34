//! The runs: on both stores, in this process and as processes that are killed.

use std::sync::Arc;

use aggregated_api::registry::cache::HistoryLimits;
use aggregated_api::store::Store;
use aggregated_api::store::redb::{Options, RedbStore};
use serde_json::json;

use crate::client::Client;
use crate::common::Server;
use crate::driver::Driver;
use crate::etcd::Etcd;
use crate::truth::version;
use crate::world::World;
use crate::writes::collection;

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var_os(name).map_or(otherwise, |value| {
        value.to_str().unwrap().parse().expect("a number")
    })
}

/// Takes so many steps, unless told otherwise; fails when one of `due` never happened.
async fn run(world: World, seed: u64, steps: u64, due: &[&str]) {
    let seed = setting("STATEFUL_SEED", seed);
    let steps = setting("STATEFUL_STEPS", steps);
    println!("STATEFUL_SEED={seed} STATEFUL_STEPS={steps}");
    let mut driver = Driver::new(seed, world).await;
    for _ in 0..steps {
        driver.step().await;
    }
    driver.finish().await;
    println!("{:?}", driver.counts());
    for what in due {
        assert!(driver.counts().contains_key(what), "no {what} in this run");
    }
}

/// What every run has.
const ALWAYS: [&str; 14] = [
    "created",
    "modified",
    "deleted",
    "collections deleted",
    "events",
    "watches from a revision",
    "watches from a marked state",
    "watches from a state",
    "watches resumed",
    "lists",
    "exact lists",
    "pages",
    "lists in pages",
    "restarts",
];

fn memory() -> Arc<dyn Store> {
    Arc::new(RedbStore::in_memory(Options::default()).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_server() {
    let world = World::here(vec![memory()], HistoryLimits::default()).await;
    let mut due = ALWAYS.to_vec();
    due.extend(["bookmarks", "streams ended", "compactions"]);
    run(world, 1, 700, &due).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_on_one_store_that_remember_little() {
    let store = memory();
    let limits = HistoryLimits {
        changes: 20,
        ..HistoryLimits::default()
    };
    let world = World::here(vec![Arc::clone(&store), store], limits).await;
    let mut due = ALWAYS.to_vec();
    due.extend(["bookmarks", "streams ended", "compactions", "expired"]);
    run(world, 2, 700, &due).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_on_a_file_that_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let backing = format!("redb:{}", folder.path().join("db").display());
    let world = World::there(backing, 1).await;
    let mut due = ALWAYS.to_vec();
    due.extend(["kills while writing", "lost answers"]);
    run(world, 3, 300, &due).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_on_etcd_that_are_killed() {
    let etcd = Etcd::start().await;
    let world = World::there(format!("etcd:{}", etcd.url()), 2).await;
    let mut due = ALWAYS.to_vec();
    due.extend(["kills while writing", "lost answers"]);
    run(world, 4, 250, &due).await;
}

/// A server that was started after a deletion does not know of it, and says so instead of leaving the
/// object out of older states.
#[tokio::test]
async fn a_state_that_is_no_longer_kept_is_not_made_up() {
    let store = memory();
    let server = Server::on(Arc::clone(&store)).await;
    server.create("a", json!({})).await;
    let both = version(&server.create("b", json!({})).await).unwrap();
    let path = format!("{}/b", collection(Some("ns")));
    assert_eq!(server.call("DELETE", &path, None).await.0, 200);
    for n in 0..3 {
        server.create(&format!("later-{n}"), json!({})).await;
    }
    let exact = format!(
        "{}?resourceVersion={both}&resourceVersionMatch=Exact",
        collection(None)
    );
    let (status, list) = server.call("GET", &exact, None).await;
    assert_eq!((status, list["items"].as_array().unwrap().len()), (200, 2));

    let latest = store.revision();
    for name in ["a", "later-0", "later-1", "later-2"] {
        let path = format!("{}/{name}", collection(Some("ns")));
        assert_eq!(server.call("DELETE", &path, None).await.0, 200);
    }
    store.compact(latest).await.unwrap();
    let started = Client::Here(Arc::new(Server::on(store).await));
    let (status, gone) = started.call("GET", &exact, None).await.unwrap();
    assert_eq!((status, &gone["reason"]), (410, &json!("Expired")));
}
