//! Opening the database: waiting for its lock, checking a file that was not closed, and making the
//! tables of a new one. Called by [`super::RedbStore`], and by [`super::writer`] after the disk was
//! full.

use std::cell::Cell;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ::redb::{Database, ReadableDatabase, StorageBackend};

use super::medium::{Guarded, Space};
use super::overlay::Overlay;
use super::tables::{CURRENT, FORMAT, LOG, META, META_FORMAT, UNDO, closed, failure, unavailable};
use crate::store::Error;

/// How often a lock is tried.
const LOCK_RETRY: Duration = Duration::from_millis(100);

/// What an opening spends its time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// Another process has the file open; its end is waited for.
    Waiting,
    /// The last process did not close the file: all of it is read and checked.
    Checking,
}

pub(super) type Report = Arc<dyn Fn(Opening) + Send + Sync>;

/// Opens with `open` until no other process has the file, for so long.
pub(super) fn wait_for_lock(
    path: &Path,
    wait: Duration,
    report: &Report,
    open: impl Fn() -> Result<Database, Error>,
) -> Result<Database, Error> {
    let mut waited = Duration::ZERO;
    loop {
        let source = match open() {
            Err(Error::Unavailable {
                source: Some(source),
                ..
            }) if is_locked(&*source) => source,
            other => return other,
        };
        if waited >= wait {
            return Err(Error::Unavailable {
                message: format!(
                    "another process still has {} open after {} s: stop it, or use another file",
                    path.display(),
                    wait.as_secs()
                ),
                source: Some(source),
            });
        }
        if waited.is_zero() {
            report(Opening::Waiting);
        }
        std::thread::sleep(LOCK_RETRY);
        waited += LOCK_RETRY;
    }
}

fn is_locked(source: &(dyn std::error::Error + Send + Sync + 'static)) -> bool {
    matches!(
        source.downcast_ref(),
        Some(::redb::Error::DatabaseAlreadyOpen)
    )
}

/// Opens what a medium holds, or makes a database there.
pub(super) fn open(
    space: &Arc<Space>,
    cache_bytes: usize,
    report: &Report,
) -> Result<Database, Error> {
    let cannot_open = |err| unavailable("its file cannot be opened", err);
    let backend = space.open().map_err(cannot_open)?;
    if backend.len().map_err(cannot_open)? > 0 {
        open_checked(space, backend, cache_bytes, report)
    } else {
        open_anew(space, cache_bytes)
    }
}

/// Opens a file that has content and changes it only when it is sound. redb knows whether it was
/// closed; if not, it verifies every page.
fn open_checked(
    space: &Arc<Space>,
    backend: Guarded,
    cache_bytes: usize,
    report: &Report,
) -> Result<Database, Error> {
    let io = |err| failure(::redb::Error::Io(err));
    let overlay = Overlay::new(Box::new(backend)).map_err(io)?;
    let (backend, report, said) = (overlay.clone(), Arc::clone(report), Cell::new(false));
    let opening = move || {
        let database = Database::builder()
            .set_cache_size(cache_bytes)
            .set_repair_callback(move |_| {
                if !said.replace(true) {
                    report(Opening::Checking);
                }
            })
            .create_with_backend(backend)
            .map_err(failure)?;
        let new = is_new(&database)?;
        Ok((database, new))
    };
    // Why: redb asserts what it believes of its own files, so damage may also show as a panic.
    let (database, new) = std::panic::catch_unwind(AssertUnwindSafe(opening))
        .unwrap_or_else(|_| Err(Error::Corrupt("its pages contradict each other".to_owned())))?;
    space.try_recover();
    match overlay.settle().map_err(io) {
        Err(Error::NoSpace) => {
            space.set_full().map_err(io)?;
            overlay.settle().map_err(io)?;
        },
        other => other?,
    }
    if new {
        make_tables(&database)?;
    }
    Ok(database)
}

fn open_anew(space: &Arc<Space>, cache_bytes: usize) -> Result<Database, Error> {
    space.try_recover();
    match open_database(space, cache_bytes) {
        Err(Error::NoSpace) => {
            space
                .set_full()
                .map_err(|err| failure(::redb::Error::Io(err)))?;
            open_database(space, cache_bytes)
        },
        other => other,
    }
}

/// Opens the database of a medium and makes its tables.
pub(super) fn open_database(space: &Arc<Space>, cache_bytes: usize) -> Result<Database, Error> {
    let backend = space
        .open()
        .map_err(|err| failure(::redb::Error::Io(err)))?;
    let database = Database::builder()
        .set_cache_size(cache_bytes)
        .create_with_backend(backend)
        .map_err(failure)?;
    if is_new(&database)? {
        make_tables(&database)?;
    }
    Ok(database)
}

fn make_tables(database: &Database) -> Result<(), Error> {
    let write = database.begin_write().map_err(failure)?;
    write.open_table(CURRENT).map_err(failure)?;
    write.open_table(UNDO).map_err(failure)?;
    write.open_table(LOG).map_err(failure)?;
    write
        .open_table(META)
        .map_err(failure)?
        .insert(META_FORMAT, FORMAT)
        .map_err(failure)?;
    write.commit().map_err(failure)
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
