//! The embedded backend: one redb database, in a file or in memory. The default of a server with
//! one replica; the registry calls it through [`Store`].
//!
//! One thread owns all writes ([`writer`]); reads are snapshots that block nobody ([`history`]);
//! watchers share the events of the latest commits ([`watch`]). The file is described in
//! [`tables`], the handling of a full disk in [`medium`].

mod history;
mod medium;
mod opening;
mod overlay;
mod tables;
mod watch;
mod writer;

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use ::redb::Database;
use futures::StreamExt;
use futures::stream::BoxStream;
use parking_lot::RwLock;
use tokio::sync::{mpsc, oneshot};

use self::medium::{FileMedium, Medium, MemoryMedium, Space};
pub use self::opening::Opening;
use self::tables::{closed, unavailable};
use self::watch::Window;
use self::writer::{Command, Submission};
use super::{Batch, Compare, Error, Listing, Mark, Op, Outcome, Record, Revision, Store, limits};

/// Sizes of a [`RedbStore`].
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of database pages kept in memory.
    pub cache_bytes: usize,
    /// Bytes of recent events kept in memory for watchers; those further behind read the database.
    pub window_bytes: usize,
    /// Bytes of transactions that may wait for the writer; beyond, they are refused as
    /// [`Error::Unavailable`].
    pub queue_bytes: usize,
    /// Bytes of the disk set aside for deletes when it is full, in a file beside the database with
    /// `.reserve` after its name.
    pub reserve_bytes: u64,
    /// How long an opening waits for another process to let go of the file, which one that was
    /// killed does only when the system has cleaned up after it.
    pub lock_wait: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cache_bytes: 64 << 20,
            window_bytes: 16 << 20,
            queue_bytes: 128 << 20,
            reserve_bytes: 8 << 20,
            lock_wait: Duration::from_secs(10),
        }
    }
}

/// A [`Store`] on redb. Dropping it waits for what is queued and closes the file.
///
/// A transaction that changes nothing (no operation, or only deletes of absent keys) takes no
/// revision and answers with the one it was decided at, so every revision has a change.
///
/// A full disk refuses transactions with [`Error::NoSpace`], except those that delete a key, and
/// takes the others again once there is space. After any other failure of the disk nothing is known
/// about what it holds: the store then refuses everything until it is opened anew.
pub struct RedbStore {
    shared: Arc<Shared>,
    commands: Option<mpsc::UnboundedSender<Command>>,
    writer: Option<JoinHandle<()>>,
    queue_bytes: usize,
}

impl fmt::Debug for RedbStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedbStore")
            .field("revision", &self.shared.revision())
            .field("oldest", &self.shared.oldest())
            .finish_non_exhaustive()
    }
}

/// What the store, its writer and its watchers have in common.
struct Shared {
    /// `None` while it is opened again, and in the end.
    database: RwLock<Option<Database>>,
    /// Last revision whose events can be had; wakes the watchers.
    published: tokio::sync::watch::Sender<Revision>,
    oldest: AtomicU64,
    window: Window,
    queued_bytes: Arc<AtomicUsize>,
    space: Arc<Space>,
    /// Why nothing works any more.
    closed: OnceLock<String>,
}

impl Shared {
    fn revision(&self) -> Revision {
        *self.published.borrow()
    }

    fn oldest(&self) -> Revision {
        self.oldest.load(Ordering::Acquire)
    }

    fn is_closed(&self) -> bool {
        self.closed.get().is_some()
    }

    fn closed_error(&self) -> Error {
        closed(
            self.closed
                .get()
                .map_or("it has been closed", String::as_str),
        )
    }

    /// Ends everything: later calls fail, watchers end once they have what was published.
    fn close(&self, why: String) {
        if self.closed.set(why).is_ok() {
            self.published.send_modify(|_| ());
        }
    }

    /// Runs a read on the database. It does not wait for the writer, except while that opens the
    /// database again after the disk was full.
    fn read<T>(&self, work: impl FnOnce(&Database) -> Result<T, Error>) -> Result<T, Error> {
        if self.is_closed() {
            return Err(self.closed_error());
        }
        work(
            self.database
                .read()
                .as_ref()
                .ok_or_else(|| self.closed_error())?,
        )
    }
}

impl RedbStore {
    /// Opens the database in a file, or makes one there. The folder must exist.
    ///
    /// A file that was not closed is read whole, to check it. [`Error::Corrupt`] when it is damaged
    /// or something else; it is then as it was. Damage to a file that was closed may show only when
    /// it is read. [`Error::Unavailable`] when another process keeps it open or a newer version
    /// wrote it. Blocks: call it where that does no harm.
    pub fn open(path: impl Into<PathBuf>, options: Options) -> Result<Self, Error> {
        Self::open_reporting(path, options, |_| ())
    }

    /// The same, and says what takes time.
    pub fn open_reporting(
        path: impl Into<PathBuf>,
        options: Options,
        report: impl Fn(Opening) + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let path = path.into();
        let medium = Arc::new(FileMedium::new(path.clone()));
        let space = Arc::new(Space::new(medium, options.reserve_bytes));
        let report: opening::Report = Arc::new(report);
        let database = opening::wait_for_lock(&path, options.lock_wait, &report, || {
            opening::open(&space, options.cache_bytes, &report)
        })?;
        Self::start(space, database, options)
    }

