//! Who is measured: how each server is started on which data, and how it is reached.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use devcluster::binaries::{Binaries, Binary};
use devcluster::{CertFiles, Cluster, Process};
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use http_body_util::Full;
use hyper::client::conn::http2::SendRequest;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::PostParams;
use kube::{Api, Resource};
use runtime_kit::Clock;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::connect::{Server, send};
use crate::machine;
use crate::objects::{GROUP, NAMESPACE};
use crate::process;

/// Caller of all requests; not an administrator, so that it has to be authorized.
const USER: &str = "bench:reader";
const READY_TIMEOUT: Duration = Duration::from_mins(1);
/// What client-go's pager asks for.
pub(crate) const PAGE: u32 = 500;
/// Between two looks whether a server is ready.
const READY_INTERVAL: Duration = Duration::from_millis(2);

/// A server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Who {
    /// Ours, on a file of redb.
    Redb,
    /// Ours, on the etcd of the peer.
    Etcd,
    /// The Go sample-apiserver.
    Sample,
}

/// What a server finds in its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Data {
    /// Nothing.
    Empty,
    /// What writers leave for watchers: nothing at first.
    Watched,
    /// What is read: 10,000 objects.
    Some,
    /// What is started with: 100,000 objects, unless told otherwise.
    Many,
}

/// Where servers are started.
pub(crate) struct Place<'a> {
    cluster: &'a Cluster,
    folder: PathBuf,
    kubeconfig: PathBuf,
    serving: CertFiles,
    sample: PathBuf,
    headers: HeaderMap,
    /// Time.
    pub(crate) clock: Arc<dyn Clock>,
}

/// A server that is ready.
pub(crate) struct Running {
    /// Which server.
    pub(crate) who: Who,
    /// The process.
    pub(crate) process: Process,
    /// How it is reached.
    pub(crate) server: Server,
    /// Sent with every request.
    headers: HeaderMap,
    /// From the start of the process until `/readyz` said ok.
    pub(crate) ready_after: Duration,
    /// Processor time until then.
    pub(crate) ready_used: Duration,
    /// From the start of the process until a page of a list was answered.
    pub(crate) answers_after: Duration,
    /// From the start of the process until a watch began.
    pub(crate) watches_after: Duration,
    /// When the process was started.
    started: Duration,
}

impl Who {
    /// As it is written in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Redb => "ours on redb",
            Self::Etcd => "ours on etcd",
            Self::Sample => "Go sample-apiserver",
        }
    }

    /// The version that the server stores.
    pub(crate) fn version(self) -> &'static str {
        match self {
            Self::Redb | Self::Etcd => "v1beta1",
            Self::Sample => "v1alpha1",
        }
    }
}

impl Data {
    fn name(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Watched => "watched",
            Self::Some => "some",
            Self::Many => "many",
        }
    }
}

