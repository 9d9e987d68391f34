//! Checks of watches.

use super::{
    Arc, Bytes, Error, Event, Op, Store, StreamExt, commit, delete, get, key, put, read_until,
};

fn summary(events: &[Event]) -> Vec<(u64, &str, Option<&[u8]>)> {
    events
        .iter()
        .map(|event| {
            (
                event.revision,
                &*event.key,
                event.current.as_ref().map(|record| &record.value[..]),
            )
        })
        .collect()
}

pub(super) async fn a_watch_from_the_start_replays_everything_in_order(store: Arc<dyn Store>) {
    let base = store.revision();
    commit(&*store, vec![put("b", "1"), put("a", "1")]).await;
    commit(&*store, vec![delete("b")]).await;
    commit(&*store, vec![put("b", "2")]).await;
    let mut watch = store.watch("", base);
    let mut events = read_until(&mut watch, base + 3).await;
    commit(&*store, vec![delete("a")]).await;
    events.extend(read_until(&mut watch, base + 4).await);
    assert_eq!(
        summary(&events),
        [
            (base + 1, "b", Some(&b"1"[..])),
            (base + 1, "a", Some(b"1")),
            (base + 2, "b", None),
            (base + 3, "b", Some(b"2")),
            (base + 4, "a", None),
        ]
    );
    let mut resumed = store.watch("", base + 2);
    assert_eq!(
        summary(&read_until(&mut resumed, base + 4).await),
        summary(&events)[3..]
    );
}

pub(super) async fn an_event_carries_the_records_before_and_after(store: Arc<dyn Store>) {
    let base = store.revision();
    let mut live = store.watch("a", base);
    let mut states = vec![None];
    for op in [put("a", "1"), put("a", "2"), delete("a"), put("a", "3")] {
        commit(&*store, vec![op]).await;
        states.push(get(&*store, "a").await);
    }
    let live = read_until(&mut live, base + 4).await;
    let replayed = read_until(&mut store.watch("a", base), base + 4).await;
    for events in [live, replayed] {
        assert_eq!(events.len(), 4);
        for (event, around) in events.iter().zip(states.windows(2)) {
            assert_eq!([event.previous.clone(), event.current.clone()], *around);
        }
    }
}

pub(super) async fn a_watch_shows_only_its_prefix_but_all_progress(store: Arc<dyn Store>) {
    let base = store.revision();
    let mut watch = store.watch("/a/", base);
    let first = watch.next().await.unwrap().unwrap();
    assert!(
        first.revision == base && first.events.is_empty(),
        "it says at once that it is up to date"
    );
    commit(&*store, vec![put("/b/x", "1")]).await;
    assert!(read_until(&mut watch, base + 1).await.is_empty());
    commit(&*store, vec![put("/a", "1"), put("/a/x", "1")]).await;
    let events = read_until(&mut watch, base + 2).await;
    assert_eq!(summary(&events), [(base + 2, "/a/x", Some(&b"1"[..]))]);
}

pub(super) async fn a_watch_resumes_without_gap_or_repeat_while_others_write(
    store: Arc<dyn Store>,
) {
    const WRITES: u64 = 600;
    let base = store.revision();
    let writers = (0..4u64).map(|writer| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            for n in 0..WRITES / 4 {
                commit(&*store, vec![put(&format!("/k/{writer}"), &n.to_string())]).await;
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    let mut revisions = Vec::new();
    let mut after = base;
    while after < base + WRITES {
        // A few batches from each connection.
        let mut watch = store.watch("/k/", after);
        for _ in 0..3 {
            if after == base + WRITES {
                break;
            }
            let batch = watch.next().await.unwrap().unwrap();
            revisions.extend(batch.events.iter().map(|event| event.revision));
            after = batch.revision;
        }
    }
    assert_eq!(revisions, (base + 1..=base + WRITES).collect::<Vec<_>>());
    for writer in writers {
        writer.await.unwrap();
    }
}

pub(super) async fn a_watch_from_compacted_or_future_history_is_refused(store: Arc<dyn Store>) {
    let base = store.revision();
    for n in 0..4 {
        commit(&*store, vec![put("a", &n.to_string())]).await;
    }
    store.compact(base + 2).await.unwrap();
    let mut watch = store.watch("", base + 1);
    match watch.next().await {
        Some(Err(Error::Compacted { asked, oldest })) => {
            assert_eq!((asked, oldest), (base + 1, base + 2));
        },
        other => panic!("{other:?}"),
    }
    assert!(watch.next().await.is_none(), "an error ends the watch");
    assert_eq!(
        read_until(&mut store.watch("", base + 2), base + 4)
            .await
            .len(),
        2
    );
    let current = store.current_revision().await.unwrap();
    match store.watch("", current + 1).next().await {
        Some(Err(Error::Future {
            asked,
            current: now,
        })) => assert_eq!((asked, now), (current + 1, current)),
        other => panic!("{other:?}"),
    }
}

pub(super) async fn a_watcher_that_does_not_read_holds_nobody_up_and_misses_nothing(
    store: Arc<dyn Store>,
) {
    const WRITES: u64 = 64;
    let base = store.revision();
    let mut slow = store.watch("/big/", base);
    assert!(slow.next().await.unwrap().unwrap().events.is_empty());
    let value = Bytes::from(vec![7; 512 * 1024]);
    for n in 0..WRITES {
        let name = format!("/big/{}", n % 3);
        commit(&*store, vec![Op::Put(key(&name), value.clone())]).await;
    }
    let events = read_until(&mut slow, base + WRITES).await;
    let revisions: Vec<_> = events.iter().map(|event| event.revision).collect();
    assert_eq!(revisions, (base + 1..=base + WRITES).collect::<Vec<_>>());
}