    /// A store in memory, gone when it is dropped.
    pub fn in_memory(options: Options) -> Result<Self, Error> {
        Self::on(Arc::new(MemoryMedium::default()), options)
    }

    /// A store on a medium that is nobody else's.
    fn on(medium: Arc<dyn Medium>, options: Options) -> Result<Self, Error> {
        let silent: opening::Report = Arc::new(|_| ());
        let space = Arc::new(Space::new(medium, options.reserve_bytes));
        let database = opening::open(&space, options.cache_bytes, &silent)?;
        Self::start(space, database, options)
    }

    fn start(space: Arc<Space>, database: Database, options: Options) -> Result<Self, Error> {
        let Options {
            cache_bytes,
            window_bytes,
            queue_bytes,
            reserve_bytes: _,
            lock_wait: _,
        } = options;
        let extent = history::extent(&database)?;
        let shared = Arc::new(Shared {
            database: RwLock::new(Some(database)),
            published: tokio::sync::watch::Sender::new(extent.revision),
            oldest: AtomicU64::new(extent.oldest),
            window: Window::new(extent.revision, window_bytes),
            queued_bytes: Arc::default(),
            space,
            closed: OnceLock::new(),
        });
        let (commands, queue) = mpsc::unbounded_channel();
        let writer = writer::spawn(Arc::clone(&shared), queue, extent.revision, cache_bytes)
            .map_err(|err| unavailable("its writer thread cannot be started", err))?;
        Ok(Self {
            shared,
            commands: Some(commands),
            writer: Some(writer),
            queue_bytes,
        })
    }

    fn send(&self, command: Command) -> Result<(), Error> {
        let sent = self
            .commands
            .as_ref()
            .is_some_and(|commands| commands.send(command).is_ok());
        if sent {
            Ok(())
        } else {
            Err(self.shared.closed_error())
        }
    }
}

impl Drop for RedbStore {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!("the store's writer thread had panicked");
        }
    }
}

#[async_trait::async_trait]
impl Store for RedbStore {
    async fn get(&self, key: &str) -> Result<Option<Record>, Error> {
        // Inline: a lookup takes some 7 microseconds, a hop to a blocking thread and back 7 to 17.
        // Not so while the database is being opened again.
        if self.shared.is_closed() {
            return Err(self.shared.closed_error());
        }
        if let Some(database) = self.shared.database.try_read() {
            return history::get(
                database
                    .as_ref()
                    .ok_or_else(|| self.shared.closed_error())?,
                key,
            );
        }
        let (shared, key) = (Arc::clone(&self.shared), key.to_owned());
        watch::blocking(move || shared.read(|database| history::get(database, &key))).await
    }

    async fn list(
        &self,
        prefix: &str,
        at: Option<Revision>,
        from: Option<&str>,
        limit: Option<usize>,
    ) -> Result<Listing, Error> {
        let (shared, prefix) = (Arc::clone(&self.shared), prefix.to_owned());
        let from = from.map(str::to_owned);
        // A list may read everything, for a second or more.
        watch::blocking(move || {
            shared.read(|database| history::list(database, &prefix, at, from.as_deref(), limit))
        })
        .await
    }

    async fn txn(&self, compares: Vec<Compare>, ops: Vec<Op>) -> Result<Outcome, Error> {
        let bytes = limits::check(self.max_transaction_bytes(), &compares, &ops)?;
        let queued = self.shared.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        let submission = Submission {
            compares,
            ops,
            answer,
            _size: writer::QueuedBytes::new(bytes, &self.shared.queued_bytes),
        };
        if queued > self.queue_bytes {
            return Err(closed(&format!(
                "{queued} bytes of transactions wait for the disk already; try again later"
            )));
        }
        // No await before this: the order of first polls is the order in the queue.
        self.send(Command::Txn(submission))?;
        answered
            .await
            .unwrap_or_else(|_| Err(self.shared.closed_error()))
    }

    fn watch(&self, prefix: &str, after: Revision) -> BoxStream<'static, Result<Batch, Error>> {
        watch::stream(Arc::clone(&self.shared), prefix, after).boxed()
    }

    fn revision(&self) -> Revision {
        self.shared.revision()
    }

    async fn compact(&self, revision: Revision) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        self.send(Command::Compact(revision, answer))?;
        answered
            .await
            .unwrap_or_else(|_| Err(self.shared.closed_error()))
    }

    async fn mark(&self, mark: Mark) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        self.send(Command::Mark(mark, answer))?;
        answered
            .await
            .unwrap_or_else(|_| Err(self.shared.closed_error()))
    }

    async fn marks(&self) -> Result<Vec<Mark>, Error> {
        let shared = Arc::clone(&self.shared);
        watch::blocking(move || shared.read(history::marks)).await
    }

    fn size_bytes(&self) -> u64 {
        self.shared.space.used_bytes()
    }
}
