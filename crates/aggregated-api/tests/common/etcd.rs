//! A real etcd for tests, which can be killed.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use aggregated_api::store::etcd::{EtcdStore, Options};
use devcluster::binaries::{Binaries, Binary};
use devcluster::ports::ReservedPort;
use devcluster::{Process, ProcessGroup, wait_for};

const PATIENCE: Duration = Duration::from_mins(1);

/// An etcd of one member.
pub(crate) struct Etcd {
    process: Process,
    group: ProcessGroup,
    program: PathBuf,
    ports: [ReservedPort; 2],
    folder: tempfile::TempDir,
}

impl Etcd {
    /// Starts one on a new folder.
    pub(crate) async fn start() -> Self {
        let binaries = tokio::task::spawn_blocking(|| Binaries::ensure(&[Binary::Etcd]));
        let binaries = binaries.await.unwrap().unwrap();
        let program = binaries.get(Binary::Etcd).unwrap().to_owned();
        let folder = tempfile::tempdir().unwrap();
        let group = ProcessGroup::start(&folder.path().join("logs"), None).unwrap();
        let ports = [(); 2].map(|()| ReservedPort::reserve().unwrap());
        let process = Self::spawn(&group, &program, &ports, &folder);
        let etcd = Self {
            process,
            group,
            program,
            ports,
            folder,
        };
        etcd.serves().await;
        etcd
    }

    fn spawn(
        group: &ProcessGroup,
        program: &PathBuf,
        ports: &[ReservedPort; 2],
        folder: &tempfile::TempDir,
    ) -> Process {
        let [url, peer] = ports
            .each_ref()
            .map(|port| format!("http://127.0.0.1:{}", port.number()));
        let mut command = Command::new(program);
        command
            .arg("--name=test")
            .arg(format!(
                "--data-dir={}",
                folder.path().join("data").display()
            ))
            .arg(format!("--listen-client-urls={url}"))
            .arg(format!("--advertise-client-urls={url}"))
            .arg(format!("--listen-peer-urls={peer}"))
            .arg(format!("--initial-advertise-peer-urls={peer}"))
            .arg(format!("--initial-cluster=test={peer}"))
            .arg("--log-level=warn");
        group.spawn("etcd", command).unwrap()
    }

    /// Where it serves.
    pub(crate) fn url(&self) -> String {
        let [port, _] = &self.ports;
        format!("http://127.0.0.1:{}", port.number())
    }

    /// How to connect to it.
    pub(crate) fn options(&self) -> Options {
        Options::new(self.url(), "/wardle")
    }

    async fn serves(&self) {
        wait_for("etcd to serve", PATIENCE, async || {
            self.process.check_running()?;
            Ok(EtcdStore::connect(self.options()).await.ok())
        })
        .await
        .unwrap();
    }

    /// Kills it and starts it on the same folder.
    pub(crate) async fn kill_and_start_again(&mut self) {
        self.process.kill9().unwrap();
        self.process = Self::spawn(&self.group, &self.program, &self.ports, &self.folder);
        self.serves().await;
    }
}
