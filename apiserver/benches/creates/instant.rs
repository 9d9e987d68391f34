//! The watched instant peer: a server that answers every create at once with a canned object and stores
//! nothing, but is discovered, listed and watched like a real API.
//!
//! It is the upper bound of what an aggregated API can reach: through the aggregator what is left is the
//! work of kube-apiserver and of kube-controller-manager, which watches this peer as it watches every API
//! whose objects can be listed, watched and deleted. Each create is one event on each watch.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use arc_swap::ArcSwap;
use bytes::Bytes;
use futures::{Stream, StreamExt as _, stream};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::broadcast::{self, error::RecvError, error::TryRecvError};
use tokio_rustls::TlsAcceptor;

use crate::flags::InstantFlags;

/// Group of the peer.
pub(crate) const GROUP: &str = "instant.bench.example.com";
/// Version of the peer.
pub(crate) const VERSION: &str = "v1alpha1";
/// Its resource.
pub(crate) const RESOURCE: &str = "proxyleases";

/// Path at which the peer tells how many watches are open.
pub(crate) const WATCHERS: &str = "/bench/watchers";
/// Path to which the body of every later 201 is PUT.
pub(crate) const ANSWER: &str = "/bench/answer";

/// Events a watcher may lag behind; then its watch ends, as kube-apiserver ends it.
const WATCH_BUFFER: usize = 4096;
/// Events written at once.
const WATCH_BATCH: usize = 256;
const WATCH_DURATION: Duration = Duration::from_mins(5);

type Body = UnsyncBoxBody<Bytes, Infallible>;

struct Peer {
    answer: ArcSwap<Bytes>,
    revision: AtomicU64,
    events: broadcast::Sender<Event>,
}

#[derive(Clone)]
enum Event {
    Added(Bytes),
    /// Everything is forgotten: watchers have to list again.
    Forgotten,
}

/// Serves until the process is killed.
pub(crate) async fn serve(flags: InstantFlags) -> Result<()> {
    let InstantFlags { port, cert, key } = flags;
    let chain = CertificateDer::from_pem_file(cert).context("cannot read --cert")?;
    let key = PrivateKeyDer::from_pem_file(key).context("cannot read --key")?;
    let mut tls = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![chain], key)?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let peer = Arc::new(Peer {
        answer: ArcSwap::default(),
        revision: AtomicU64::new(1),
        events: broadcast::Sender::new(WATCH_BUFFER),
    });
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let (acceptor, peer) = (acceptor.clone(), Arc::clone(&peer));
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else {
                return;
            };
            let service = hyper::service::service_fn(move |request| {
                let peer = Arc::clone(&peer);
                async move { Ok::<_, Infallible>(peer.answer(request).await) }
            });
            let mut server = auto::Builder::new(TokioExecutor::new());
            // Why: the aggregator puts everything on few connections, as it does with our server.
            server.http2().max_concurrent_streams(1000);
            if let Err(error) = server.serve_connection(TokioIo::new(stream), service).await {
                tracing::debug!(error, "a connection broke");
            }
        });
    }
}

// === impl Peer ===

