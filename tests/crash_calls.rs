//! The operator, killed before and after every call it makes while it creates, replaces and deletes
//! an instance: whatever the moment, each Proxy has exactly one instance in the end, and a deleted
//! one has none.
//!
//! The operator reaches the API server and the cloud through a relay that knows every call by what
//! it does, and holds back the one at which the process is to die. What is killed at is not written
//! down here: a first life without a crash shows the calls, and one that turns up later, in a
//! recovery, is killed at as well. So a new call cannot be left out.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use crawl_api::proxy::{Proxy, ProxySpec};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::client::Body;
use serde_json::{Value, json};
use support::{Operator, Site, create, gone, proxy, ready, uid_label, until};
use tokio::net::TcpListener;
use tokio::sync::Notify;

/// Whether the call that the process dies at was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum When {
    Before,
    After,
}

/// A part of a proxy's life in which the process is killed once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Create,
    Replace,
    Delete,
}

const STAGES: [Stage; 3] = [Stage::Create, Stage::Replace, Stage::Delete];

/// What the relays share.
#[derive(Default)]
struct Wire {
    state: Mutex<State>,
    sprung: Notify,
}

#[derive(Default)]
struct State {
    trap: Option<(String, When)>,
    /// Every call since it was last taken.
    seen: BTreeSet<String>,
}

impl Wire {
    fn arm(&self, trap: Option<(String, When)>) {
        self.state.lock().unwrap().trap = trap;
    }

