//! Starts a control plane and owns it: [`Cluster`]. The other modules add what can be asked of it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{Api, Client};
use parking_lot::Mutex;

use crate::binaries::{Binaries, Binary};
use crate::components::{self, Layout};
use crate::error::{Error, Result};
use crate::kubeconfig::{Credential, build_kubeconfig};
use crate::options::Options;
use crate::pki::{self, Authority, CertPair};
use crate::ports::ReservedPort;
use crate::process::{Process, ProcessGroup};
use crate::settings;
use crate::wait::wait_for;

/// How long the control plane may take to become ready; about three seconds are usual.
const START_TIMEOUT: Duration = Duration::from_secs(90);

/// The administrator's kubeconfig in a cluster's folder.
pub(crate) const KUBECONFIG: &str = "kubeconfig";
/// The folder of certificates and keys in a cluster's folder.
pub(crate) const PKI_FOLDER: &str = "pki";
/// Name of the authority of the cluster.
pub(crate) const CA: &str = "ca";

/// A running control plane: etcd, kube-apiserver, kube-controller-manager, and kwok when asked for.
///
/// RBAC is on; the aggregator is configured; admission plugins are upstream's defaults. That includes
/// `ServiceAccount`: the controller makes the `default` ServiceAccount of a new namespace within
/// milliseconds, and pod creation waits for it for about a second; another `serviceAccountName` has to
/// exist first.
///
/// Everything ends when this value is dropped, when the thread panics, and when the process that owns it
/// is killed. Data and logs go with it, unless the thread panicked or `DEVCLUSTER_KEEP` is set.
#[derive(Debug)]
pub struct Cluster {
    dir: PathBuf,
    temporary: bool,
    keep: bool,
    group: ProcessGroup,
    binaries: Binaries,
    ca: Authority,
    front_proxy_ca: Authority,
    front_proxy_client: CertPair,
    url: String,
    etcd_url: String,
    kubeconfig: PathBuf,
    processes: Vec<Process>,
    ports: Mutex<Vec<ReservedPort>>,
}

impl Cluster {
    /// Starts a control plane and waits until it is ready. The first use on a machine builds the binaries,
    /// which takes minutes and shows progress on standard error.
    pub async fn start(options: Options) -> Result<Self> {
        let mut cluster = Self::prepare(&options).await?;
        let started = cluster.start_components(&options).await;
        // Why: the error may name a log, which has to be there to be read.
        cluster.keep = started.is_err();
        started.map(|()| cluster)
    }

    async fn start_components(&mut self, options: &Options) -> Result<()> {
        self.start_control_plane(options).await?;
        if options.kwok {
            let kwok = crate::kwok::start(self).await?;
            self.processes.push(kwok);
        }
        Ok(())
    }

    async fn prepare(options: &Options) -> Result<Self> {
        let mut wanted = vec![
            Binary::Etcd,
            Binary::KubeApiserver,
            Binary::KubeControllerManager,
            Binary::Kubectl,
        ];
        if options.kwok {
            wanted.push(Binary::Kwok);
        }
        let binaries = ensure(wanted).await?;
        let (dir, temporary) = options.dir.clone().map_or_else(
            || temporary_folder().map(|dir| (dir, true)),
            |dir| Ok((dir, false)),
        )?;
        let pki_dir = dir.join("pki");
        create_private_folder(&pki_dir)?;
        let ca = Authority::load_or_create(&pki_dir, CA)?;
        let front_proxy_ca = Authority::load_or_create(&pki_dir, "front-proxy-ca")?;
        let front_proxy_client = front_proxy_ca.client(crate::FRONT_PROXY_NAME, &[])?;
        let remove = (temporary && !settings::keep_data()).then_some(dir.as_path());
        let group = ProcessGroup::start(&dir.join("logs"), remove)?;
        let [port, etcd] = [ReservedPort::reserve()?, ReservedPort::reserve()?];
        Ok(Self {
            url: format!("https://127.0.0.1:{}", port.number()),
            etcd_url: format!("http://127.0.0.1:{}", etcd.number()),
            kubeconfig: dir.join(KUBECONFIG),
            dir,
            temporary,
            keep: false,
            group,
            binaries,
            ca,
            front_proxy_ca,
            front_proxy_client,
            processes: Vec::new(),
            ports: Mutex::new(vec![port, etcd]),
        })
    }

