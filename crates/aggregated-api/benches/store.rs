//! Creates per second on each store, by itself and through a server in this process, with 1, 16 and
//! 64 callers: `cargo bench -p aggregated-api --bench store`. etcd is a single member on the same
//! disk as redb's file; both sync before they answer. Medians of three rounds of three seconds.

#![expect(clippy::unwrap_used, reason = "what cannot be measured ends the run")]

#[path = "../tests/common/mod.rs"]
#[expect(dead_code, reason = "for tests, most of it")]
mod common;
#[path = "common/table.rs"]
#[expect(dead_code, reason = "there are no goals")]
mod table;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use aggregated_api::store::etcd::{self, EtcdStore};
use aggregated_api::store::redb::{self, RedbStore};
use aggregated_api::store::{Compare, Op, Store};
use bytes::Bytes;
use common::{COLLECTION, Server};
use devcluster::binaries::{Binaries, Binary};
use devcluster::ports::ReservedPort;
use devcluster::{ProcessGroup, wait_for};
use serde_json::json;
use tokio::time::Instant;

use crate::table::Row;

const CALLERS: [usize; 3] = [1, 16, 64];
const ROUNDS: usize = 3;
const ROUND: Duration = Duration::from_secs(3);
/// Of an object.
const VALUE_BYTES: usize = 1700;

/// Calls per second of `callers` that call one after the other for a round.
async fn rate<F: Future<Output = ()>>(callers: usize, call: impl Fn(usize) -> F) -> usize {
    let (done, begun) = (AtomicUsize::new(0), Instant::now());
    let caller = async || {
        while begun.elapsed() < ROUND {
            call(done.fetch_add(1, Ordering::Relaxed)).await;
        }
    };
    futures::future::join_all((0..callers).map(|_| caller())).await;
    let millis = usize::try_from(begun.elapsed().as_millis()).unwrap();
    done.into_inner() * 1000 / millis
}

async fn store_rate(store: &Arc<dyn Store>, callers: usize, round: &str) -> usize {
    let value = Bytes::from(vec![7; VALUE_BYTES]);
    rate(callers, |number| {
        let key: Arc<str> = Arc::from(format!("/internal/{round}-{callers}-{number}"));
        let compare = Compare::Version(Arc::clone(&key), 0);
        let transaction = store.txn(vec![compare], vec![Op::Put(key, value.clone())]);
        async move {
            transaction.await.unwrap();
        }
    })
    .await
}

/// Reads of an object that see what any process wrote before.
async fn read_rate(server: &Server, callers: usize) -> usize {
    let path = format!("{COLLECTION}/read");
    rate(callers, |_| async {
        server.store.current_revision().await.unwrap();
        let (status, body) = server.call("GET", &path, None).await;
        assert_eq!(status, 200, "{body}");
    })
    .await
}

async fn server_rate(server: &Server, callers: usize, round: &str) -> usize {
    rate(callers, |number| {
        let name = format!("{round}-{callers}-{number}");
        let object = json!({"metadata": {"name": name}, "spec": {"reference": "r"}});
        async move {
            let (status, body) = server.call("POST", COLLECTION, Some(object)).await;
            assert_eq!(status, 201, "{body}");
        }
    })
    .await
}

fn median(mut rates: Vec<usize>) -> f64 {
    rates.sort_unstable();
    f64::from(u32::try_from(rates[rates.len() / 2]).unwrap())
}

#[tokio::main]
async fn main() {
    // Why: `cargo test --all-targets` runs benchmarks too, without this.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let binaries = tokio::task::spawn_blocking(|| Binaries::ensure(&[Binary::Etcd]));
    let binaries = binaries.await.unwrap().unwrap();
    let group = ProcessGroup::start(&folder.path().join("logs"), None).unwrap();
    let ports = [(); 2].map(|()| ReservedPort::reserve().unwrap());
    let [url, peer] = ports
        .each_ref()
        .map(|port| format!("http://127.0.0.1:{}", port.number()));
    let mut command = Command::new(binaries.get(Binary::Etcd).unwrap());
    command
        .arg(format!(
            "--data-dir={}",
            folder.path().join("etcd").display()
        ))
        .arg(format!("--listen-client-urls={url}"))
        .arg(format!("--advertise-client-urls={url}"))
        .arg(format!("--listen-peer-urls={peer}"))
        .arg(format!("--initial-advertise-peer-urls={peer}"))
        .arg(format!("--initial-cluster=default={peer}"))
        .arg("--log-level=warn");
    let process = group.spawn("etcd", command).unwrap();
    let etcd = wait_for("etcd to serve", Duration::from_mins(1), async || {
        process.check_running()?;
        let options = etcd::Options::new(&url, "/bench");
        Ok(EtcdStore::connect(options).await.ok())
    });
    let etcd: Arc<dyn Store> = Arc::new(etcd.await.unwrap());
    let file = folder.path().join("redb");
    let redb: Arc<dyn Store> = Arc::new(RedbStore::open(file, redb::Options::default()).unwrap());

    let servers = [
        Server::on(Arc::clone(&redb)).await,
        Server::on(Arc::clone(&etcd)).await,
    ];
    for server in &servers {
        server.create("read", json!({})).await;
    }
    let mut rows = Vec::new();
    for kind in [
        "transactions of the store",
        "creates in process",
        "consistent gets in process",
    ] {
        let mut rates = [(); 2].map(|()| CALLERS.map(|_| Vec::new()));
        for round in 0..ROUNDS {
            for (at, callers) in CALLERS.into_iter().enumerate() {
                for (which, server) in servers.iter().enumerate() {
                    let rate = match kind {
                        "transactions of the store" => {
                            store_rate(&server.store, callers, &round.to_string()).await
                        },
                        "creates in process" => {
                            server_rate(server, callers, &round.to_string()).await
                        },
                        _ => read_rate(server, callers).await,
                    };
                    rates[which][at].push(rate);
                }
            }
        }
        let [redb, etcd] = rates.map(|of| of.map(median));
        for ((callers, redb), etcd) in CALLERS.into_iter().zip(redb).zip(etcd) {
            let s = if callers == 1 { "" } else { "s" };
            let name = format!("{kind} on redb, {callers} caller{s}");
            rows.push(Row::new(name, "1/s", Some(redb)).beside(Some(etcd), "ours on etcd", None));
        }
    }
    table::print(&rows);
    // <target>/release/deps/store-<hash>
    let program = std::env::current_exe().unwrap();
    let bench = program.ancestors().nth(3).unwrap().join("bench");
    std::fs::create_dir_all(&bench).unwrap();
    table::write(&rows, &bench.join("store.json")).unwrap();
    drop(process);
    group.end();
}
