//! Requests that are turned away: too many at a time, a store that does not answer, tables of what has
//! no metadata.

#![expect(
    clippy::unwrap_used,
    reason = "a helper that cannot do its work fails its test"
)]

#[expect(dead_code, reason = "shared with other tests, which use more of it")]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use aggregated_api::store::redb::{Options, RedbStore};
use aggregated_api::store::{Batch, Compare, Error, Listing, Op, Outcome, Record, Revision, Store};
use async_trait::async_trait;
use axum::body::Body;
use bytes::Bytes;
use common::{COLLECTION, Server};
use futures::stream::BoxStream;
use http::{Request, Response};
use http_body_util::BodyExt;
use serde_json::{Value, json};

fn post(groups: &str, body: Body) -> Request<Body> {
    Request::post(COLLECTION)
        .header("x-test-user", "bob")
        .header("x-test-group", groups)
        .body(body)
        .unwrap()
}

fn flunder(name: &str) -> Body {
    Body::from(json!({"metadata": {"name": name}, "spec": {}}).to_string())
}

async fn text(response: Response<Body>) -> String {
    let body = response.into_body().collect().await.unwrap();
    String::from_utf8(body.to_bytes().to_vec()).unwrap()
}

// Numbers and answer are those of k8s.io/apiserver/pkg/server: config.go and filters/maxinflight.go.
#[tokio::test]
async fn the_201st_write_at_a_time_is_429_unless_it_is_by_a_master() {
    let server = Server::start().await;
    let (senders, mut unfinished): (Vec<_>, Vec<_>) = (0..200)
        .map(|_| {
            let (sender, receiver) = tokio::sync::mpsc::channel::<Result<Bytes, Error>>(1);
            let body = Body::from_stream(tokio_stream::wrappers::ReceiverStream::new(receiver));
            (sender, Box::pin(server.send(post("", body))))
        })
        .unzip();
    for request in &mut unfinished {
        assert!(futures::poll!(request).is_pending());
    }

    let refused = server.send(post("", flunder("b"))).await;
    assert_eq!(refused.status(), 429);
    let header = |name: &str| refused.headers()[name].to_str().unwrap().to_owned();
    assert_eq!(header("retry-after"), "1");
    assert_eq!(header("content-type"), "text/plain; charset=utf-8");
    assert_eq!(
        text(refused).await,
        "Too many requests, please try again later.\n"
    );
    assert_eq!(server.call("GET", COLLECTION, None).await.0, 200);
    let by_a_master = server.send(post("system:masters", flunder("c"))).await;
    assert_eq!(by_a_master.status(), 201);

    drop(senders);
    for request in unfinished {
        assert_eq!(request.await.status(), 400, "an empty body");
    }
    assert_eq!(server.send(post("", flunder("b"))).await.status(), 201);
}

/// A store that can be out of reach.
struct Faulty {
    store: RedbStore,
    down: AtomicBool,
}

impl Faulty {
    fn check(&self) -> Result<(), Error> {
        if self.down.load(Ordering::SeqCst) {
            return Err(Error::Unavailable {
                message: "pulled".to_owned(),
                source: None,
            });
        }
        Ok(())
    }
}

#[async_trait]
impl Store for Faulty {
    async fn get(&self, key: &str) -> Result<Option<Record>, Error> {
        self.check()?;
        self.store.get(key).await
    }

    async fn list(
        &self,
        prefix: &str,
        at: Option<Revision>,
        from: Option<&str>,
        limit: Option<usize>,
    ) -> Result<Listing, Error> {
        self.check()?;
        self.store.list(prefix, at, from, limit).await
    }

    async fn txn(&self, compares: Vec<Compare>, ops: Vec<Op>) -> Result<Outcome, Error> {
        self.check()?;
        self.store.txn(compares, ops).await
    }

    fn watch(&self, prefix: &str, after: Revision) -> BoxStream<'static, Result<Batch, Error>> {
        self.store.watch(prefix, after)
    }

    fn revision(&self) -> Revision {
        self.store.revision()
    }

    async fn current_revision(&self) -> Result<Revision, Error> {
        self.check()?;
        self.store.current_revision().await
    }

    async fn compact(&self, revision: Revision) -> Result<(), Error> {
        self.store.compact(revision).await
    }

    fn size_bytes(&self) -> u64 {
        self.store.size_bytes()
    }
}

// The answers are those of k8s.io/apiserver/pkg/registry/generic/registry, storage/errors and
// apimachinery's NewServerTimeout.
#[tokio::test]
async fn a_store_out_of_reach_is_server_timeout_with_the_operation() {
    let store = Arc::new(Faulty {
        store: RedbStore::in_memory(Options::default()).unwrap(),
        down: AtomicBool::new(false),
    });
    let server = Server::on(Arc::<Faulty>::clone(&store)).await;
    server.create("a", json!({})).await;
    store.down.store(true, Ordering::SeqCst);
    let one = format!("{COLLECTION}/a");
    let body = || Some(json!({"metadata": {"name": "b"}, "spec": {}}));
    for (method, path, body, operation) in [
        ("GET", COLLECTION, None, "list"),
        ("GET", &one, None, "get"),
        ("POST", COLLECTION, body(), "create"),
        (
            "PATCH",
            &one,
            Some(json!({"metadata": {"labels": {"a": "b"}}})),
            "update",
        ),
        ("DELETE", &one, None, "delete"),
    ] {
        let (status, answer) = server.call(method, path, body).await;
        assert_eq!(status, 500, "{answer}");
        assert_eq!(
            answer,
            json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": format!("The {operation} operation against flunders.wardle.example.com could not be completed at this time, please try again."),
                "reason": "ServerTimeout",
                "details": {"name": operation, "group": "wardle.example.com", "kind": "flunders", "retryAfterSeconds": 2},
                "code": 500,
            })
        );
    }
    store.down.store(false, Ordering::SeqCst);
    assert_eq!(server.call("GET", &one, None).await.0, 200);
}

// The text is that of k8s.io/apiserver/pkg/registry/rest/table.go.
#[tokio::test]
async fn what_has_no_metadata_cannot_be_a_table() {
    let server = Server::start().await;
    server.create("a", json!({})).await;
    let poke = async |accept: &str| {
        let request = Request::post(format!("{COLLECTION}/a/poke"))
            .header("x-test-user", "bob")
            .header("accept", accept)
            .body(Body::from(json!({"word": "w"}).to_string()))
            .unwrap();
        let response = server.send(request).await;
        let status = response.status().as_u16();
        (
            status,
            serde_json::from_str::<Value>(&text(response).await).unwrap(),
        )
    };
    let (status, refusal) = poke("application/json;as=Table;v=v1;g=meta.k8s.io").await;
    assert_eq!((status, &refusal["reason"]), (406, &json!("NotAcceptable")));
    assert_eq!(
        refusal["message"],
        "the resource flunders.wardle.example.com does not support being converted to a Table"
    );
    let (_, flunder) = server.call("GET", &format!("{COLLECTION}/a"), None).await;
    assert_eq!(
        flunder["status"],
        Value::Null,
        "nothing was done: {flunder}"
    );
    assert_eq!(poke("application/json").await.0, 201);
}
