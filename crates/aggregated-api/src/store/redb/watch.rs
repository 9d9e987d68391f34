//! How watchers get their events: a bounded window of the latest commits, shared by all, and the
//! database for those who are further behind. The writer publishes and never waits for a watcher;
//! a watcher that falls behind the kept history ends with [`Error::Compacted`].

use std::collections::VecDeque;
use std::sync::Arc;

use futures::Stream;
use parking_lot::RwLock;
use tokio::sync::watch;

use super::Shared;
use super::tables::closed;
use crate::store::{Batch, Error, Event, Revision};

/// A batch ends after this many events.
const BATCH_EVENTS: usize = 1024;
/// What an event costs beside its key and values, about.
const EVENT_BYTES: usize = 256;

/// The events of one sync to disk: one transaction or several.
#[derive(Debug)]
pub(super) struct Commit {
    /// Revision of its last transaction.
    pub(super) last: Revision,
    /// In order of revision.
    pub(super) events: Vec<Event>,
}

impl Commit {
    fn bytes(&self) -> usize {
        let record = |record: &Option<_>| {
            record
                .as_ref()
                .map_or(0, |record: &crate::store::Record| record.value.len())
        };
        self.events
            .iter()
            .map(|event| {
                EVENT_BYTES + event.key.len() + record(&event.current) + record(&event.previous)
            })
            .sum()
    }
}

/// The latest commits, up to a number of bytes.
#[derive(Debug)]
pub(super) struct Window {
    commits: RwLock<Commits>,
    capacity: usize,
}

#[derive(Debug)]
struct Commits {
    /// Every change after this revision is in `queue`.
    complete_after: Revision,
    queue: VecDeque<(usize, Arc<Commit>)>,
    bytes: usize,
}

impl Window {
    pub(super) fn new(revision: Revision, capacity: usize) -> Self {
        let commits = Commits {
            complete_after: revision,
            queue: VecDeque::new(),
            bytes: 0,
        };
        Self {
            commits: RwLock::new(commits),
            capacity,
        }
    }

    /// Adds a commit; the oldest ones leave when there are too many.
    pub(super) fn push(&self, commit: Commit) {
        let bytes = commit.bytes();
        let mut dropped = Vec::new();
        let mut commits = self.commits.write();
        commits.queue.push_back((bytes, Arc::new(commit)));
        commits.bytes += bytes;
        while commits.bytes > self.capacity {
            let Some((bytes, commit)) = commits.queue.pop_front() else {
                break;
            };
            commits.bytes -= bytes;
            commits.complete_after = commit.last;
            dropped.push(commit);
        }
        drop(commits);
        // Freed outside of the lock: there may be many values.
        drop(dropped);
    }

    /// The changes after a revision and up to `upto`; `None` when they reach back too far.
    fn read(&self, prefix: &str, after: Revision, upto: Revision) -> Option<Batch> {
        let mut taken: Vec<Arc<Commit>> = Vec::new();
        {
            let commits = self.commits.read();
            if after < commits.complete_after {
                return None;
            }
            let first = commits
                .queue
                .partition_point(|(_, commit)| commit.last <= after);
            let mut events = 0;
            for (_, commit) in commits.queue.range(first..) {
                if commit.last > upto || events >= BATCH_EVENTS {
                    break;
                }
                events += commit.events.len();
                taken.push(Arc::clone(commit));
            }
        }
        let revision = taken.last()?.last;
        let events = taken
            .iter()
            .flat_map(|commit| &commit.events)
            .filter(|event| event.revision > after && event.key.starts_with(prefix))
            .cloned()
            .collect();
        Some(Batch { revision, events })
    }
}

/// One watch, between two batches.
struct Watcher {
    shared: Arc<Shared>,
    prefix: Arc<str>,
    after: Revision,
    published: watch::Receiver<Revision>,
    /// Whether the start has been checked and a first batch delivered.
    greeted: bool,
    ended: bool,
}

/// See [`Store::watch`](crate::store::Store::watch). The first batch comes at once, empty when the
/// watcher has missed nothing; later ones when something was committed.
pub(super) fn stream(
    shared: Arc<Shared>,
    prefix: &str,
    after: Revision,
) -> impl Stream<Item = Result<Batch, Error>> + Send + 'static {
    let watcher = Watcher {
        published: shared.published.subscribe(),
        shared,
        prefix: Arc::from(prefix),
        after,
        greeted: false,
        ended: false,
    };
    futures::stream::unfold(watcher, |mut watcher| async move {
        if watcher.ended {
            return None;
        }
        let next = watcher.next().await;
        watcher.ended = next.is_err();
        Some((next, watcher))
    })
}

impl Watcher {
    async fn next(&mut self) -> Result<Batch, Error> {
        // Why: a watcher that always finds something would keep its worker thread for itself.
        tokio::task::consume_budget().await;
        if !self.greeted {
            self.check_start().await?;
        }
        loop {
            let upto = *self.published.borrow_and_update();
            if upto > self.after {
                let batch = match self.shared.window.read(&self.prefix, self.after, upto) {
                    Some(batch) => batch,
                    None => self.catch_up(upto).await?,
                };
                self.after = batch.revision;
                self.greeted = true;
                return Ok(batch);
            }
            if !self.greeted {
                self.greeted = true;
                return Ok(Batch {
                    revision: self.after,
                    events: Vec::new(),
                });
            }
            if self.shared.is_closed() || self.published.changed().await.is_err() {
                // What was published before the end is still delivered.
                if *self.published.borrow() <= self.after {
                    return Err(self.shared.closed_error());
                }
            }
        }
    }

    async fn check_start(&self) -> Result<(), Error> {
        let (revision, oldest) = (self.shared.revision(), self.shared.oldest());
        if self.after < oldest {
            return Err(Error::Compacted {
                asked: self.after,
                oldest,
            });
        }
        if self.after > revision {
            // A reader may have seen a commit that is about to be published.
            let after = self.after;
            let shared = Arc::clone(&self.shared);
            blocking(move || shared.read(super::history::extent)?.check(after)).await?;
        }
        Ok(())
    }

    async fn catch_up(&self, upto: Revision) -> Result<Batch, Error> {
        let shared = Arc::clone(&self.shared);
        let (prefix, after) = (Arc::clone(&self.prefix), self.after);
        blocking(move || {
            shared.read(|database| {
                super::history::events(database, &prefix, after, upto, BATCH_EVENTS)
            })
        })
        .await
    }
}

/// Runs a read where it may wait for the disk.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(err) if err.is_panic() => std::panic::resume_unwind(err.into_panic()),
        Err(_) => Err(closed("the process is shutting down")),
    }
}
