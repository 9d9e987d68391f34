//! A rehearsal of opening a file, in memory: [`super::RedbStore::open`] repairs and checks the
//! database on an [`Overlay`] first, so that a damaged file is refused before a byte of it changes.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::ops::Bound;

use ::redb::{BackendError, StorageBackend};
use parking_lot::Mutex;

const PAGE: u64 = 4096;
const PAGE_BYTES: usize = 4096;

/// Reads the backend below, keeps writes to itself, and forgets them in the end.
#[derive(Debug)]
pub(super) struct Overlay {
    below: Box<dyn StorageBackend>,
    written: Mutex<Written>,
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
        Ok(Self { below, written })
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
        Ok(self.written.lock().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let written = self.written.lock();
        let length = u64::try_from(out.len()).map_err(io::Error::other)?;
        if offset.saturating_add(length) > written.len {
            return Err(bounds());
        }
        if written.pages.is_empty() && offset.saturating_add(length) <= written.visible {
            return self.below.read(offset, out);
        }
        for piece in pieces(offset, out.len()) {
            let (page, inside, range) = piece?;
            let target = out.get_mut(range).ok_or_else(bounds)?;
            let source = match written.pages.get(&page) {
                Some(bytes) => bytes,
                None => &self.page_below(page, written.visible)?,
            };
            let source = source
                .get(inside..inside + target.len())
                .ok_or_else(bounds)?;
            target.copy_from_slice(source);
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut written = self.written.lock();
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
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut written = self.written.lock();
        let visible = written.visible;
        for piece in pieces(offset, data.len()) {
            let (page, inside, range) = piece?;
            let source = data.get(range).ok_or_else(bounds)?;
            let bytes = match written.pages.entry(page) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => entry.insert(self.page_below(page, visible)?),
            };
            bytes
                .get_mut(inside..inside + source.len())
                .ok_or_else(bounds)?
                .copy_from_slice(source);
        }
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.below.close()
    }

    // Why: the rehearsal locks like the real opening, else it would read a file that another
    // process is writing and call it damaged.
    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.below.try_lock_range(start, end)
    }
    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        self.below.try_lock_shared_range(start, end)
    }
    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.below.lock_range(start, end)
    }
    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.below.lock_shared_range(start, end)
    }
    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.below.unlock_range(start, end)
    }
    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.below.query_lock_range(start, end)
    }
}
