//! Where the bytes of the database lie, and how a full disk is met. Called by [`super::writer`]
//! and [`super::opening`]; nothing else sees a file.
//!
//! redb learns of no space only by a failed write, after which it must be opened again, and it
//! needs free pages even to delete. So a file has a reserve beside it: blocks of the disk, held in
//! a file of their own and given back when the disk is full, for the transactions that delete.
//! [`Guarded`] also allocates the blocks of a stretch before the first write to it. So no write is
//! lost *after* it was accepted, as happens where a file system finds blocks only when it writes
//! back.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ::redb::backends::{FileBackend, InMemoryBackend};
use ::redb::{BackendError, StorageBackend};
use parking_lot::Mutex;

/// Blocks are allocated in stretches of this many bytes.
pub(super) const STRETCH: u64 = 1 << 20;

/// A medium that can be opened again after a failure.
pub(super) trait Medium: Debug + Send + Sync {
    /// The bytes, opened anew; creates them when there are none.
    fn backend(&self) -> io::Result<Box<dyn StorageBackend>>;

    /// Makes sure that writes between the two offsets will find space.
    fn allocate(&self, from: u64, to: u64) -> io::Result<()>;

    /// Takes so many bytes off the disk, if `spare` more are free; keeps none when it fails.
    fn hold_reserve(&self, bytes: u64, spare: u64) -> io::Result<()>;

    /// Gives them back.
    fn release_reserve(&self) -> io::Result<()>;

    /// Bytes used on the medium.
    fn used_bytes(&self) -> u64;
}

/// A file.
#[derive(Debug)]
pub(super) struct FileMedium {
    path: PathBuf,
}

impl FileMedium {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    fn file(&self) -> io::Result<File> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&self.path)
    }

    fn reserve_path(&self) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(".reserve");
        name.into()
    }
}

impl Medium for FileMedium {
    fn backend(&self) -> io::Result<Box<dyn StorageBackend>> {
        let backend = FileBackend::new(self.file()?).map_err(io::Error::other)?;
        Ok(Box::new(backend))
    }

    fn allocate(&self, from: u64, to: u64) -> io::Result<()> {
        allocate(&self.file()?, from, to)
    }

    fn hold_reserve(&self, bytes: u64, spare: u64) -> io::Result<()> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.reserve_path())?;
        let held = allocate(&file, 0, bytes.saturating_add(spare)).and_then(|()| {
            // Makes the length known, then cuts the spare blocks off.
            file.set_len(bytes.saturating_add(spare))?;
            file.set_len(bytes)
        });
        if held.is_err() {
            self.release_reserve()?;
        }
        held
    }

    fn release_reserve(&self) -> io::Result<()> {
        match std::fs::remove_file(self.reserve_path()) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => Err(err),
            _ => Ok(()),
        }
    }

    #[cfg(unix)]
    fn used_bytes(&self) -> u64 {
        use std::os::unix::fs::MetadataExt;
        // Blocks, since redb lengthens its file in sparse doublings.
        std::fs::metadata(&self.path).map_or(0, |metadata| metadata.blocks() * 512)
    }

    #[cfg(not(unix))]
    fn used_bytes(&self) -> u64 {
        std::fs::metadata(&self.path).map_or(0, |metadata| metadata.len())
    }
}

/// Allocates blocks of a file and leaves its length, which redb checks against its own header.
#[cfg(target_os = "linux")]
fn allocate(file: &File, from: u64, to: u64) -> io::Result<()> {
    use nix::errno::Errno;
    use nix::fcntl::{FallocateFlags, fallocate};

    let offset = i64::try_from(from).map_err(io::Error::other)?;
    let length = i64::try_from(to.saturating_sub(from)).map_err(io::Error::other)?;
    match fallocate(file, FallocateFlags::FALLOC_FL_KEEP_SIZE, offset, length) {
        // A file system without preallocation reports a full disk at the write itself.
        Ok(()) | Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(not(target_os = "linux"))]
fn allocate(_file: &File, _from: u64, _to: u64) -> io::Result<()> {
    Ok(())
}

/// Memory; what was written is lost with the store.
#[derive(Debug, Default)]
pub(super) struct MemoryMedium {
    bytes: Arc<InMemoryBackend>,
}

impl Medium for MemoryMedium {
    fn backend(&self) -> io::Result<Box<dyn StorageBackend>> {
        Ok(Box::new(Memory(Arc::clone(&self.bytes))))
    }

    fn allocate(&self, _from: u64, _to: u64) -> io::Result<()> {
        Ok(())
    }

    fn hold_reserve(&self, _bytes: u64, _spare: u64) -> io::Result<()> {
        Ok(())
    }

    fn release_reserve(&self) -> io::Result<()> {
        Ok(())
    }

    fn used_bytes(&self) -> u64 {
        self.bytes.len().unwrap_or(0)
    }
}

/// One opening of a [`MemoryMedium`].
#[derive(Debug)]
pub(super) struct Memory(pub(super) Arc<InMemoryBackend>);

impl StorageBackend for Memory {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }
    fn try_lock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<bool, BackendError> {
        Ok(true)
    }
    fn unlock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<(), BackendError> {
        Ok(())
    }
}

