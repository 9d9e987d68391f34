//! The task that gives up old history. Every server runs one; where several share a store, the store
//! sees to it that one of them compacts.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior};

use super::{Error, Revision, Store};

/// History is kept at least this long, whatever is configured: clients resume watches and page
/// through lists within it.
pub const MINIMUM_HISTORY: Duration = Duration::from_mins(5);

/// Looks at the revision this many times per kept duration.
const MARKS: u32 = 5;

/// Compacts a store so that `keep` to 1.2 times `keep` of history remain.
#[derive(Debug)]
pub struct Compactor<S: ?Sized> {
    store: Arc<S>,
    keep: Duration,
    /// When which revision was the latest, oldest first.
    marks: VecDeque<(Instant, Revision)>,
}

impl<S: Store + ?Sized> Compactor<S> {
    /// A compactor that keeps `keep`, or [`MINIMUM_HISTORY`] when that is longer.
    pub fn new(store: Arc<S>, keep: Duration) -> Self {
        Self {
            store,
            keep: keep.max(MINIMUM_HISTORY),
            marks: VecDeque::new(),
        }
    }

    /// Compacts until the store is damaged, and returns that error; while it is unavailable, history
    /// is kept. Time counts from here, so a process that restarts keeps more, never less. Cancel it
    /// by dropping it.
    pub async fn run(mut self) -> Error {
        let mut ticks = tokio::time::interval(self.keep / MARKS);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let Some(revision) = self.due(Instant::now()) else {
                continue;
            };
            match self.store.compact(revision).await {
                Ok(()) => tracing::debug!(revision, "history compacted"),
                Err(err @ Error::Corrupt(_)) => return err,
                Err(
                    err @ (Error::Unavailable { .. }
                    | Error::NoSpace
                    | Error::Limit(_)
                    | Error::Compacted { .. }
                    | Error::Future { .. }),
                ) => {
                    let error: &dyn std::error::Error = &err;
                    tracing::warn!(error, revision, "history not compacted");
                },
            }
        }
    }

    /// Notes the present revision; gives the newest one that is old enough to go.
    fn due(&mut self, now: Instant) -> Option<Revision> {
        let mut due = None;
        while let Some((_, revision)) = self
            .marks
            .pop_front_if(|(at, _)| now.duration_since(*at) >= self.keep)
        {
            due = Some(revision);
        }
        self.marks.push_back((now, self.store.revision()));
        due.filter(|revision| *revision > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redb::{Options, RedbStore};
    use crate::store::{Op, Outcome};

    async fn put(store: &RedbStore, value: &'static str) -> Revision {
        let op = Op::Put(Arc::from("key"), value.into());
        match store.txn(Vec::new(), vec![op]).await.unwrap() {
            Outcome::Committed(revision) => revision,
            Outcome::Conflict => panic!("there was nothing to conflict with"),
        }
    }

    #[tokio::test]
    async fn history_younger_than_five_minutes_is_kept_whatever_is_configured() {
        let store = Arc::new(RedbStore::in_memory(Options::default()).unwrap());
        let mut compactor = Compactor::new(Arc::clone(&store), Duration::from_secs(1));
        let start = Instant::now();
        let first = put(&store, "one").await;
        assert_eq!(compactor.due(start), None);
        put(&store, "two").await;
        assert_eq!(compactor.due(start + Duration::from_secs(299)), None);
        assert_eq!(compactor.due(start + Duration::from_mins(5)), Some(first));
    }

    #[tokio::test]
    async fn a_running_compactor_gives_up_old_history() {
        let store = Arc::new(RedbStore::in_memory(Options::default()).unwrap());
        let first = put(&store, "one").await;
        let task = tokio::spawn(Compactor::new(Arc::clone(&store), Duration::ZERO).run());
        tokio::task::yield_now().await;
        let second = put(&store, "two").await;
        tokio::time::pause();
        for _ in 0..60 {
            tokio::time::advance(Duration::from_mins(1)).await;
            tokio::task::yield_now().await;
        }
        tokio::time::resume();
        let gone = tokio::time::timeout(Duration::from_secs(30), async {
            loop {
                match store.list("", Some(first), None, None).await {
                    Err(Error::Compacted { .. }) => break,
                    _ => tokio::task::yield_now().await,
                }
            }
        });
        gone.await.expect("the first revision is compacted");
        assert_eq!(
            store
                .list("", Some(second), None, None)
                .await
                .unwrap()
                .records
                .len(),
            1
        );
        task.abort();
    }
}
