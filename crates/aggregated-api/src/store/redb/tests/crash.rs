//! kill -9: this test binary runs itself as a child that writes, and kills it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::StreamExt;
use rand::RngExt;

use super::{Options, RedbStore};
use crate::store::{Compare, Op, Outcome, Revision, Store};

/// Where the child finds its store; unset in an ordinary run.
const PATH: &str = "STORE_CRASH_TEST_PATH";
const WRITERS: usize = 8;

/// Writes from several tasks, each its own keys, and says so once each is acknowledged.
async fn write_forever(path: &Path) {
    let store = Arc::new(RedbStore::open(path, Options::default()).unwrap());
    let begun = store.revision();
    let acknowledged = Arc::new(AtomicU64::new(begun));
    let writers = (0..WRITERS).map(|writer| {
        let (store, acknowledged) = (Arc::clone(&store), Arc::clone(&acknowledged));
        tokio::spawn(async move {
            for number in 0.. {
                let key = format!("/registry/{begun}/{writer}/{number}");
                let count = Arc::<str>::from(format!("/count/{writer}"));
                let ops = vec![
                    Op::Put(Arc::from(&*key), Bytes::from(vec![7; 500])),
                    Op::Put(count, Bytes::from(key.clone())),
                ];
                let compare = Compare::Version(Arc::from(&*key), 0);
                let outcome = store.txn(vec![compare], ops).await.unwrap();
                let Outcome::Committed(revision) = outcome else {
                    panic!("conflict on {key}")
                };
                acknowledged.fetch_max(revision, Ordering::Relaxed);
                let line = format!("\nack {key} {revision}\n");
                std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    loop {
        let revision = acknowledged.load(Ordering::Relaxed);
        store.compact(revision.saturating_sub(1000)).await.unwrap();
        assert!(!writers.iter().any(tokio::task::JoinHandle::is_finished));
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_child_of_the_crash_test_writes_until_it_is_killed() {
    if let Some(path) = std::env::var_os(PATH) {
        write_forever(Path::new(&path)).await;
    }
}

/// What a child acknowledged before it was killed after so many acknowledgements.
fn run_and_kill(path: &Path, acknowledgements: usize) -> BTreeMap<String, Revision> {
    let (_, module) = module_path!().split_once("::").unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .arg(format!(
            "{module}::a_child_of_the_crash_test_writes_until_it_is_killed"
        ))
        .args(["--exact", "--nocapture"])
        .env(PATH, path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut acknowledged = BTreeMap::new();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    // After the kill the pipe still holds what was said before.
    while lines.read_line(&mut line).unwrap() > 0 {
        if let Some(ack) = line
            .strip_suffix('\n')
            .and_then(|line| line.strip_prefix("ack "))
        {
            let (key, revision) = ack.split_once(' ').unwrap();
            acknowledged.insert(key.to_owned(), revision.parse().unwrap());
            if acknowledged.len() == acknowledgements {
                child.kill().unwrap();
            }
        }
        line.clear();
    }
    assert!(!child.wait().unwrap().success());
    acknowledged
}

#[tokio::test]
async fn what_was_acknowledged_survives_kill_9_with_its_revision() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let mut acknowledged: BTreeMap<String, Revision> = BTreeMap::new();
    let mut rng = rand::rng();
    for _ in 0..8 {
        let (child_path, count) = (path.clone(), rng.random_range(1..400));
        let of_child = tokio::task::spawn_blocking(move || run_and_kill(&child_path, count))
            .await
            .unwrap();
        assert!(of_child.len() >= count, "the child ended by itself");
        acknowledged.extend(of_child);

        let store = RedbStore::open(&path, Options::default()).unwrap();
        let mut owners = BTreeMap::new();
        for (key, revision) in &acknowledged {
            let record = store
                .get(key)
                .await
                .unwrap()
                .expect("an acknowledged key is there");
            assert_eq!((record.mod_revision, record.version), (*revision, 1));
            assert_eq!(
                owners.insert(*revision, key),
                None,
                "a revision was given twice"
            );
        }
        let last = *owners.last_key_value().unwrap().0;
        assert!(store.revision() >= last);

        // The kept history has every revision once.
        let oldest = match store.watch("", 0).next().await {
            Some(Err(crate::store::Error::Compacted { oldest, .. })) => oldest,
            _ => 0,
        };
        let mut watch = store.watch("/registry/", oldest);
        let mut revisions = Vec::new();
        let mut reached = oldest;
        while reached < store.revision() {
            let batch = watch.next().await.unwrap().unwrap();
            reached = batch.revision;
            revisions.extend(batch.events.iter().map(|event| event.revision));
        }
        assert_eq!(
            revisions,
            (oldest + 1..=store.revision()).collect::<Vec<_>>()
        );
    }
}
