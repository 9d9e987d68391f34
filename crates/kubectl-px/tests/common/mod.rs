//! A small stand-in for the lease API, and the plugins run against it as processes.
//!
//! It knows what the plugins rely on: create under a name or request id, get, watch of one lease,
//! renew, delete. Faults are switched on by the tests.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::process::{Child, Command};

pub(crate) const URL: &str = "http://203.0.113.7:3128";

/// What the stand-in holds and how it misbehaves.
#[derive(Default)]
pub(crate) struct Api {
    pub(crate) leases: Vec<Value>,
    /// Bodies of all creates, with the query of each.
    pub(crate) creates: Vec<(Value, String)>,
    pub(crate) renewals: usize,
    /// What was reported.
    pub(crate) reports: Vec<Value>,
    pub(crate) deleted: Vec<String>,
    /// Deny every create.
    pub(crate) deny: bool,
    /// Grant so many creates and answer 503.
    pub(crate) lose_create_answers: usize,
    /// Answer creates with a Pending lease.
    pub(crate) pending: bool,
    /// Refuse watches, as for a caller without that permission.
    pub(crate) forbid_watch: bool,
    /// The ttl of answered leases.
    pub(crate) ttl: u32,
    /// Answer renewals with this status code.
    pub(crate) renewal_fails_with: Option<u16>,
}

type Shared = Arc<Mutex<Api>>;

pub(crate) struct Fixture {
    pub(crate) api: Shared,
    pub(crate) folder: tempfile::TempDir,
    kubeconfig: PathBuf,
}

fn status(code: u16, reason: &str, message: &str) -> Response {
    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code, "reason": reason, "message": message,
        "details": {"name": "shop-0", "group": "leases.crawl.example.com", "kind": "proxyleases"}});
    (StatusCode::from_u16(code).expect("a code"), Json(body)).into_response()
}

fn bound_status() -> Value {
    json!({"phase": "Bound", "proxyURL": URL,
        "proxy": {"namespace": "crawlers", "name": "eu-1", "uid": "u"}})
}

async fn create(
    State(api): State<Shared>,
    Path(namespace): Path<String>,
    uri: http::Uri,
    Json(mut lease): Json<Value>,
) -> Response {
    let mut api = api.lock();
    let query = uri.query().unwrap_or_default().to_owned();
    api.creates.push((lease.clone(), query.clone()));
    if api.deny {
        return status(
            409,
            "NoProxyAvailable",
            "no proxy available in pool eu: 2 AtCapacity",
        );
    }
    let same = |known: &&Value| {
        let request_id = &lease["spec"]["requestID"];
        (!request_id.is_null() && known["spec"]["requestID"] == *request_id)
            || (known["metadata"]["name"] == lease["metadata"]["name"])
    };
    if let Some(known) = api.leases.iter().find(same).cloned() {
        return api.answer_create(known);
    }
    let number = api.creates.len();
    if lease["metadata"]["name"].is_null() {
        let prefix = lease["metadata"]["generateName"]
            .as_str()
            .expect("a name or a prefix");
        lease["metadata"]["name"] = json!(format!("{prefix}x{number}"));
    }
    lease["metadata"]["namespace"] = json!(namespace);
    lease["metadata"]["uid"] = json!(format!("uid-{number}"));
    lease["metadata"]["resourceVersion"] = json!(number.to_string());
    lease["spec"]["schemes"] = json!(["http"]);
    if api.ttl > 0 {
        lease["spec"]["ttlSeconds"] = json!(api.ttl);
    }
    lease["status"] = if api.pending {
        json!({"phase": "Pending"})
    } else {
        bound_status()
    };
    if !query.contains("dryRun=All") {
        api.leases.push(lease.clone());
    }
    api.answer_create(lease)
}

impl Api {
    fn answer_create(&mut self, lease: Value) -> Response {
        if self.lose_create_answers > 0 {
            self.lose_create_answers -= 1;
            return status(503, "ServiceUnavailable", "the answer is lost");
        }
        (StatusCode::CREATED, Json(lease)).into_response()
    }
}

fn find(api: &Shared, name: &str) -> Option<Value> {
    api.lock()
        .leases
        .iter()
        .find(|lease| lease["metadata"]["name"] == name)
        .cloned()
}

async fn read(
    State(api): State<Shared>,
    Path((_namespace, name)): Path<(String, String)>,
) -> Response {
    find(&api, &name).map_or_else(
        || status(404, "NotFound", "no such lease"),
        |lease| Json(lease).into_response(),
    )
}

#[derive(serde::Deserialize)]
struct WatchQuery {
    #[serde(rename = "fieldSelector")]
    field_selector: String,
}

