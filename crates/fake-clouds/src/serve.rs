//! HTTP/1.1 as the fakes need it: whole requests in, and connections that can drop without an
//! answer.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A fake of an API.
pub trait Fake: Send + Sync + 'static {
    /// Answers a request.
    fn handle(&self, request: Request) -> impl Future<Output = Outcome> + Send;
}

/// A request, read whole.
#[derive(Clone, Debug)]
pub struct Request {
    /// The verb.
    pub verb: Method,
    /// As sent, without the query.
    pub path: String,
    /// Decoded, in order.
    pub query: Vec<(String, String)>,
    /// Headers.
    pub headers: HeaderMap,
    /// The body as text.
    pub text: String,
    /// The body as JSON; none when it is empty or is not JSON.
    pub body: Option<Value>,
}

/// What becomes of a request.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// It is answered.
    Answer(Answer),
    /// The connection drops.
    Drop,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    status: u16,
    content_type: &'static str,
    body: String,
    headers: Vec<(&'static str, String)>,
}

// === impl Answer ===

impl Answer {
    /// With a JSON body.
    pub fn json(status: u16, body: &Value) -> Self {
        Self {
            status,
            content_type: "application/json; charset=UTF-8",
            body: body.to_string(),
            headers: Vec::new(),
        }
    }

    /// What a proxy in front of an API says when it has none to ask.
    pub fn page(status: u16) -> Self {
        Self {
            status,
            content_type: "text/html; charset=UTF-8",
            body: format!(
                "<!DOCTYPE html>\n<title>Error {status}</title>\n<p>That is all we know.\n"
            ),
            headers: Vec::new(),
        }
    }

    /// Adds a header.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: String) -> Self {
        self.headers.push((name, value));
        self
    }

    /// The value of a header that was added.
    #[cfg(test)]
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Status and body, for who has no use for HTTP.
    #[cfg(test)]
    pub(crate) fn into_parts(self) -> (u16, Value) {
        let body = serde_json::from_str(&self.body).unwrap_or_default();
        (self.status, body)
    }

    fn into_response(self) -> Response<Full<Bytes>> {
        let Self {
            status,
            content_type,
            body,
            headers: added,
        } = self;
        let mut response = Response::new(Full::new(body.into()));
        *response.status_mut() =
            StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            http::HeaderValue::from_static(content_type),
        );
        for (name, value) in added {
            if let Ok(value) = value.parse() {
                headers.insert(name, value);
            }
        }
        response
    }
}

/// A connection that drops on purpose.
#[derive(Debug)]
struct Dropped;

impl std::fmt::Display for Dropped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("dropped on purpose")
    }
}

impl std::error::Error for Dropped {}

/// Serves a fake until `stop`.
pub async fn serve(listener: TcpListener, fake: Arc<impl Fake>, stop: CancellationToken) {
    let connections = TaskTracker::new();
    let accepting = async {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let (fake, stop) = (Arc::clone(&fake), stop.clone());
                    connections.spawn(async move {
                        let _finished = stop.run_until_cancelled(connection(stream, fake)).await;
                    });
                },
                Err(error) => tracing::warn!(%error, "accept failed"),
            }
        }
    };
    let _never: Option<Infallible> = stop.run_until_cancelled(accepting).await;
    connections.close();
    connections.wait().await;
}

async fn connection(stream: TcpStream, fake: Arc<impl Fake>) {
    let answer = service_fn(|request: http::Request<Incoming>| {
        let fake = Arc::clone(&fake);
        async move {
            let request = read(request).await.map_err(|_| Dropped)?;
            match fake.handle(request).await {
                Outcome::Answer(answer) => Ok(answer.into_response()),
                Outcome::Drop => Err(Dropped),
            }
        }
    });
    let served = http1::Builder::new().serve_connection(TokioIo::new(stream), answer);
    if let Err(error) = served.await {
        tracing::debug!(%error, "a connection ended");
    }
}

async fn read(request: http::Request<Incoming>) -> Result<Request, hyper::Error> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let text = String::from_utf8_lossy(&body).into_owned();
    let query = parts.uri.query().unwrap_or_default();
    let query = url::form_urlencoded::parse(query.as_bytes());
    Ok(Request {
        verb: parts.method,
        path: parts.uri.path().to_owned(),
        query: query
            .map(|(key, value)| (key.into(), value.into()))
            .collect(),
        headers: parts.headers,
        body: serde_json::from_str(&text).ok(),
        text,
    })
}
