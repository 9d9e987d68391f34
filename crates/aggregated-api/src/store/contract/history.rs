//! Checks of lists, of reading the past, and of giving it up.

use super::{
    Arc, Error, Listing, Mark, Revision, Store, commit, delete, get, list, owned, pairs, put,
    read_until,
};

pub(super) async fn a_list_is_in_key_order_and_holds_the_prefix_only(store: Arc<dyn Store>) {
    for name in [
        "/b/2",
        "/a",
        "/b/10",
        "/b",
        "/b0",
        "/b/",
        "/c/é",
        "/b/\u{10ffff}",
    ] {
        commit(&*store, vec![put(name, "")]).await;
    }
    let names = |listing: Listing| -> Vec<String> {
        listing
            .records
            .iter()
            .map(|record| record.key.to_string())
            .collect()
    };
    let expected = ["/b/", "/b/10", "/b/2", "/b/\u{10ffff}"];
    assert_eq!(names(list(&*store, "/b/", None).await), expected);
    assert_eq!(names(list(&*store, "/c", None).await), ["/c/é"]);
    assert_eq!(names(list(&*store, "/d", None).await), Vec::<String>::new());
    assert_eq!(list(&*store, "", None).await.records.len(), 8);
}

async fn in_pages(
    store: &dyn Store,
    prefix: &str,
    at: Option<Revision>,
    limit: usize,
) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let mut from: Option<String> = None;
    loop {
        let page = store
            .list(prefix, at, from.as_deref(), Some(limit))
            .await
            .unwrap();
        assert!(page.records.len() <= limit);
        all.extend(pairs(&page));
        if !page.more {
            return all;
        }
        assert_eq!(
            page.records.len(),
            limit,
            "a page with more to follow is full"
        );
        // The smallest key after the last one.
        from = page
            .records
            .last()
            .map(|record| format!("{}\0", record.key));
    }
}

pub(super) async fn a_list_in_pages_gives_every_record_once(store: Arc<dyn Store>) {
    for number in 0..10 {
        commit(&*store, vec![put(&format!("/a/{number}"), "x")]).await;
    }
    commit(&*store, vec![put("/b", "x")]).await;
    let whole = pairs(&list(&*store, "/a/", None).await);
    for limit in [1, 3, 5, 10, 11] {
        assert_eq!(in_pages(&*store, "/a/", None, limit).await, whole);
    }
    let exact = store.list("/a/", None, None, Some(10)).await.unwrap();
    assert!(!exact.more, "nothing follows the last record of the prefix");
    let from = store.list("/a/", None, Some("/a/8"), None).await.unwrap();
    assert_eq!(pairs(&from), owned(&[("/a/8", "x"), ("/a/9", "x")]));
    let before = store.list("/a/", None, Some("/A"), None).await.unwrap();
    assert_eq!(
        before.records.len(),
        10,
        "a start before the prefix is the prefix"
    );
    assert!(
        store
            .list("/a/", None, Some("/b"), None)
            .await
            .unwrap()
            .records
            .is_empty()
    );
}

pub(super) async fn a_list_at_a_revision_shows_the_state_of_then(store: Arc<dyn Store>) {
    let steps = [
        (put("/k/b", "1"), owned(&[("/k/b", "1")])),
        (put("/k/a", "1"), owned(&[("/k/a", "1"), ("/k/b", "1")])),
        (put("/k/b", "2"), owned(&[("/k/a", "1"), ("/k/b", "2")])),
        (delete("/k/a"), owned(&[("/k/b", "2")])),
        (put("/other", "1"), owned(&[("/k/b", "2")])),
        (put("/k/a", "3"), owned(&[("/k/a", "3"), ("/k/b", "2")])),
        (put("/k/a", "4"), owned(&[("/k/a", "4"), ("/k/b", "2")])),
        (delete("/k/b"), owned(&[("/k/a", "4")])),
        (delete("/k/a"), Vec::new()),
    ];
    let base = store.revision();
    let mut expected = vec![(base, Vec::new())];
    for (op, state) in steps {
        expected.push((commit(&*store, vec![op]).await, state));
    }
    for (revision, state) in expected {
        let listing = list(&*store, "/k/", Some(revision)).await;
        assert_eq!((listing.revision, pairs(&listing)), (revision, state));
    }
    let old = list(&*store, "/k/b", Some(base + 3)).await;
    let numbers: Vec<_> = old
        .records
        .iter()
        .map(|record| (record.create_revision, record.mod_revision, record.version))
        .collect();
    assert_eq!(numbers, [(base + 1, base + 3, 2)]);
}

