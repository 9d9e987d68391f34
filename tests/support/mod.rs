//! One control plane per test binary with our CRDs and roles, and the programs around it.

#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fmt::Debug;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use crawl_api::lease::{LEASE_GROUP, LEASE_VERSION};
use crawl_api::names;
use crawl_api::proxy::{Phase, Proxy, ProxySpec};
use devcluster::{Cluster, Options, Process, wait_for};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioExecutor;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt};
use mock_cloud::client::Client as CloudClient;
use mock_cloud::model::Labels;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::OnceCell;

/// For what takes seconds at most.
pub(crate) const TIMEOUT: Duration = Duration::from_mins(1);

/// The namespace, and the ServiceAccount in it, that the operator's roles are bound to.
pub(crate) const OPERATOR: &str = "proxy-operator";

pub(crate) fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// One control plane for all tests of a file. Never dropped: the reaper ends it with this process.
pub(crate) async fn cluster() -> &'static Cluster {
    static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
    let start = async || {
        let cluster = Cluster::start(Options::default()).await.unwrap();
        let client = cluster.client().await.unwrap();
        namespace(&client, OPERATOR).await;
        kubectl(
            &cluster,
            &[
                "apply",
                "-f",
                "config/crd",
                "-f",
                "config/rbac/operator.yaml",
            ],
        );
        kubectl(
            &cluster,
            &["wait", "--for=condition=Established", "crd", "--all"],
        );
        cluster
    };
    CLUSTER.get_or_init(start).await
}

/// Runs kubectl in the repository as the administrator and returns its output.
pub(crate) fn kubectl(cluster: &Cluster, args: &[&str]) -> String {
    let (ok, text) = try_kubectl(cluster, args);
    assert!(ok, "kubectl {args:?}: {text}");
    text
}

