//! The one thread that writes. It takes what waits in its queue, decides the transactions in order,
//! each with a revision of its own, commits them with one sync, publishes the events, and only then
//! answers. Compaction runs here too, in pieces between the commits.

mod compaction;
mod transaction;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use tokio::sync::{mpsc, oneshot};

use self::compaction::Compaction;
use self::transaction::{Scratch, Tables};
use super::Shared;
use super::opening::open_database;
use super::tables::{CURRENT, LOG, META, META_REVISION, UNDO, failure};
use super::watch::Commit;
use crate::store::{Compare, Error, Mark, Op, Outcome, Revision};

/// Transactions in one commit at most, so that a long queue does not make its first callers wait
/// for all of it.
const BATCH_TRANSACTIONS: usize = 1024;
/// What the queue holds.
pub(super) enum Command {
    /// A transaction.
    Txn(Submission),
    /// Forget history up to and including a revision.
    Compact(Revision, oneshot::Sender<Result<(), Error>>),
    /// Remember when a revision was the latest.
    Mark(Mark, oneshot::Sender<Result<(), Error>>),
}

/// A transaction and who waits for it.
pub(super) struct Submission {
    pub(super) compares: Vec<Compare>,
    pub(super) ops: Vec<Op>,
    pub(super) answer: oneshot::Sender<Result<Outcome, Error>>,
    pub(super) _size: QueuedBytes,
}

impl Submission {
    /// Whether it may run on a full disk.
    fn deletes(&self) -> bool {
        self.ops.iter().any(|op| matches!(op, Op::Delete(_)))
    }
}

/// Takes its bytes off the count of what is queued when it goes.
pub(super) struct QueuedBytes {
    bytes: usize,
    total: Arc<AtomicUsize>,
}

impl QueuedBytes {
    /// For bytes that have been added to the total.
    pub(super) fn new(bytes: usize, total: &Arc<AtomicUsize>) -> Self {
        Self {
            bytes,
            total: Arc::clone(total),
        }
    }
}

impl Drop for QueuedBytes {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Starts the writer; it ends when the queue's senders are gone and it is empty.
pub(super) fn spawn(
    shared: Arc<Shared>,
    queue: mpsc::UnboundedReceiver<Command>,
    revision: Revision,
    cache_bytes: usize,
) -> std::io::Result<JoinHandle<()>> {
    let writer = Writer {
        shared,
        revision,
        cache_bytes,
        compaction: None,
        scratch: Scratch::default(),
    };
    // A thread of its own: it waits for the disk most of the time.
    std::thread::Builder::new()
        .name("store-writer".to_owned())
        .spawn(move || writer.run(queue))
}

struct Writer {
    shared: Arc<Shared>,
    /// Of the last committed transaction.
    revision: Revision,
    cache_bytes: usize,
    compaction: Option<Compaction>,
    scratch: Scratch,
}

/// A transaction that was decided; the answer waits for the commit.
enum Verdict {
    Decided(Outcome),
    /// The disk is full and it would write.
    Full,
}

/// Closes the store when the writer ends, also by a panic.
struct CloseOnDrop(Arc<Shared>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close("it has been closed".to_owned());
        *self.0.database.write() = None;
    }
}

impl Writer {
    fn run(mut self, mut queue: mpsc::UnboundedReceiver<Command>) {
        let _close = CloseOnDrop(Arc::clone(&self.shared));
        let mut commands = Vec::new();
        let mut batch = Vec::new();
        self.resume_compaction();
        loop {
            if self.compaction.is_some() {
                while commands.len() < BATCH_TRANSACTIONS
                    && let Ok(command) = queue.try_recv()
                {
                    commands.push(command);
                }
            } else if queue.blocking_recv_many(&mut commands, BATCH_TRANSACTIONS) == 0 {
                return;
            }
            for command in commands.drain(..) {
                match command {
                    Command::Txn(submission) => batch.push(submission),
                    Command::Compact(upto, answer) => {
                        // After the transactions before it, which it may name.
                        self.process(&mut batch);
                        self.start_compaction(upto, answer);
                    },
                    Command::Mark(mark, answer) => self.mark(mark, answer),
                }
            }
            self.process(&mut batch);
            self.compact_piece();
        }
    }