impl<'a> Place<'a> {
    /// On a cluster, with data in `folder`.
    pub(crate) async fn new(
        cluster: &'a Cluster,
        folder: &Path,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self> {
        let binaries = tokio::task::spawn_blocking(|| Binaries::ensure(&[Binary::SampleApiserver]));
        let binaries = binaries.await??;
        let sample = binaries
            .get(Binary::SampleApiserver)
            .context("no sample-apiserver")?;
        let serving = cluster.client_ca().serving(&["localhost", "127.0.0.1"])?;
        let mut headers = HeaderMap::new();
        headers.insert("x-remote-user", HeaderValue::from_static(USER));
        headers.insert(
            "x-remote-group",
            HeaderValue::from_static("system:authenticated"),
        );
        headers.insert("accept", HeaderValue::from_static("application/json"));
        grant(cluster).await?;
        Ok(Self {
            cluster,
            folder: folder.to_owned(),
            // What a server may do costs nothing, what it asks does.
            kubeconfig: cluster.user_kubeconfig("servers", &["system:masters"])?,
            serving: serving.write(folder, "serving")?,
            sample: sample.to_owned(),
            headers,
            clock: Arc::clone(clock),
        })
    }

    /// The file of our server on redb.
    pub(crate) fn redb(&self, data: Data) -> PathBuf {
        self.folder.join(format!("{}.redb", data.name()))
    }

    /// The prefix of a server on etcd.
    pub(crate) fn prefix(who: Who, data: Data) -> String {
        let server = match who {
            Who::Redb | Who::Etcd => "ours",
            Who::Sample => "sample",
        };
        format!("/{server}-{}", data.name())
    }

    /// The URL of etcd.
    pub(crate) fn etcd(&self) -> &str {
        self.cluster.etcd_url()
    }

    /// Starts a server and waits until it answers everything.
    pub(crate) async fn start(&self, who: Who, data: Data) -> Result<Running> {
        let mut running = self.spawn(who, data).await?;
        // Why: the Go server says that it is ready some time before it believes a front proxy, and answers
        // 429 to watches and whole lists until its cache is filled.
        let page = format!("{}?limit={PAGE}", running.collection());
        running.answers_after = self
            .wait(&running, async || running.ask(&page).await)
            .await?;
        let version = running.version().await?;
        running.watches_after = self
            .wait(&running, async || running.watch(&version).await)
            .await?;
        Ok(running)
    }

    /// Starts a server and waits until it says that it is ready.
    pub(crate) async fn spawn(&self, who: Who, data: Data) -> Result<Running> {
        let port = self.cluster.free_port()?;
        let command = match who {
            Who::Redb | Who::Etcd => self.ours(who, data, port)?,
            Who::Sample => self.peer(data, port),
        };
        let ca = self.cluster.client_ca().pem();
        let server = Server::new(port, ca, Some(self.cluster.front_proxy_client()))?;
        let started = self.clock.elapsed();
        let process = self.cluster.spawn(who.name(), command)?;
        let mut running = Running {
            who,
            process,
            server,
            headers: self.headers.clone(),
            ready_after: Duration::ZERO,
            ready_used: Duration::ZERO,
            answers_after: Duration::ZERO,
            watches_after: Duration::ZERO,
            started,
        };
        running.ready_after = self
            .wait(&running, async || running.ask("/readyz").await)
            .await?;
        running.ready_used = running.processor_time()?;
        Ok(running)
    }

    /// Tries until it works, and tells how long that is after the start.
    async fn wait<T>(
        &self,
        running: &Running,
        attempt: impl AsyncFn() -> Result<T>,
    ) -> Result<Duration> {
        loop {
            let answered = attempt().await;
            let after = self.clock.elapsed().saturating_sub(running.started);
            let Err(error) = answered else {
                return Ok(after);
            };
            running.process.check_running()?;
            if after > READY_TIMEOUT {
                let name = running.process.name();
                return Err(error.context(format!("{name} does not start in time")));
            }
            self.clock.sleep(READY_INTERVAL).await;
        }
    }

    fn ours(&self, who: Who, data: Data, port: u16) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("serve")
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(["--port", &port.to_string()])
            .arg("--cert")
            .arg(&self.serving.cert)
            .arg("--key")
            .arg(&self.serving.key);
        match who {
            Who::Redb => command.arg("--redb").arg(self.redb(data)),
            Who::Etcd | Who::Sample => command
                .args(["--etcd", self.etcd()])
                .args(["--prefix", &Self::prefix(who, data)]),
        };
        Ok(command)
    }

    fn peer(&self, data: Data, port: u16) -> Command {
        let mut command = Command::new(&self.sample);
        for flag in [
            "--kubeconfig",
            "--authentication-kubeconfig",
            "--authorization-kubeconfig",
        ] {
            command.arg(flag).arg(&self.kubeconfig);
        }
        command
            .args(["--etcd-servers", self.etcd()])
            .args(["--etcd-prefix", &Self::prefix(Who::Sample, data)])
            .args(["--bind-address", "127.0.0.1"])
            .args(["--secure-port", &port.to_string()])
            .arg("--tls-cert-file")
            .arg(&self.serving.cert)
            .arg("--tls-private-key-file")
            .arg(&self.serving.key);
        command
    }
}