/// Runs kubectl; says whether it succeeded, and its output.
pub(crate) fn try_kubectl(cluster: &Cluster, args: &[&str]) -> (bool, String) {
    let output = Command::new(cluster.kubectl_path().unwrap())
        .current_dir(repository())
        .env("KUBECONFIG", cluster.kubeconfig_path())
        .env("KUBECACHEDIR", cluster.dir().join("kubectl-cache"))
        .args(args)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

pub(crate) async fn create<K>(api: &Api<K>, object: &K) -> K
where
    K: Serialize + DeserializeOwned + Clone + Debug,
{
    api.create(&PostParams::default(), object).await.unwrap()
}

pub(crate) async fn namespace(client: &Client, name: &str) {
    let metadata = ObjectMeta {
        name: Some(name.into()),
        ..ObjectMeta::default()
    };
    let object = Namespace {
        metadata,
        ..Namespace::default()
    };
    create(&Api::<Namespace>::all(client.clone()), &object).await;
}

/// Waits until `check` gives a value for the object, which may be gone.
pub(crate) async fn until<K, T>(
    api: &Api<K>,
    name: &str,
    what: &str,
    check: impl Fn(Option<&K>) -> Option<T>,
) -> T
where
    K: DeserializeOwned + Clone + Debug,
{
    let mut last = None;
    let found = wait_for(what, TIMEOUT, async || {
        last = api.get_opt(name).await.unwrap();
        Ok(check(last.as_ref()))
    })
    .await;
    found.unwrap_or_else(|error| panic!("{error}; last seen: {last:#?}"))
}

/// A cloud of its own for a test, as a process.
pub(crate) struct Cloud {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
    pub(crate) client: CloudClient,
}

impl Cloud {
    pub(crate) async fn start(cluster: &Cluster, name: &str) -> Self {
        let port = cluster.free_port().unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let state = cluster.dir().join(format!("{name}-cloud"));
        let mut command = Command::new(binary("mock-cloud", "mock-cloud"));
        command.args(["serve", "--listen", &address.to_string()]);
        command.args(["--provision-delay", "300ms", "--delete-delay", "300ms"]);
        command.arg("--state").arg(state);
        let process = cluster.spawn(&format!("{name}-cloud"), command).unwrap();
        process.wait_for_log("listening on", TIMEOUT).await.unwrap();
        Self {
            process,
            address,
            client: CloudClient::new(address),
        }
    }
}

/// A binary of another package.
///
/// Why built here: cargo builds the binaries of this package for its tests, not those of others.
pub(crate) fn binary(package: &str, name: &str) -> PathBuf {
    let built = Command::new(env!("CARGO"))
        .current_dir(repository())
        .args(["build", "--quiet", "-p", package, "--bin", name])
        .status()
        .unwrap();
    assert!(built.success(), "{name} cannot be built");
    Path::new(env!("CARGO_BIN_EXE_proxy-operator")).with_file_name(name)
}

/// lease-apiserver as a process, registered, with its own ServiceAccount.
pub(crate) async fn start_lease_apiserver(cluster: &Cluster) -> Process {
    kubectl(
        cluster,
        &["apply", "-f", "config/rbac/lease-apiserver.yaml"],
    );
    let port = cluster.free_port().unwrap();
    let registered = cluster
        .register_apiservice(LEASE_GROUP, LEASE_VERSION, port)
        .await
        .unwrap();
    let kubeconfig = cluster
        .service_account_kubeconfig(OPERATOR, "lease-apiserver")
        .await
        .unwrap();
    let mut command = Command::new(binary("lease-apiserver", "lease-apiserver"));
    command
        .args([
            "--bind-address",
            "127.0.0.1",
            "--secure-port",
            &port.to_string(),
        ])
        .args(["--store", "memory", "--admin-address"])
        .arg(format!("127.0.0.1:{}", cluster.free_port().unwrap()))
        .arg("--tls-cert-file")
        .arg(&registered.files.cert)
        .arg("--tls-private-key-file")
        .arg(&registered.files.key)
        .arg("--kubeconfig")
        .arg(kubeconfig);
    let process = cluster.spawn("lease-apiserver", command).unwrap();
    cluster
        .wait_apiservice_available(LEASE_GROUP, LEASE_VERSION)
        .await
        .unwrap();
    process
}

/// The echo target of a test binary, as a process.
pub(crate) struct Echo {
    process: Process,
    address: SocketAddr,
    dir: PathBuf,
}

impl Echo {
    /// Where it answers.
    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// The certificate of the authority that signed its own, PEM.
    pub(crate) fn authority(&self) -> PathBuf {
        self.dir.join("ca.crt")
    }
}

pub(crate) async fn echo(cluster: &Cluster) -> &'static Echo {
    static ECHO: OnceCell<Echo> = OnceCell::const_new();
    let start = async || {
        let address = SocketAddr::from(([127, 0, 0, 1], cluster.free_port().unwrap()));
        let dir = cluster.dir().join("echo");
        let mut command = Command::new(env!("CARGO_BIN_EXE_proxy-operator"));
        command
            .args([
                "echo",
                "--listen",
                &address.to_string(),
                "--self-signed-dir",
            ])
            .arg(&dir);
        let process = cluster.spawn("echo", command).unwrap();
        let made = async || {
            Ok(["echo.key", "ca.crt"]
                .iter()
                .all(|f| dir.join(f).exists())
                .then_some(()))
        };
        wait_for("the keys of the echo target", TIMEOUT, made)
            .await
            .unwrap();
        Echo {
            process,
            address,
            dir,
        }
    };
    ECHO.get_or_init(start).await
}

/// A namespace of a test, its cloud, and the command line of its operators.
pub(crate) struct Site {
    pub(crate) cluster: &'static Cluster,
    pub(crate) client: Client,
    pub(crate) namespace: &'static str,
    pub(crate) cloud: Cloud,
    flags: Vec<String>,
}

/// An operator as a process.
pub(crate) struct Operator {
    pub(crate) process: Process,
    pub(crate) admin: SocketAddr,
}

