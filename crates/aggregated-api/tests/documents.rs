//! What a server says of itself: readiness, version, metrics and documents, against a server in this
//! process. Expected answers are those of `k8s.io/apiserver`.

#![expect(
    clippy::unwrap_used,
    reason = "a helper that cannot do its work fails its test"
)]

#[expect(dead_code, reason = "shared with other tests, which use more of it")]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use aggregated_api::admission::StaticNamespaces;
use aggregated_api::auth::testing::{HeaderIdentity, ListAuthorizer};
use aggregated_api::http::service::ApiServer;
use aggregated_api::registry::cache::StoreCache;
use aggregated_api::registry::collection::Collection;
use aggregated_api::registry::serving::Serving;
use aggregated_api::store::redb::{Options, RedbStore};
use axum::body::Body;
use common::{COLLECTION, Flunder, Rules};
use http::{HeaderMap, Request};
use http_body_util::BodyExt as _;
use runtime_kit::clock::SystemClock;
use serde_json::{Value, json};
use tower::ServiceExt as _;

/// A server that is ready while `ready` is set.
async fn server(ready: &Arc<AtomicBool>) -> ApiServer {
    let store = Arc::new(RedbStore::in_memory(Options::default()).unwrap());
    let cache = StoreCache::start(store).await.unwrap();
    let clock = SystemClock::shared();
    let flunders: Collection<Flunder> = Collection::new(&cache, Arc::clone(&clock)).unwrap();
    let ready = Arc::clone(ready);
    ApiServer::builder(
        Arc::new(HeaderIdentity),
        Arc::new(ListAuthorizer::allow_all()),
        Arc::new(StaticNamespaces::of(["ns"])),
        clock,
    )
    .serve(Serving::new(flunders).create(Arc::new(Rules)))
    .ready_check(
        "inputs",
        Arc::new(move || {
            let ready = ready.load(Ordering::SeqCst);
            ready.then_some(()).ok_or_else(|| "not there".to_owned())
        }),
    )
    .build(&prometheus::Registry::new())
    .unwrap()
}

async fn get(server: &ApiServer, path: &str) -> (u16, HeaderMap, String) {
    let request = Request::get(path)
        .header("x-test-user", "bob")
        .body(Body::empty())
        .unwrap();
    let (head, body) = server.clone().oneshot(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let text = String::from_utf8(body.to_vec()).unwrap();
    (head.status.as_u16(), head.headers, text)
}

#[tokio::test]
async fn a_server_that_was_never_ready_says_503_and_not_404() {
    let ready = Arc::new(AtomicBool::new(false));
    let server = server(&ready).await;
    let not_yet = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "the request has been made before all known HTTP paths have been installed, please try again",
        "reason": "ServiceUnavailable", "details": {"retryAfterSeconds": 5}, "code": 503,
    });
    let missing = format!("{COLLECTION}/missing");
    for path in [
        COLLECTION,
        &missing,
        "/apis/wardle.example.com/v1alpha1",
        "/apis/wardle.example.com/v1alpha1/unknown",
        "/apis",
        "/openapi/v2",
    ] {
        let (status, headers, body) = get(&server, path).await;
        assert_eq!(status, 503, "{path}");
        assert_eq!(headers["retry-after"], "5", "{path}");
        assert_eq!(
            serde_json::from_str::<Value>(&body).unwrap(),
            not_yet,
            "{path}"
        );
    }
    assert_eq!(get(&server, "/livez").await.0, 200);
    assert_eq!(get(&server, "/readyz").await.0, 500);
    ready.store(true, Ordering::SeqCst);
    assert_eq!(get(&server, "/readyz").await.0, 200);
    assert_eq!(get(&server, COLLECTION).await.0, 200);
    assert_eq!(get(&server, &missing).await.0, 404);
    // It stays able to answer: what a check misses later is no reason to know nothing.
    ready.store(false, Ordering::SeqCst);
    assert_eq!(get(&server, "/readyz").await.0, 500);
    assert_eq!(get(&server, COLLECTION).await.0, 200);
}

#[tokio::test]
async fn metrics_tell_of_requests() {
    let server = server(&Arc::new(AtomicBool::new(true))).await;
    assert_eq!(get(&server, COLLECTION).await.0, 200);
    let (status, headers, text) = get(&server, "/metrics").await;
    assert_eq!(status, 200);
    let media = headers["content-type"].to_str().unwrap();
    assert!(media.starts_with("text/plain; version=0.0.4"), "{media}");
    let counted = text.lines().any(|line| {
        line.starts_with("apiserver_request_total{")
            && line.contains(r#"resource="flunders""#)
            && line.ends_with("} 1")
    });
    assert!(counted, "{text}");
}

async fn aggregated(server: &ApiServer) -> (String, Value) {
    let request = Request::get("/apis")
        .header("x-test-user", "bob")
        .header(
            "accept",
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        )
        .body(Body::empty())
        .unwrap();
    let (head, body) = server.clone().oneshot(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let tag = head.headers["etag"].to_str().unwrap().to_owned();
    (tag, serde_json::from_slice(&body).unwrap())
}

/// kube-apiserver asks whichever replica it reaches, and the kinds of a server never change.
#[tokio::test]
async fn replicas_serve_the_same_documents_and_both_forms_of_discovery_agree() {
    const GV: &str = "/apis/wardle.example.com/v1alpha1";
    let ready = Arc::new(AtomicBool::new(true));
    let (one, other) = (server(&ready).await, server(&ready).await);
    assert_eq!(aggregated(&one).await, aggregated(&other).await);
    for path in [GV, "/apis", "/openapi/v2", "/openapi/v3"] {
        let (first, second) = (get(&one, path).await, get(&other, path).await);
        assert_eq!(first.2, second.2, "{path}");
        assert_eq!(first.1.get("etag"), second.1.get("etag"), "{path}");
    }
    let (_, document) = aggregated(&one).await;
    let legacy: Value = serde_json::from_str(&get(&one, GV).await.2).unwrap();
    let names = |list: &Value, name: &str| -> Vec<(Value, Value)> {
        let resources = list["resources"].as_array().unwrap().iter();
        resources
            .map(|resource| (resource[name].clone(), resource["verbs"].clone()))
            .collect()
    };
    let version = &document["items"][0]["versions"][0];
    assert_eq!(names(&legacy, "name"), names(version, "resource"));
    assert_eq!(names(&legacy, "name").len(), 1);
}
