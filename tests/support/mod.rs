//! One control plane per test binary with our CRDs and roles, and the programs around it.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::fmt::Debug;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crawl_api::proxy::{Proxy, ProxySpec};
use devcluster::{Cluster, Options, Process, wait_for};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use mock_cloud::client::Client as CloudClient;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::OnceCell;

/// For what takes seconds at most.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

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
        let mut command = Command::new(mock_cloud_binary());
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

/// Why built here: cargo builds the binaries of this package for its tests, not those of others.
fn mock_cloud_binary() -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_proxy-operator")).with_file_name("mock-cloud");
    static BUILT: std::sync::Once = std::sync::Once::new();
    BUILT.call_once(|| {
        let built = Command::new(env!("CARGO"))
            .current_dir(repository())
            .args([
                "build",
                "--quiet",
                "-p",
                "mock-cloud",
                "--bin",
                "mock-cloud",
            ])
            .status()
            .unwrap();
        assert!(built.success(), "mock-cloud cannot be built");
    });
    path
}

/// An operator for one namespace and one cloud, as a process.
pub(crate) struct Operator {
    pub(crate) process: Process,
    pub(crate) admin: SocketAddr,
}

impl Operator {
    pub(crate) async fn start(cluster: &Cluster, namespace: &str, cloud: &Cloud) -> Self {
        let port = cluster.free_port().unwrap();
        let admin = SocketAddr::from(([127, 0, 0, 1], port));
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
        let mut command = Command::new(env!("CARGO_BIN_EXE_proxy-operator"));
        command.arg("--providers-config").arg(&providers);
        command.arg("--kubeconfig").arg(&kubeconfig);
        command.args(["--namespaces", namespace, "--no-leader-elect"]);
        command.args(["--bind-address", &admin.to_string()]);
        command.args(["--provisioning-poll", "200ms", "--deletion-poll", "200ms"]);
        command.args([
            "--drift-poll",
            "1s",
            "--log-level",
            "info,proxy_operator=debug",
        ]);
        let process = cluster
            .spawn(&format!("{namespace}-operator"), command)
            .unwrap();
        Self { process, admin }
    }
}

/// A Proxy of a namespace.
pub(crate) fn proxy(name: &str, spec: ProxySpec) -> Proxy {
    Proxy::new(name, spec)
}