    /// Decides, commits, publishes and answers; leaves the batch empty.
    fn process(&mut self, batch: &mut Vec<Submission>) {
        if batch.is_empty() {
            return;
        }
        if self.shared.is_closed() {
            for submission in batch.drain(..) {
                answer(submission, Err(self.shared.closed_error()));
            }
            return;
        }
        if self.shared.space.is_full() && self.shared.space.try_recover() {
            tracing::info!("the store's disk has space again");
        }
        let mut applied = self.apply(batch);
        if matches!(applied, Err(Error::NoSpace)) {
            applied = match self.reopen_full() {
                Ok(()) => self.apply(batch),
                Err(err) => Err(err),
            };
            if matches!(applied, Err(Error::NoSpace)) {
                // Not even the reserve is enough for this batch.
                if let Err(err) = self.reopen_full() {
                    self.fail(&err);
                }
            }
        }
        match applied {
            Ok((verdicts, commit)) => {
                if let Some(commit) = commit {
                    self.revision = commit.last;
                    self.shared.window.push(commit);
                    self.shared.published.send_replace(self.revision);
                }
                for (submission, verdict) in batch.drain(..).zip(verdicts) {
                    answer(
                        submission,
                        match verdict {
                            Verdict::Decided(outcome) => Ok(outcome),
                            Verdict::Full => Err(Error::NoSpace),
                        },
                    );
                }
            },
            Err(Error::NoSpace) => {
                for submission in batch.drain(..) {
                    answer(submission, Err(Error::NoSpace));
                }
            },
            Err(err) => {
                self.fail(&err);
                for submission in batch.drain(..) {
                    answer(submission, Err(self.shared.closed_error()));
                }
            },
        }
    }

    /// Writes the batch as one commit of the database; on an error nothing of it is there.
    fn apply(&mut self, batch: &[Submission]) -> Result<(Vec<Verdict>, Option<Commit>), Error> {
        let database = self.shared.database.read();
        let database = database
            .as_ref()
            .ok_or_else(|| self.shared.closed_error())?;
        let full = self.shared.space.is_full();
        let write = database.begin_write().map_err(failure)?;
        let mut verdicts = Vec::with_capacity(batch.len());
        let mut revision = self.revision;
        let mut events = Vec::with_capacity(batch.len());
        {
            let mut tables = Tables {
                current: write.open_table(CURRENT).map_err(failure)?,
                undo: write.open_table(UNDO).map_err(failure)?,
                log: write.open_table(LOG).map_err(failure)?,
                scratch: &mut self.scratch,
            };
            for submission in batch {
                verdicts.push(if full && !submission.deletes() {
                    Verdict::Full
                } else {
                    Verdict::Decided(tables.decide(submission, &mut revision, &mut events)?)
                });
            }
        }
        if revision == self.revision {
            write.abort().map_err(failure)?;
            return Ok((verdicts, None));
        }
        {
            let mut meta = write.open_table(META).map_err(failure)?;
            meta.insert(META_REVISION, revision).map_err(failure)?;
        }
        // Synced before it returns: redb's default durability.
        write.commit().map_err(failure)?;
        Ok((
            verdicts,
            Some(Commit {
                last: revision,
                events,
            }),
        ))
    }

    /// Opens the database anew after a write found no space, to go on with the reserve.
    fn reopen_full(&self) -> Result<(), Error> {
        if self.shared.space.sync_failed() {
            return Err(super::closed(
                "the disk became full while data was being synced to it",
            ));
        }
        if !self.shared.space.is_full() {
            tracing::warn!("the store's disk is full; only deletes are accepted");
        }
        self.shared
            .space
            .set_full()
            .map_err(|err| failure(::redb::Error::Io(err)))?;
        let mut database = self.shared.database.write();
        *database = None;
        let opened = open_database(&self.shared.space, self.cache_bytes)?;
        let revision = super::history::extent(&opened)?.revision;
        if revision != self.revision {
            return Err(Error::Corrupt(format!(
                "revision {revision} was found where {} had been committed",
                self.revision
            )));
        }
        *database = Some(opened);
        Ok(())
    }

    fn fail(&self, err: &Error) {
        let error: &dyn std::error::Error = err;
        tracing::error!(error, "the store has failed");
        self.shared.close(format!("it failed before: {err}"));
    }
}

/// Answers a caller; one that has gone away needs none.
fn answer(submission: Submission, result: Result<Outcome, Error>) {
    send(submission.answer, result);
}

fn send<T>(to: oneshot::Sender<T>, value: T) {
    drop(to.send(value));
}
