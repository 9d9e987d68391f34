//! A real etcd for one test: one member, or several.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use devcluster::binaries::{Binaries, Binary};
use devcluster::ports::ReservedPort;
use devcluster::{Process, ProcessGroup, Signal, wait_for};

use super::super::{EtcdStore, Options, Tls};

/// How long anything may take before a test gives up.
pub(super) const PATIENCE: Duration = Duration::from_mins(1);

pub(super) struct Etcd {
    members: Vec<Member>,
    program: PathBuf,
    arguments: Vec<String>,
    tls: Option<Tls>,
    group: ProcessGroup,
    folder: tempfile::TempDir,
}

struct Member {
    port: ReservedPort,
    peer_port: ReservedPort,
    process: Option<Process>,
}

impl Etcd {
    /// Starts one member with further arguments.
    pub(super) async fn start(arguments: &[&str]) -> Self {
        Self::start_members(1, arguments, None).await
    }

    /// Starts a cluster; with `tls` it must be served by what the arguments say.
    pub(super) async fn start_members(count: usize, arguments: &[&str], tls: Option<Tls>) -> Self {
        let binaries = tokio::task::spawn_blocking(|| Binaries::ensure(&[Binary::Etcd]))
            .await
            .unwrap()
            .unwrap();
        let folder = tempfile::tempdir().unwrap();
        let member = |_| Member {
            port: ReservedPort::reserve().unwrap(),
            peer_port: ReservedPort::reserve().unwrap(),
            process: None,
        };
        let mut etcd = Self {
            members: (0..count).map(member).collect(),
            program: binaries.get(Binary::Etcd).unwrap().to_owned(),
            arguments: arguments
                .iter()
                .map(|&argument| argument.to_owned())
                .collect(),
            tls,
            group: ProcessGroup::start(&folder.path().join("logs"), None).unwrap(),
            folder,
        };
        for index in 0..count {
            etcd.spawn(index);
        }
        etcd.wait_until_it_serves().await;
        etcd
    }

    pub(super) fn port(&self, index: usize) -> u16 {
        self.members[index].port.number()
    }

    pub(super) fn url(&self, index: usize) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.port(index))
    }

    /// Where a member's data are.
    pub(super) fn data(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("data-{index}"))
    }

    /// How to connect to all members.
    pub(super) fn options(&self, prefix: &str) -> Options {
        Options {
            endpoints: (0..self.members.len())
                .map(|index| self.url(index))
                .collect(),
            tls: self.tls.clone(),
            ..Options::new("", prefix)
        }
    }

    pub(super) async fn connect(&self, prefix: &str) -> EtcdStore {
        EtcdStore::connect(self.options(prefix)).await.unwrap()
    }

    /// Starts a member on the data it had.
    pub(super) async fn start_again(&mut self, index: usize) {
        self.spawn(index);
        self.wait_until_it_serves().await;
    }

    fn peer_url(&self, index: usize) -> String {
        let port = self.members[index].peer_port.number();
        format!("http://127.0.0.1:{port}")
    }

    /// How the members find each other.
    fn cluster(&self) -> String {
        let members =
            (0..self.members.len()).map(|index| format!("member-{index}={}", self.peer_url(index)));
        members.collect::<Vec<_>>().join(",")
    }

    /// `etcdutl snapshot restore` of a copy of the first member's database into its place, which must
    /// be empty.
    pub(super) async fn restore(&self, database: &Path, flags: &[&str]) {
        let binaries = tokio::task::spawn_blocking(|| Binaries::ensure(&[Binary::Etcdutl]))
            .await
            .unwrap()
            .unwrap();
        let output = Command::new(binaries.get(Binary::Etcdutl).unwrap())
            .args(["snapshot", "restore"])
            .arg(database)
            // Why: a copied database carries no hash, as `etcdctl snapshot save` would add.
            .args(["--skip-hash-check", "--name=member-0"])
            .arg(format!("--data-dir={}", self.data(0).display()))
            .arg(format!("--initial-advertise-peer-urls={}", self.peer_url(0)))
            .arg(format!("--initial-cluster={}", self.cluster()))
            .args(flags)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    fn spawn(&mut self, index: usize) {
        let (url, peer) = (self.url(index), self.peer_url(index));
        let mut command = Command::new(&self.program);
        command
            .arg(format!("--name=member-{index}"))
            .arg(format!("--data-dir={}", self.data(index).display()))
            .arg(format!("--listen-client-urls={url}"))
            .arg(format!("--advertise-client-urls={url}"))
            .arg(format!("--listen-peer-urls={peer}"))
            .arg(format!("--initial-advertise-peer-urls={peer}"))
            .arg(format!("--initial-cluster={}", self.cluster()))
            .arg("--log-level=warn")
            .args(&self.arguments);
        let process = self.group.spawn(&format!("etcd-{index}"), command).unwrap();
        self.members[index].process = Some(process);
    }

    async fn wait_until_it_serves(&self) {
        wait_for("etcd to serve", PATIENCE, async || {
            for process in self
                .members
                .iter()
                .filter_map(|member| member.process.as_ref())
            {
                process.check_running()?;
            }
            let options = Options {
                timeout: Duration::from_secs(1),
                ..self.options("/probe")
            };
            Ok(EtcdStore::connect(options).await.ok())
        })
        .await
        .unwrap();
    }

    /// Lets a member write down all it has.
    pub(super) async fn stop(&mut self, index: usize) {
        let process = self.members[index].process.take().unwrap();
        process.terminate().await.unwrap();
    }

    /// kill -9.
    pub(super) fn kill(&mut self, index: usize) {
        self.members[index].process.take().unwrap().kill9().unwrap();
    }

    pub(super) fn signal(&self, index: usize, signal: Signal) {
        let process = self.members[index].process.as_ref().unwrap();
        process.signal(signal).unwrap();
    }
}
