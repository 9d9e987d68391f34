//! Tests of this backend: the contract, and what is true of a file only.

mod crash;
mod damage;
mod full_disk;
mod model;
mod opening;

use std::sync::Arc;

use ::redb::{ReadableDatabase, ReadableTableMetadata};
use futures::FutureExt;

use super::tables::{LOG, UNDO, failure};
use super::{Opening, Options, RedbStore};
use crate::store::{Error, Op, Store, contract};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_memory_backend_keeps_the_contract() {
    contract::run(async || RedbStore::in_memory(Options::default()).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_file_backend_keeps_the_contract_also_with_almost_no_window() {
    let folder = tempfile::tempdir().unwrap();
    let number = std::sync::atomic::AtomicUsize::new(0);
    contract::run(async || {
        let number = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let options = Options {
            window_bytes: 2048,
            ..Options::default()
        };
        RedbStore::open(folder.path().join(number.to_string()), options).unwrap()
    })
    .await;
}

#[tokio::test]
async fn compaction_removes_every_old_entry_and_no_newer_one() {
    let store = RedbStore::in_memory(Options::default()).unwrap();
    let puts = (0..3000).map(|number| {
        let key = Arc::from(format!("{}", number % 10));
        store.txn(Vec::new(), vec![Op::Put(key, number.to_string().into())])
    });
    for outcome in futures::future::join_all(puts).await {
        outcome.unwrap();
    }
    store.compact(2990).await.unwrap();
    let lengths = store.shared.read(|database| {
        let read = database.begin_read().map_err(failure)?;
        let log = read
            .open_table(LOG)
            .map_err(failure)?
            .len()
            .map_err(failure)?;
        let undo = read
            .open_table(UNDO)
            .map_err(failure)?
            .len()
            .map_err(failure)?;
        Ok((log, undo))
    });
    assert_eq!(lengths.unwrap(), (10, 10));
}

#[tokio::test]
async fn a_queue_that_is_too_long_refuses_more_until_it_is_shorter() {
    let options = Options {
        queue_bytes: 100,
        ..Options::default()
    };
    let store = RedbStore::in_memory(options).unwrap();
    let op = || vec![Op::Put(Arc::from("key"), vec![0; 60].into())];
    // The writer waits for this lock before it answers the first.
    let held = store.shared.database.write();
    let mut waiting: Vec<_> = (0..3).map(|_| store.txn(Vec::new(), op())).collect();
    let mut refused = None;
    for queued in &mut waiting {
        refused = queued.now_or_never();
    }
    assert!(
        matches!(refused, Some(Err(Error::Unavailable { .. }))),
        "{refused:?}"
    );
    drop(held);
    waiting.truncate(2);
    for outcome in waiting {
        outcome.await.unwrap();
    }
    store.txn(Vec::new(), op()).await.unwrap();
}
