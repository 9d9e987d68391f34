//! Tests of this backend on a real etcd: the contract, and what is true of etcd only.

mod faults;
mod large;
mod network;
mod proxy;
mod replicas;
mod restored;
mod server;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use devcluster::Authority;
use futures::StreamExt;

use self::server::{Etcd, PATIENCE};
use super::{EtcdStore, Options, Tls};
use crate::store::{Compare, Error, Event, Op, Outcome, Revision, Store, contract};

fn put(key: &str, value: &str) -> Op {
    Op::Put(Arc::from(key), Bytes::copy_from_slice(value.as_bytes()))
}

async fn commit(store: &EtcdStore, op: Op) -> Revision {
    match store.txn(Vec::new(), vec![op]).await.unwrap() {
        Outcome::Committed(revision) => revision,
        Outcome::Conflict => panic!("there was nothing to conflict with"),
    }
}

/// The events after a revision and up to another one.
async fn events(store: &EtcdStore, prefix: &str, after: Revision, upto: Revision) -> Vec<Event> {
    let mut watch = store.watch(prefix, after);
    let (mut events, mut reached) = (Vec::new(), after);
    while reached < upto {
        let batch = tokio::time::timeout(PATIENCE, watch.next())
            .await
            .expect("the watch goes on in time")
            .unwrap()
            .unwrap();
        assert!(batch.revision >= reached);
        reached = batch.revision;
        events.extend(batch.events);
    }
    events
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_etcd_backend_keeps_the_contract() {
    let etcd = Etcd::start(&[]).await;
    let number = AtomicUsize::new(0);
    contract::run(async || {
        let number = number.fetch_add(1, Ordering::Relaxed);
        // Patient, since one check queues thousands of transactions on a few keys.
        let options = Options {
            timeout: PATIENCE,
            ..etcd.options(&format!("/test/{number}"))
        };
        EtcdStore::connect(options).await.unwrap()
    })
    .await;
}

#[tokio::test]
async fn tls_needs_the_authority_and_the_client_certificate_that_etcd_asks_for() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new("etcd").unwrap();
    let ca_file = folder.path().join("ca.crt");
    std::fs::write(&ca_file, authority.pem()).unwrap();
    let server = authority.serving(&["127.0.0.1"]).unwrap();
    let server = server.write(folder.path(), "server").unwrap();
    let client = authority.client("store", &[]).unwrap();
    let client = client.write(folder.path(), "client").unwrap();
    let tls = Tls {
        ca_file: ca_file.clone(),
        client: Some((client.cert, client.key)),
    };
    let arguments = [
        "--client-cert-auth".to_owned(),
        format!("--trusted-ca-file={}", ca_file.display()),
        format!("--cert-file={}", server.cert.display()),
        format!("--key-file={}", server.key.display()),
    ];
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let etcd = Etcd::start_members(1, &arguments, Some(tls)).await;
    let store = etcd.connect("/test").await;
    let revision = commit(&store, put("a", "one")).await;
    assert_eq!(events(&store, "", revision - 1, revision).await.len(), 1);

    let anonymous = Tls {
        ca_file: ca_file.clone(),
        client: None,
    };
    let other = Authority::new("other").unwrap();
    let other_file = folder.path().join("other.crt");
    std::fs::write(&other_file, other.pem()).unwrap();
    let stranger = Tls {
        ca_file: other_file,
        client: None,
    };
    let missing = Tls {
        ca_file: folder.path().join("missing.crt"),
        client: None,
    };
    for (tls, named) in [
        (anonymous, "etcd at"),
        (stranger, "no connection to etcd"),
        (missing, "missing.crt"),
    ] {
        let options = Options {
            tls: Some(tls),
            ..etcd.options("/test")
        };
        let error = EtcdStore::connect(options).await.unwrap_err();
        assert!(error.to_string().contains(named), "{error:?}");
    }
}

#[tokio::test]
async fn endpoints_that_cannot_be_used_are_refused_with_the_reason() {
    for (endpoint, named) in [
        ("https://127.0.0.1:1", "http://"),
        ("127.0.0.1:1", "http://"),
        ("http://[", "http://["),
    ] {
        let error = EtcdStore::connect(Options::new(endpoint, "/p"))
            .await
            .unwrap_err();
        assert!(error.to_string().contains(named), "{error}");
    }
    let options = Options {
        timeout: Duration::from_secs(1),
        ..Options::new("http://127.0.0.1:1", "/p")
    };
    let error = EtcdStore::connect(options).await.unwrap_err();
    assert!(
        error.to_string().contains("no connection to etcd"),
        "{error}"
    );
}
