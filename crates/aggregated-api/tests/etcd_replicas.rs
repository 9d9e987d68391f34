//! Two servers side by side on one prefix of a real etcd, as two replicas are: what one writes, the
//! other serves, under the same resource versions and in the same order.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a helper that cannot do its work fails its test"
)]

#[expect(dead_code, reason = "shared with other tests, which use more of it")]
mod common;
#[path = "common/etcd.rs"]
mod etcd;

use std::sync::Arc;

use aggregated_api::store::etcd::EtcdStore;
use common::{COLLECTION, Events, Server};
use serde_json::{Value, json};

use crate::etcd::Etcd;

async fn server(etcd: &Etcd) -> Server {
    let store = EtcdStore::connect(etcd.options()).await.unwrap();
    Server::on(Arc::new(store)).await
}

fn item(name: &str) -> String {
    format!("{COLLECTION}/{name}")
}

fn version(object: &Value) -> &str {
    object["metadata"]["resourceVersion"].as_str().unwrap()
}

/// Type, name and resource version of the next events.
async fn told(events: &mut Events, count: usize) -> Vec<(String, String, String)> {
    let mut told = Vec::new();
    for _ in 0..count {
        let event = events.next().await.expect("the watch goes on");
        let object = &event["object"];
        told.push((
            event["type"].as_str().unwrap().to_owned(),
            object["metadata"]["name"].as_str().unwrap().to_owned(),
            version(object).to_owned(),
        ));
    }
    told
}

async fn watch(server: &Server, after: &str) -> Events {
    let path = format!("{COLLECTION}?watch=true&resourceVersion={after}");
    server.watch(&path, "application/json").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_replica_writes_the_other_serves_at_once_and_alike() {
    let etcd = Etcd::start().await;
    let (one, two) = (server(&etcd).await, server(&etcd).await);
    let created = one.create("a", json!({})).await;
    assert_eq!(
        two.call("GET", &item("a"), None).await,
        (200, created.clone())
    );
    let patch = json!({"spec": {"reference": "new"}});
    let (status, patched) = two.call("PATCH", &item("a"), Some(patch)).await;
    assert_eq!(status, 200, "{patched}");
    assert_eq!(
        one.call("GET", &item("a"), None).await,
        (200, patched.clone())
    );

    let (status, refused) = one.call("PUT", &item("a"), Some(created)).await;
    assert_eq!((status, &refused["reason"]), (409, &json!("Conflict")));
    let (status, _) = one.call("DELETE", &item("a"), None).await;
    assert_eq!(status, 200);
    let (status, _) = two.call("GET", &item("a"), None).await;
    assert_eq!(status, 404);

    one.create("b", json!({})).await;
    let late = server(&etcd).await;
    let mut lists = Vec::new();
    for server in [&one, &two, &late] {
        let (status, list) = server.call("GET", COLLECTION, None).await;
        assert_eq!(status, 200);
        lists.push(list["items"].clone());
    }
    assert_eq!(lists[0].as_array().unwrap().len(), 1);
    assert!(lists.iter().all(|list| *list == lists[0]), "{lists:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_asked_for_on_both_replicas_is_given_once() {
    let etcd = Etcd::start().await;
    let (one, two) = (server(&etcd).await, server(&etcd).await);
    for round in 0..20 {
        let object = json!({"metadata": {"name": format!("n-{round}")}, "spec": {}});
        let (first, second) = tokio::join!(
            one.call("POST", COLLECTION, Some(object.clone())),
            two.call("POST", COLLECTION, Some(object)),
        );
        let mut statuses = [first.0, second.0];
        statuses.sort_unstable();
        assert_eq!(statuses, [201, 409], "{first:?} {second:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_of_both_replicas_tell_the_same_also_after_etcd_was_killed() {
    const EACH: usize = 30;
    let mut etcd = Etcd::start().await;
    let servers = [server(&etcd).await, server(&etcd).await];
    let start = servers[0].create("first", json!({})).await;
    let mut watches = [
        watch(&servers[0], version(&start)).await,
        watch(&servers[1], version(&start)).await,
    ];
    let mut all = Vec::new();
    for round in 0..2 {
        let writing = servers
            .iter()
            .enumerate()
            .map(|(server, writer)| async move {
                for n in 0..EACH {
                    writer
                        .create(&format!("s{server}-{round}-{n}"), json!({}))
                        .await;
                }
            });
        futures::future::join_all(writing).await;
        let [one, two] = &mut watches;
        let (by_one, by_two) = (told(one, 2 * EACH).await, told(two, 2 * EACH).await);
        assert_eq!(by_one, by_two);
        all.extend(by_one);
        if round == 0 {
            etcd.kill_and_start_again().await;
        }
    }
    assert!(all.iter().all(|(kind, ..)| kind == "ADDED"));
    // A client that moves to the other replica misses nothing and sees nothing twice.
    let (_, _, middle) = &all[EACH];
    let mut resumed = watch(&servers[1], middle).await;
    assert_eq!(
        told(&mut resumed, all.len() - EACH - 1).await,
        all[EACH + 1..]
    );
}
