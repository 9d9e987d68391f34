//! The processes: a control plane, mock-cloud, an echo target, lease-apiserver and the operator, all as a
//! user has them, and release builds.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use crawl_api::lease::{LEASE_GROUP, LEASE_VERSION};
use crawl_api::pool::ProxyPool;
use crawl_api::proxy::Proxy;
use devcluster::{Cluster, Process, wait_for};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ListParams, ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt};
use runtime_kit::Clock;

use crate::scrape::{self, Scrape};

/// Namespace of the fleet.
pub(crate) const NAMESPACE: &str = "bench";
/// Its pool.
pub(crate) const POOL: &str = "eu";
/// The namespace, and the ServiceAccount in it, that the operator's roles are bound to.
const OPERATOR: &str = "proxy-operator";
const TIMEOUT: Duration = Duration::from_mins(1);

/// Everything that runs.
pub(crate) struct Site {
    pub(crate) cluster: Cluster,
    pub(crate) client: Client,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) cloud: mock_cloud::client::Client,
    pub(crate) lease_apiserver: Process,
    /// Where lease-apiserver serves its API.
    pub(crate) lease_port: u16,
    /// Processes that are not measured.
    others: Vec<Process>,
    flags: Vec<String>,
    folder: PathBuf,
}

/// The operator, one life of it.
pub(crate) struct Operator {
    pub(crate) process: Process,
    pub(crate) admin: SocketAddr,
}

/// The definitions, roles and namespaces that the rest needs.
pub(crate) async fn prepare(cluster: &Cluster) -> Result<Client> {
    let client = cluster.client().await?;
    for name in [NAMESPACE, OPERATOR] {
        create_namespace(&client, name).await?;
    }
    for args in [
        &[
            "apply",
            "-f",
            "config/crd",
            "-f",
            "config/rbac/operator.yaml",
        ][..],
        &["wait", "--for=condition=Established", "crd", "--all"],
    ] {
        let output = Command::new(cluster.kubectl_path()?)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env("KUBECONFIG", cluster.kubeconfig_path())
            .env("KUBECACHEDIR", cluster.dir().join("kubectl-cache"))
            .args(args)
            .output()?;
        let told = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "kubectl {args:?}: {told}");
    }
    Ok(client)
}

/// A namespace.
pub(crate) async fn create_namespace(client: &Client, name: &str) -> Result<()> {
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        ..ObjectMeta::default()
    };
    let object = Namespace {
        metadata,
        ..Namespace::default()
    };
    Api::<Namespace>::all(client.clone())
        .create(&PostParams::default(), &object)
        .await
        .with_context(|| format!("cannot create the namespace {name}"))?;
    Ok(())
}

// === impl Site ===

