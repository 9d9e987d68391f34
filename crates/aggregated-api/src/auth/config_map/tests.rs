use axum::body::Body;
use http::Response;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;
use crate::auth::{
    test_client::{Call, WatchFeed, client, eventually, failure, json_answer, watch},
    test_pki::{Authority, clock},
};

fn config_map(proxy_ca: &Authority, revision: &str) -> Value {
    json!({
        "kind": "ConfigMap", "apiVersion": "v1",
        "metadata": {"name": NAME, "namespace": NAMESPACE, "resourceVersion": revision},
        "data": {
            "requestheader-client-ca-file": proxy_ca.pem(),
            "requestheader-username-headers": "[\"X-Remote-User\"]",
        },
    })
}

fn list(items: &[Value]) -> Response<Body> {
    json_answer(
        200,
        &json!({
            "kind": "ConfigMapList", "apiVersion": "v1",
            "metadata": {"resourceVersion": "1"}, "items": items,
        }),
    )
}

/// Answers lists with `items`, reads with 404, and keeps the latest watch for the test to feed.
fn api_server(items: Vec<Value>) -> (Client, Arc<Mutex<Option<WatchFeed>>>) {
    let feed = Arc::new(Mutex::new(None));
    let kept = Arc::clone(&feed);
    let (client, _) = client(move |call: Call| {
        let answer = if call.is_watch() {
            let (feed, answer) = watch();
            *kept.lock() = Some(feed);
            answer
        } else if call.is_list() {
            assert!(
                call.path.contains("fieldSelector=metadata.name%3D"),
                "{}",
                call.path
            );
            list(&items)
        } else {
            failure(404, "NotFound")
        };
        async move { answer }
    });
    (client, feed)
}

struct Running {
    config: Arc<DelegatedConfig>,
    _stop: tokio_util::sync::DropGuard,
}

fn run(client: Client) -> Running {
    let config = DelegatedConfig::pending(clock());
    let stop = CancellationToken::new();
    let (followed, stopped) = (Arc::clone(&config), stop.clone());
    tokio::spawn(async move { followed.run(client, stopped).await });
    Running {
        config,
        _stop: stop.drop_guard(),
    }
}

fn trusts(config: &DelegatedConfig, ca: &Authority) -> bool {
    let proxy = ca.client("front-proxy-client").peer();
    config
        .trust()
        .request_header
        .as_ref()
        .is_some_and(|proxied| proxied.ca.verify(&proxy).is_ok())
}

#[tokio::test]
async fn a_rotated_ca_arrives_on_the_watch() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let (client, feed) = api_server(vec![config_map(&old, "1")]);
    let running = run(client);
    running.config.settled().await;
    assert_eq!(running.config.state(), ConfigState::Loaded);
    assert!(trusts(&running.config, &old));

    let changes = running.config.subscribe();
    eventually("a watch", || feed.lock().is_some()).await;
    feed.lock()
        .as_ref()
        .unwrap()
        .send("MODIFIED", &config_map(&new, "2"));
    eventually("the new CA", || trusts(&running.config, &new)).await;
    assert!(!trusts(&running.config, &old));
    assert!(changes.has_changed().unwrap());
}

#[tokio::test]
async fn without_the_config_map_the_server_starts_and_trusts_nobody() {
    let (client, _feed) = api_server(Vec::new());
    let running = run(client);
    running.config.settled().await;
    assert_eq!(running.config.state(), ConfigState::Absent);
    assert!(running.config.trust().request_header.is_none());
}

#[tokio::test]
async fn a_config_map_that_is_deleted_leaves_the_trust_in_force() {
    let ca = Authority::new("proxy-ca");
    let (client, feed) = api_server(vec![config_map(&ca, "1")]);
    let running = run(client);
    running.config.settled().await;
    eventually("a watch", || feed.lock().is_some()).await;
    feed.lock()
        .as_ref()
        .unwrap()
        .send("DELETED", &config_map(&ca, "2"));
    eventually("absent", || running.config.state() == ConfigState::Absent).await;
    assert!(trusts(&running.config, &ca));
}

#[tokio::test(start_paused = true)]
async fn forbidden_is_told_apart_and_ends_when_the_role_is_bound() {
    let ca = Authority::new("proxy-ca");
    let items = list(&[config_map(&ca, "1")]);
    let bound = Arc::new(Mutex::new(None::<Response<Body>>));
    let answers = Arc::clone(&bound);
    let (client, _) = client(move |call: Call| {
        let answer = if call.is_list() {
            answers.lock().take()
        } else {
            None
        };
        async move { answer.unwrap_or_else(|| failure(403, "Forbidden")) }
    });
    let running = run(client);
    eventually("forbidden", || {
        running.config.state() == ConfigState::Forbidden
    })
    .await;
    *bound.lock() = Some(items);
    running.config.settled().await;
    assert!(trusts(&running.config, &ca));
}

#[tokio::test(start_paused = true)]
async fn a_missed_change_is_found_within_a_minute() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let (listed, read) = (config_map(&old, "1"), config_map(&new, "2"));
    let (client, _) = client(move |call: Call| {
        let answer = if call.is_watch() {
            let (feed, answer) = watch();
            // A watch that never says anything.
            std::mem::forget(feed);
            answer
        } else if call.is_list() {
            list(std::slice::from_ref(&listed))
        } else {
            json_answer(200, &read)
        };
        async move { answer }
    });
    let running = run(client);
    running.config.settled().await;
    let mut changes = running.config.subscribe();
    let began = tokio::time::Instant::now();
    changes.changed().await.unwrap();
    assert!(began.elapsed() <= Duration::from_mins(1));
    assert!(trusts(&running.config, &new));
}