/// Answers with one event once the lease is not Pending any more.
async fn watch(State(api): State<Shared>, Query(query): Query<WatchQuery>) -> Response {
    if api.lock().forbid_watch {
        return status(403, "Forbidden", "no watch for you");
    }
    let name = query
        .field_selector
        .strip_prefix("metadata.name=")
        .expect("one lease")
        .to_owned();
    loop {
        let found = find(&api, &name);
        if let Some(lease) = found.filter(|lease| lease["status"]["phase"] != "Pending") {
            return format!("{}\n", json!({"type": "MODIFIED", "object": lease})).into_response();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn renew(
    State(api): State<Shared>,
    Path((_namespace, name)): Path<(String, String)>,
    Json(mut renewal): Json<Value>,
) -> Response {
    assert_eq!(renewal["kind"], "LeaseRenewal");
    let known = find(&api, &name).is_some();
    let mut api = api.lock();
    api.renewals += 1;
    if let Some(code) = api.renewal_fails_with {
        return status(code, "Test", "told to");
    }
    if !known {
        return status(404, "NotFound", "no such lease");
    }
    renewal["status"] =
        json!({"expiresAt": "2030-01-01T00:00:00Z", "remainingSeconds": api.ttl.max(1)});
    (StatusCode::CREATED, Json(renewal)).into_response()
}

async fn report(
    State(api): State<Shared>,
    Path((_namespace, name)): Path<(String, String)>,
    Json(report): Json<Value>,
) -> Response {
    assert_eq!(report["kind"], "LeaseReport");
    if find(&api, &name).is_none() {
        return status(404, "NotFound", "no such lease");
    }
    api.lock().reports.push(report["spec"].clone());
    (StatusCode::CREATED, Json(report)).into_response()
}

async fn delete(
    State(api): State<Shared>,
    Path((_namespace, name)): Path<(String, String)>,
) -> Response {
    let Some(lease) = find(&api, &name) else {
        return status(404, "NotFound", "no such lease");
    };
    let mut api = api.lock();
    api.leases.retain(|known| known["metadata"]["name"] != name);
    api.deleted.push(name);
    Json(lease).into_response()
}

impl Fixture {
    pub(crate) async fn start(api: Api) -> Self {
        let api = Arc::new(Mutex::new(api));
        let base = "/apis/leases.crawl.example.com/v1alpha1/namespaces/{namespace}/proxyleases";
        let router = axum::Router::new()
            .route(base, post(create).get(watch))
            .route(&format!("{base}/{{name}}"), get(read).delete(delete))
            .route(&format!("{base}/{{name}}/renew"), post(renew))
            .route(&format!("{base}/{{name}}/report"), post(report))
            .with_state(Arc::clone(&api));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let server = format!("http://{}", listener.local_addr().expect("an address"));
        drop(tokio::spawn(
            async move { axum::serve(listener, router).await },
        ));
        let folder = tempfile::tempdir().expect("a folder");
        let kubeconfig = folder.path().join("kubeconfig");
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": server}}],
            "users": [{"name": "test", "user": {"token": "t"}}],
            "contexts": [{"name": "test", "context":
                {"cluster": "test", "user": "test", "namespace": "crawlers"}}],
        });
        std::fs::write(&kubeconfig, text.to_string()).expect("written");
        Self {
            api,
            folder,
            kubeconfig,
        }
    }

    /// A plugin with the fixture's kubeconfig and no other environment that matters.
    pub(crate) fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(args)
            .env("KUBECONFIG", &self.kubeconfig)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        for name in ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"] {
            command.env_remove(name).env_remove(name.to_lowercase());
        }
        command
    }

    pub(crate) async fn create(&self, args: &[&str]) -> Finished {
        let program = env!("CARGO_BIN_EXE_kubectl-create-lease");
        finish(self.command(program, args).spawn().expect("started")).await
    }

    pub(crate) fn hold(&self, args: &[&str]) -> Child {
        let all = [&["lease", "hold"], args].concat();
        self.command(env!("CARGO_BIN_EXE_kubectl-px"), &all)
            .spawn()
            .expect("started")
    }

    /// `kubectl px` with these arguments.
    pub(crate) async fn px(&self, args: &[&str]) -> Finished {
        let program = env!("CARGO_BIN_EXE_kubectl-px");
        finish(self.command(program, args).spawn().expect("started")).await
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.folder
            .path()
            .join(name)
            .to_str()
            .expect("a path")
            .to_owned()
    }

    /// Waits until the condition holds.
    pub(crate) async fn until(&self, what: &str, condition: impl Fn(&Api) -> bool) {
        let waiting = async {
            while !condition(&self.api.lock()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_mins(1), waiting)
            .await
            .expect(what);
    }

    pub(crate) async fn until_file(&self, name: &str) {
        let path = self.folder.path().join(name);
        self.until("the file appears", |_| path.exists()).await;
    }
}

/// Sends the signal to the process.
pub(crate) fn send(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id().expect("running")).expect("a pid");
    kill(Pid::from_raw(pid), signal).expect("sent");
}

/// How a process ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

pub(crate) async fn finish(child: Child) -> Finished {
    let ended = tokio::time::timeout(Duration::from_mins(1), child.wait_with_output());
    let Output {
        status,
        stdout,
        stderr,
    } = ended.await.expect("it ends").expect("it is waited for");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    Finished {
        code: status.code(),
        stdout: text(stdout),
        stderr: text(stderr),
    }
}
