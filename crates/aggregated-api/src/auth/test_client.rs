//! A Kubernetes client whose API server is a closure, for the unit tests of `auth` and
//! `admission`.

use std::{convert::Infallible, sync::Arc};

use axum::body::Body;
use futures::channel::mpsc;
use http::{Request, Response};
use http_body_util::BodyExt;
use kube::Client;
use parking_lot::Mutex;
use serde_json::{Value, json};

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) method: String,
    /// With the query.
    pub(crate) path: String,
    pub(crate) body: Value,
}

impl Call {
    pub(crate) fn is_watch(&self) -> bool {
        self.path.contains("watch=true")
    }

    pub(crate) fn is_list(&self) -> bool {
        self.method == "GET" && self.path.contains("limit=") && !self.is_watch()
    }
}

#[derive(Clone, Default)]
pub(crate) struct Calls(Arc<Mutex<Vec<Call>>>);

impl Calls {
    pub(crate) fn all(&self) -> Vec<Call> {
        self.0.lock().clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.0.lock().len()
    }
}

pub(crate) fn client<F, A>(answer: F) -> (Client, Calls)
where
    F: Fn(Call) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = Response<Body>> + Send,
{
    let calls = Calls::default();
    let recorded = calls.clone();
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let (answer, recorded) = (answer.clone(), recorded.clone());
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let call = Call {
                method: head.method.to_string(),
                path: head.uri.path_and_query().unwrap().to_string(),
                body: serde_json::from_slice(&body).unwrap_or_default(),
            };
            recorded.0.lock().push(call.clone());
            Ok::<_, Infallible>(answer(call).await)
        }
    });
    (Client::new(service, "default"), calls)
}

pub(crate) fn json_answer(code: u16, body: &Value) -> Response<Body> {
    Response::builder()
        .status(code)
        .header("content-type", "application/json")
        .body(Body::from(body.to_string()))
        .unwrap()
}

pub(crate) fn failure(code: u16, reason: &str) -> Response<Body> {
    json_answer(
        code,
        &json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": format!("a test says {reason}"), "reason": reason, "code": code,
        }),
    )
}

/// A watch whose events the test sends.
pub(crate) struct WatchFeed(mpsc::UnboundedSender<Result<String, Infallible>>);

impl WatchFeed {
    pub(crate) fn send(&self, kind: &str, object: &Value) {
        let line = json!({"type": kind, "object": object}).to_string() + "\n";
        self.0.unbounded_send(Ok(line)).unwrap();
    }
}

pub(crate) fn watch() -> (WatchFeed, Response<Body>) {
    let (sender, events) = mpsc::unbounded();
    (WatchFeed(sender), Response::new(Body::from_stream(events)))
}

/// Waits until `condition` holds, however the tasks are scheduled.
pub(crate) async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = tokio::time::Duration::from_secs(10);
    let met = async {
        while !condition() {
            tokio::time::sleep(tokio::time::Duration::from_millis(2)).await;
        }
    };
    assert!(
        tokio::time::timeout(deadline, met).await.is_ok(),
        "not within {deadline:?}: {what}"
    );
}
