//! Watches from before what a server keeps in memory, on both stores.

#![expect(
    clippy::unwrap_used,
    reason = "a helper that cannot do its work fails its test"
)]

#[expect(dead_code, reason = "shared with other tests, which use more of it")]
mod common;
#[path = "common/etcd.rs"]
#[expect(dead_code, reason = "shared with other tests, which use more of it")]
mod etcd;

use std::sync::Arc;

use aggregated_api::registry::cache::HistoryLimits;
use aggregated_api::store::Store;
use aggregated_api::store::etcd::EtcdStore;
use aggregated_api::store::redb::{Options, RedbStore};
use common::{COLLECTION, Server};
use etcd::Etcd;
use runtime_kit::clock::SystemClock;
use serde_json::{Value, json};

fn version(object: &Value) -> u64 {
    let text = object["metadata"]["resourceVersion"].as_str();
    text.and_then(|text| text.parse().ok()).unwrap()
}

/// Type, name and version of an event.
type Told = (String, String, u64);

/// The next events of a watch.
async fn told(server: &Server, query: &str, count: usize) -> Vec<Told> {
    let path = format!("{COLLECTION}?watch=true&{query}");
    let mut events = server.watch(&path, "application/json").await;
    let mut told = Vec::new();
    for _ in 0..count {
        let event = events.next().await.unwrap();
        let object = &event["object"];
        told.push((
            event["type"].as_str().unwrap().to_owned(),
            object["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            version(object),
        ));
    }
    told
}

/// A watch begins with what the store still knows, though the server has forgotten it, and goes on with
/// what happens then.
async fn a_watch_begins_before_the_history_in_memory(store: Arc<dyn Store>) {
    let limits = HistoryLimits {
        changes: 2,
        bytes: usize::MAX,
    };
    let server = Server::with(Arc::clone(&store), SystemClock::shared(), limits).await;
    let label = |value: &str| json!({"metadata": {"labels": {"app": value}}});
    let patch = async |name: &str, body: Value| {
        let path = format!("{COLLECTION}/{name}");
        let (status, body) = server.call("PATCH", &path, Some(body)).await;
        assert_eq!(status, 200, "{body}");
        version(&body)
    };
    let before = version(&server.create("before", json!({})).await);
    let added = version(&server.create("a", label("x")).await);
    let left = patch("a", label("y")).await;
    let entered = patch("a", label("x")).await;
    let other = version(&server.create("b", label("y")).await);
    let (status, _) = server
        .call("DELETE", &format!("{COLLECTION}/a"), None)
        .await;
    assert_eq!(status, 200);
    let deleted = version(&server.call("GET", COLLECTION, None).await.1);
    let last = version(&server.create("c", label("x")).await);
    let event = |kind: &str, name: &str, version| (kind.to_owned(), name.to_owned(), version);

    assert_eq!(
        told(&server, &format!("resourceVersion={before}"), 6).await,
        [
            event("ADDED", "a", added),
            event("MODIFIED", "a", left),
            event("MODIFIED", "a", entered),
            event("ADDED", "b", other),
            event("DELETED", "a", deleted),
            event("ADDED", "c", last),
        ]
    );
    assert_eq!(
        told(
            &server,
            &format!("resourceVersion={before}&labelSelector=app%3Dx"),
            5
        )
        .await,
        [
            event("ADDED", "a", added),
            event("DELETED", "a", left),
            event("ADDED", "a", entered),
            event("DELETED", "a", deleted),
            event("ADDED", "c", last),
        ]
    );

    let path = format!("{COLLECTION}?watch=true&resourceVersion={other}");
    let mut events = server.watch(&path, "application/json").await;
    assert_eq!(events.next_summary().await, "DELETED a");
    assert_eq!(events.next_summary().await, "ADDED c");
    for name in ["d", "e", "f"] {
        server.create(name, json!({})).await;
        assert_eq!(events.next_summary().await, format!("ADDED {name}"));
    }

    store.compact(deleted).await.unwrap();
    let path = format!("{COLLECTION}?watch=true&resourceVersion={before}");
    let mut events = server.watch(&path, "application/json").await;
    let refused = events.next().await.unwrap();
    assert_eq!(refused["type"], "ERROR", "{refused}");
    let status = &refused["object"];
    assert_eq!(
        (&status["code"], &status["reason"]),
        (&json!(410), &json!("Expired"))
    );
    let message = status["message"].as_str().unwrap();
    assert!(
        message.starts_with(&format!("too old resource version: {before} (")),
        "{message}"
    );
    assert!(events.next().await.is_none(), "an error ends the watch");
    assert_eq!(
        told(&server, &format!("resourceVersion={deleted}"), 1).await,
        [event("ADDED", "c", last)]
    );
}

#[tokio::test]
async fn a_watch_begins_before_the_history_in_memory_on_redb() {
    let store = RedbStore::in_memory(Options::default()).unwrap();
    a_watch_begins_before_the_history_in_memory(Arc::new(store)).await;
}

#[tokio::test]
async fn a_watch_begins_before_the_history_in_memory_on_etcd() {
    let etcd = Etcd::start().await;
    let store = EtcdStore::connect(etcd.options()).await.unwrap();
    a_watch_begins_before_the_history_in_memory(Arc::new(store)).await;
}
