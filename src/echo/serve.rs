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

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use runtime_kit::SteppedClock;

    use super::*;

    async fn ask(method: Method, uri: &str, peer: &str) -> (StatusCode, Bytes) {
        let endpoint = Endpoint {
            key: key(),
            clock: Arc::new(SteppedClock::default()),
        };
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header("x-forwarded-for", "198.51.100.1")
            .header("forwarded", "for=198.51.100.1")
            .body(())
            .unwrap();
        let response = respond(&request, peer.parse().unwrap(), &endpoint);
        assert_eq!(response.headers()[header::CACHE_CONTROL], "no-store");
        let (head, body) = response.into_parts();
        (head.status, body.collect().await.unwrap().to_bytes())
    }

    fn key() -> Key {
        Key::new(b"a key of enough bytes").unwrap()
    }

    #[tokio::test]
    async fn the_signed_address_is_that_of_the_connection_whatever_headers_say() {
        let nonce = "0123456789abcdef";
        for (peer, seen) in [
            ("203.0.113.7:4000", "203.0.113.7"),
            ("[2001:db8::7]:4000", "2001:db8::7"),
            ("[::ffff:203.0.113.7]:4000", "203.0.113.7"),
        ] {
            let (status, body) = ask(Method::GET, &format!("/?nonce={nonce}"), peer).await;
            assert_eq!(status, StatusCode::OK);
            let answer: Answer = serde_json::from_slice(&body).unwrap();
            assert_eq!(answer.verify(&key(), nonce), Ok(seen.parse().unwrap()));
            let (_, body) = ask(Method::GET, "/ip", peer).await;
            assert_eq!(body, format!("{seen}\n"));
        }
    }

    #[tokio::test]
    async fn other_requests_get_what_they_ask_for_or_a_hint() {
        let peer = "203.0.113.7:4000";
        for (method, uri, status) in [
            (Method::GET, "/generate_204", 204),
            (Method::GET, "/healthz", 200),
            (Method::GET, "/", 400),
            (Method::GET, "/?nonce=short", 400),
            (Method::GET, "/?nonce=with%0Aa%20line%20break", 400),
            (Method::GET, "/favicon.ico", 404),
            (Method::POST, "/ip", 405),
        ] {
            let (answered, body) = ask(method.clone(), uri, peer).await;
            assert_eq!(answered.as_u16(), status, "{method} {uri}");
            assert_eq!(body.is_empty(), status == 204, "{method} {uri}");
        }
    }
}
