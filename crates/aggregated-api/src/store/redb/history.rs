//! Reads of the database: lists at any kept revision, and the events of the past. Synchronous;
//! [`super`] and [`super::watch`] decide on which thread.

use std::sync::Arc;

use ::redb::{Database, ReadTransaction, ReadableDatabase, ReadableTable, TableError};
use jiff::Timestamp;

use super::tables::{
    CURRENT, Header, LOG, MARKS, META, META_COMPACTED, META_REVISION, UNDO, decode_record, failure,
    log_keys,
};
use crate::store::{Batch, Error, Event, Listing, Mark, Record, Revision};

/// The two numbers that say which history a snapshot holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// Revision of the last transaction.
    pub(super) revision: Revision,
    /// Oldest revision that can be read or watched from.
    pub(super) oldest: Revision,
}

impl Extent {
    /// Refuses a revision outside of this extent.
    pub(super) fn check(self, asked: Revision) -> Result<(), Error> {
        let Self { revision, oldest } = self;
        if asked < oldest {
            Err(Error::Compacted { asked, oldest })
        } else if asked > revision {
            Err(Error::Future {
                asked,
                current: revision,
            })
        } else {
            Ok(())
        }
    }
}

fn read_extent(read: &ReadTransaction) -> Result<Extent, Error> {
    let meta = read.open_table(META).map_err(failure)?;
    let number = |name: &str| -> Result<u64, Error> {
        Ok(meta
            .get(name)
            .map_err(failure)?
            .map_or(0, |value| value.value()))
    };
    Ok(Extent {
        revision: number(META_REVISION)?,
        oldest: number(META_COMPACTED)?,
    })
}

/// The extent of the latest committed state.
pub(super) fn extent(database: &Database) -> Result<Extent, Error> {
    read_extent(&database.begin_read().map_err(failure)?)
}

/// See [`Store::marks`](crate::store::Store::marks).
pub(super) fn marks(database: &Database) -> Result<Vec<Mark>, Error> {
    let read = database.begin_read().map_err(failure)?;
    let marks = match read.open_table(MARKS) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
        marks => marks.map_err(failure)?,
    };
    let mut found = Vec::new();
    for entry in marks.iter().map_err(failure)? {
        let (revision, at) = entry.map_err(failure)?;
        let at = Timestamp::from_millisecond(at.value())
            .map_err(|err| Error::Corrupt(format!("the time of a mark: {err}")))?;
        found.push(Mark {
            at,
            revision: revision.value(),
        });
    }
    Ok(found)
}

/// The latest record of a key.
pub(super) fn get(database: &Database, key: &str) -> Result<Option<Record>, Error> {
    let read = database.begin_read().map_err(failure)?;
    let current = read.open_table(CURRENT).map_err(failure)?;
    match current.get(key).map_err(failure)? {
        Some(bytes) => decode_record(&Arc::from(key), bytes.value()).map(Some),
        None => Ok(None),
    }
}

/// See [`Store::list`](crate::store::Store::list).
pub(super) fn list(
    database: &Database,
    prefix: &str,
    at: Option<Revision>,
    from: Option<&str>,
    limit: Option<usize>,
) -> Result<Listing, Error> {
    let read = database.begin_read().map_err(failure)?;
    let extent = read_extent(&read)?;
    let revision = at.unwrap_or(extent.revision);
    extent.check(revision)?;
    let page = Page {
        prefix,
        start: from.filter(|from| *from > prefix).unwrap_or(prefix),
        limit: limit.unwrap_or(usize::MAX),
    };
    let (records, more) = if revision == extent.revision {
        page.latest(&read)?
    } else {
        page.past(&read, revision)?
    };
    Ok(Listing {
        records,
        revision,
        more,
    })
}

/// Which records a list wants.
struct Page<'a> {
    prefix: &'a str,
    start: &'a str,
    limit: usize,
}

