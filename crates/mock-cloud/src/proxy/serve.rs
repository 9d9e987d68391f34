//! One connection of a client: authentication, then forwarding or a tunnel, or the misbehaviour
//! the instance was told to show.

use std::{convert::Infallible, sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Uri, header, uri::PathAndQuery};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use runtime_kit::chain;
use tokio::{io::AsyncWriteExt, net::TcpStream, sync::OwnedSemaphorePermit, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Spec,
    dial::{self, dial},
    headers::strip_hop_by_hop,
    socks5,
};
use crate::faults::Behaviour;

/// How long a client may take to send its head.
pub(super) const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of a head, on both sides.
const MAX_HEAD: usize = 64 * 1024;
/// How long a target may take to begin its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);

pub(super) const PORTAL_PAGE: &str = "<!doctype html><html><head><title>Welcome</title></head>\
    <body><h1>Welcome to the guest network</h1><p>Please log in to go on.</p></body></html>\n";

type Body = BoxBody<Bytes, hyper::Error>;

/// What one connection needs.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) spec: Arc<Spec>,
    pub(crate) cut: CancellationToken,
    pub(crate) tasks: TaskTracker,
    /// Held until the connection, and a tunnel on it, has ended.
    pub(crate) permit: Arc<OwnedSemaphorePermit>,
}

/// Serves the connection to its end.
pub(crate) async fn serve(stream: TcpStream, connection: Connection) {
    if connection.spec.behaviour == Behaviour::Hang {
        std::future::pending::<()>().await;
    }
    let mut first = [0];
    let begun = timeout(HEAD_TIMEOUT, stream.peek(&mut first)).await;
    let ended = match begun {
        Ok(Ok(1)) if first == [socks5::VERSION] => socks5::serve(stream, &connection.spec).await,
        Ok(Ok(_)) => serve_http(stream, connection)
            .await
            .map_err(std::io::Error::other),
        Ok(Err(error)) => Err(error),
        Err(_) => return,
    };
    if let Err(error) = ended {
        tracing::debug!(
            error = %chain(&error),
            "client connection ended"
        );
    }
}

async fn serve_http(stream: TcpStream, connection: Connection) -> Result<(), hyper::Error> {
    let service = service_fn(|request| {
        let connection = connection.clone();
        async move { Ok::<_, Infallible>(answer(request, connection).await) }
    });
    hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await
}

async fn answer(request: Request<Incoming>, connection: Connection) -> Response<Body> {
    let spec = &connection.spec;
    match spec.behaviour {
        Behaviour::CaptivePortal if request.method() == Method::CONNECT => {
            return portal_in_a_tunnel(request, connection);
        },
        Behaviour::CaptivePortal => return page(StatusCode::OK, "text/html", PORTAL_PAGE),
        Behaviour::RejectAuth => return authentication_required(),
        Behaviour::Normal
        | Behaviour::Dead
        | Behaviour::Hang
        | Behaviour::BlackHole
        | Behaviour::WrongExit { .. } => {},
    }
    if !is_authorised(&request, spec) {
        return authentication_required();
    }
    let answered = if request.method() == Method::CONNECT {
        tunnel(request, connection).await
    } else {
        forward(request, &connection).await
    };
    answered.unwrap_or_else(|error| error.response())
}

/// An answer to CONNECT has no body: what a client reads after it is the page.
fn portal_in_a_tunnel(request: Request<Incoming>, connection: Connection) -> Response<Body> {
    let Connection {
        spec: _,
        cut,
        tasks,
        permit,
    } = connection;
    tasks.spawn(async move {
        let said = cut.run_until_cancelled(async {
            let client = hyper::upgrade::on(request)
                .await
                .map_err(std::io::Error::other)?;
            let mut client = TokioIo::new(client);
            client.write_all(PORTAL_PAGE.as_bytes()).await?;
            client.shutdown().await?;
            // Why: closing while bytes are unread would take the page back.
            tokio::io::copy(&mut client, &mut tokio::io::sink()).await
        });
        if let Some(Err(error)) = said.await {
            tracing::debug!(%error, "tunnel ended");
        }
        drop(permit);
    });
    Response::new(empty())
}

