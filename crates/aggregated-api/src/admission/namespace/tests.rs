use axum::body::Body;
use http::Response;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;
use crate::auth::test_client::{
    Call, Calls, WatchFeed, client, eventually, failure, json_answer, watch,
};

fn namespace(name: &str, phase: &str) -> Value {
    json!({
        "kind": "Namespace", "apiVersion": "v1",
        "metadata": {"name": name, "resourceVersion": "1"}, "status": {"phase": phase},
    })
}

type Feed = Arc<Mutex<Option<WatchFeed>>>;

/// Lists `listed`; a live read of `late` finds it, of any other name 404.
fn api_server(listed: Vec<Value>, late: Response<Body>) -> (Client, Calls, Feed) {
    let (feed, late) = (Feed::default(), Arc::new(Mutex::new(Some(late))));
    let kept = Arc::clone(&feed);
    let (client, calls) = client(move |call: Call| {
        let answer = if call.is_watch() {
            let (feed, answer) = watch();
            *kept.lock() = Some(feed);
            answer
        } else if call.is_list() {
            json_answer(
                200,
                &json!({
                    "kind": "NamespaceList", "apiVersion": "v1",
                    "metadata": {"resourceVersion": "1"}, "items": listed,
                }),
            )
        } else if call.path.starts_with("/api/v1/namespaces/late") {
            late.lock().take().unwrap()
        } else {
            failure(404, "NotFound")
        };
        async move { answer }
    });
    (client, calls, feed)
}

struct Running {
    namespaces: Arc<KubeNamespaces>,
    calls: Calls,
    feed: Feed,
    _stop: tokio_util::sync::DropGuard,
}

async fn run(listed: Vec<Value>, late: Response<Body>) -> Running {
    let (client, calls, feed) = api_server(listed, late);
    let namespaces = KubeNamespaces::new(client);
    let stop = CancellationToken::new();
    let (followed, stopped) = (Arc::clone(&namespaces), stop.clone());
    tokio::spawn(async move { followed.run(stopped).await });
    eventually("synced", || namespaces.is_synced()).await;
    eventually("a watch", || feed.lock().is_some()).await;
    Running {
        namespaces,
        calls,
        feed,
        _stop: stop.drop_guard(),
    }
}

fn late() -> Response<Body> {
    json_answer(200, &namespace("late", "Active"))
}

#[tokio::test]
async fn a_known_namespace_is_judged_without_asking() {
    let listed = vec![namespace("a", "Active"), namespace("going", "Terminating")];
    let running = run(listed, late()).await;
    let asked = running.calls.count();
    assert_eq!(running.namespaces.check_create("a").await, Ok(()));
    assert_eq!(
        running.namespaces.check_create("going").await,
        Err(NamespaceError::Terminating("going".to_owned()))
    );
    assert_eq!(running.calls.count(), asked);
}

#[tokio::test]
async fn a_namespace_that_nobody_knows_is_not_found() {
    let running = run(Vec::new(), late()).await;
    assert_eq!(
        running.namespaces.check_create("nowhere").await,
        Err(NamespaceError::NotFound("nowhere".to_owned()))
    );
}

#[tokio::test]
async fn a_namespace_the_watch_has_not_brought_is_read_live() {
    let running = run(Vec::new(), late()).await;
    assert_eq!(running.namespaces.check_create("late").await, Ok(()));
}

#[tokio::test]
async fn a_live_read_that_finds_it_terminating_refuses() {
    let running = run(
        Vec::new(),
        json_answer(200, &namespace("late", "Terminating")),
    )
    .await;
    assert_eq!(
        running.namespaces.check_create("late").await,
        Err(NamespaceError::Terminating("late".to_owned()))
    );
}

#[tokio::test]
async fn a_live_read_that_fails_is_not_taken_for_not_found() {
    let running = run(Vec::new(), failure(500, "InternalError")).await;
    let answer = running.namespaces.check_create("late").await;
    assert!(
        matches!(answer, Err(NamespaceError::Unavailable { .. })),
        "{answer:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_arrives_while_waiting_is_not_read_live() {
    let running = run(Vec::new(), late()).await;
    let asked = running.calls.count();
    let (answer, ()) = tokio::join!(running.namespaces.check_create("new"), async {
        running
            .feed
            .lock()
            .as_ref()
            .unwrap()
            .send("ADDED", &namespace("new", "Active"));
    });
    assert_eq!(answer, Ok(()));
    assert_eq!(running.calls.count(), asked);
}

#[tokio::test]
async fn the_watch_brings_termination_and_deletion() {
    let running = run(vec![namespace("a", "Active")], late()).await;
    let send = |kind, object: &Value| running.feed.lock().as_ref().unwrap().send(kind, object);

    // The deletion timestamp says it too, whatever the phase.
    let mut going = namespace("a", "Active");
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    send("MODIFIED", &going);
    eventually("terminating", || {
        running.namespaces.known("a") == Some(Phase::Terminating)
    })
    .await;
    send("DELETED", &going);
    eventually("gone", || running.namespaces.known("a").is_none()).await;
}

#[tokio::test]
async fn static_namespaces_do_as_told() {
    let namespaces = StaticNamespaces::of(["a"]);
    assert_eq!(namespaces.check_create("a").await, Ok(()));
    assert!(namespaces.check_create("b").await.is_err());
    namespaces.set_terminating("a");
    assert!(namespaces.check_create("a").await.is_err());
    assert_eq!(StaticNamespaces::all().check_create("b").await, Ok(()));
}