    async fn start_control_plane(&mut self, options: &Options) -> Result<()> {
        let pki_dir = self.pki_folder();
        let serving = self
            .ca
            .serving(&[
                "kubernetes.default.svc",
                "kubernetes.default",
                "kubernetes",
                "localhost",
                "127.0.0.1",
                components::FIRST_SERVICE_IP,
            ])?
            .write(&pki_dir, "apiserver")?;
        let front_proxy_client = self
            .front_proxy_client
            .write(&pki_dir, "front-proxy-client")?;
        let service_account = pki::service_account_key(&pki_dir)?;
        let admin = self.ca.client("kubernetes-admin", &["system:masters"])?;
        self.write_kubeconfig(
            "kubeconfig",
            "kubernetes-admin",
            &Credential::Certificate(&admin),
            "default",
        )?;
        let manager = self.ca.client("system:kube-controller-manager", &[])?;
        let manager_kubeconfig = self.write_kubeconfig(
            "kube-controller-manager.kubeconfig",
            "system:kube-controller-manager",
            &Credential::Certificate(&manager),
            "default",
        )?;
        let layout = Layout {
            pki: &pki_dir,
            etcd_data: &self.dir.join("etcd"),
            etcd_url: &self.etcd_url,
            etcd_peer_url: &format!("http://127.0.0.1:{}", self.free_port()?),
            serving: &serving,
            front_proxy_client: &front_proxy_client,
            service_account: &service_account,
            controller_manager_kubeconfig: &manager_kubeconfig,
            controller_manager_port: self.free_port()?,
            port: self.port(),
        };

        let mut etcd = self.command(Binary::Etcd)?;
        etcd.args(components::etcd_args(&layout));
        if !options.durable {
            etcd.arg("--unsafe-no-fsync");
        }
        let mut apiserver = self.command(Binary::KubeApiserver)?;
        apiserver
            .args(components::apiserver_args(&layout))
            .args(&options.apiserver_args);
        let mut manager = self.command(Binary::KubeControllerManager)?;
        manager
            .args(components::controller_manager_args(&layout))
            .args(&options.controller_manager_args)
            .envs(options.controller_manager_env.iter().cloned());

        self.processes.push(self.spawn("etcd", etcd)?);
        self.processes
            .push(self.spawn("kube-apiserver", apiserver)?);
        let client = self.client().await?;
        let starting = tokio::time::timeout(START_TIMEOUT, async {
            self.wait_for_apiserver(&client).await?;
            // Why not earlier: it gives up when the API server is not there within ten seconds.
            let manager = self.spawn("kube-controller-manager", manager)?;
            self.wait_for_controllers(&client, &manager).await?;
            Ok::<_, Error>(manager)
        });
        let manager = starting.await.map_err(|_| Error::Timeout {
            what: "the control plane".to_owned(),
            waited: START_TIMEOUT,
            detail: format!(": see {}", self.group.log_folder().display()),
        })??;
        self.processes.push(manager);
        Ok(())
    }

    async fn wait_for_apiserver(&self, client: &Client) -> Result<()> {
        wait_for("kube-apiserver to be ready", START_TIMEOUT, async || {
            self.check_running()?;
            let request = http_get("/readyz")?;
            Ok(client
                .request_text(request)
                .await
                .ok()
                .filter(|answer| answer == "ok")
                .map(drop))
        })
        .await
    }

    /// The controllers run once the ServiceAccount controller has done its work in `default`.
    async fn wait_for_controllers(&self, client: &Client, manager: &Process) -> Result<()> {
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
        wait_for(
            "kube-controller-manager to make the default ServiceAccount",
            START_TIMEOUT,
            async || {
                self.check_running()?;
                manager.check_running()?;
                let account = accounts
                    .get_opt("default")
                    .await
                    .map_err(Error::api("read the default ServiceAccount"))?;
                Ok(account.map(drop))
            },
        )
        .await
    }

    /// Fails when a component has exited, with the end of its log.
    pub fn check_running(&self) -> Result<()> {
        self.processes.iter().try_for_each(Process::check_running)
    }

    /// The folder of the cluster: `kubeconfig`, `pki/`, `logs/`, `etcd/`.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// `dir()/pki`: `ca.crt`, `front-proxy-ca.crt`, `front-proxy-client.crt` and `.key`, and more.
    pub fn pki_folder(&self) -> PathBuf {
        self.dir.join(PKI_FOLDER)
    }

    /// `dir()/logs`: one `<name>.log` per process.
    pub fn log_folder(&self) -> &Path {
        self.group.log_folder()
    }

    /// `https://127.0.0.1:<port>` of kube-apiserver.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// `http://127.0.0.1:<port>` of etcd. It has no authentication: loopback is all that protects it.
    pub fn etcd_url(&self) -> &str {
        &self.etcd_url
    }

