//! The server as a process of its own: this test binary starts itself with [`BACKING`] set.

use std::io::{Read, Write};
use std::sync::Arc;

use aggregated_api::registry::cache::HistoryLimits;
use aggregated_api::store::Store;
use aggregated_api::store::etcd::{self, EtcdStore};
use aggregated_api::store::redb::{self, RedbStore};
use axum::body::Body;
use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use runtime_kit::clock::SystemClock;
use tokio::net::TcpListener;

use crate::common::Server;

/// `redb:PATH` or `etcd:URL`: where the child's store is. Unset in an ordinary run.
pub(crate) const BACKING: &str = "STATEFUL_TEST_BACKING";
/// The test that is the child.
pub(crate) const CHILD: &str = "child::serves_until_it_is_killed";

async fn store(backing: &str) -> Arc<dyn Store> {
    match backing.split_once(':').unwrap() {
        ("redb", path) => Arc::new(RedbStore::open(path, redb::Options::default()).unwrap()),
        (_, url) => {
            let options = etcd::Options::new(url, "/stateful");
            Arc::new(EtcdStore::connect(options).await.unwrap())
        },
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serves_until_it_is_killed() {
    let Some(backing) = std::env::var_os(BACKING) else {
        return;
    };
    let store = store(backing.to_str().unwrap()).await;
    let clock = SystemClock::shared();
    let server = Arc::new(Server::with(store, clock, HistoryLimits::default()).await);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let said = format!("\nlistens on {}\n", listener.local_addr().unwrap());
    std::io::stdout().lock().write_all(said.as_bytes()).unwrap();
    // Ends with the parent, which holds the other end and writes nothing.
    let mut orphaned = tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0]));
    loop {
        let (stream, _) = tokio::select! {
            accepted = listener.accept() => accepted.unwrap(),
            _ = &mut orphaned => return,
        };
        let server = Arc::clone(&server);
        drop(tokio::spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let server = Arc::clone(&server);
                async move {
                    let answer = server.send(request.map(Body::new)).await;
                    Ok::<_, std::convert::Infallible>(answer)
                }
            });
            // A client that goes away is no matter of the server's.
            drop(
                Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service)
                    .await,
            );
        }));
    }
}
