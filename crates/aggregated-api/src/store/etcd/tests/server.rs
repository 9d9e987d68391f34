//! A real etcd for one test: one member, or several.

use std::path::PathBuf;
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

    fn url(&self, index: usize) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.members[index].port.number())
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

    fn spawn(&mut self, index: usize) {
        let peer = |index: usize| {
            let port = self.members[index].peer_port.number();
            format!("http://127.0.0.1:{port}")
        };
        let cluster: Vec<_> = (0..self.members.len())
            .map(|index| format!("member-{index}={}", peer(index)))
            .collect();
        let (url, peer) = (self.url(index), peer(index));
        let mut command = Command::new(&self.program);
        command
            .arg(format!("--name=member-{index}"))
            .arg(format!("--data-dir={}", self.data(index).display()))
            .arg(format!("--listen-client-urls={url}"))
            .arg(format!("--advertise-client-urls={url}"))
            .arg(format!("--listen-peer-urls={peer}"))
            .arg(format!("--initial-advertise-peer-urls={peer}"))
            .arg(format!("--initial-cluster={}", cluster.join(",")))
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

    /// kill -9.
    pub(super) fn kill(&mut self, index: usize) {
        self.members[index].process.take().unwrap().kill9().unwrap();
    }

    pub(super) fn signal(&self, signal: Signal) {
        let process = self.members[0].process.as_ref().unwrap();
        process.signal(signal).unwrap();
    }
}
