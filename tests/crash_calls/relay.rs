//! The relays through which the operator reaches the API server and the cloud: they know every call
//! by what it does, and hold back the one at which the process is to die.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Notify;

use crate::support::{self, Site};

/// Whether the call that the process dies at was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum When {
    Before,
    After,
}

/// What the relays share.
#[derive(Default)]
pub(crate) struct Wire {
    state: Mutex<State>,
    pub(crate) sprung: Notify,
}

#[derive(Default)]
struct State {
    trap: Option<(String, When)>,
    /// Every call since it was last taken.
    seen: BTreeSet<String>,
    /// What was last written to the status of an object, without what probes learn.
    written: BTreeMap<String, Value>,
}

impl Wire {
    pub(crate) fn arm(&self, trap: Option<(String, When)>) {
        self.state.lock().unwrap().trap = trap;
    }

    pub(crate) fn take_seen(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.state.lock().unwrap().seen)
    }

    /// Whether a status says nothing new but for what probes learn. When that is depends on when
    /// they end, so such a write is no step of its own.
    fn is_about_health(&self, path: &str, body: &[u8]) -> bool {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let status = &body["status"];
        let told = json!([
            ours(status),
            status["providerID"],
            status["operation"],
            status["endpoint"],
            status["drainMark"],
            status["observedGeneration"],
        ]);
        let mut state = self.state.lock().unwrap();
        let before = state.written.insert(path.to_owned(), told.clone());
        before == Some(told)
    }

    /// Notes a call; says when to hold it back.
    fn note(&self, call: &str) -> Option<When> {
        let mut state = self.state.lock().unwrap();
        state.seen.insert(call.to_owned());
        let (_, when) = state.trap.take_if(|(at, _)| at == call)?;
        Some(when)
    }

    /// Relays one call with `send`, or dies at it.
    async fn relay<T>(&self, call: Option<String>, send: impl Future<Output = T>) -> T {
        match call.and_then(|call| self.note(&call)) {
            None => send.await,
            Some(when) => {
                if when == When::After {
                    send.await;
                }
                self.sprung.notify_one();
                std::future::pending().await
            },
        }
    }
}

/// The conditions that are not about health, with their reasons.
fn ours(status: &Value) -> BTreeMap<String, String> {
    let conditions = status["conditions"].as_array();
    let list = conditions.into_iter().flatten().map(|condition| {
        let text = |key: &str| condition[key].as_str().unwrap_or_default().to_owned();
        (text("type"), text("reason"))
    });
    let ours = ["Provisioned", "Drained", "Withheld"];
    list.filter(|(type_, _)| ours.contains(&type_.as_str()))
        .collect()
}

/// What a call to the API server does. `None`: it is made once at the start, or runs for ever.
fn kubernetes_call(method: &Method, path: &str, query: &str, body: &[u8]) -> Option<String> {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let parts: Vec<_> = path.trim_matches('/').split('/').collect();
    let watched = query.contains("watch=") || *method == Method::GET && parts.len() < 7;
    let kind = if let Some(at) = parts.iter().position(|part| *part == "namespaces") {
        let rest: Vec<_> = parts.iter().skip(at + 2).enumerate().collect();
        // Names differ from object to object: every second part.
        let kinds = rest.iter().filter(|(index, _)| index % 2 == 0);
        kinds.map(|(_, part)| **part).collect::<Vec<_>>().join("/")
    } else {
        (*parts.get(3)?).to_owned()
    };
    if kind.is_empty() || watched && kind != "apiservices" {
        return None;
    }
    let detail = match (method.as_str(), kind.as_str()) {
        ("PUT", "proxies/status") => {
            let list = ours(&body["status"]);
            let text = list
                .iter()
                .map(|(type_, reason)| format!("{type_}/{reason}"));
            text.collect::<Vec<_>>().join(" ")
        },
        ("PATCH", "proxies") => {
            let metadata = &body["metadata"];
            match metadata["finalizers"].as_array() {
                Some(list) => format!("{} finalizers", list.len()),
                None => "annotations".into(),
            }
        },
        ("POST" | "PATCH", "events") => return None, // nothing depends on them
        _ => String::new(),
    };
    Some(
        format!("kubernetes {method} {kind} {detail}")
            .trim_end()
            .to_owned(),
    )
}

