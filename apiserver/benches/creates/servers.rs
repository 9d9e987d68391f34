//! Starts the processes under test and beside it: lease-apiserver, the instant peer, proxy-operator. All are
//! release builds, and end with the cluster.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use crawl_api::lease::{LEASE_GROUP, LEASE_VERSION};
use devcluster::{Cluster, Process};
use http::Method;

use crate::connect::Server;
use crate::instant;
use crate::load;

/// A server that is registered and available.
pub(crate) struct Served {
    /// The process.
    pub(crate) process: Process,
    /// Where it listens.
    pub(crate) port: u16,
}

const READY_TIMEOUT: Duration = Duration::from_mins(1);
/// kube-controller-manager looks for new APIs every 30 seconds.
const WATCHED_TIMEOUT: Duration = Duration::from_secs(90);
const WATCHED_INTERVAL: Duration = Duration::from_millis(200);

/// lease-apiserver with its store in `folder`, as an identity that may do everything: what it may do costs
/// nothing, what it asks does.
pub(crate) async fn start_lease_apiserver(cluster: &Cluster, folder: &Path) -> Result<Served> {
    let port = cluster.free_port()?;
    let registered = cluster
        .register_apiservice(LEASE_GROUP, LEASE_VERSION, port)
        .await?;
    let kubeconfig = cluster.user_kubeconfig("lease-apiserver", &["system:masters"])?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_lease-apiserver"));
    command
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(["--bind-address", "127.0.0.1"])
        .args(["--secure-port", &port.to_string()])
        .args([
            "--admin-address",
            &format!("127.0.0.1:{}", cluster.free_port()?),
        ])
        .arg("--tls-cert-file")
        .arg(&registered.files.cert)
        .arg("--tls-private-key-file")
        .arg(&registered.files.key)
        .arg("--store")
        .arg(format!("redb://{}", folder.join("leases.redb").display()));
    let process = cluster.spawn("lease-apiserver", command)?;
    wait_for_api(cluster, &process, LEASE_GROUP, LEASE_VERSION).await?;
    Ok(Served { process, port })
}

/// The instant peer.
pub(crate) async fn start_instant_peer(cluster: &Cluster) -> Result<Served> {
    let port = cluster.free_port()?;
    let registered = cluster
        .register_apiservice(instant::GROUP, instant::VERSION, port)
        .await?;
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["instant", "--port", &port.to_string()])
        .arg("--cert")
        .arg(&registered.files.cert)
        .arg("--key")
        .arg(&registered.files.key);
    let process = cluster.spawn("instant-peer", command)?;
    wait_for_api(cluster, &process, instant::GROUP, instant::VERSION).await?;
    Ok(Served { process, port })
}

/// Tells the instant peer what to answer, and waits until kube-controller-manager watches it: until then it
/// is faster than it may be. APIs that were registered before it are watched by then, too.
pub(crate) async fn prepare_instant_peer(
    cluster: &Cluster,
    instant: &Served,
    answer: String,
) -> Result<()> {
    let server = Server::new(instant.port, cluster.client_ca().pem(), None)?;
    load::ask(&server, Method::PUT, instant::ANSWER, answer.into()).await?;
    let what = "kube-controller-manager to watch the instant peer";
    let waited = devcluster::wait_for(what, WATCHED_TIMEOUT, async || {
        instant.process.check_running()?;
        tokio::time::sleep(WATCHED_INTERVAL).await;
        let watchers = load::ask(&server, Method::GET, instant::WATCHERS, Bytes::new()).await;
        let watchers: usize = watchers
            .ok()
            .and_then(|answer| String::from_utf8_lossy(&answer).parse().ok())
            .unwrap_or(0);
        // Its garbage collector and its quota controller share one watch.
        Ok((watchers > 0).then_some(()))
    });
    Ok(waited.await?)
}

/// proxy-operator, when a release build of it is there.
pub(crate) async fn start_operator(cluster: &Cluster, folder: &Path) -> Result<Option<Process>> {
    let program = release_folder().join("proxy-operator");
    if !program.is_file() {
        return Ok(None);
    }
    let kubeconfig = cluster.user_kubeconfig("proxy-operator", &["system:masters"])?;
    let providers = folder.join("providers.yaml");
    // Nothing is managed here, so nobody ever asks this provider.
    let text = "providers:\n- name: nobody\n  type: mock\n  mock:\n    url: http://127.0.0.1:9\n";
    std::fs::write(&providers, text).context("cannot write the providers file")?;
    let admin = format!("127.0.0.1:{}", cluster.free_port()?);
    let mut command = Command::new(program);
    command
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .arg("--providers-config")
        .arg(providers)
        .args(["--bind-address", &admin, "--no-leader-elect"]);
    let process = cluster.spawn("proxy-operator", command)?;
    wait_for_port(&process, &admin).await?;
    Ok(Some(process))
}

async fn wait_for_api(
    cluster: &Cluster,
    process: &Process,
    group: &str,
    version: &str,
) -> Result<()> {
    let available = cluster.wait_apiservice_available(group, version).await;
    // Why first: the log of a process that has exited says more than the aggregator.
    process.check_running()?;
    Ok(available?)
}

async fn wait_for_port(process: &Process, address: &str) -> Result<()> {
    let waited = devcluster::wait_for(process.name(), READY_TIMEOUT, async || {
        process.check_running()?;
        Ok(tokio::net::TcpStream::connect(address).await.ok().map(drop))
    });
    Ok(waited.await?)
}

/// The folder of release builds: that of the lease-apiserver this benchmark was built with.
fn release_folder() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_lease-apiserver"));
    program.parent().map(Path::to_owned).unwrap_or_default()
}

/// `<target>/bench`, where results and data go.
pub(crate) fn bench_folder() -> PathBuf {
    release_folder()
        .parent()
        .unwrap_or_else(|| Path::new("."))
        .join("bench")
}
