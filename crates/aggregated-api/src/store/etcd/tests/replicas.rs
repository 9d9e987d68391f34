//! Several stores on one prefix, as several processes have them.

use runtime_kit::SteppedClock;
use runtime_kit::clock::Clock;

use super::{
    Arc, Compare, Duration, Error, Etcd, Outcome, PATIENCE, Store, StreamExt, commit, events, put,
};
use crate::store::Mark;
use crate::store::compactor::Compactor;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_stores_see_each_others_writes_in_the_same_order() {
    let etcd = Etcd::start(&["--unsafe-no-fsync"]).await;
    let stores = [etcd.connect("/test").await, etcd.connect("/test").await];
    let elsewhere = etcd.connect("/test2").await;
    let base = stores[0].current_revision().await.unwrap();
    let writers = stores
        .iter()
        .chain([&elsewhere])
        .enumerate()
        .map(|(writer, store)| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut last = 0;
                for n in 0..200 {
                    last = commit(
                        &store,
                        put(&format!("/k/{}", n % 5), &format!("{writer} {n}")),
                    )
                    .await;
                }
                last
            })
        });
    let writers: Vec<_> = writers.collect();
    let mut last = 0;
    for writer in writers {
        last = last.max(writer.await.unwrap());
    }
    let [one, two] = &stores;
    let told = [
        events(one, "", base, last).await,
        events(two, "", base, last).await,
    ];
    let told = told.map(|events| {
        let told = events
            .into_iter()
            .map(|event| (event.revision, event.current, event.previous));
        told.collect::<Vec<_>>()
    });
    assert_eq!(told[0], told[1]);
    assert_eq!(told[0].len(), 400, "and nothing of another prefix");
    assert!(told[0].is_sorted_by(|one, next| one.0 < next.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_racing_transactions_meets_a_conflict() {
    let etcd = Etcd::start(&["--unsafe-no-fsync"]).await;
    let (one, two) = (etcd.connect("/test").await, etcd.connect("/test").await);
    for round in 0..50 {
        let key = format!("/k/{round}");
        let create = || {
            (
                vec![Compare::Version(key.as_str().into(), 0)],
                vec![put(&key, "x")],
            )
        };
        let ((compares, ops), (others_compares, others_ops)) = (create(), create());
        let outcomes = tokio::join!(one.txn(compares, ops), two.txn(others_compares, others_ops));
        let committed = [outcomes.0.unwrap(), outcomes.1.unwrap()]
            .iter()
            .filter(|outcome| matches!(outcome, Outcome::Committed(_)))
            .count();
        assert_eq!(committed, 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_current_revision_covers_what_another_process_wrote_and_idle_watches_reach_it() {
    let etcd = Etcd::start(&["--unsafe-no-fsync"]).await;
    let (one, two) = (etcd.connect("/test").await, etcd.connect("/test").await);
    let mut watch = two.watch("/a/", two.revision());
    assert!(watch.next().await.unwrap().unwrap().events.is_empty());
    for n in 0..20 {
        let written = commit(&one, put("/b/x", &n.to_string())).await;
        let current = two.current_revision().await.unwrap();
        assert!(current >= written);
        let reaching = async {
            loop {
                let batch = watch.next().await.unwrap().unwrap();
                assert!(batch.events.is_empty());
                if batch.revision >= current {
                    break;
                }
            }
        };
        tokio::time::timeout(PATIENCE, reaching).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_store_compacts_for_all_and_those_behind_are_told_the_oldest_revision() {
    let etcd = Etcd::start(&["--unsafe-no-fsync"]).await;
    let (one, two) = (etcd.connect("/test").await, etcd.connect("/test").await);
    let mut revisions = Vec::new();
    for n in 0..10 {
        revisions.push(commit(&one, put("a", &n.to_string())).await);
    }
    let (early, late) = (revisions[3], revisions[7]);
    let compacted = tokio::join!(one.compact(late), two.compact(early), two.compact(late));
    compacted.0.unwrap();
    compacted.1.unwrap();
    compacted.2.unwrap();
    let third = etcd.connect("/test").await;
    for store in [&one, &two, &third] {
        match store.watch("", late - 1).next().await {
            Some(Err(Error::Compacted { asked, oldest })) => {
                assert_eq!((asked, oldest), (late - 1, late));
            },
            other => panic!("{other:?}"),
        }
        match store.list("", Some(early), None, None).await {
            Err(Error::Compacted { oldest, .. }) => assert_eq!(oldest, late),
            other => panic!("{other:?}"),
        }
        assert_eq!(events(store, "", late, revisions[9]).await.len(), 2);
    }
    // Another user of etcd, who does not know of the agreement.
    let stranger = etcd.connect("/stranger").await;
    stranger.compact(revisions[8]).await.unwrap();
    match two.list("", Some(late), None, None).await {
        Err(Error::Compacted { oldest, .. }) => assert_eq!(oldest, revisions[8]),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_goes_on_with_the_members_that_are_left() {
    let mut etcd = Etcd::start_members(3, &["--unsafe-no-fsync"], None).await;
    let store = etcd.connect("/test").await;
    let base = store.revision();
    let mut acknowledged = Vec::new();
    for lost in 0..3 {
        etcd.kill(lost);
        let writing = async {
            for n in 0..20 {
                let key = format!("/k/{lost}/{n}");
                // An answer may be lost with the member; what was not acknowledged is tried again.
                loop {
                    match store.txn(Vec::new(), vec![put(&key, "x")]).await {
                        Ok(Outcome::Committed(revision)) => {
                            break acknowledged.push((key, revision));
                        },
                        Ok(Outcome::Conflict) => panic!("there was nothing to conflict with"),
                        Err(Error::Unavailable { .. }) => tokio::task::yield_now().await,
                        Err(error) => panic!("{error:?}"),
                    }
                }
            }
        };
        tokio::time::timeout(PATIENCE, writing).await.unwrap();
        etcd.start_again(lost).await;
    }
    let last = acknowledged.last().unwrap().1;
    let told = events(&store, "/k/", base, last).await;
    for (key, revision) in acknowledged {
        let event = told.iter().find(|event| event.revision == revision);
        assert_eq!(*event.unwrap().key, *key);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn how_old_the_history_is_outlives_every_process() {
    let mut etcd = Etcd::start(&[]).await;
    let mut marks = Vec::new();
    for n in 0..4 {
        // Each is written by a process of its own.
        let store = etcd.connect("/test").await;
        assert_eq!(store.marks().await.unwrap(), marks);
        let revision = commit(&store, put("a", &n.to_string())).await;
        let at = jiff::Timestamp::from_millisecond(1_800_000_000_000 + n).unwrap();
        let mark = Mark { at, revision };
        store.mark(mark).await.unwrap();
        marks.push(mark);
    }
    etcd.kill(0);
    etcd.start_again(0).await;
    let (one, two) = (etcd.connect("/test").await, etcd.connect("/test").await);
    assert_eq!(one.marks().await.unwrap(), marks);
    one.compact(marks[1].revision).await.unwrap();
    assert_eq!(two.marks().await.unwrap(), marks[2..]);
    let stranger = etcd.connect("/other").await;
    assert_eq!(stranger.marks().await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_restart_more_often_than_history_is_kept_compact_all_the_same() {
    let etcd = Etcd::start(&["--unsafe-no-fsync"]).await;
    let clock = Arc::new(SteppedClock::new(jiff::Timestamp::UNIX_EPOCH));
    let mut reached = Vec::new();
    for minute in 0..8 {
        let store = Arc::new(etcd.connect("/test").await);
        reached.push(commit(&store, put("a", &minute.to_string())).await);
        let shared: Arc<dyn Clock> = Arc::<SteppedClock>::clone(&clock);
        let task = tokio::spawn(Compactor::new(Arc::clone(&store), Duration::ZERO, shared).run());
        let now = clock.now();
        let marked = async {
            while store.marks().await.unwrap().last().map(|mark| mark.at) != Some(now) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, marked).await.unwrap();
        task.abort();
        clock.advance(Duration::from_mins(1));
    }
    let store = etcd.connect("/test").await;
    let read = async |revision| store.list("", Some(revision), None, None).await;
    let gone = read(reached[1]).await;
    assert!(matches!(gone, Err(Error::Compacted { .. })), "{gone:?}");
    let kept = read(reached[3]).await.unwrap();
    assert_eq!(&kept.records[0].value[..], b"3");
    assert!(store.marks().await.unwrap().len() <= 6);
}