    fn take_seen(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.state.lock().unwrap().seen)
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
            let conditions = body["status"]["conditions"].as_array().cloned();
            let conditions = conditions.unwrap_or_default();
            let list = conditions.iter().map(|condition| {
                let text = |key: &str| condition[key].as_str().unwrap_or_default().to_owned();
                (text("type"), text("reason"))
            });
            // What health says depends on when probes end.
            let list = list.filter(|(type_, _)| type_ != "Healthy" && type_ != "Ready");
            let list: BTreeMap<_, _> = list.collect();
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

/// What a call to the cloud does.
fn cloud_call(method: &Method, path: &str) -> String {
    let parts: Vec<_> = path.trim_matches('/').split('/').collect();
    let what = match parts.as_slice() {
        ["v1", "instances"] => "instances",
        ["v1", "zones", _, "instances"] => "instance",
        ["v1", "zones", _, "instances", _] => "one instance",
        ["v1", "operations", _] => "operation",
        other => panic!("unknown call to the cloud: {other:?}"),
    };
    format!("cloud {method} {what}")
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
async fn relay_kubernetes(site: &Site, wire: &Arc<Wire>) -> SocketAddr {
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
            let call = kubernetes_call(&parts.method, uri.path(), query, &body);
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

/// Relays to the cloud.
async fn relay_cloud(site: &Site, wire: &Arc<Wire>) -> SocketAddr {
    let cloud = site.cloud.address;
    let wire = Arc::clone(wire);
    let client = hyper_util::client::legacy::Client::builder(TokioExecutor::new());
    let client = client.build_http::<Full<Bytes>>();
    serve(move |parts, body| {
        let (client, wire) = (client.clone(), Arc::clone(&wire));
        async move {
            let path = parts.uri.path_and_query().unwrap().as_str();
            let call =
                (!path.starts_with("/admin/")).then(|| cloud_call(&parts.method, parts.uri.path()));
            let mut request = Request::builder()
                .method(parts.method.clone())
                .uri(format!("http://{cloud}{path}"));
            if let Some(value) = parts.headers.get(http::header::CONTENT_TYPE) {
                request = request.header(http::header::CONTENT_TYPE, value);
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

/// Where the process dies in one stage, one crash after the other: the last is the one that matters,
/// those before it lead there.
type Crashes = Vec<(String, When)>;

/// The calls of each stage, and the crashes yet to be had.
#[derive(Default)]
struct Plan {
    known: BTreeMap<Stage, BTreeSet<String>>,
    todo: BTreeMap<Stage, VecDeque<Crashes>>,
}

impl Plan {
    /// Calls were seen after these crashes: those that are new get crashes of their own.
    fn learn(&mut self, stage: Stage, after: &Crashes, calls: BTreeSet<String>) {
        for call in calls {
            if self.known.entry(stage).or_default().insert(call.clone()) {
                for when in [When::Before, When::After] {
                    let mut crashes = after.clone();
                    crashes.push((call.clone(), when));
                    self.todo.entry(stage).or_default().push_back(crashes);
                }
            }
        }
    }

    fn next(&mut self, stage: Stage) -> Option<Crashes> {
        self.todo.get_mut(&stage)?.pop_front()
    }

    fn is_done(&self) -> bool {
        self.todo.values().all(VecDeque::is_empty)
    }
}

struct Life<'a> {
    site: &'a Site,
    wire: &'a Wire,
    operator: Operator,
    name: String,
    made: Option<Proxy>,
}

impl Life<'_> {
    async fn start(&mut self, stage: Stage) {
        let proxies = self.site.proxies();
        match stage {
            Stage::Create => {
                let mut spec = ProxySpec::managed("local");
                spec.port = 3200;
                self.made = Some(create(&proxies, &proxy(&self.name, spec)).await);
            },
            Stage::Replace => {
                let change = Patch::Merge(json!({"spec": {"port": 3201}}));
                let patched = proxies
                    .patch(&self.name, &PatchParams::default(), &change)
                    .await;
                patched.unwrap();
            },
            Stage::Delete => {
                let deleted = proxies.delete(&self.name, &DeleteParams::default()).await;
                deleted.unwrap();
            },
        }
    }

    async fn finish(&self, stage: Stage, crashes: &Crashes) {
        let proxies = self.site.proxies();
        let what = format!("{stage:?} after crashes at {crashes:?}");
        let served = |port: u16| {
            move |proxy: Option<&Proxy>| {
                ready(proxy).filter(|proxy| proxy.endpoint().is_some_and(|e| e.port == port))
            }
        };
        let lived = match stage {
            Stage::Create => {
                until(&proxies, &self.name, &what, served(3200)).await;
                1
            },
            Stage::Replace => {
                until(&proxies, &self.name, &what, served(3201)).await;
                2
            },
            Stage::Delete => {
                until(&proxies, &self.name, &what, gone).await;
                2
            },
        };
        let labels = uid_label(self.made.as_ref().unwrap());
        let books = self.site.cloud.client.ever_created(&labels).await.unwrap();
        assert_eq!(books.len(), lived, "{what}: {books:?}");
        let alive = books.iter().filter(|one| one.deleted_at.is_none()).count();
        let expected = usize::from(stage != Stage::Delete);
        assert_eq!(alive, expected, "{what}: {books:?}");
        for pair in books.windows(2) {
            assert!(
                pair[0].deleted_at.unwrap() <= pair[1].created_at,
                "{what}: two at once: {books:?}"
            );
        }
    }

    /// One stage with its crashes. False: it was over before the last of them came.
    async fn run(&mut self, stage: Stage, crashes: &Crashes) -> bool {
        self.wire.take_seen();
        self.wire.arm(crashes.first().cloned());
        self.start(stage).await;
        for index in 0..crashes.len() {
            tokio::select! {
                () = self.wire.sprung.notified() => {},
                () = self.finish(stage, crashes) => {
                    self.wire.arm(None);
                    return false;
                },
            }
            self.operator.process.kill9().unwrap();
            self.wire.arm(crashes.get(index + 1).cloned());
            self.operator = self.site.operator();
        }
        self.finish(stage, crashes).await;
        true
    }
}

/// How often a crash is tried to be had that did not come, as when two calls may be made in either
/// order.
const ATTEMPTS: usize = 4;

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_around_any_call_leads_to_exactly_one_instance() {
    let wire = Arc::new(Wire::default());
    let mut site = Site::new("calls").await;
    let kubernetes = relay_kubernetes(&site, &wire).await;
    let cloud = relay_cloud(&site, &wire).await;
    let folder = site.cluster.dir();
    let kubeconfig = folder.join("relayed.kubeconfig");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "relay",
        "clusters": [{"name": "relay", "cluster": {"server": format!("http://{kubernetes}")}}],
        "contexts": [{"name": "relay", "context": {"cluster": "relay", "user": "none"}}],
        "users": [{"name": "none", "user": {}}],
    });
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    let providers = folder.join("relayed-providers.yaml");
    let text =
        format!("providers:\n- name: local\n  type: mock\n  mock: {{url: 'http://{cloud}'}}\n");
    std::fs::write(&providers, text).unwrap();
    site.set_flag("--kubeconfig", kubeconfig.to_str().unwrap());
    site.set_flag("--providers-config", providers.to_str().unwrap());

    let mut plan = Plan::default();
    let mut life = Life {
        site: &site,
        wire: &wire,
        operator: site.operator(),
        name: "first".into(),
        made: None,
    };
    for stage in STAGES {
        life.run(stage, &Crashes::new()).await;
        plan.learn(stage, &Crashes::new(), wire.take_seen());
    }
    let mut kills = 0;
    let mut lives = 0;
    let mut missed: BTreeMap<(Stage, Crashes), usize> = BTreeMap::new();
    while !plan.is_done() {
        lives += 1;
        life.name = format!("life-{lives}");
        for stage in STAGES {
            let crashes = plan.next(stage).unwrap_or_default();
            if life.run(stage, &crashes).await {
                kills += usize::from(!crashes.is_empty());
            } else {
                let attempts = missed.entry((stage, crashes.clone())).or_default();
                *attempts += 1;
                assert!(*attempts < ATTEMPTS, "{stage:?}: {crashes:?} never came");
                plan.todo
                    .entry(stage)
                    .or_default()
                    .push_back(crashes.clone());
            }
            plan.learn(stage, &crashes, wire.take_seen());
        }
    }
    let calls: usize = plan.known.values().map(BTreeSet::len).sum();
    println!(
        "{calls} calls, {kills} crashes, {lives} lives: {:#?}",
        plan.known
    );
    assert_eq!(kills, 2 * calls);
    // What a life cannot do without; more are found, fewer would mean that the relay is blind.
    for (stage, call) in [
        (Stage::Create, "kubernetes PATCH proxies 1 finalizers"),
        (Stage::Create, "cloud GET instances"),
        (Stage::Create, "cloud POST instance"),
        (Stage::Create, "kubernetes PATCH proxies annotations"),
        (Stage::Replace, "cloud DELETE one instance"),
        (Stage::Replace, "cloud POST instance"),
        (Stage::Delete, "cloud DELETE one instance"),
        (Stage::Delete, "kubernetes PATCH proxies 0 finalizers"),
    ] {
        assert!(
            plan.known[&stage].contains(call),
            "{stage:?} {call}: {:#?}",
            plan.known
        );
    }
}
