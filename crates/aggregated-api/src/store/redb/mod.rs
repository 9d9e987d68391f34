//! The embedded backend: one redb database, in a file or in memory. The default of a server with
//! one replica; the registry calls it through [`Store`].
//!
//! One thread owns all writes ([`writer`]); reads are snapshots that block nobody ([`history`]);
//! watchers share the events of the latest commits ([`watch`]). The file is described in
//! [`tables`], the handling of a full disk in [`medium`].

mod history;
mod medium;
mod overlay;
mod tables;
mod watch;
mod writer;

#[cfg(test)]
mod tests;

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use ::redb::{Database, ReadableDatabase};
use futures::StreamExt;
use futures::stream::BoxStream;
use parking_lot::RwLock;
use tokio::sync::{mpsc, oneshot};

use self::medium::{FileMedium, Medium, MemoryMedium, Space};
use self::overlay::Overlay;
use self::tables::{CURRENT, FORMAT, LOG, META, META_FORMAT, UNDO, closed, failure, unavailable};
use self::watch::Window;
use self::writer::{Command, Submission};
use super::{Batch, Compare, Error, Listing, Op, Outcome, Record, Revision, Store, limits};

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
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cache_bytes: 64 << 20,
            window_bytes: 16 << 20,
            queue_bytes: 128 << 20,
            reserve_bytes: 8 << 20,
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
    /// Reads the whole file once to check it. [`Error::Corrupt`] when it is damaged or something
    /// else; it is then as it was. [`Error::Unavailable`] when another process has it open or a
    /// newer version wrote it. Blocks: call it where that does no harm.
    pub fn open(path: impl Into<PathBuf>, options: Options) -> Result<Self, Error> {
        let medium = FileMedium::new(path.into());
        let cannot_open = |err| unavailable("its file cannot be opened", err);
        if medium.has_data().map_err(cannot_open)? {
            let overlay = medium
                .backend()
                .and_then(Overlay::new)
                .map_err(cannot_open)?;
            rehearse(overlay, options.cache_bytes)?;
        }
        Self::start(Arc::new(medium), options)
    }

    /// A store in memory, gone when it is dropped.
    pub fn in_memory(options: Options) -> Result<Self, Error> {
        Self::start(Arc::new(MemoryMedium::default()), options)
    }

    fn start(medium: Arc<dyn Medium>, options: Options) -> Result<Self, Error> {
        let Options {
            cache_bytes,
            window_bytes,
            queue_bytes,
            reserve_bytes,
        } = options;
        let space = Arc::new(Space::new(medium, reserve_bytes));
        let database = match open_database(&space, cache_bytes) {
            Err(Error::NoSpace) => {
                space
                    .set_full()
                    .map_err(|err| failure(::redb::Error::Io(err)))?;
                open_database(&space, cache_bytes)?
            },
            other => other?,
        };
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

/// Opens the database of a medium and makes its tables.
fn open_database(space: &Arc<Space>, cache_bytes: usize) -> Result<Database, Error> {
    let backend = space
        .open()
        .map_err(|err| failure(::redb::Error::Io(err)))?;
    let database = Database::builder()
        .set_cache_size(cache_bytes)
        .create_with_backend(backend)
        .map_err(failure)?;
    if is_new(&database)? {
        let write = database.begin_write().map_err(failure)?;
        write.open_table(CURRENT).map_err(failure)?;
        write.open_table(UNDO).map_err(failure)?;
        write.open_table(LOG).map_err(failure)?;
        write
            .open_table(META)
            .map_err(failure)?
            .insert(META_FORMAT, FORMAT)
            .map_err(failure)?;
        write.commit().map_err(failure)?;
    }
    Ok(database)
}

/// Opens a file's content in memory, with every check there is.
fn rehearse(overlay: Overlay, cache_bytes: usize) -> Result<(), Error> {
    let opening = || {
        let database = Database::builder()
            .set_cache_size(cache_bytes)
            .set_check_integrity_on_open(true)
            .create_with_backend(overlay)
            .map_err(failure)?;
        is_new(&database)?;
        Ok(())
    };
    // Why: redb asserts what it believes of its own files, so damage may also show as a panic.
    std::panic::catch_unwind(AssertUnwindSafe(opening))
        .unwrap_or_else(|_| Err(Error::Corrupt("its pages contradict each other".to_owned())))
}

/// Whether the database has no tables yet; refuses one that is not ours.
fn is_new(database: &Database) -> Result<bool, Error> {
    let read = database.begin_read().map_err(failure)?;
    if read.list_tables().map_err(failure)?.next().is_none() {
        return Ok(true);
    }
    let meta = read.open_table(META).map_err(failure)?;
    let format = meta
        .get(META_FORMAT)
        .map_err(failure)?
        .map_or(0, |format| format.value());
    if format > FORMAT {
        return Err(closed(&format!(
            "its file has format {format}, this version reads up to {FORMAT}; run the version \
             that wrote it, or a newer one"
        )));
    }
    if format < FORMAT {
        return Err(Error::Corrupt("it has no format number".to_owned()));
    }
    read.open_table(CURRENT).map_err(failure)?;
    read.open_table(UNDO).map_err(failure)?;
    read.open_table(LOG).map_err(failure)?;
    Ok(false)
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
        let bytes = limits::check(&compares, &ops)?;
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

    fn size_bytes(&self) -> u64 {
        self.shared.space.used_bytes()
    }
}
