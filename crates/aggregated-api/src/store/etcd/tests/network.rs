//! A network that is slow or parted, and members that lag.

use super::proxy::{Proxy, Way};
use super::{
    Arc, Compare, Duration, Error, Etcd, EtcdStore, Op, Options, Outcome, PATIENCE, Store,
    StreamExt, commit, events, put,
};

/// Through a proxy, with this patience.
async fn connect(proxy: &Proxy, timeout: Duration) -> EtcdStore {
    let options = Options {
        timeout,
        ..Options::new(&proxy.url, "/test")
    };
    EtcdStore::connect(options).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_a_slow_network_everything_happens_once_and_in_order() {
    let etcd = Etcd::start(&["--unsafe-no-fsync"]).await;
    let proxy = Proxy::before(etcd.port(0)).await;
    let store = connect(&proxy, PATIENCE).await;
    let base = store.revision();
    proxy.set(Way::Slow(Duration::from_millis(50)));
    let live = store.watch("/k/", base);
    // Twenty puts of each key, queued without waiting, each building on the one before.
    let puts = (0..200u64).map(|n| {
        let key: Arc<str> = format!("/k/{}", n % 10).into();
        let compare = Compare::Version(Arc::clone(&key), n / 10);
        store.txn(vec![compare], vec![Op::Put(key, n.to_string().into())])
    });
    let mut revisions = Vec::new();
    for outcome in futures::future::join_all(puts).await {
        match outcome {
            Ok(Outcome::Committed(revision)) => revisions.push(revision),
            other => panic!("{other:?}"),
        }
    }
    revisions.sort_unstable();
    let last = *revisions.last().unwrap();
    let mut told = Vec::new();
    tokio::pin!(live);
    while told.last() != Some(&last) {
        let batch = tokio::time::timeout(PATIENCE, live.next()).await.unwrap();
        told.extend(
            batch
                .unwrap()
                .unwrap()
                .events
                .iter()
                .map(|event| event.revision),
        );
    }
    assert_eq!(told, revisions);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_slower_than_the_patience_leaves_outcomes_open_and_recovers() {
    let etcd = Etcd::start(&["--unsafe-no-fsync"]).await;
    let proxy = Proxy::before(etcd.port(0)).await;
    let store = connect(&proxy, Duration::from_secs(1)).await;
    let other = etcd.connect("/test").await;
    let base = store.revision();
    proxy.set(Way::Slow(Duration::from_secs(2)));
    let open = store.txn(Vec::new(), vec![put("a", "1")]).await;
    assert!(matches!(open, Err(Error::Unavailable { .. })), "{open:?}");
    let read = store.get("a").await;
    assert!(matches!(read, Err(Error::Unavailable { .. })), "{read:?}");
    proxy.set(Way::Open);
    // It may arrive late, but what was committed by others meanwhile is seen by all alike.
    let seen = settled(&store).await;
    let last = commit(&other, put("b", "1")).await;
    let [one, two] = [
        events(&store, "", base, last).await,
        events(&other, "", base, last).await,
    ];
    let summary = |events: Vec<crate::store::Event>| -> Vec<_> {
        let told = events.into_iter();
        told.map(|event| (event.revision, event.key, event.current))
            .collect()
    };
    let (one, two) = (summary(one), summary(two));
    assert_eq!(one, two);
    if seen {
        assert!(one.iter().any(|(_, key, _)| &**key == "a"));
    }
}

/// Reads until that works; whether the key `a` is there.
async fn settled(store: &EtcdStore) -> bool {
    let reading = async {
        loop {
            if let Ok(found) = store.get("a").await {
                break found.is_some();
            }
        }
    };
    tokio::time::timeout(PATIENCE, reading).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_cut_off_never_reads_what_is_old_and_misses_nothing_afterwards() {
    let etcd = Etcd::start(&["--unsafe-no-fsync"]).await;
    let proxy = Proxy::before(etcd.port(0)).await;
    let cut = connect(&proxy, Duration::from_secs(1)).await;
    let other = etcd.connect("/test").await;
    let before = commit(&cut, put("/k/a", "old")).await;
    let mut watch = cut.watch("/k/", before);
    assert!(watch.next().await.unwrap().unwrap().events.is_empty());
    let mut told = Vec::new();
    let mut written = Vec::new();
    for round in 0..3 {
        proxy.set(Way::Silent);
        let during = [
            cut.get("/k/a").await.err(),
            cut.list("/k/", None, None, None).await.err(),
            cut.current_revision().await.err(),
        ];
        for n in 0..20 {
            let key = format!("/k/{round}-{n}");
            written.push(commit(&other, put(&key, "new")).await);
        }
        written.push(commit(&other, put("/k/a", &round.to_string())).await);
        for error in during {
            assert!(
                matches!(error, Some(Error::Unavailable { .. })),
                "a read was answered while nothing came through: {error:?}"
            );
        }
        proxy.set(Way::Open);
        let reading = async {
            loop {
                if let Ok(found) = cut.get("/k/a").await {
                    break found.unwrap();
                }
            }
        };
        let read = tokio::time::timeout(PATIENCE, reading).await.unwrap();
        assert_eq!(read.value, round.to_string());
        assert!(cut.current_revision().await.unwrap() >= *written.last().unwrap());
        while told.last() != written.last() {
            let batch = tokio::time::timeout(PATIENCE, watch.next()).await.unwrap();
            told.extend(
                batch
                    .unwrap()
                    .unwrap()
                    .events
                    .iter()
                    .map(|event| event.revision),
            );
        }
    }
    assert_eq!(told, written);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_lags_or_has_lost_its_cluster_gives_nothing_that_is_old() {
    let etcd = Etcd::start_members(3, &["--unsafe-no-fsync"], None).await;
    let one = |index: usize| Options {
        timeout: Duration::from_secs(2),
        ..Options::new(etcd.url(index), "/test")
    };
    // The first two are a majority; the third one is the only one its store asks.
    let majority = Options {
        endpoints: vec![etcd.url(0), etcd.url(1)],
        timeout: PATIENCE,
        ..one(0)
    };
    let writer = EtcdStore::connect(majority).await.unwrap();
    let lagging = EtcdStore::connect(one(2)).await.unwrap();
    // An attempt that was given up may land later, so what is read is this revision or a later one.
    let write = async |value: &str| loop {
        // A leader that is stopped is missed for a moment.
        match writer.txn(Vec::new(), vec![put("a", value)]).await {
            Ok(Outcome::Committed(revision)) => break revision,
            Ok(Outcome::Conflict) => panic!("there was nothing to conflict with"),
            Err(Error::Unavailable { .. }) => tokio::task::yield_now().await,
            Err(error) => panic!("{error:?}"),
        }
    };
    for round in 0..5 {
        etcd.signal(2, devcluster::Signal::SIGSTOP);
        let mut last = 0;
        for n in 0..50 {
            last = write(&format!("{round}-{n}")).await;
        }
        etcd.signal(2, devcluster::Signal::SIGCONT);
        let reading = async {
            loop {
                // Either refused or new, from the first answer on.
                match tokio::join!(lagging.get("a"), lagging.current_revision()) {
                    (Ok(read), Ok(current)) => break (read.unwrap(), current),
                    (Ok(read), Err(_)) => assert!(read.unwrap().mod_revision >= last),
                    (Err(_), Ok(current)) => assert!(current >= last),
                    (Err(_), Err(_)) => {},
                }
            }
        };
        let (read, current) = tokio::time::timeout(PATIENCE, reading).await.unwrap();
        assert!(read.mod_revision >= last);
        assert!(current >= last);
    }
    // Alone, it must refuse what it cannot know.
    etcd.signal(0, devcluster::Signal::SIGSTOP);
    etcd.signal(1, devcluster::Signal::SIGSTOP);
    let alone = [
        lagging.get("a").await.err(),
        lagging.current_revision().await.err(),
        lagging.txn(Vec::new(), vec![put("b", "x")]).await.err(),
    ];
    etcd.signal(0, devcluster::Signal::SIGCONT);
    etcd.signal(1, devcluster::Signal::SIGCONT);
    for error in alone {
        assert!(
            matches!(error, Some(Error::Unavailable { .. })),
            "{error:?}"
        );
    }
    let last = write("end").await;
    let reading = async {
        loop {
            if let Ok(found) = lagging.get("a").await {
                break found.unwrap();
            }
        }
    };
    let read = tokio::time::timeout(PATIENCE, reading).await.unwrap();
    assert!(read.mod_revision >= last);
}
