//! Opening a file without changing it: [`super::opening`] lets redb repair and check the database on
//! an [`Overlay`], which keeps the writes in memory, and settles them once all is well. So a damaged
//! file is refused before a byte of it changes, and a sound one is read once.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ::redb::{BackendError, StorageBackend};
use parking_lot::Mutex;

const PAGE: u64 = 4096;
const PAGE_BYTES: usize = 4096;

/// Reads the backend below and keeps writes to itself: until it is settled, or for good. Clones are
/// the same.
#[derive(Clone, Debug)]
pub(super) struct Overlay(Arc<Layers>);

#[derive(Debug)]
struct Layers {
    below: Box<dyn StorageBackend>,
    written: Mutex<Written>,
    /// From now on everything goes through to the backend below.
    settled: AtomicBool,
}

#[derive(Debug)]
struct Written {
    len: u64,
    /// Where the backend below ends to be visible: it was cut there at some time.
    visible: u64,
    pages: BTreeMap<u64, Box<[u8; PAGE_BYTES]>>,
}

impl Overlay {
    pub(super) fn new(below: Box<dyn StorageBackend>) -> io::Result<Self> {
        let len = below.len()?;
        let written = Mutex::new(Written {
            len,
            visible: len,
            pages: BTreeMap::new(),
        });
        Ok(Self(Arc::new(Layers {
            below,
            written,
            settled: AtomicBool::new(false),
        })))
    }

    /// Writes what was kept to the backend below and is transparent from then on. Can be repeated
    /// after an error. Nobody may use the database meanwhile.
    ///
    /// The commit that ends a repair writes only pages that the state before it does not use, so
    /// they go first and the header, in page 0, after they are synced: the file holds the one state
    /// or the other, whenever the power goes.
    pub(super) fn settle(&self) -> io::Result<()> {
        let Layers {
            below,
            written,
            settled,
        } = &*self.0;
        let mut written = written.lock();
        if written.len > below.len()? {
            below.set_len(written.len)?;
        }
        for (page, bytes) in written.pages.range(1..) {
            below.write(page * PAGE, part(bytes, page * PAGE, written.len)?)?;
        }
        below.sync_data()?;
        if let Some(bytes) = written.pages.get(&0) {
            below.write(0, part(bytes, 0, written.len)?)?;
            below.sync_data()?;
        }
        if written.len < below.len()? {
            below.set_len(written.len)?;
        }
        written.pages.clear();
        settled.store(true, Ordering::Release);
        Ok(())
    }
}

/// What of a page lies before the end.
fn part(bytes: &[u8; PAGE_BYTES], start: u64, len: u64) -> io::Result<&[u8]> {
    let there = usize::try_from(len.saturating_sub(start).min(PAGE)).map_err(io::Error::other)?;
    bytes.get(..there).ok_or_else(bounds)
}

impl Layers {
    fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire)
    }

    /// The bytes of one page as they are below, zero beyond its end.
    fn page_below(&self, page: u64, visible: u64) -> io::Result<Box<[u8; PAGE_BYTES]>> {
        let mut bytes = Box::new([0; PAGE_BYTES]);
        let start = page * PAGE;
        let there = visible.saturating_sub(start).min(PAGE);
        let there = usize::try_from(there).map_err(io::Error::other)?;
        if let Some(part) = bytes.get_mut(..there).filter(|part| !part.is_empty()) {
            self.below.read(start, part)?;
        }
        Ok(bytes)
    }
}

/// The pieces of a range that lie in one page each: page, offset in the page, range in the buffer.
fn pieces(
    offset: u64,
    length: usize,
) -> impl Iterator<Item = io::Result<(u64, usize, std::ops::Range<usize>)>> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done >= length {
            return None;
        }
        let at = u64::try_from(done)
            .ok()
            .and_then(|done| offset.checked_add(done));
        let Some(at) = at else {
            done = length;
            return Some(Err(io::Error::from(io::ErrorKind::InvalidInput)));
        };
        let inside = usize::try_from(at % PAGE).unwrap_or(0);
        let end = length.min(done + PAGE_BYTES - inside);
        let piece = (at / PAGE, inside, done..end);
        done = end;
        Some(Ok(piece))
    })
}

fn bounds() -> io::Error {
    io::Error::from(io::ErrorKind::UnexpectedEof)
}

impl StorageBackend for Overlay {
    fn len(&self) -> io::Result<u64> {
        if self.0.is_settled() {
            return self.0.below.len();
        }
        Ok(self.0.written.lock().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if self.0.is_settled() {
            return self.0.below.read(offset, out);
        }
        let written = self.0.written.lock();
        let length = u64::try_from(out.len()).map_err(io::Error::other)?;
        if offset.saturating_add(length) > written.len {
            return Err(bounds());
        }
        let end = offset.saturating_add(length);
        let mut kept = written.pages.range(offset / PAGE..end.div_ceil(PAGE));
        if kept.next().is_none() && end <= written.visible {
            return self.0.below.read(offset, out);
        }
        for piece in pieces(offset, out.len()) {
            let (page, inside, range) = piece?;
            let target = out.get_mut(range).ok_or_else(bounds)?;
            let source = match written.pages.get(&page) {
                Some(bytes) => bytes,
                None => &self.0.page_below(page, written.visible)?,
            };
            let source = source
                .get(inside..inside + target.len())
                .ok_or_else(bounds)?;
            target.copy_from_slice(source);
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if self.0.is_settled() {
            return self.0.below.set_len(len);
        }
        let mut written = self.0.written.lock();
        written.len = len;
        if len < written.visible {
            written.visible = len;
        }
        let first_gone = len.div_ceil(PAGE);
        written.pages.retain(|page, _| *page < first_gone);
        let inside = usize::try_from(len % PAGE).map_err(io::Error::other)?;
        if let Some(rest) = written
            .pages
            .get_mut(&(len / PAGE))
            .and_then(|bytes| bytes.get_mut(inside..))
        {
            rest.fill(0);
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.0.is_settled() {
            return self.0.below.sync_data();
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if self.0.is_settled() {
            return self.0.below.write(offset, data);
        }
        let mut written = self.0.written.lock();
        let visible = written.visible;
        for piece in pieces(offset, data.len()) {
            let (page, inside, range) = piece?;
            let source = data.get(range).ok_or_else(bounds)?;
            let bytes = match written.pages.entry(page) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => entry.insert(self.0.page_below(page, visible)?),
            };
            bytes
                .get_mut(inside..inside + source.len())
                .ok_or_else(bounds)?
                .copy_from_slice(source);
        }
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.0.below.close()
    }

    // Why: a file that another process is writing would else be read and called damaged.
    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.below.try_lock_range(start, end)
    }
    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        self.0.below.try_lock_shared_range(start, end)
    }
    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.below.lock_range(start, end)
    }
    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.below.lock_shared_range(start, end)
    }
    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.below.unlock_range(start, end)
    }
    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.below.query_lock_range(start, end)
    }
}
