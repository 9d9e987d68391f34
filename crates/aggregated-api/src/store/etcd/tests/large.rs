//! Much data: lists in several requests, answers above the usual limits of gRPC, events in pieces.

use super::{Arc, Bytes, Etcd, Op, Outcome, Store, StreamExt, commit, events, put};
use crate::store::MAX_TRANSACTION_BYTES;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_list_is_one_snapshot_while_others_write() {
    let etcd = Etcd::start(&["--unsafe-no-fsync"]).await;
    let store = etcd.connect("/test").await;
    let puts = (0..2500).map(|n| {
        let store = &store;
        async move { commit(store, put(&format!("/k/{n:04}"), "old")).await }
    });
    let puts: Vec<_> = futures::stream::iter(puts)
        .buffer_unordered(64)
        .collect()
        .await;
    let last = puts.into_iter().max().unwrap();
    let writer = {
        let store = store.clone();
        tokio::spawn(async move {
            for n in (0..2500).rev() {
                commit(&store, put(&format!("/k/{n:04}"), "new")).await;
            }
        })
    };
    for at in [Some(last), None, None] {
        let listing = store.list("/k/", at, None, None).await.unwrap();
        assert_eq!(listing.records.len(), 2500);
        assert!(!listing.more);
        let old = listing
            .records
            .iter()
            .filter(|record| &record.value[..] == b"old")
            .count();
        // The writer goes backwards, so what is old comes first, in any snapshot.
        assert!(
            listing.records[..old]
                .iter()
                .all(|record| &record.value[..] == b"old")
        );
        assert!(
            listing
                .records
                .iter()
                .all(|record| record.mod_revision <= listing.revision)
        );
        if at.is_some() {
            assert_eq!((old, listing.revision), (2500, last));
        }
    }
    let page = store.list("/k/", None, None, Some(1500)).await.unwrap();
    assert_eq!((page.records.len(), page.more), (1500, true));
    writer.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_at_the_limit_are_listed_and_watched_whole() {
    const COUNT: u8 = 12;
    let etcd = Etcd::start(&["--unsafe-no-fsync"]).await;
    let store = etcd.connect(&format!("/{}", "p".repeat(63))).await;
    let base = store.revision();
    let mut last = base;
    for n in 0..COUNT {
        let key = format!("/registry/g/r/{n:02}");
        let value = Bytes::from(vec![n; MAX_TRANSACTION_BYTES - key.len()]);
        last = commit(&store, Op::Put(Arc::from(key), value)).await;
    }
    let listing = store.list("/registry/", None, None, None).await.unwrap();
    let events = events(&store, "/registry/", base, last).await;
    assert_eq!((listing.records.len(), events.len()), (12, 12));
    for (record, event) in listing.records.iter().zip(events) {
        assert_eq!(event.current.as_ref(), Some(record));
        assert_eq!(event.previous, None);
    }
    // Many small operations need more of etcd's encoding than one large one.
    let long = "k".repeat(6000);
    let ops = (0..128)
        .map(|n| put(&format!("/{long}/{n}"), &long))
        .collect();
    let outcome = store.txn(Vec::new(), ops).await.unwrap();
    assert!(matches!(outcome, Outcome::Committed(_)));
}