impl Site {
    /// Starts everything but the operator.
    pub(crate) async fn start(
        cluster: Cluster,
        client: Client,
        folder: &Path,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self> {
        let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let cloud_address = local(cluster.free_port()?);
        let mut command = Command::new(program("mock-cloud"));
        command.args(["serve", "--listen", &cloud_address.to_string(), "--state"]);
        command.arg(folder.join("cloud"));
        let cloud = cluster.spawn("mock-cloud", command)?;
        cloud.wait_for_log("listening on", TIMEOUT).await?;

        let echo_address = local(cluster.free_port()?);
        let echo_folder = folder.join("echo");
        let mut command = Command::new(program("proxy-operator"));
        command.args([
            "echo",
            "--listen",
            &echo_address.to_string(),
            "--self-signed-dir",
        ]);
        command.arg(&echo_folder);
        let echo = cluster.spawn("echo", command)?;
        wait_for("the keys of the echo target", TIMEOUT, async || {
            let made = ["echo.key", "ca.crt"].map(|file| echo_folder.join(file).exists());
            Ok(made.iter().all(|made| *made).then_some(()))
        })
        .await?;

        let (lease_apiserver, lease_port) = start_lease_apiserver(&cluster, folder).await?;
        let providers = folder.join("providers.yaml");
        let text = format!(
            "providers:\n- name: local\n  type: mock\n  mock: {{url: 'http://{cloud_address}'}}\n"
        );
        std::fs::write(&providers, text).context("cannot write the providers file")?;
        let kubeconfig = cluster
            .service_account_kubeconfig(OPERATOR, OPERATOR)
            .await?;
        let path = |path: &Path| path.display().to_string();
        let flags = [
            ("--providers-config", path(&providers)),
            ("--kubeconfig", path(&kubeconfig)),
            ("--leader-elect-namespace", OPERATOR.to_owned()),
            ("--echo-url", format!("https://{echo_address}")),
            ("--echo-key-file", path(&echo_folder.join("echo.key"))),
            ("--probe-ca-file", path(&echo_folder.join("ca.crt"))),
        ];
        let flags = flags
            .into_iter()
            .flat_map(|(flag, value)| [flag.to_owned(), value])
            .collect();
        Ok(Self {
            client,
            clock: Arc::clone(clock),
            cloud: mock_cloud::client::Client::new(cloud_address),
            lease_apiserver,
            lease_port,
            others: vec![cloud, echo],
            flags,
            folder: folder.to_owned(),
            cluster,
        })
    }

    /// Starts the operator with its defaults, leader election among them; does not wait.
    pub(crate) fn start_operator(&self) -> Result<Operator> {
        let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, self.cluster.free_port()?));
        let mut command = Command::new(program("proxy-operator"));
        command
            .args(&self.flags)
            .args(["--bind-address", &admin.to_string()])
            .args(["--identity", &format!("operator-{}", admin.port())])
            .current_dir(&self.folder);
        Ok(Operator {
            process: self.cluster.spawn("proxy-operator", command)?,
            admin,
        })
    }

    /// Fails when a process has ended.
    pub(crate) fn check_running(&self) -> Result<()> {
        self.cluster.check_running()?;
        self.lease_apiserver.check_running()?;
        for process in &self.others {
            process.check_running()?;
        }
        Ok(())
    }

    /// The Proxies of the fleet.
    pub(crate) fn proxies(&self) -> Api<Proxy> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// The pools.
    pub(crate) fn pools(&self) -> Api<ProxyPool> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// All Proxies of the fleet as they are.
    pub(crate) async fn fleet(&self) -> Result<Vec<Proxy>> {
        let mut fleet = self.proxies().list(&ListParams::default()).await?.items;
        fleet.sort_by_key(ResourceExt::name_any);
        Ok(fleet)
    }

    /// Writes to Proxies, ProxyPools and events that kube-apiserver has answered, whoever asked.
    pub(crate) async fn object_writes(&self) -> Result<f64> {
        let request = http::Request::get("/metrics").body(Vec::new())?;
        let text = self.client.request_text(request).await?;
        // Only these lines: some others have labels that are more than this benchmark reads.
        let lines = text
            .lines()
            .filter(|line| line.starts_with("apiserver_request_total{"));
        let scrape = Scrape::parse(&lines.collect::<Vec<_>>().join("\n"))?;
        Ok(scrape.sum("apiserver_request_total", |labels| {
            let label = |name: &str| labels.get(name).map_or("", String::as_str);
            let writes = [
                "POST",
                "PUT",
                "PATCH",
                "APPLY",
                "DELETE",
                "DELETECOLLECTION",
            ];
            writes.contains(&label("verb"))
                && (label("group") == crawl_api::names::GROUP || label("resource") == "events")
        }))
    }
}

// === impl Operator ===

impl Operator {
    /// Its metrics; none as long as nobody answers.
    pub(crate) async fn scrape(&self) -> Result<Scrape> {
        self.process.check_running()?;
        scrape::scrape(self.admin).await
    }

    /// Passes over Proxies since it was started; 0 as long as nobody answers.
    pub(crate) async fn proxy_passes(&self) -> Result<f64> {
        self.process.check_running()?;
        let Ok(scrape) = scrape::scrape(self.admin).await else {
            return Ok(0.0);
        };
        Ok(scrape.sum("controller_runtime_reconcile_total", |labels| {
            labels.get("controller").is_some_and(|name| name == "proxy")
        }))
    }
}

/// lease-apiserver with its store in `folder`, and its port, as an identity that may do everything.
async fn start_lease_apiserver(cluster: &Cluster, folder: &Path) -> Result<(Process, u16)> {
    let port = cluster.free_port()?;
    let registered = cluster
        .register_apiservice(LEASE_GROUP, LEASE_VERSION, port)
        .await?;
    let kubeconfig = cluster.user_kubeconfig("lease-apiserver", &["system:masters"])?;
    let admin = format!("127.0.0.1:{}", cluster.free_port()?);
    let store = format!("redb://{}", folder.join("leases.redb").display());
    let mut command = Command::new(program("lease-apiserver"));
    command
        .args(["--bind-address", "127.0.0.1", "--admin-address", &admin])
        .args(["--secure-port", &port.to_string(), "--store", &store])
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .arg("--tls-cert-file")
        .arg(&registered.files.cert)
        .arg("--tls-private-key-file")
        .arg(&registered.files.key);
    let process = cluster.spawn("lease-apiserver", command)?;
    let available = cluster.wait_apiservice_available(LEASE_GROUP, LEASE_VERSION);
    let available = available.await;
    // Why first: the log of a process that has exited says more than the aggregator.
    process.check_running()?;
    available?;
    Ok((process, port))
}

/// A program that was built with this benchmark.
fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_proxy-operator")).with_file_name(name)
}

/// `<target>/bench`, where results and data go.
pub(crate) fn bench_folder() -> PathBuf {
    let target = program("x");
    let target = target.ancestors().nth(2).unwrap_or_else(|| Path::new("."));
    target.join("bench")
}
