//! Serves the echo endpoint: TLS connections in, what was seen of them out.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use runtime_kit::{Clock, chain};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::answer::{Answer, Key, is_nonce};

/// Connections at a time; more wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 4096;
/// How long a handshake, and the head of a request, may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a request's head.
const MAX_HEAD: usize = 16 * 1024;
/// A pause after a failed accept, as when the process has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What every request needs.
pub(super) struct Endpoint {
    pub(super) key: Key,
    pub(super) clock: Arc<dyn Clock>,
}

/// Serves until `shutdown`.
pub(super) async fn serve(
    listener: TcpListener,
    tls: TlsAcceptor,
    endpoint: Endpoint,
    shutdown: CancellationToken,
) {
    let endpoint = Arc::new(endpoint);
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let connections = TaskTracker::new();
    let accepting = async {
        while let Ok(permit) = Arc::clone(&permits).acquire_owned().await {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                },
            };
            let connection = serve_connection(stream, peer, tls.clone(), Arc::clone(&endpoint));
            let shutdown = shutdown.clone();
            connections.spawn(async move {
                shutdown.run_until_cancelled(connection).await;
                drop(permit);
            });
        }
    };
    shutdown.run_until_cancelled(accepting).await;
    connections.close();
    connections.wait().await;
}

async fn serve_connection(
    stream: TcpStream,
    peer: SocketAddr,
    tls: TlsAcceptor,
    endpoint: Arc<Endpoint>,
) {
    let stream = match timeout(PATIENCE, tls.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%peer, %error, "handshake failed"),
        Err(_) => return tracing::debug!(%peer, "handshake timed out"),
    };
    let service = service_fn(|request: Request<hyper::body::Incoming>| {
        let answered = respond(&request, peer, &endpoint);
        async { Ok::<_, Infallible>(answered) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%peer, error = %chain(&error), "connection ended");
    }
}

/// Forwarding headers are never believed: the address is the connection's.
fn respond<B>(
    request: &Request<B>,
    peer: SocketAddr,
    endpoint: &Endpoint,
) -> Response<Full<Bytes>> {
    let ip = peer.ip().to_canonical();
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
    }
    match request.uri().path() {
        "/" => match nonce(request.uri().query().unwrap_or_default()) {
            Some(nonce) => signed(&Answer::sign(
                &endpoint.key,
                nonce,
                ip,
                endpoint.clock.now(),
            )),
            None => text(
                StatusCode::BAD_REQUEST,
                "ask for /?nonce=… with 16 to 128 letters and digits, or for /ip\n",
            ),
        },
        "/ip" => text(StatusCode::OK, format!("{ip}\n")),
        "/generate_204" => text(StatusCode::NO_CONTENT, ""),
        "/healthz" => text(StatusCode::OK, "ok\n"),
        _ => text(
            StatusCode::NOT_FOUND,
            "there is /?nonce=…, /ip, /generate_204 and /healthz\n",
        ),
    }
}

fn nonce(query: &str) -> Option<String> {
    url::form_urlencoded::parse(query.as_bytes())
        .find(|(name, _)| name == "nonce")
        .map(|(_, value)| value.into_owned())
        .filter(|value| is_nonce(value))
}

fn signed(answer: &Answer) -> Response<Full<Bytes>> {
    match serde_json::to_vec(answer) {
        Ok(body) => respond_with(StatusCode::OK, "application/json", body),
        Err(error) => {
            tracing::error!(%error, "an answer was not written");
            text(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the answer was not written\n",
            )
        },
    }
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    respond_with(status, "text/plain; charset=utf-8", body)
}

fn respond_with(
    status: StatusCode,
    kind: &'static str,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