/// Why a request came to nothing.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("this is a proxy: send an absolute http URL or CONNECT host:port")]
    NotForProxy,
    #[error(transparent)]
    Dial(#[from] dial::Error),
    #[error("the target did not answer in time")]
    AnswerTimeout,
    #[error("the target's answer broke off: {0}")]
    Upstream(#[from] hyper::Error),
}

impl Error {
    fn response(&self) -> Response<Body> {
        let status = match self {
            Self::NotForProxy => StatusCode::BAD_REQUEST,
            Self::AnswerTimeout | Self::Dial(dial::Error::Timeout(_)) => {
                StatusCode::GATEWAY_TIMEOUT
            },
            Self::Dial(_) | Self::Upstream(_) => StatusCode::BAD_GATEWAY,
        };
        page(status, "text/plain; charset=utf-8", format!("{self}\n"))
    }
}

async fn tunnel(
    request: Request<Incoming>,
    connection: Connection,
) -> Result<Response<Body>, Error> {
    let (host, port) = request
        .uri()
        .authority()
        .and_then(|authority| Some((authority.host().to_owned(), authority.port_u16()?)))
        .ok_or(Error::NotForProxy)?;
    let mut upstream = dial(&host, port, connection.spec.exit).await?;
    let Connection {
        spec: _,
        cut,
        tasks,
        permit,
    } = connection;
    tasks.spawn(async move {
        let copied = cut.run_until_cancelled(async {
            let client = hyper::upgrade::on(request)
                .await
                .map_err(std::io::Error::other)?;
            // Ends when both sides have ended; the end of one is passed on to the other.
            tokio::io::copy_bidirectional(&mut TokioIo::new(client), &mut upstream).await
        });
        if let Some(Err(error)) = copied.await {
            tracing::debug!(%error, "tunnel ended");
        }
        drop(permit);
    });
    Ok(Response::new(empty()))
}

async fn forward(
    mut request: Request<Incoming>,
    connection: &Connection,
) -> Result<Response<Body>, Error> {
    let uri = request.uri().clone();
    let authority = match (uri.scheme_str(), uri.authority()) {
        (Some("http"), Some(authority)) => authority.clone(),
        _ => return Err(Error::NotForProxy),
    };
    let port = authority.port_u16().unwrap_or(80);
    let upstream = dial(authority.host(), port, connection.spec.exit).await?;
    let (mut sender, running) = hyper::client::conn::http1::Builder::new()
        .max_buf_size(MAX_HEAD)
        .handshake(TokioIo::new(upstream))
        .await?;
    let cut = connection.cut.clone();
    connection.tasks.spawn(async move {
        if let Some(Err(error)) = cut.run_until_cancelled(running).await {
            tracing::debug!(error = %chain(&error), "upstream ended");
        }
    });
    strip_hop_by_hop(request.headers_mut());
    // The URL's authority counts, whatever the client's Host says (RFC 9112, 3.2.2). User
    // information in it is not part of Host.
    let host = authority.as_str().rsplit('@').next().unwrap_or_default();
    if let Ok(host) = host.parse() {
        request.headers_mut().insert(header::HOST, host);
    }
    let path = uri
        .path_and_query()
        .cloned()
        .unwrap_or(PathAndQuery::from_static("/"));
    *request.uri_mut() = Uri::from(path);
    let answer = timeout(ANSWER_TIMEOUT, sender.send_request(request))
        .await
        .map_err(|_| Error::AnswerTimeout)??;
    let mut answer = answer.map(BodyExt::boxed);
    strip_hop_by_hop(answer.headers_mut());
    Ok(answer)
}

fn is_authorised(request: &Request<Incoming>, spec: &Spec) -> bool {
    let Some(auth) = &spec.auth else { return true };
    let wanted = format!("{}:{}", auth.username, auth.password);
    request
        .headers()
        .get(header::PROXY_AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("basic"))
        .and_then(|(_, encoded)| STANDARD.decode(encoded.trim()).ok())
        .is_some_and(|given| given == wanted.as_bytes())
}

fn authentication_required() -> Response<Body> {
    let mut answer = page(
        StatusCode::PROXY_AUTHENTICATION_REQUIRED,
        "text/plain; charset=utf-8",
        "this proxy needs a user name and a password\n",
    );
    answer.headers_mut().insert(
        header::PROXY_AUTHENTICATE,
        http::HeaderValue::from_static("Basic realm=\"mock-cloud\""),
    );
    answer
}

fn page(status: StatusCode, kind: &'static str, text: impl Into<Bytes>) -> Response<Body> {
    let mut answer = Response::new(
        Full::new(text.into())
            .map_err(|never| match never {})
            .boxed(),
    );
    *answer.status_mut() = status;
    answer
        .headers_mut()
        .insert(header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
    answer
}

fn empty() -> Body {
    Full::default().map_err(|never| match never {}).boxed()
}
