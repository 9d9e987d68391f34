//! An etcd that dies, hangs, or is full.

use std::collections::BTreeMap;

use devcluster::Signal;

use super::{
    Arc, Bytes, Compare, Duration, Error, Etcd, EtcdStore, Op, Options, Outcome, PATIENCE, Store,
    StreamExt, commit, events, put,
};

const WRITERS: usize = 8;

/// Puts a key once it is known not to be there. Returns its revision.
async fn create(store: &EtcdStore, key: &str) -> u64 {
    loop {
        let compare = Compare::Version(Arc::from(key), 0);
        match store.txn(vec![compare], vec![put(key, "x")]).await {
            Ok(Outcome::Committed(revision)) => return revision,
            // An earlier attempt whose answer was lost.
            Ok(Outcome::Conflict) => {
                if let Ok(Some(record)) = store.get(key).await {
                    return record.mod_revision;
                }
            },
            Err(Error::Unavailable { .. }) => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(error) => panic!("{error:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_kill_9_of_etcd_and_watches_miss_nothing() {
    let mut etcd = Etcd::start(&[]).await;
    let store = etcd.connect("/test").await;
    let base = store.revision();
    let mut live = store.watch("/registry/", base);
    let stop = tokio_util::sync::CancellationToken::new();
    let writers = (0..WRITERS).map(|writer| {
        let (store, stop) = (store.clone(), stop.clone());
        tokio::spawn(async move {
            let mut written = BTreeMap::new();
            let mut number = 0;
            while !stop.is_cancelled() {
                let key = format!("/registry/g/r/{writer}/{number}");
                written.insert(create(&store, &key).await, key);
                number += 1;
            }
            written
        })
    });
    let writers: Vec<_> = writers.collect();
    let mut told = Vec::new();
    let mut reached = base;
    for _ in 0..3 {
        // Some more events each time, whatever came of the last kill.
        let wanted = told.len() + 200;
        while told.len() < wanted {
            let batch = tokio::time::timeout(PATIENCE, live.next()).await;
            let batch = batch.expect("the watch goes on").unwrap().unwrap();
            assert!(batch.revision > reached || batch.events.is_empty());
            reached = batch.revision;
            told.extend(batch.events);
        }
        etcd.kill(0);
        etcd.start_again(0).await;
    }
    stop.cancel();
    let mut written = BTreeMap::new();
    for writer in writers {
        for (revision, key) in writer.await.unwrap() {
            assert_eq!(
                written.insert(revision, key),
                None,
                "a revision was given twice"
            );
        }
    }
    let last = *written.last_key_value().unwrap().0;
    while reached < last {
        let batch = live.next().await.unwrap().unwrap();
        reached = batch.revision;
        told.extend(batch.events);
    }
    let told: Vec<_> = told
        .into_iter()
        .map(|event| (event.revision, event.key.to_string()))
        .collect();
    assert_eq!(told, written.into_iter().collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_etcd_is_down_calls_fail_and_afterwards_all_goes_on_by_itself() {
    let mut etcd = Etcd::start(&[]).await;
    let store = etcd.connect("/test").await;
    let before = commit(&store, put("a", "one")).await;
    let mut watch = store.watch("", before);
    assert!(watch.next().await.unwrap().unwrap().events.is_empty());
    etcd.kill(0);
    let down = [
        store.get("a").await.err(),
        store.list("", None, None, None).await.err(),
        store.txn(Vec::new(), vec![put("a", "two")]).await.err(),
        store.current_revision().await.err(),
        store.compact(before).await.err(),
    ];
    for error in down {
        assert!(
            matches!(error, Some(Error::Unavailable { .. })),
            "{error:?}"
        );
    }
    assert_eq!(store.revision(), before);
    etcd.start_again(0).await;
    let after = create(&store, "b").await;
    let batch = tokio::time::timeout(PATIENCE, watch.next()).await.unwrap();
    let batch = batch.unwrap().unwrap();
    assert_eq!((batch.revision, batch.events.len()), (after, 1));
    assert_eq!(&store.get("a").await.unwrap().unwrap().value[..], b"one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_hangs_gives_an_unknown_outcome_in_time_and_is_waited_for_by_the_patient() {
    let etcd = Etcd::start(&[]).await;
    let patient = EtcdStore::connect(Options {
        timeout: PATIENCE,
        ..etcd.options("/test")
    });
    let patient = patient.await.unwrap();
    let hasty = EtcdStore::connect(Options {
        timeout: Duration::from_secs(2),
        ..etcd.options("/test")
    });
    let hasty = hasty.await.unwrap();
    let base = patient.revision();
    etcd.signal(0, Signal::SIGSTOP);
    let waiting = tokio::spawn({
        let patient = patient.clone();
        async move { commit(&patient, put("patient", "x")).await }
    });
    let (one, queued) = tokio::join!(
        hasty.txn(Vec::new(), vec![put("hasty", "1")]),
        hasty.txn(Vec::new(), vec![put("hasty", "2")]),
    );
    let unknown = one.unwrap_err();
    assert!(matches!(unknown, Error::Unavailable { .. }), "{unknown:?}");
    assert!(
        matches!(queued, Err(Error::Unavailable { .. })),
        "{queued:?}"
    );
    assert!(!waiting.is_finished());
    etcd.signal(0, Signal::SIGCONT);
    waiting.await.unwrap();
    // It may have been committed or not; what is told agrees with what is there.
    let last = create(&hasty, "later").await;
    let told = events(&patient, "hasty", base, last).await;
    let there = patient.get("hasty").await.unwrap();
    assert_eq!(told.last().and_then(|event| event.current.clone()), there);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_without_space_refuses_puts_and_lets_deletes_and_reads_through() {
    let etcd = Etcd::start(&["--quota-backend-bytes=4194304"]).await;
    let store = etcd.connect("/test").await;
    let value = Bytes::from(vec![7; 400_000]);
    let mut kept = Vec::new();
    let refused = loop {
        let key: Arc<str> = Arc::from(format!("/registry/g/r/{}", kept.len()));
        let op = Op::Put(Arc::clone(&key), value.clone());
        match store.txn(Vec::new(), vec![op]).await {
            Ok(_) => kept.push(key),
            Err(error) => break error,
        }
        assert!(kept.len() < 100, "the quota is never reached");
    };
    assert!(matches!(refused, Error::NoSpace), "{refused:?}");
    let small = store.txn(Vec::new(), vec![put("/small", "x")]).await;
    assert!(matches!(small, Err(Error::NoSpace)), "{small:?}");
    let there = store.list("", None, None, None).await.unwrap().records;
    let there: Vec<_> = there.into_iter().map(|record| record.key).collect();
    let refused_one: Arc<str> = Arc::from(format!("/registry/g/r/{}", kept.len()));
    assert!(kept.iter().all(|key| there.contains(key)), "{there:?}");
    // Why: see `Error::NoSpace`.
    assert!(
        there
            .iter()
            .all(|key| kept.contains(key) || *key == refused_one),
        "{there:?}"
    );
    let before = store.revision();
    let gone = &kept[0];
    let compare = Compare::Version(Arc::clone(gone), 1);
    let deleted = store
        .txn(vec![compare], vec![Op::Delete(Arc::clone(gone))])
        .await;
    let Ok(Outcome::Committed(revision)) = deleted else {
        panic!("{deleted:?}")
    };
    let told = events(&store, "", before, revision).await;
    assert!(told.len() == 1 && told[0].current.is_none() && told[0].previous.is_some());
    let both = vec![Op::Delete(Arc::clone(&kept[1])), put("/grants/x", "1")];
    let both = store.txn(Vec::new(), both).await;
    assert!(
        matches!(both, Err(Error::NoSpace)),
        "etcd refuses any put: {both:?}"
    );
    // What makes room goes through too.
    store.compact(revision).await.unwrap();
    let gone = store.list("", Some(before), None, None).await;
    assert!(matches!(gone, Err(Error::Compacted { .. })), "{gone:?}");
}