    fn port(&self) -> u16 {
        self.ports.lock().first().map_or(0, ReservedPort::number)
    }

    /// The kubeconfig of an administrator (group `system:masters`).
    pub fn kubeconfig_path(&self) -> &Path {
        &self.kubeconfig
    }

    /// The authority that signs clients and servers.
    pub fn client_ca(&self) -> &Authority {
        &self.ca
    }

    /// The authority that signs front proxies (`requestheader-client-ca-file`), PEM through
    /// [`Authority::pem`].
    pub fn request_header_ca(&self) -> &Authority {
        &self.front_proxy_ca
    }

    /// The certificate kube-apiserver shows to aggregated APIs ([`crate::FRONT_PROXY_NAME`]): with it, a
    /// test acts as the aggregator and sets `X-Remote-*` itself.
    pub fn front_proxy_client(&self) -> &CertPair {
        &self.front_proxy_client
    }

    /// A loopback port that no other cluster takes while this one lives.
    pub fn free_port(&self) -> Result<u16> {
        let port = ReservedPort::reserve()?;
        let number = port.number();
        self.ports.lock().push(port);
        Ok(number)
    }

    /// The processes of the control plane.
    pub fn processes(&self) -> &[Process] {
        &self.processes
    }

    /// The component `name`, such as `kube-apiserver`.
    pub fn process(&self, name: &str) -> Option<&Process> {
        self.processes.iter().find(|process| process.name() == name)
    }

    /// The group all processes of the cluster belong to.
    pub fn group(&self) -> &ProcessGroup {
        &self.group
    }

    /// Starts a further program that ends with the cluster at the latest; its output goes to
    /// `logs/<name>.log` and is printed when a test panics.
    pub fn spawn(&self, name: &str, command: Command) -> Result<Process> {
        self.group.spawn(name, command)
    }

    /// An upstream binary, ready for arguments.
    pub(crate) fn command(&self, binary: Binary) -> Result<Command> {
        self.path_of(binary).map(Command::new)
    }

    /// The path of `kubectl`, to run it with something else than what [`Self::kubectl_as`] sets.
    pub fn kubectl_path(&self) -> Result<&Path> {
        self.path_of(Binary::Kubectl)
    }

    fn path_of(&self, binary: Binary) -> Result<&Path> {
        self.binaries.get(binary).ok_or_else(|| Error::Spawn {
            name: binary.name().to_owned(),
            source: std::io::ErrorKind::NotFound.into(),
        })
    }

    /// Writes a kubeconfig for this cluster into its folder.
    pub(crate) fn write_kubeconfig(
        &self,
        file: &str,
        user: &str,
        credential: &Credential<'_>,
        namespace: &str,
    ) -> Result<PathBuf> {
        let path = self.dir.join(file);
        let text = build_kubeconfig(&self.url, self.ca.pem(), user, credential, namespace);
        pki::write_file(&path, &text)?;
        Ok(path)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.group.end();
        if !self.temporary {
            return;
        }
        if self.keep || std::thread::panicking() || settings::keep_data() {
            report_kept(&self.dir);
        } else if let Err(error) = std::fs::remove_dir_all(&self.dir) {
            tracing::warn!(%error, dir = %self.dir.display(), "cannot remove the data of a cluster");
        }
    }
}

#[expect(
    clippy::print_stderr,
    reason = "whoever reads the failure of a test needs the path"
)]
fn report_kept(dir: &Path) {
    eprintln!("devcluster: data and logs are kept in {}", dir.display());
}

/// [`Binaries::ensure`] without blocking the runtime.
pub(crate) async fn ensure(wanted: Vec<Binary>) -> Result<Binaries> {
    match tokio::task::spawn_blocking(move || Binaries::ensure(&wanted)).await {
        Ok(found) => found,
        Err(gone) => std::panic::resume_unwind(gone.into_panic()),
    }
}

pub(crate) fn http_get(path: &str) -> Result<http::Request<Vec<u8>>> {
    http::Request::get(path)
        .body(Vec::new())
        .map_err(|error| Error::api(format!("ask for {path}"))(kube::Error::HttpError(error)))
}

fn temporary_folder() -> Result<PathBuf> {
    tempfile::Builder::new()
        .prefix("devcluster-")
        .tempdir()
        .map(tempfile::TempDir::keep)
        .map_err(Error::file("create a folder in", std::env::temp_dir()))
}

fn create_private_folder(path: &Path) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(Error::file("create", path))
}
