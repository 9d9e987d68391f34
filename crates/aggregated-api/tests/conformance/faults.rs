//! Deliberate faults: a layer around our server that spoils requests or answers when the runner asks
//! for it in a header, so that the cases themselves are tested.

use std::convert::Infallible;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, RETRY_AFTER};
use http::{HeaderValue, Request, Response, StatusCode, request, response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tower::{Layer, Service};

use crate::fault_list::FAULTS;

/// The header that asks for a fault.
pub(crate) const FAULT_HEADER: &str = "x-conformance-fault";

/// The fault of which only a case of its own speaks: the handler panics.
const PANIC: &str = "panic";

/// Unwinds as a panic does, but says nothing to the hook that reports panics.
fn panic_on_purpose() -> Result<Response<Body>, Infallible> {
    std::panic::resume_unwind(Box::new("asked for by a conformance case"))
}

/// A fault, and the cases each of which is there to notice it.
pub(crate) struct Fault {
    /// Short enough for a namespace.
    pub(crate) name: &'static str,
    /// What goes wrong.
    pub(crate) what: &'static str,
    /// At least one of these cases has to fail.
    pub(crate) cases: &'static [&'static str],
    /// How it goes wrong.
    pub(crate) kind: Kind,
}

/// Where a fault acts.
pub(crate) enum Kind {
    /// On what the server is asked.
    Request(fn(&mut request::Parts)),
    /// On status and headers.
    Head(fn(&mut response::Parts)),
    /// On a JSON body.
    Body(fn(&mut Value)),
    /// On the events of a watch: from what is held back and the next event to what is sent.
    Events(fn(&mut Vec<Value>, Value) -> Vec<Value>),
}

/// Makes [`Faulty`].
#[derive(Clone, Copy)]
pub(crate) struct FaultLayer;

impl<S> Layer<S> for FaultLayer {
    type Service = Faulty<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Faulty { inner }
    }
}

/// A server that fails on demand.
#[derive(Clone)]
pub(crate) struct Faulty<S> {
    inner: S,
}

impl<S> Service<Request<Incoming>> for Faulty<S>
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let name = request.headers().get(FAULT_HEADER).cloned();
        if name.as_ref().is_some_and(|name| name == PANIC) {
            return Box::pin(async { panic_on_purpose() });
        }
        let Some(fault) = FAULTS
            .iter()
            .find(|fault| name.as_ref().is_some_and(|name| name == fault.name))
        else {
            return Box::pin(self.inner.call(request));
        };
        let (mut parts, body) = request.into_parts();
        let watch = parts
            .uri
            .query()
            .is_some_and(|query| query.contains("watch="));
        if let Kind::Request(spoil) = fault.kind {
            spoil(&mut parts);
        }
        let answering = self.inner.call(Request::from_parts(parts, body));
        Box::pin(async move {
            let response = answering.await?;
            let (mut parts, body) = response.into_parts();
            let streaming = watch && parts.status == StatusCode::OK;
            let body = match fault.kind {
                Kind::Head(spoil) => {
                    spoil(&mut parts);
                    body
                },
                Kind::Body(spoil) if !streaming => spoil_body(body, spoil).await,
                Kind::Events(spoil) if streaming => spoil_events(body, spoil),
                Kind::Request(_) | Kind::Body(_) | Kind::Events(_) => body,
            };
            Ok(Response::from_parts(parts, body))
        })
    }
}

async fn spoil_body(body: Body, spoil: fn(&mut Value)) -> Body {
    let Ok(bytes) = body.collect().await else {
        return Body::empty();
    };
    let bytes = bytes.to_bytes();
    let Ok(mut value) = serde_json::from_slice::<Value>(&bytes) else {
        return Body::from(bytes);
    };
    spoil(&mut value);
    Body::from(format!("{value}\n"))
}

fn spoil_events(body: Body, spoil: fn(&mut Vec<Value>, Value) -> Vec<Value>) -> Body {
    let mut unread = Vec::new();
    let mut held = Vec::new();
    let stream = body.into_data_stream().map(move |chunk| {
        unread.extend_from_slice(&chunk?);
        let mut out = String::new();
        while let Some(end) = unread.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = unread.drain(..=end).collect();
            let Ok(event) = serde_json::from_slice(&line) else {
                continue;
            };
            for event in spoil(&mut held, event) {
                out.push_str(&event.to_string());
                out.push('\n');
            }
        }
        Ok::<_, axum::Error>(Bytes::from(out))
    });
    Body::from_stream(stream)
}

/// Takes one parameter out of the query.
pub(crate) fn without_parameter(parts: &mut request::Parts, name: &str) {
    let query = parts.uri.query().unwrap_or_default();
    let kept: Vec<_> = query
        .split('&')
        .filter(|pair| pair.split('=').next() != Some(name))
        .collect();
    let uri = format!("{}?{}", parts.uri.path(), kept.join("&"));
    if let Ok(uri) = uri.parse() {
        parts.uri = uri;
    }
}

/// Takes a member out of an object.
pub(crate) fn remove(value: &mut Value, parent: &str, name: &str) {
    if let Some(Value::Object(members)) = value.pointer_mut(parent) {
        members.remove(name);
    }
}

/// Puts a value where there is one.
pub(crate) fn replace(value: &mut Value, at: &str, with: Value) {
    if let Some(found) = value.pointer_mut(at) {
        *found = with;
    }
}

/// Lets one header be lost.
pub(crate) fn lose(parts: &mut response::Parts, name: &str) {
    parts.headers.remove(name);
}

pub(crate) fn lose_cache_control(parts: &mut response::Parts) {
    parts.headers.remove(CACHE_CONTROL);
}

pub(crate) fn lose_etag(parts: &mut response::Parts) {
    parts.headers.remove(ETAG);
}

pub(crate) fn lose_retry_after(parts: &mut response::Parts) {
    parts.headers.remove(RETRY_AFTER);
}

pub(crate) fn as_text(parts: &mut response::Parts) {
    let text = HeaderValue::from_static("text/plain");
    parts.headers.insert(CONTENT_TYPE, text);
}

pub(crate) fn with_charset(parts: &mut response::Parts) {
    let text = HeaderValue::from_static("application/json; charset=utf-8");
    parts.headers.insert(CONTENT_TYPE, text);
}

/// Whether an event is of this type.
pub(crate) fn is(event: &Value, kind: &str) -> bool {
    event["type"] == json!(kind)
}