impl Peer {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path();
        let group_version = format!("/apis/{GROUP}/{VERSION}");
        let of_collection = path.ends_with(&format!("/{RESOURCE}"));
        if path == group_version {
            return json_answer(StatusCode::OK, discovery().into());
        }
        if path == WATCHERS {
            let watchers = self.events.receiver_count();
            return json_answer(StatusCode::OK, watchers.to_string().into());
        }
        if path == ANSWER {
            return self.take_answer(request).await;
        }
        if !(path.starts_with(&group_version) && of_collection) {
            return json_answer(StatusCode::NOT_FOUND, failure(404, "NotFound").into());
        }
        if request.method() == Method::POST {
            return self.create(request).await;
        }
        if request.method() == Method::DELETE {
            if self.events.send(Event::Forgotten).is_err() {
                tracing::debug!("nobody watches");
            }
            return json_answer(
                StatusCode::OK,
                r#"{"kind":"Status","apiVersion":"v1","status":"Success"}"#.into(),
            );
        }
        let query = request.uri().query().unwrap_or_default();
        let has = |wanted: &str| query.split('&').any(|pair| pair == wanted);
        if has("watch=true") || has("watch=1") {
            return self.watch(has("sendInitialEvents=true"));
        }
        let list = json!({
            "kind": "PartialObjectMetadataList",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": { "resourceVersion": self.revision().to_string() },
            "items": [],
        });
        json_answer(StatusCode::OK, list.to_string().into())
    }

    async fn take_answer(&self, request: Request<Incoming>) -> Response<Body> {
        let Ok(body) = request.into_body().collect().await else {
            return json_answer(StatusCode::BAD_REQUEST, failure(400, "BadRequest").into());
        };
        self.answer.store(Arc::new(body.to_bytes()));
        json_answer(StatusCode::OK, "{}".into())
    }

    async fn create(&self, request: Request<Incoming>) -> Response<Body> {
        if request.into_body().collect().await.is_err() {
            return json_answer(StatusCode::BAD_REQUEST, failure(400, "BadRequest").into());
        }
        let revision = self.revision.fetch_add(1, Ordering::Relaxed) + 1;
        if self.events.receiver_count() > 0
            && self
                .events
                .send(Event::Added(added(revision).into()))
                .is_err()
        {
            tracing::debug!("the last watcher has just gone");
        }
        json_answer(StatusCode::CREATED, Bytes::clone(&self.answer.load()))
    }

    fn revision(&self) -> u64 {
        self.revision.load(Ordering::Relaxed)
    }

    fn watch(&self, initial_events: bool) -> Response<Body> {
        let events = self.events.subscribe();
        let first = initial_events.then(|| Bytes::from(initial_events_end(self.revision())));
        let end = tokio::time::sleep(WATCH_DURATION);
        let chunks = stream::iter(first).chain(chunks_of(events)).take_until(end);
        let frames = chunks.map(|chunk| Ok::<_, Infallible>(Frame::data(chunk)));
        let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
        set_json(&mut response);
        response
    }
}

/// Events as they are written: what is waiting goes out together.
fn chunks_of(events: broadcast::Receiver<Event>) -> impl Stream<Item = Bytes> + Send {
    stream::unfold(Some(events), async |events| {
        let mut events = events?;
        let mut chunk = Vec::new();
        match events.recv().await {
            Ok(Event::Added(event)) => chunk.extend_from_slice(&event),
            Ok(Event::Forgotten) | Err(RecvError::Lagged(_)) => {
                return Some((Bytes::from(too_old()), None));
            },
            Err(RecvError::Closed) => return None,
        }
        for _ in 0..WATCH_BATCH {
            match events.try_recv() {
                Ok(Event::Added(event)) => chunk.extend_from_slice(&event),
                Ok(Event::Forgotten) | Err(TryRecvError::Lagged(_) | TryRecvError::Closed) => {
                    chunk.extend_from_slice(too_old().as_bytes());
                    return Some((chunk.into(), None));
                },
                Err(TryRecvError::Empty) => break,
            }
        }
        Some((chunk.into(), Some(events)))
    })
}

fn added(revision: u64) -> String {
    format!(
        concat!(
            r#"{{"type":"ADDED","object":{{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","#,
            r#""metadata":{{"name":"instant-{0}","namespace":"bench","#,
            r#""uid":"00000000-0000-4000-8000-{0:012}","resourceVersion":"{0}","#,
            r#""generation":1,"creationTimestamp":"2026-01-01T00:00:00Z"}}}}}}"#,
            "\n"
        ),
        revision
    )
}

fn initial_events_end(revision: u64) -> String {
    let event = json!({
        "type": "BOOKMARK",
        "object": {
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": {
                "resourceVersion": revision.to_string(),
                "annotations": { "k8s.io/initial-events-end": "true" },
            },
        },
    });
    format!("{event}\n")
}

fn too_old() -> String {
    format!(
        "{{\"type\":\"ERROR\",\"object\":{}}}\n",
        failure(410, "Expired")
    )
}

fn failure(code: u16, reason: &str) -> String {
    json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
        "message": reason,
    })
    .to_string()
}

fn discovery() -> String {
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": format!("{GROUP}/{VERSION}"),
        "resources": [{
            "name": RESOURCE, "singularName": "proxylease", "namespaced": true, "kind": "ProxyLease",
            "verbs": ["create", "delete", "deletecollection", "get", "list", "watch"],
        }],
    })
    .to_string()
}

fn json_answer(status: StatusCode, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Full::new(body).boxed_unsync());
    *response.status_mut() = status;
    set_json(&mut response);
    response
}

fn set_json(response: &mut Response<Body>) {
    let json = http::HeaderValue::from_static("application/json");
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, json);
}