impl Running {
    /// Path of the objects, in the version that the server stores: so nothing is converted.
    pub(crate) fn collection(&self) -> String {
        let version = self.who.version();
        format!("/apis/{GROUP}/{version}/namespaces/{NAMESPACE}/flunders")
    }

    /// A GET on a connection of its own; anything but 200 is an error.
    pub(crate) async fn ask(&self, path: &str) -> Result<Bytes> {
        let mut sender = self.server.connect().await?;
        let request = self.request(path)?;
        send(&mut sender, request, &[StatusCode::OK]).await
    }

    /// The version that a list has now.
    pub(crate) async fn version(&self) -> Result<String> {
        let page = self.ask(&format!("{}?limit=1", self.collection())).await?;
        let page: Value = serde_json::from_slice(&page)?;
        let version = page["metadata"]["resourceVersion"].as_str();
        Ok(version.context("a list without a version")?.to_owned())
    }

    /// Whether a watch from `version` on begins.
    async fn watch(&self, version: &str) -> Result<()> {
        let mut sender = self.server.connect().await?;
        let path = format!("{}?watch=true&resourceVersion={version}", self.collection());
        let response = sender.send_request(self.request(&path)?).await?;
        let status = response.status();
        anyhow::ensure!(status.is_success(), "a watch is answered with {status}");
        Ok(())
    }

    /// A GET.
    pub(crate) fn request(&self, path: &str) -> Result<Request<Full<Bytes>>> {
        let uri = format!("https://localhost:{}{path}", self.server.port);
        let mut request = Request::get(uri).body(Full::default())?;
        request.headers_mut().clone_from(&self.headers);
        Ok(request)
    }

    /// Creates an object.
    pub(crate) async fn create(
        &self,
        sender: &mut SendRequest<Full<Bytes>>,
        object: &Value,
    ) -> Result<()> {
        let mut request = self.request(&self.collection())?;
        *request.method_mut() = http::Method::POST;
        *request.body_mut() = Full::from(object.to_string());
        let json = HeaderValue::from_static("application/json");
        request.headers_mut().insert("content-type", json);
        send(sender, request, &[StatusCode::CREATED])
            .await
            .map(drop)
    }

    /// Resident memory, MiB.
    pub(crate) fn resident(&self) -> Result<f64> {
        machine::resident_mib(self.process.pid())
    }

    /// The most memory that was resident since [`Self::forget_peak`], MiB.
    pub(crate) fn peak(&self) -> Result<f64> {
        process::peak_mib(self.process.pid())
    }

    /// Lets [`Self::peak`] begin anew.
    pub(crate) fn forget_peak(&self) -> Result<()> {
        process::forget_peak(self.process.pid())
    }

    /// Processor time that the process has used, user and system.
    pub(crate) fn processor_time(&self) -> Result<Duration> {
        process::processor_time(self.process.pid())
    }
}

/// Makes the namespace, and lets the caller read and write in it.
async fn grant(cluster: &Cluster) -> Result<()> {
    let client = cluster.client().await?;
    let role = json!({
        "metadata": { "name": USER },
        "rules": [{ "apiGroups": [GROUP], "resources": ["*"], "verbs": ["get", "list", "watch", "create"] }],
    });
    let rbac = "rbac.authorization.k8s.io";
    let binding = json!({
        "metadata": { "name": USER },
        "roleRef": { "apiGroup": rbac, "kind": "ClusterRole", "name": USER },
        "subjects": [{ "apiGroup": rbac, "kind": "User", "name": USER }],
    });
    let namespace = json!({ "metadata": { "name": NAMESPACE } });
    create(&Api::<Namespace>::all(client.clone()), namespace).await?;
    create(&Api::<ClusterRole>::all(client.clone()), role).await?;
    create(&Api::<ClusterRoleBinding>::all(client), binding).await
}

async fn create<K>(api: &Api<K>, object: Value) -> Result<()>
where
    K: Resource + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    api.create(&PostParams::default(), &serde_json::from_value(object)?)
        .await?;
    Ok(())
}
