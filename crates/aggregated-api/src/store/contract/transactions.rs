//! Checks of transactions: numbering, compares, order and limits.

use super::{
    Arc, Bytes, Compare, Error, FutureExt, Op, Outcome, Store, commit, delete, get, key, list,
    pairs, put,
};
use crate::store::MAX_OPERATIONS;

pub(super) async fn a_new_store_is_empty(store: Arc<dyn Store>) {
    let base = store.revision();
    assert_eq!(get(&*store, "a").await, None);
    let listing = list(&*store, "", None).await;
    assert!(listing.records.is_empty() && !listing.more && listing.revision == base);
    assert_eq!(store.current_revision().await.unwrap(), base);
}

pub(super) async fn a_put_makes_a_record_and_the_next_one_counts_it_up(store: Arc<dyn Store>) {
    let first = commit(&*store, vec![put("a", "one")]).await;
    let other = commit(&*store, vec![put("b", "other")]).await;
    let second = commit(&*store, vec![put("a", "two")]).await;
    assert!(first < other && other < second);
    assert_eq!(store.revision(), second);
    let record = get(&*store, "a").await.unwrap();
    assert_eq!(&record.value[..], b"two");
    assert_eq!(
        (record.create_revision, record.mod_revision, record.version),
        (first, second, 2)
    );
}

pub(super) async fn a_key_deleted_and_put_again_begins_anew(store: Arc<dyn Store>) {
    commit(&*store, vec![put("a", "one")]).await;
    commit(&*store, vec![delete("a")]).await;
    assert_eq!(get(&*store, "a").await, None);
    let again = commit(&*store, vec![put("a", "")]).await;
    let record = get(&*store, "a").await.unwrap();
    assert_eq!(
        (record.create_revision, record.mod_revision, record.version),
        (again, again, 1)
    );
    assert!(record.value.is_empty());
}

pub(super) async fn a_compare_that_fails_changes_nothing_and_takes_no_revision(
    store: Arc<dyn Store>,
) {
    let first = commit(&*store, vec![put("a", "one")]).await;
    for compare in [
        Compare::ModRevision(key("a"), first + 1),
        Compare::ModRevision(key("a"), 0),
        Compare::Version(key("a"), 2),
        Compare::Version(key("b"), 1),
    ] {
        let ops = vec![put("a", "two"), put("b", "new")];
        assert_eq!(
            store.txn(vec![compare], ops).await.unwrap(),
            Outcome::Conflict
        );
    }
    assert_eq!(store.revision(), first);
    assert_eq!(&get(&*store, "a").await.unwrap().value[..], b"one");
    assert_eq!(get(&*store, "b").await, None);
    assert_eq!(commit(&*store, vec![put("b", "new")]).await, first + 1);
}

pub(super) async fn a_compare_with_zero_holds_only_while_the_key_is_absent(store: Arc<dyn Store>) {
    let create = |compare: Compare| store.txn(vec![compare], vec![put("a", "one")]);
    let outcome = create(Compare::ModRevision(key("a"), 0)).await.unwrap();
    assert!(matches!(outcome, Outcome::Committed(_)));
    assert_eq!(
        create(Compare::ModRevision(key("a"), 0)).await.unwrap(),
        Outcome::Conflict
    );
    assert_eq!(
        create(Compare::Version(key("a"), 0)).await.unwrap(),
        Outcome::Conflict
    );
    commit(&*store, vec![delete("a")]).await;
    let outcome = create(Compare::Version(key("a"), 0)).await.unwrap();
    assert!(matches!(outcome, Outcome::Committed(_)));
}

pub(super) async fn all_compares_must_hold(store: Arc<dyn Store>) {
    let first = commit(&*store, vec![put("a", "one")]).await;
    let holds = Compare::ModRevision(key("a"), first);
    let fails = Compare::Version(key("b"), 1);
    let ops = || vec![put("a", "two")];
    let outcome = store
        .txn(vec![holds.clone(), fails.clone()], ops())
        .await
        .unwrap();
    assert_eq!(outcome, Outcome::Conflict);
    let outcome = store.txn(vec![fails, holds.clone()], ops()).await.unwrap();
    assert_eq!(outcome, Outcome::Conflict);
    let absent = Compare::Version(key("b"), 0);
    let outcome = store.txn(vec![holds, absent], ops()).await.unwrap();
    assert_eq!(outcome, Outcome::Committed(first + 1));
}

pub(super) async fn a_transaction_without_effect_takes_no_revision(store: Arc<dyn Store>) {
    let first = commit(&*store, vec![put("a", "one")]).await;
    assert_eq!(commit(&*store, vec![delete("absent")]).await, first);
    assert_eq!(commit(&*store, Vec::new()).await, first);
    assert_eq!(store.revision(), first);
    // Part of it has an effect.
    assert_eq!(
        commit(&*store, vec![delete("absent"), delete("a")]).await,
        first + 1
    );
}

pub(super) async fn internal_keys_ride_along_in_the_revision_of_the_served_one(
    store: Arc<dyn Store>,
) {
    let ops = vec![
        put("/registry/g/r/ns/x", "object"),
        put("/grants/p", "1"),
        delete("/old"),
    ];
    let revision = commit(&*store, ops).await;
    for name in ["/registry/g/r/ns/x", "/grants/p"] {
        assert_eq!(get(&*store, name).await.unwrap().mod_revision, revision);
    }
}