/// What is known about the space of a medium; outlives each opening of the database.
#[derive(Debug)]
pub(super) struct Space {
    medium: Arc<dyn Medium>,
    reserve: u64,
    /// Stretches whose blocks have been allocated.
    allocated: Mutex<BTreeSet<u64>>,
    /// The disk is full: the reserve is given back, and nothing is allocated ahead.
    full: AtomicBool,
    /// A sync failed: nobody knows what is on the disk.
    sync_failed: AtomicBool,
}

impl Space {
    /// Counts as full, and touches nothing, until [`Space::try_recover`].
    pub(super) fn new(medium: Arc<dyn Medium>, reserve: u64) -> Self {
        Self {
            medium,
            reserve,
            allocated: Mutex::default(),
            full: AtomicBool::new(true),
            sync_failed: AtomicBool::new(false),
        }
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.medium.used_bytes()
    }

    pub(super) fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    /// Gives the reserve back, for deletes.
    pub(super) fn set_full(&self) -> io::Result<()> {
        self.full.store(true, Ordering::Relaxed);
        self.medium.release_reserve()
    }

    pub(super) fn sync_failed(&self) -> bool {
        self.sync_failed.load(Ordering::Relaxed)
    }

    /// Leaves the full state when there is room for the reserve and for something to write: the
    /// space that the reserve gave back is not enough.
    pub(super) fn try_recover(&self) -> bool {
        let recovered = self.medium.hold_reserve(self.reserve, 2 * STRETCH).is_ok();
        self.full.store(!recovered, Ordering::Relaxed);
        recovered
    }

    /// The medium, opened anew, under guard.
    pub(super) fn open(self: &Arc<Self>) -> io::Result<Guarded> {
        Ok(Guarded {
            inner: self.medium.backend()?,
            space: Arc::clone(self),
        })
    }

    fn before_write(&self, offset: u64, end: u64) -> io::Result<()> {
        if self.is_full() {
            return Ok(());
        }
        let mut allocated = self.allocated.lock();
        for stretch in offset / STRETCH..end.div_ceil(STRETCH) {
            if !allocated.contains(&stretch) {
                self.medium
                    .allocate(stretch * STRETCH, (stretch + 1) * STRETCH)?;
                allocated.insert(stretch);
            }
        }
        Ok(())
    }
}

/// A backend that allocates before it writes and remembers a failed sync.
#[derive(Debug)]
pub(super) struct Guarded {
    inner: Box<dyn StorageBackend>,
    space: Arc<Space>,
}

impl StorageBackend for Guarded {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        let shrinks = len < self.inner.len()?;
        self.inner.set_len(len)?;
        if shrinks {
            // That gave back the blocks beyond the new end.
            self.space.allocated.lock().split_off(&(len / STRETCH));
        }
        Ok(())
    }
    fn sync_data(&self) -> io::Result<()> {
        self.inner
            .sync_data()
            .inspect_err(|_| self.space.sync_failed.store(true, Ordering::Relaxed))
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let length = u64::try_from(data.len()).map_err(io::Error::other)?;
        self.space
            .before_write(offset, offset.saturating_add(length))?;
        self.inner.write(offset, data)
    }
    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }
    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.try_lock_range(start, end)
    }
    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        self.inner.try_lock_shared_range(start, end)
    }
    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_range(start, end)
    }
    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_shared_range(start, end)
    }
    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.unlock_range(start, end)
    }
    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.query_lock_range(start, end)
    }
}