async fn read(request: Request<Incoming>) -> (http::request::Parts, Bytes) {
    let (parts, body) = request.into_parts();
    let body = body
        .collect()
        .await
        .map(http_body_util::Collected::to_bytes);
    (parts, body.unwrap_or_default())
}

/// Serves with `answer` on a port of its own.
async fn serve<A, F>(answer: A) -> SocketAddr
where
    A: Fn(http::request::Parts, Bytes) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let answer = answer.clone();
            tokio::spawn(async move {
                let service = service_fn(move |request| {
                    let answer = answer.clone();
                    async move {
                        let (parts, body) = read(request).await;
                        Ok::<_, Infallible>(answer(parts, body).await)
                    }
                });
                let http = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                // The process at the other end is killed again and again.
                let _broken = http.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    address
}

fn bad_gateway(error: impl std::fmt::Display) -> Response<Body> {
    Response::builder()
        .status(502)
        .body(Body::from(error.to_string().into_bytes()))
        .unwrap()
}

/// Relays to the API server, as the operator.
pub(crate) async fn relay_kubernetes(site: &Site, wire: &Arc<Wire>) -> SocketAddr {
    let account = site
        .cluster
        .service_account_kubeconfig(support::OPERATOR, support::OPERATOR)
        .await
        .unwrap();
    let client = devcluster::client_for(&account).await.unwrap();
    let wire = Arc::clone(wire);
    serve(move |parts, body| {
        let (client, wire) = (client.clone(), Arc::clone(&wire));
        async move {
            let uri = parts.uri.clone();
            let query = uri.query().unwrap_or_default();
            let status = parts.method == Method::PUT && uri.path().ends_with("/status");
            let call = if status && wire.is_about_health(uri.path(), &body) {
                None
            } else {
                kubernetes_call(&parts.method, uri.path(), query, &body)
            };
            let mut request = Request::builder().method(parts.method).uri(uri);
            for (name, value) in &parts.headers {
                if name != http::header::HOST && name != http::header::CONTENT_LENGTH {
                    request = request.header(name, value);
                }
            }
            let request = request.body(Body::from(body.to_vec())).unwrap();
            let sent = wire.relay(call, client.send(request)).await;
            sent.unwrap_or_else(bad_gateway)
        }
    })
    .await
}

/// Relays to the cloud at `address`, whose calls `name` tells apart.
pub(crate) async fn relay_cloud(
    address: SocketAddr,
    name: fn(&Method, &str) -> Option<String>,
    wire: &Arc<Wire>,
) -> SocketAddr {
    let wire = Arc::clone(wire);
    let client = hyper_util::client::legacy::Client::builder(TokioExecutor::new());
    let client = client.build_http::<Full<Bytes>>();
    serve(move |parts, body| {
        let (client, wire) = (client.clone(), Arc::clone(&wire));
        async move {
            let path = parts.uri.path_and_query().unwrap().as_str();
            let call = name(&parts.method, parts.uri.path());
            let mut request = Request::builder()
                .method(parts.method.clone())
                .uri(format!("http://{address}{path}"));
            for (name, value) in &parts.headers {
                if name != http::header::HOST && name != http::header::CONTENT_LENGTH {
                    request = request.header(name, value);
                }
            }
            let request = request.body(Full::from(body)).unwrap();
            let send = async {
                let answer = client.request(request).await.map_err(|e| e.to_string())?;
                let (head, body) = answer.into_parts();
                let body = body.collect().await.map_err(|e| e.to_string())?.to_bytes();
                Ok::<_, String>(Response::from_parts(head, Body::from(body.to_vec())))
            };
            let sent = wire.relay(call, send).await;
            sent.unwrap_or_else(bad_gateway)
        }
    })
    .await
}
