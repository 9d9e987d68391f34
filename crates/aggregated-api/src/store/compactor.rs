//! The task that gives up old history. Every server runs one; where several share a store, the store
//! sees to it that one of them compacts.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use runtime_kit::clock::Clock;
use tokio::time::{Instant, MissedTickBehavior};

use super::{Error, Mark, Revision, Store};

/// History is kept at least this long, whatever is configured: clients resume watches and page
/// through lists within it.
pub const MINIMUM_HISTORY: Duration = Duration::from_mins(5);

/// Looks at the revision this many times per kept duration.
const MARKS: u32 = 5;

/// Compacts a store so that `keep` to 1.2 times `keep` of history remain.
///
/// Which revision is how old is remembered by the store, so that a process that never runs for that
/// long compacts too. Ages are measured without the wall clock while the process runs; only across a
/// restart does a step of that clock make history look older or younger than it is.
#[derive(Debug)]
pub struct Compactor<S: ?Sized> {
    store: Arc<S>,
    keep: Duration,
    clock: Arc<dyn Clock>,
    marks: Marks,
}

impl<S: Store + ?Sized> Compactor<S> {
    /// A compactor that keeps `keep`, or [`MINIMUM_HISTORY`] when that is longer.
    pub fn new(store: Arc<S>, keep: Duration, clock: Arc<dyn Clock>) -> Self {
        Self {
            store,
            keep: keep.max(MINIMUM_HISTORY),
            clock,
            marks: Marks::default(),
        }
    }

    /// Compacts until the store is damaged, and returns that error; while it is unavailable, history
    /// is kept. Cancel it by dropping it.
    pub async fn run(mut self) -> Error {
        let begun = Instant::now();
        match self.store.marks().await {
            Ok(marks) => self.marks = Marks::of_the_past(&marks, self.clock.now()),
            Err(err @ Error::Corrupt(_)) => return err,
            Err(err) => {
                let error: &dyn std::error::Error = &err;
                tracing::warn!(
                    error,
                    "the age of the history is not known: it counts as new"
                );
            },
        }
        let mut ticks = tokio::time::interval(self.keep / MARKS);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let now = ticks.tick().await.duration_since(begun);
            if let Err(err) = self.turn(now).await {
                return err;
            }
        }
    }

    /// Compacts what is due and notes the present revision; an error means that the store is
    /// damaged.
    async fn turn(&mut self, now: Duration) -> Result<(), Error> {
        if let Some(revision) = self.marks.due(now, self.keep) {
            let compacted = self.store.compact(revision).await;
            if unless_damaged(compacted, revision, "history not compacted")? {
                tracing::debug!(revision, "history compacted");
                self.marks.forget(revision);
            }
        }
        let revision = self.store.revision();
        if self.marks.note(now, revision) {
            let at = self.clock.now();
            let marked = self.store.mark(Mark { at, revision }).await;
            unless_damaged(marked, revision, "the age of the history not noted")?;
        }
        Ok(())
    }
}

/// Whether it worked; tells of what may work another time.
fn unless_damaged(
    result: Result<(), Error>,
    revision: Revision,
    otherwise: &str,
) -> Result<bool, Error> {
    match result {
        Ok(()) => Ok(true),
        Err(err @ Error::Corrupt(_)) => Err(err),
        Err(
            err @ (Error::Unavailable { .. }
            | Error::NoSpace
            | Error::Unreadable(_)
            | Error::Limit(_)
            | Error::Compacted { .. }
            | Error::Future { .. }),
        ) => {
            let error: &dyn std::error::Error = &err;
            tracing::warn!(error, revision, "{otherwise}");
            Ok(false)
        },
    }
}

/// When which revision was the latest, oldest first. Times count from the start of the process;
/// those before it are negative.
#[derive(Debug, Default)]
struct Marks {
    marks: VecDeque<(SignedDuration, Revision)>,
    /// History up to here is gone.
    gone: Revision,
}

impl Marks {
    /// Those that earlier processes made. One from the future counts as made now.
    fn of_the_past(marks: &[Mark], now: jiff::Timestamp) -> Self {
        let marks = marks.iter().map(|mark| {
            let age = now.duration_since(mark.at).max(SignedDuration::ZERO);
            (-age, mark.revision)
        });
        Self {
            marks: marks.collect(),
            gone: 0,
        }
    }

    /// The newest revision that is old enough to go.
    fn due(&self, now: Duration, keep: Duration) -> Option<Revision> {
        let (now, keep) = (signed(now), signed(keep));
        let old = self.marks.iter().filter(|(at, _)| now - *at >= keep);
        old.map(|(_, revision)| *revision).max()
    }

    fn forget(&mut self, revision: Revision) {
        self.gone = self.gone.max(revision);
        self.marks.retain(|(_, marked)| *marked > revision);
    }