pub(super) async fn transactions_are_decided_in_the_order_of_their_first_poll(
    store: Arc<dyn Store>,
) {
    let base = store.revision();
    let mut futures: Vec<_> = (0..200)
        .map(|number| store.txn(Vec::new(), vec![put("a", &number.to_string())]))
        .collect();
    let mut answers = Vec::new();
    for future in &mut futures {
        answers.push(future.now_or_never());
    }
    let mut last = base;
    // The last one is waited for first: the order of waiting must not matter.
    let mut outcomes = Vec::new();
    for (answer, future) in answers.into_iter().zip(futures).rev() {
        outcomes.push(match answer {
            Some(answer) => answer,
            None => future.await,
        });
    }
    for outcome in outcomes.into_iter().rev() {
        let Outcome::Committed(revision) = outcome.unwrap() else {
            panic!("conflict")
        };
        assert_eq!(revision, last + 1);
        last = revision;
    }
    assert_eq!(&get(&*store, "a").await.unwrap().value[..], b"199");
}

pub(super) async fn a_caller_may_queue_puts_that_build_on_each_other(store: Arc<dyn Store>) {
    let puts = (0..50u64).map(|version| {
        let compare = Compare::Version(key("a"), version);
        store.txn(vec![compare], vec![put("a", &version.to_string())])
    });
    for outcome in futures::future::join_all(puts).await {
        assert!(matches!(outcome, Ok(Outcome::Committed(_))), "{outcome:?}");
    }
    assert_eq!(get(&*store, "a").await.unwrap().version, 50);
}

pub(super) async fn concurrent_increments_are_never_lost(store: Arc<dyn Store>) {
    let base = store.revision();
    let increments = (0..16).map(|_| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            for _ in 0..10 {
                loop {
                    let seen = get(&*store, "counter").await;
                    let count: u64 = seen.as_ref().map_or(0, |record| {
                        std::str::from_utf8(&record.value).unwrap().parse().unwrap()
                    });
                    let compare = Compare::ModRevision(
                        key("counter"),
                        seen.map_or(0, |record| record.mod_revision),
                    );
                    let ops = vec![put("counter", &(count + 1).to_string())];
                    match store.txn(vec![compare], ops).await.unwrap() {
                        Outcome::Committed(_) => break,
                        Outcome::Conflict => {},
                    }
                }
            }
        })
    });
    for joined in futures::future::join_all(increments).await {
        joined.unwrap();
    }
    assert_eq!(
        pairs(&list(&*store, "", None).await),
        super::owned(&[("counter", "160")])
    );
    assert_eq!(store.revision(), base + 160);
}

pub(super) async fn a_caller_that_goes_away_does_not_undo_its_transaction(store: Arc<dyn Store>) {
    let mut abandoned = store.txn(Vec::new(), vec![put("a", "one")]);
    let answer = (&mut abandoned).now_or_never();
    drop((answer, abandoned));
    let build_on_it = store.txn(vec![Compare::Version(key("a"), 1)], vec![put("a", "two")]);
    assert!(matches!(build_on_it.await, Ok(Outcome::Committed(_))));
    assert_eq!(get(&*store, "a").await.unwrap().version, 2);
}

pub(super) async fn one_without_operations_is_decided_after_all_before_it(store: Arc<dyn Store>) {
    let mut abandoned: Vec<_> = (0..50)
        .map(|n| store.txn(Vec::new(), vec![put(&format!("/k/{n}"), "x")]))
        .collect();
    for future in &mut abandoned {
        drop(future.now_or_never());
    }
    drop(abandoned);
    let never = Compare::Version(key("/fence"), u64::MAX);
    let fence = store.txn(vec![never], Vec::new()).await;
    assert_eq!(fence.unwrap(), Outcome::Conflict);
    assert_eq!(list(&*store, "/k/", None).await.records.len(), 50);
}

pub(super) async fn the_limits_refuse_what_exceeds_them_and_name_the_number(store: Arc<dyn Store>) {
    let base = store.revision();
    let many = |count: usize| {
        (0..count)
            .map(|n| put(&n.to_string(), ""))
            .collect::<Vec<_>>()
    };
    let compares = |count: usize| {
        (0..count)
            .map(|n| Compare::Version(key(&n.to_string()), 0))
            .collect::<Vec<_>>()
    };
    let big = vec![Op::Put(
        key("a"),
        Bytes::from(vec![0; store.max_transaction_bytes()]),
    )];
    let too_many_bytes = format!("{} bytes", store.max_transaction_bytes() + 1);
    let twice_of_many = many(20).into_iter().chain([delete("7")]).collect();
    let served = vec![put("/registry/a", ""), put("/x", ""), delete("/registry/b")];
    for (compares, ops, named) in [
        (Vec::new(), many(MAX_OPERATIONS + 1), "129 operations"),
        (compares(64), many(65), "129 operations"),
        (Vec::new(), big, &too_many_bytes),
        (Vec::new(), vec![put("a", "one"), delete("a")], "\"a\""),
        (Vec::new(), twice_of_many, "\"7\""),
        (Vec::new(), served, "2 keys under /registry/"),
    ] {
        match store.txn(compares, ops).await {
            Err(Error::Limit(message)) => assert!(message.contains(named), "{message}"),
            other => panic!("{named} gave {other:?}"),
        }
    }
    assert_eq!(store.revision(), base);
}

pub(super) async fn a_transaction_at_the_limits_is_accepted(store: Arc<dyn Store>) {
    let base = store.revision();
    let ops = (0..MAX_OPERATIONS)
        .map(|n| put(&format!("{n:03}"), ""))
        .collect();
    assert_eq!(commit(&*store, ops).await, base + 1);
    let ops = vec![Op::Put(
        key("a"),
        Bytes::from(vec![0; store.max_transaction_bytes() - 1]),
    )];
    assert_eq!(commit(&*store, ops).await, base + 2);
    assert_eq!(
        list(&*store, "", None).await.records.len(),
        MAX_OPERATIONS + 1
    );
}
