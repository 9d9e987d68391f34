//! Leases on an etcd that has no space: they end and are given back all the same.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test code"
)]

mod in_process;

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use aggregated_api::store::etcd::{EtcdStore, Options};
use aggregated_api::store::{Error, Op, Store};
use bytes::Bytes;
use devcluster::binaries::{Binaries, Binary};
use devcluster::ports::ReservedPort;
use devcluster::{Process, ProcessGroup, wait_for};
use in_process::{Caller, Server, lease};
use runtime_kit::SteppedClock;
use serde_json::{Value, json};

const ALICE: Caller = Caller::named("alice");
const PATIENCE: Duration = Duration::from_mins(1);

struct Etcd {
    url: String,
    peer: String,
    process: Option<Process>,
    group: ProcessGroup,
    folder: tempfile::TempDir,
    _ports: [ReservedPort; 2],
}

impl Etcd {
    async fn start(quota: u32) -> Self {
        let ports = [(); 2].map(|()| ReservedPort::reserve().unwrap());
        let [url, peer] = ports
            .each_ref()
            .map(|port| format!("http://127.0.0.1:{}", port.number()));
        let folder = tempfile::tempdir().unwrap();
        let mut etcd = Self {
            url,
            peer,
            process: None,
            group: ProcessGroup::start(&folder.path().join("logs"), None).unwrap(),
            folder,
            _ports: ports,
        };
        etcd.serve(quota).await;
        etcd
    }

    /// Starts it, again with another quota.
    async fn serve(&mut self, quota: u32) {
        if let Some(process) = self.process.take() {
            process.kill9().unwrap();
        }
        let binaries = tokio::task::spawn_blocking(|| Binaries::ensure(&[Binary::Etcd]))
            .await
            .unwrap()
            .unwrap();
        let mut command = Command::new(binaries.get(Binary::Etcd).unwrap());
        let data = self.folder.path().join("data");
        command
            .arg("--name=test")
            .arg(format!("--data-dir={}", data.display()))
            .arg(format!("--listen-client-urls={}", self.url))
            .arg(format!("--advertise-client-urls={}", self.url))
            .arg(format!("--listen-peer-urls={}", self.peer))
            .arg(format!("--initial-advertise-peer-urls={}", self.peer))
            .arg(format!("--initial-cluster=test={}", self.peer))
            .arg(format!("--quota-backend-bytes={quota}"))
            .arg("--log-level=warn");
        self.process = Some(self.group.spawn("etcd", command).unwrap());
        wait_for("etcd to serve", PATIENCE, async || {
            let options = Options::new(&self.url, "/probe");
            Ok(EtcdStore::connect(options).await.ok())
        })
        .await
        .unwrap();
    }

    async fn store(&self, prefix: &str) -> EtcdStore {
        EtcdStore::connect(Options::new(&self.url, prefix))
            .await
            .unwrap()
    }

    /// Puts until nothing more is accepted.
    async fn fill(&self) {
        let store = self.store("/filler").await;
        for n in 0..200 {
            let value = Bytes::from(vec![7; 200_000]);
            let put = Op::Put(Arc::from(n.to_string()), value);
            match store.txn(Vec::new(), vec![put]).await {
                Ok(_) => {},
                Err(Error::NoSpace) => return,
                Err(error) => panic!("{error:?}"),
            }
        }
        panic!("the quota is never reached");
    }

    /// What `etcdctl alarm disarm` does.
    fn disarm(&self) {
        let alarms = self.alarm(&json!({"action": "GET"}));
        let alarms = alarms["alarms"].as_array().unwrap();
        assert_eq!(alarms.len(), 1);
        for alarm in alarms {
            let mut disarm = alarm.clone();
            disarm["action"] = json!("DEACTIVATE");
            self.alarm(&disarm);
        }
    }

    fn alarm(&self, request: &Value) -> Value {
        let output = Command::new("curl")
            .args(["-sf", "-X", "POST", "-d", &request.to_string()])
            .arg(format!("{}/v3/maintenance/alarm", self.url))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

async fn is_gone(server: &Server, name: &str) {
    let what = format!("{name} to be gone");
    server
        .until(&what, async || {
            server.get(name).await.is_none().then_some(())
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_space_leases_are_deleted_and_expire_and_their_slots_come_back_with_space() {
    tokio::time::timeout(2 * PATIENCE, full()).await.unwrap();
}

async fn full() {
    let mut etcd = Etcd::start(4 << 20).await;
    let clock = SteppedClock::default();
    let server = Server::start_on(Arc::new(etcd.store("/leases").await), clock).await;
    server.proxy("a", 4);
    for n in 0..4 {
        let object = lease(&format!("x{n}"), &json!({"ttlSeconds": 300}));
        let (code, body) = server.create(&ALICE, &object).await;
        assert_eq!(code, 201, "{body}");
    }
    etcd.fill().await;
    let (code, refused) = server.renew(&ALICE, "x3").await;
    assert_eq!(
        (code, &refused["reason"]),
        (507, &json!("InsufficientStorage"))
    );

    // All on one proxy, whose record cannot be written.
    for name in ["x0", "x1"] {
        let (code, body) = server.delete(&ALICE, name).await;
        assert_eq!(code, 200, "{body}");
        assert!(server.get(name).await.is_none());
    }
    server.clock.advance(Duration::from_secs(301));
    is_gone(&server, "x2").await;
    is_gone(&server, "x3").await;
    assert_eq!(server.recorded().await, 4, "nothing is granted twice");

    // The next process starts on the full etcd, and knows that the slots are taken.
    let server = server.restarted(Duration::from_mins(1)).await;
    server.proxy("a", 4);
    assert_eq!(server.list().await.len(), 0);
    let (code, denied) = server.create(&ALICE, &lease("y", &json!({}))).await;
    assert_eq!((code, &denied["reason"]), (409, &json!("NoProxyAvailable")));

    etcd.serve(64 << 20).await;
    etcd.disarm();
    server
        .until("the slots to come back", async || {
            server.clock.advance(Duration::from_secs(1));
            (server.recorded().await == 0).then_some(())
        })
        .await;
    for n in 0..4 {
        let (code, body) = server
            .create(&ALICE, &lease(&format!("z{n}"), &json!({})))
            .await;
        assert_eq!(code, 201, "{body}");
    }
    assert_eq!((server.recorded().await, server.active()), (4, 4));
}
