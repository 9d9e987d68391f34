//! What an opening waits for and reads.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::damage::filled;
use super::{Error, Opening, Options, RedbStore};
use crate::store::Store;

/// Opens a file; also what it reported.
fn open(path: &Path) -> (RedbStore, Vec<Opening>) {
    let reported = Arc::new(Mutex::new(Vec::new()));
    let report = Arc::clone(&reported);
    let store = RedbStore::open_reporting(path, Options::default(), move |what| {
        report.lock().push(what);
    });
    let reported = reported.lock().clone();
    (store.unwrap(), reported)
}

async fn assert_whole(store: &RedbStore) {
    assert_eq!(store.revision(), 200);
    let listing = store.list("/k/", None, None, None).await.unwrap();
    assert_eq!(listing.records.len(), 200);
    assert!(
        listing
            .records
            .iter()
            .all(|record| &*record.value == [7; 1000].as_slice())
    );
}

#[tokio::test]
async fn a_file_that_was_closed_is_not_checked_and_one_that_was_not_is_until_it_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let (unclosed, _) = filled(&path).await;
    let (store, reported) = open(&path);
    assert_eq!(reported, []);
    assert_whole(&store).await;
    drop(store);

    std::fs::write(&path, unclosed).unwrap();
    let (store, reported) = open(&path);
    assert_eq!(reported, [Opening::Checking]);
    assert_whole(&store).await;
    let unclosed_again = std::fs::read(&path).unwrap();
    drop(store);
    let (store, reported) = open(&path);
    assert_eq!(reported, []);
    assert_whole(&store).await;
    drop(store);

    std::fs::write(&path, unclosed_again).unwrap();
    let (store, reported) = open(&path);
    assert_eq!(reported, [Opening::Checking]);
    assert_whole(&store).await;
}

#[tokio::test]
async fn a_file_in_use_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    filled(&path).await;
    let holder = Mutex::new(Some(open(&path).0));
    let store = RedbStore::open_reporting(&path, Options::default(), move |what| {
        assert_eq!(what, Opening::Waiting);
        drop(holder.lock().take());
    });
    assert_whole(&store.unwrap()).await;
}

#[test]
fn a_file_that_stays_in_use_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let _holder = open(&path);
    let options = Options {
        lock_wait: Duration::ZERO,
        ..Options::default()
    };
    let err = RedbStore::open(&path, options).unwrap_err();
    assert!(matches!(err, Error::Unavailable { .. }), "{err:?}");
    let expected = format!("another process still has {} open", path.display());
    assert!(err.to_string().contains(&expected), "{err}");
}
