//! Several stores on one prefix, as several processes have them.

use super::{Compare, Error, Etcd, Outcome, PATIENCE, Store, StreamExt, commit, events, put};

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
