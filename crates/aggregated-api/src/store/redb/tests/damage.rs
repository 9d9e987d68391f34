//! Restarts, and files that are not what they should be.

use std::path::Path;
use std::sync::Arc;

use ::redb::{Database, ReadableDatabase, TableDefinition};
use bytes::Bytes;
use futures::{FutureExt, StreamExt};

use super::super::tables::{FORMAT, META, META_FORMAT};
use super::{Options, RedbStore};
use crate::store::{Compare, Error, Op, Outcome, Revision, Store};

fn open(path: &Path) -> Result<RedbStore, Error> {
    RedbStore::open(path, Options::default())
}

async fn put(store: &RedbStore, key: &str, value: &[u8]) -> Revision {
    let op = Op::Put(Arc::from(key), Bytes::copy_from_slice(value));
    match store.txn(Vec::new(), vec![op]).await.unwrap() {
        Outcome::Committed(revision) => revision,
        Outcome::Conflict => panic!("there was nothing to conflict with"),
    }
}

/// A file with values, as it is while it is open, and once it is closed.
pub(super) async fn filled(path: &Path) -> (Vec<u8>, Vec<u8>) {
    let store = open(path).unwrap();
    for number in 0..200 {
        put(&store, &format!("/k/{number}"), &[7; 1000]).await;
    }
    let unclosed = std::fs::read(path).unwrap();
    drop(store);
    (unclosed, std::fs::read(path).unwrap())
}

#[tokio::test]
async fn a_restart_continues_revisions_records_and_history() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let store = open(&path).unwrap();
    put(&store, "a", b"1").await;
    put(&store, "a", b"2").await;
    put(&store, "b", b"1").await;
    store.compact(1).await.unwrap();
    let before = store.get("a").await.unwrap();
    drop(store);

    let store = open(&path).unwrap();
    assert_eq!(store.revision(), 3);
    assert_eq!(store.get("a").await.unwrap(), before);
    assert!(matches!(
        store.watch("", 0).next().await,
        Some(Err(Error::Compacted {
            asked: 0,
            oldest: 1
        }))
    ));
    let batch = store.watch("", 1).next().await.unwrap().unwrap();
    assert_eq!((batch.revision, batch.events.len()), (3, 2));
    assert_eq!(put(&store, "b", b"2").await, 4);
    assert!(store.size_bytes() > 0);
}

#[tokio::test]
async fn what_was_queued_is_committed_before_the_store_closes_and_watches_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let store = open(&path).unwrap();
    let mut watch = store.watch("", 0);
    let queued = store.txn(Vec::new(), vec![Op::Put(Arc::from("a"), Bytes::new())]);
    assert!(queued.now_or_never().is_none());
    drop(store);
    let mut events = 0;
    let end = loop {
        match watch.next().await.unwrap() {
            Ok(batch) => events += batch.events.len(),
            Err(err) => break err,
        }
    };
    assert_eq!(events, 1);
    assert!(matches!(end, Error::Unavailable { .. }), "{end:?}");
    assert_eq!(
        open(&path).unwrap().revision(),
        1,
        "a live watch does not keep the file open"
    );
}

#[test]
fn a_file_of_a_newer_version_is_refused_by_name_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    drop(open(&path).unwrap());
    let database = Database::create(&path).unwrap();
    let write = database.begin_write().unwrap();
    write
        .open_table(META)
        .unwrap()
        .insert(META_FORMAT, FORMAT + 1)
        .unwrap();
    write.commit().unwrap();
    drop(database);
    let bytes = std::fs::read(&path).unwrap();
    let err = open(&path).unwrap_err();
    assert!(
        err.to_string()
            .contains("has format 2, this version reads up to 1"),
        "{err}"
    );
    assert!(std::fs::read(&path).unwrap() == bytes);
}

#[test]
fn a_database_of_something_else_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let theirs: TableDefinition<'_, u64, u64> = TableDefinition::new("theirs");
    let database = Database::create(&path).unwrap();
    let write = database.begin_write().unwrap();
    write.open_table(theirs).unwrap().insert(1, 1).unwrap();
    write.commit().unwrap();
    drop(database);
    assert!(matches!(open(&path), Err(Error::Corrupt(_))));
    let database = Database::open(&path).unwrap();
    assert_eq!(
        database
            .begin_read()
            .unwrap()
            .list_tables()
            .unwrap()
            .count(),
        1
    );
}

#[test]
fn a_missing_folder_is_an_error_with_its_cause() {
    let folder = tempfile::tempdir().unwrap();
    match open(&folder.path().join("absent").join("db")) {
        Err(Error::Unavailable {
            source: Some(_), ..
        }) => {},
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_damaged_file_is_refused_and_left_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let (sound, closed) = filled(&path).await;
    let used = sound.iter().rposition(|byte| *byte != 0).unwrap();

    let mut damaged: Vec<(String, Vec<u8>)> =
        vec![("text".to_owned(), b"this is not a database".repeat(1000))];
    for (state, bytes) in [("open", &sound), ("closed", &closed)] {
        damaged.push((format!("cut {state}"), bytes[..used / 2].to_vec()));
        damaged.push((
            format!("cut at a page {state}"),
            bytes[..(used / 2).next_multiple_of(4096)].to_vec(),
        ));
        damaged.push((
            format!("headless {state}"),
            [&[0; 512], &bytes[512..]].concat(),
        ));
    }
    // A flipped byte in each of some values: they are all sevens, so it hits live or freed data.
    let values: Vec<usize> = (0..used)
        .step_by(4096)
        .filter_map(|page| {
            let run = sound[page..].iter().take(4096).collect::<Vec<_>>();
            let start = run
                .windows(64)
                .position(|bytes| bytes.iter().all(|byte| **byte == 7));
            start.map(|start| page + start + 32)
        })
        .collect();
    assert!(values.len() > 10);
    let mut flipped = sound.clone();
    for at in &values {
        flipped[*at] ^= 0x40;
    }
    damaged.push(("flipped".to_owned(), flipped));
    for (name, bytes) in damaged {
        let path = folder.path().join(&name);
        std::fs::write(&path, &bytes).unwrap();
        match open(&path) {
            Err(Error::Corrupt(_)) => {},
            other => panic!("{name}: {other:?}"),
        }
        assert!(std::fs::read(&path).unwrap() == bytes, "{name} was changed");
    }
    std::fs::write(&path, &sound).unwrap();
    let store = open(&path).unwrap();
    let compare = Compare::Version(Arc::from("/k/0"), 1);
    let outcome = store.txn(vec![compare], Vec::new()).await.unwrap();
    assert_eq!(outcome, Outcome::Committed(200));
}