    /// Whether this revision was not noted before.
    fn note(&mut self, now: Duration, revision: Revision) -> bool {
        let noted = self
            .marks
            .back()
            .map_or(self.gone, |(_, revision)| *revision);
        if revision <= noted {
            return false;
        }
        self.marks.push_back((signed(now), revision));
        true
    }
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use jiff::Timestamp;
    use runtime_kit::clock::SteppedClock;

    use super::*;
    use crate::store::redb::{Options, RedbStore};
    use crate::store::{Op, Outcome};

    fn compactor(store: &Arc<RedbStore>, keep: Duration) -> Compactor<RedbStore> {
        let clock = Arc::new(SteppedClock::new(Timestamp::UNIX_EPOCH));
        Compactor::new(Arc::clone(store), keep, clock)
    }

    /// The oldest revision that a watch can start from.
    async fn oldest(store: &RedbStore) -> Revision {
        match store.watch("", 0).next().await {
            Some(Err(Error::Compacted { oldest, .. })) => oldest,
            _ => 0,
        }
    }

    async fn until_marked(store: &RedbStore, revision: Revision) {
        let marked = tokio::time::timeout(Duration::from_secs(30), async {
            while store
                .marks()
                .await
                .unwrap()
                .iter()
                .all(|mark| mark.revision != revision)
            {
                tokio::task::yield_now().await;
            }
        });
        marked.await.expect("a compactor marks what it finds");
    }

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
        let mut compactor = compactor(&store, Duration::from_secs(1));
        let first = put(&store, "one").await;
        compactor.turn(Duration::ZERO).await.unwrap();
        let second = put(&store, "two").await;
        compactor.turn(Duration::from_secs(299)).await.unwrap();
        assert_eq!(oldest(&store).await, 0);
        compactor.turn(Duration::from_mins(5)).await.unwrap();
        assert_eq!(oldest(&store).await, first);
        compactor.turn(Duration::from_secs(598)).await.unwrap();
        assert_eq!(oldest(&store).await, first);
        compactor.turn(Duration::from_secs(599)).await.unwrap();
        assert_eq!(oldest(&store).await, second);
    }

    #[tokio::test]
    async fn a_process_that_restarts_every_minute_compacts_after_five() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(SteppedClock::new(Timestamp::UNIX_EPOCH));
        let mut reached = Vec::new();
        for minute in 0..8 {
            let store = RedbStore::open(folder.path().join("db"), Options::default()).unwrap();
            let store = Arc::new(store);
            reached.push(put(&store, "value").await);
            let shared: Arc<dyn Clock> = Arc::<SteppedClock>::clone(&clock);
            let compactor = Compactor::new(Arc::clone(&store), Duration::ZERO, shared);
            let task = tokio::spawn(compactor.run());
            until_marked(&store, reached[minute]).await;
            task.abort();
            assert!(task.await.unwrap_err().is_cancelled());
            let expected = if minute < 5 { 0 } else { reached[minute - 5] };
            assert_eq!(oldest(&store).await, expected, "in minute {minute}");
            assert_eq!(store.marks().await.unwrap().len(), (minute + 1).min(5));
            clock.advance(Duration::from_mins(1));
        }
    }

    #[tokio::test]
    async fn a_quiet_store_is_marked_once_and_compacted_once() {
        let store = Arc::new(RedbStore::in_memory(Options::default()).unwrap());
        let mut compactor = compactor(&store, Duration::ZERO);
        let revision = put(&store, "one").await;
        compactor.turn(Duration::ZERO).await.unwrap();
        let marks = store.marks().await.unwrap();
        compactor.turn(Duration::from_mins(1)).await.unwrap();
        assert_eq!(store.marks().await.unwrap(), marks);
        compactor.turn(Duration::from_mins(5)).await.unwrap();
        compactor.turn(Duration::from_mins(6)).await.unwrap();
        assert_eq!(oldest(&store).await, revision);
        assert_eq!(store.marks().await.unwrap(), []);
    }

    #[test]
    fn a_mark_from_the_future_counts_as_made_now() {
        let mark = Mark {
            at: Timestamp::UNIX_EPOCH + SignedDuration::from_hours(1),
            revision: 7,
        };
        let marks = Marks::of_the_past(&[mark], Timestamp::UNIX_EPOCH);
        let keep = Duration::from_mins(5);
        assert_eq!(marks.due(Duration::from_secs(299), keep), None);
        assert_eq!(marks.due(keep, keep), Some(7));
    }

    #[tokio::test]
    async fn a_running_compactor_gives_up_old_history() {
        let store = Arc::new(RedbStore::in_memory(Options::default()).unwrap());
        let first = put(&store, "one").await;
        let task = tokio::spawn(compactor(&store, Duration::ZERO).run());
        until_marked(&store, first).await;
        let second = put(&store, "two").await;
        tokio::time::pause();
        let mut gone = false;
        for _ in 0..1000 {
            tokio::time::advance(Duration::from_mins(1)).await;
            let list = store.list("", Some(first), None, None).await;
            gone = matches!(list, Err(Error::Compacted { .. }));
            if gone {
                break;
            }
        }
        assert!(gone, "the first revision is compacted");
        tokio::time::resume();
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
