//! Two servers side by side on one prefix of a real etcd, as two replicas are: what one writes, the
//! other serves, under the same resource versions and in the same order.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a helper that cannot do its work fails its test"
)]

#[expect(dead_code, reason = "shared with other tests, which use more of it")]
mod common;

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use aggregated_api::store::etcd::{EtcdStore, Options};
use common::{COLLECTION, Events, Server};
use devcluster::binaries::{Binaries, Binary};
use devcluster::ports::ReservedPort;
use devcluster::{Process, ProcessGroup, wait_for};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_mins(1);

struct Etcd {
    process: Process,
    group: ProcessGroup,
    program: PathBuf,
    ports: [ReservedPort; 2],
    folder: tempfile::TempDir,
}

impl Etcd {
    async fn start() -> Self {
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

    fn options(&self) -> Options {
        let [port, _] = &self.ports;
        Options::new(format!("http://127.0.0.1:{}", port.number()), "/wardle")
    }

    async fn serves(&self) {
        wait_for("etcd to serve", PATIENCE, async || {
            self.process.check_running()?;
            Ok(EtcdStore::connect(self.options()).await.ok())
        })
        .await
        .unwrap();
    }

    async fn kill_and_start_again(&mut self) {
        self.process.kill9().unwrap();
        self.process = Self::spawn(&self.group, &self.program, &self.ports, &self.folder);
        self.serves().await;
    }

    async fn server(&self) -> Server {
        let store = EtcdStore::connect(self.options()).await.unwrap();
        Server::on(Arc::new(store)).await
    }
}

fn item(name: &str) -> String {
    format!("{COLLECTION}/{name}")
}

fn version(object: &Value) -> &str {
    object["metadata"]["resourceVersion"].as_str().unwrap()
}

/// Type, name and resource version of the next events.
async fn told(events: &mut Events, count: usize) -> Vec<(String, String, String)> {
    let mut told = Vec::new();
    for _ in 0..count {
        let event = events.next().await.expect("the watch goes on");
        let object = &event["object"];
        told.push((
            event["type"].as_str().unwrap().to_owned(),
            object["metadata"]["name"].as_str().unwrap().to_owned(),
            version(object).to_owned(),
        ));
    }
    told
}

async fn watch(server: &Server, after: &str) -> Events {
    let path = format!("{COLLECTION}?watch=true&resourceVersion={after}");
    server.watch(&path, "application/json").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_replica_writes_the_other_serves_at_once_and_alike() {
    let etcd = Etcd::start().await;
    let (one, two) = (etcd.server().await, etcd.server().await);
    let created = one.create("a", json!({})).await;
    assert_eq!(
        two.call("GET", &item("a"), None).await,
        (200, created.clone())
    );
    let patch = json!({"spec": {"reference": "new"}});
    let (status, patched) = two.call("PATCH", &item("a"), Some(patch)).await;
    assert_eq!(status, 200, "{patched}");
    assert_eq!(
        one.call("GET", &item("a"), None).await,
        (200, patched.clone())
    );

    let (status, refused) = one.call("PUT", &item("a"), Some(created)).await;
    assert_eq!((status, &refused["reason"]), (409, &json!("Conflict")));
    let (status, _) = one.call("DELETE", &item("a"), None).await;
    assert_eq!(status, 200);
    let (status, _) = two.call("GET", &item("a"), None).await;
    assert_eq!(status, 404);

    one.create("b", json!({})).await;
    let late = etcd.server().await;
    let mut lists = Vec::new();
    for server in [&one, &two, &late] {
        let (status, list) = server.call("GET", COLLECTION, None).await;
        assert_eq!(status, 200);
        lists.push(list["items"].clone());
    }
    assert_eq!(lists[0].as_array().unwrap().len(), 1);
    assert!(lists.iter().all(|list| *list == lists[0]), "{lists:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_asked_for_on_both_replicas_is_given_once() {
    let etcd = Etcd::start().await;
    let (one, two) = (etcd.server().await, etcd.server().await);
    for round in 0..20 {
        let object = json!({"metadata": {"name": format!("n-{round}")}, "spec": {}});
        let (first, second) = tokio::join!(
            one.call("POST", COLLECTION, Some(object.clone())),
            two.call("POST", COLLECTION, Some(object)),
        );
        let mut statuses = [first.0, second.0];
        statuses.sort_unstable();
        assert_eq!(statuses, [201, 409], "{first:?} {second:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_of_both_replicas_tell_the_same_also_after_etcd_was_killed() {
    const EACH: usize = 30;
    let mut etcd = Etcd::start().await;
    let servers = [etcd.server().await, etcd.server().await];
    let start = servers[0].create("first", json!({})).await;
    let mut watches = [
        watch(&servers[0], version(&start)).await,
        watch(&servers[1], version(&start)).await,
    ];
    let mut all = Vec::new();
    for round in 0..2 {
        let writing = servers
            .iter()
            .enumerate()
            .map(|(server, writer)| async move {
                for n in 0..EACH {
                    writer
                        .create(&format!("s{server}-{round}-{n}"), json!({}))
                        .await;
                }
            });
        futures::future::join_all(writing).await;
        let [one, two] = &mut watches;
        let (by_one, by_two) = (told(one, 2 * EACH).await, told(two, 2 * EACH).await);
        assert_eq!(by_one, by_two);
        all.extend(by_one);
        if round == 0 {
            etcd.kill_and_start_again().await;
        }
    }
    assert!(all.iter().all(|(kind, ..)| kind == "ADDED"));
    // A client that moves to the other replica misses nothing and sees nothing twice.
    let (_, _, middle) = &all[EACH];
    let mut resumed = watch(&servers[1], middle).await;
    assert_eq!(
        told(&mut resumed, all.len() - EACH - 1).await,
        all[EACH + 1..]
    );
}