impl Site {
    pub(crate) async fn new(namespace: &'static str) -> Self {
        let cluster = cluster().await;
        let client = cluster.client().await.unwrap();
        self::namespace(&client, namespace).await;
        let cloud = Cloud::start(cluster, namespace).await;
        let echo = echo(cluster).await;
        let providers = cluster.dir().join(format!("{namespace}-providers.yaml"));
        let text = format!(
            "providers:\n- name: local\n  type: mock\n  mock: {{url: 'http://{}'}}\n",
            cloud.address
        );
        std::fs::write(&providers, text).unwrap();
        let kubeconfig = cluster
            .service_account_kubeconfig(OPERATOR, OPERATOR)
            .await
            .unwrap();
        let path = |path: &Path| path.to_str().unwrap().to_owned();
        let echo_url = echo.url();
        let flags = [
            ("--providers-config", path(&providers)),
            ("--kubeconfig", path(&kubeconfig)),
            ("--namespaces", namespace.to_owned()),
            ("--provisioning-poll", "200ms".into()),
            ("--deletion-poll", "200ms".into()),
            ("--drift-poll", "500ms".into()),
            ("--echo-url", echo_url),
            ("--echo-key-file", path(&echo.dir.join("echo.key"))),
            ("--probe-ca-file", path(&echo.authority())),
            ("--log-level", "info,proxy_operator=debug".into()),
        ];
        let flags = flags
            .into_iter()
            .flat_map(|(flag, value)| [flag.to_owned(), value])
            .collect();
        Self {
            cluster,
            client,
            namespace,
            cloud,
            flags,
        }
    }

    /// Gives a flag that operators are started with another value.
    pub(crate) fn set_flag(&mut self, flag: &str, value: &str) {
        let at = self.flags.iter().position(|known| known == flag).unwrap();
        value.clone_into(&mut self.flags[at + 1]);
    }

    pub(crate) fn proxies(&self) -> Api<Proxy> {
        Api::namespaced(self.client.clone(), self.namespace)
    }

    /// Starts an operator that works at once.
    pub(crate) fn operator(&self) -> Operator {
        self.operator_with(&["--no-leader-elect"])
    }

    pub(crate) fn operator_with(&self, flags: &[&str]) -> Operator {
        let admin = SocketAddr::from(([127, 0, 0, 1], self.cluster.free_port().unwrap()));
        let mut command = Command::new(env!("CARGO_BIN_EXE_proxy-operator"));
        command
            .args(&self.flags)
            .args(["--bind-address", &admin.to_string()])
            .args(flags);
        let name = format!("{}-operator-{}", self.namespace, admin.port());
        Operator {
            process: self.cluster.spawn(&name, command).unwrap(),
            admin,
        }
    }
}

impl Operator {
    /// What an admin endpoint answers.
    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        let client = hyper_util::client::legacy::Client::builder(TokioExecutor::new());
        let client = client.build_http::<Empty<Bytes>>();
        let answer = client
            .get(format!("http://{}{path}", self.admin).parse().unwrap())
            .await;
        let Ok(answer) = answer else {
            return (0, String::new());
        };
        let code = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (code, String::from_utf8_lossy(&body).into_owned())
    }

    /// The value of a metric, by the beginning of its line; 0 when it is not there.
    pub(crate) async fn metric(&self, line: &str) -> f64 {
        let (_, text) = self.get("/metrics").await;
        let found = text.lines().find_map(|each| each.strip_prefix(line));
        found.map_or(0.0, |value| value.trim().parse().unwrap())
    }
}

/// A Proxy whose health is probed every second.
pub(crate) fn proxy(name: &str, mut spec: ProxySpec) -> Proxy {
    spec.health_check.interval_seconds = 1;
    spec.health_check.timeout_seconds = 1;
    Proxy::new(name, spec)
}

/// The Proxy, once it is Ready.
pub(crate) fn ready(proxy: Option<&Proxy>) -> Option<Proxy> {
    proxy.filter(|proxy| proxy.phase() == Phase::Ready).cloned()
}

/// The reason of a condition.
pub(crate) fn reason(proxy: &Proxy, condition: &str) -> String {
    proxy
        .condition(condition)
        .map(|condition| condition.reason.clone())
        .unwrap_or_default()
}

/// What the instance of a Proxy is found by in the cloud's books.
pub(crate) fn uid_label(proxy: &Proxy) -> Labels {
    Labels::from([(names::TAG_PROXY_UID.to_owned(), proxy.uid().unwrap())])
}

/// Whether it is gone.
pub(crate) fn gone<K>(object: Option<&K>) -> Option<()> {
    object.is_none().then_some(())
}