impl Page<'_> {
    fn latest(&self, read: &ReadTransaction) -> Result<(Vec<Record>, bool), Error> {
        let current = read.open_table(CURRENT).map_err(failure)?;
        let mut records = Vec::new();
        for entry in current.range::<&str>(self.start..).map_err(failure)? {
            let (key, bytes) = entry.map_err(failure)?;
            if !key.value().starts_with(self.prefix) {
                break;
            }
            if records.len() == self.limit {
                return Ok((records, true));
            }
            records.push(decode_record(&Arc::from(key.value()), bytes.value())?);
        }
        Ok((records, false))
    }

    /// Walks `current` and `undo` side by side.
    fn past(&self, read: &ReadTransaction, at: Revision) -> Result<(Vec<Record>, bool), Error> {
        let current = read.open_table(CURRENT).map_err(failure)?;
        let undo = read.open_table(UNDO).map_err(failure)?;
        let mut current = current.range::<&str>(self.start..).map_err(failure)?;
        let mut undo = undo
            .range::<(&str, u64)>((self.start, 0)..)
            .map_err(failure)?;
        let mut next_current = current.next().transpose().map_err(failure)?;
        let mut next_undo = undo.next().transpose().map_err(failure)?;
        let mut records = Vec::new();
        loop {
            let key = match (&next_current, &next_undo) {
                (None, None) => break,
                (Some((key, _)), None) => key.value(),
                (None, Some((key, _))) => key.value().0,
                (Some((one, _)), Some((other, _))) => one.value().min(other.value().0),
            };
            if !key.starts_with(self.prefix) {
                break;
            }
            let key: Arc<str> = Arc::from(key);
            let mut record = None;
            let mut undone = false;
            while let Some((undo_key, bytes)) = &next_undo {
                let (changed, revision) = undo_key.value();
                if changed != &*key {
                    break;
                }
                if revision > at && !undone {
                    undone = true;
                    record = Some(decode_record(&key, bytes.value())?);
                }
                next_undo = undo.next().transpose().map_err(failure)?;
            }
            if let Some((_, bytes)) =
                next_current.take_if(|(current_key, _)| current_key.value() == &*key)
            {
                if !undone {
                    record = Some(decode_record(&key, bytes.value())?);
                }
                next_current = current.next().transpose().map_err(failure)?;
            }
            // One that came into being later was not there then.
            if let Some(record) = record.filter(|record| record.create_revision <= at) {
                if records.len() == self.limit {
                    return Ok((records, true));
                }
                records.push(record);
            }
        }
        Ok((records, false))
    }
}

/// The changes under `prefix` after a revision, up to and including `upto`, or up to about
/// `limit` of them; the batch says how far it got.
pub(super) fn events(
    database: &Database,
    prefix: &str,
    after: Revision,
    upto: Revision,
    limit: usize,
) -> Result<Batch, Error> {
    let read = database.begin_read().map_err(failure)?;
    read_extent(&read)?.check(after)?;
    let current = read.open_table(CURRENT).map_err(failure)?;
    let undo = read.open_table(UNDO).map_err(failure)?;
    let log = read.open_table(LOG).map_err(failure)?;
    let mut batch = Batch {
        revision: after,
        events: Vec::new(),
    };
    for entry in log.range(after.saturating_add(1)..=upto).map_err(failure)? {
        let (revision, keys) = entry.map_err(failure)?;
        let revision = revision.value();
        if batch.events.len() >= limit {
            return Ok(batch);
        }
        for key in log_keys(keys.value()) {
            let key = key?;
            if !key.starts_with(prefix) {
                continue;
            }
            let replaced = undo.get((key, revision)).map_err(failure)?;

            // What the change made of the key is what the next change of it replaced.
            let next = undo
                .range::<(&str, u64)>((key, revision.saturating_add(1))..=(key, u64::MAX))
                .map_err(failure)?
                .next()
                .transpose()
                .map_err(failure)?;
            let key: Arc<str> = Arc::from(key);
            let now = match next {
                Some((_, bytes)) => Some(decode_record(&key, bytes.value())?),
                None => match current.get(&*key).map_err(failure)? {
                    Some(bytes) => Some(decode_record(&key, bytes.value())?),
                    None => None,
                },
            };
            let now = now.filter(|record| record.create_revision <= revision);
            if now
                .as_ref()
                .is_some_and(|record| record.mod_revision != revision)
            {
                return Err(Error::Corrupt(format!(
                    "the history of {key:?} has a gap at revision {revision}"
                )));
            }
            let previous = match replaced {
                Some(bytes) => Some(decode_record(&key, bytes.value())?),
                None => None,
            };

            batch.events.push(Event {
                revision,
                key,
                current: now,
                previous,
            });
        }
        batch.revision = revision;
    }
    batch.revision = upto;
    Ok(batch)
}

/// The numbers of a key's record as a table under change has them.
pub(super) fn header(
    current: &impl ReadableTable<&'static str, &'static [u8]>,
    key: &str,
) -> Result<Option<Header>, Error> {
    match current.get(key).map_err(failure)? {
        Some(bytes) => Header::read(bytes.value()).map(Some),
        None => Ok(None),
    }
}