pub(super) async fn pages_at_one_revision_are_one_snapshot(store: Arc<dyn Store>) {
    for number in 0..6 {
        commit(&*store, vec![put(&format!("/k/{number}"), "old")]).await;
    }
    let revision = store.revision();
    let then = pairs(&list(&*store, "/k/", None).await);
    commit(
        &*store,
        vec![delete("/k/1"), put("/k/2", "new"), put("/k/25", "new")],
    )
    .await;
    commit(&*store, vec![put("/k/2", "newer"), delete("/k/5")]).await;
    for limit in [1, 2, 4, 6] {
        assert_eq!(in_pages(&*store, "/k/", Some(revision), limit).await, then);
    }
}

pub(super) async fn a_revision_that_has_not_happened_is_refused(store: Arc<dyn Store>) {
    let current = commit(&*store, vec![put("a", "one")]).await;
    match store.list("", Some(current + 1), None, None).await {
        Err(Error::Future {
            asked,
            current: now,
        }) => {
            assert_eq!((asked, now), (current + 1, current));
        },
        other => panic!("{other:?}"),
    }
    match store.compact(current + 1).await {
        Err(Error::Future { .. }) => {},
        other => panic!("{other:?}"),
    }
}

pub(super) async fn compaction_keeps_the_latest_values_and_newer_history(store: Arc<dyn Store>) {
    let base = store.revision();
    commit(&*store, vec![put("still", "here")]).await;
    commit(&*store, vec![put("a", "one")]).await;
    let middle = commit(&*store, vec![put("a", "two")]).await;
    let deleted = commit(&*store, vec![delete("a")]).await;
    let before: Vec<_> = [middle, deleted]
        .map(|revision| (revision, list(&*store, "", Some(revision))))
        .into_iter()
        .collect();
    let mut states = Vec::new();
    for (revision, listing) in before {
        states.push((revision, pairs(&listing.await)));
    }
    store.compact(middle).await.unwrap();
    store
        .compact(middle)
        .await
        .expect("it can be asked for again");
    store
        .compact(1)
        .await
        .expect("less than before is done already");
    for (revision, state) in states {
        assert_eq!(pairs(&list(&*store, "", Some(revision)).await), state);
    }
    for asked in [base, middle - 1] {
        match store.list("", Some(asked), None, None).await {
            Err(Error::Compacted {
                asked: named,
                oldest,
            }) => {
                assert_eq!((named, oldest), (asked, middle));
            },
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(get(&*store, "still").await.unwrap().version, 1);
    let listing = list(&*store, "", Some(deleted)).await;
    assert!(
        listing.records.len() == 1,
        "compaction changes no object: {listing:?}"
    );
    store.compact(deleted).await.unwrap();
    assert_eq!(
        pairs(&list(&*store, "", Some(deleted)).await),
        owned(&[("still", "here")])
    );
}

pub(super) async fn a_long_history_is_compacted_whole(store: Arc<dyn Store>) {
    let base = store.revision();
    let puts = (0..5000).map(|n| {
        let name = format!("/k/{}", n % 7);
        let store = &store;
        async move {
            store
                .txn(Vec::new(), vec![put(&name, &n.to_string())])
                .await
        }
    });
    for outcome in futures::future::join_all(puts).await {
        outcome.unwrap();
    }
    let state = pairs(&list(&*store, "", None).await);
    let compaction = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.compact(base + 4999).await }
    });
    // Writes go on meanwhile.
    for _ in 0..20 {
        commit(&*store, vec![put("/other", "x")]).await;
    }
    compaction.await.unwrap().unwrap();
    assert_eq!(pairs(&list(&*store, "/k/", Some(base + 5000)).await), state);
    assert!(matches!(
        store.list("/k/", Some(base + 4998), None, None).await,
        Err(Error::Compacted { .. })
    ));
}

pub(super) async fn marks_are_remembered_until_their_revision_is_compacted(store: Arc<dyn Store>) {
    assert_eq!(store.marks().await.unwrap(), []);
    let mut marks = Vec::new();
    for n in 0..3 {
        let revision = commit(&*store, vec![put("a", &n.to_string())]).await;
        let at = jiff::Timestamp::from_millisecond(1_800_000_000_123 + n).unwrap();
        marks.push(Mark { at, revision });
    }
    let last = marks[2].revision;
    let mut watch = store.watch("", last);
    // The order in which they are made does not matter.
    for mark in marks.iter().rev() {
        store.mark(*mark).await.unwrap();
    }
    assert_eq!(store.marks().await.unwrap(), marks);
    store.compact(marks[1].revision).await.unwrap();
    assert_eq!(store.marks().await.unwrap(), marks[2..]);
    let next = commit(&*store, vec![put("a", "next")]).await;
    let events = read_until(&mut watch, next).await;
    assert_eq!(events.len(), 1, "marks are no changes: {events:?}");
}
