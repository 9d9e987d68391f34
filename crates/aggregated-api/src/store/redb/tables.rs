//! What is in the database file, and how redb's errors become the store's. Used by every file of
//! this backend; the only place that knows the encoding.
//!
//! `current` holds the latest record of each key. A change writes the record it replaces into
//! `undo` under (key, revision), and the keys of its transaction into `log` under the revision.
//! Creating a key replaces nothing, so it writes its value once and no undo entry. The state of a
//! key at a revision R is its first undo entry newer than R, or else its current record, unless
//! that record was created after R: then the key was absent.

use std::io::ErrorKind;
use std::sync::Arc;

use ::redb::TableDefinition;
use bytes::Bytes;

use crate::store::{Error, Record, Revision};

/// Latest record of each key: [`HEADER`] bytes, then the value.
pub(super) const CURRENT: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("current");
/// The record that a change replaced, by key and revision of the change.
pub(super) const UNDO: TableDefinition<'_, (&str, u64), &[u8]> = TableDefinition::new("undo");
/// Keys changed at each revision, each preceded by its length as `u32`.
pub(super) const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");
/// The numbers below.
pub(super) const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
/// When a revision was the latest, in milliseconds of Unix time. Files of earlier versions lack it.
pub(super) const MARKS: TableDefinition<'_, u64, i64> = TableDefinition::new("marks");

/// In `meta`: version of this layout.
pub(super) const META_FORMAT: &str = "format";
/// In `meta`: revision of the last transaction.
pub(super) const META_REVISION: &str = "revision";
/// In `meta`: history up to and including this revision has been given up.
pub(super) const META_COMPACTED: &str = "compacted";

/// The layout this version writes.
pub(super) const FORMAT: u64 = 1;

/// Bytes before the value: create revision, revision, version.
const HEADER: usize = 24;

/// The numbers of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) create_revision: Revision,
    pub(super) mod_revision: Revision,
    pub(super) version: u64,
}

impl Header {
    /// The header at the start of an encoded record.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, Error> {
        let number = |at: usize| {
            bytes
                .get(at..at + 8)
                .and_then(|part| part.try_into().ok())
                .map(u64::from_le_bytes)
                .ok_or_else(|| Error::Corrupt("a record is shorter than its header".to_owned()))
        };
        Ok(Self {
            create_revision: number(0)?,
            mod_revision: number(8)?,
            version: number(16)?,
        })
    }
}

/// Writes a record into `out`, which is cleared first.
pub(super) fn encode_record(out: &mut Vec<u8>, header: Header, value: &[u8]) {
    out.clear();
    out.reserve(HEADER + value.len());
    out.extend_from_slice(&header.create_revision.to_le_bytes());
    out.extend_from_slice(&header.mod_revision.to_le_bytes());
    out.extend_from_slice(&header.version.to_le_bytes());
    out.extend_from_slice(value);
}

/// Reads a record.
pub(super) fn decode_record(key: &Arc<str>, bytes: &[u8]) -> Result<Record, Error> {
    let Header {
        create_revision,
        mod_revision,
        version,
    } = Header::read(bytes)?;
    let value = Bytes::copy_from_slice(bytes.get(HEADER..).unwrap_or_default());
    Ok(Record {
        key: Arc::clone(key),
        value,
        create_revision,
        mod_revision,
        version,
    })
}

/// Appends a key to a log entry.
pub(super) fn push_log_key(entry: &mut Vec<u8>, key: &str) -> Result<(), Error> {
    let length = u32::try_from(key.len())
        .map_err(|_| Error::Limit(format!("a key of {} bytes is too long", key.len())))?;
    entry.extend_from_slice(&length.to_le_bytes());
    entry.extend_from_slice(key.as_bytes());
    Ok(())
}

/// The keys of a log entry.
pub(super) fn log_keys(mut entry: &[u8]) -> impl Iterator<Item = Result<&str, Error>> {
    std::iter::from_fn(move || {
        if entry.is_empty() {
            return None;
        }
        let damaged = || Error::Corrupt("a log entry cannot be read".to_owned());
        let parsed = entry.split_first_chunk::<4>().and_then(|(length, rest)| {
            let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
            rest.split_at_checked(length)
        });
        let Some((key, rest)) = parsed else {
            entry = &[];
            return Some(Err(damaged()));
        };
        entry = rest;
        Some(std::str::from_utf8(key).map_err(|_| damaged()))
    })
}

/// Sorts an error of redb into those of the store.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "both enums are open ones; what is not known here is a failure of the database"
)]
pub(super) fn failure(err: impl Into<::redb::Error>) -> Error {
    let err = err.into();
    match err {
        ::redb::Error::Corrupted(message) => Error::Corrupt(message),
        ::redb::Error::Io(ref io) => match io.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Error::NoSpace,
            ErrorKind::InvalidData | ErrorKind::UnexpectedEof => Error::Corrupt(io.to_string()),
            _ => unavailable("reading or writing the database failed", err),
        },
        ::redb::Error::DatabaseAlreadyOpen => unavailable("another process has it open", err),
        ::redb::Error::UpgradeRequired(_)
        | ::redb::Error::TableTypeMismatch { .. }
        | ::redb::Error::TypeDefinitionChanged { .. }
        | ::redb::Error::TableIsMultimap(_)
        | ::redb::Error::TableDoesNotExist(_) => Error::Corrupt(err.to_string()),
        _ => unavailable("the database does not work", err),
    }
}

/// [`Error::Unavailable`] with what was being done and why it failed.
pub(super) fn unavailable(
    message: &str,
    source: impl std::error::Error + Send + Sync + 'static,
) -> Error {
    Error::Unavailable {
        message: message.to_owned(),
        source: Some(Box::new(source)),
    }
}

/// [`Error::Unavailable`] of a store that has been closed or has failed before.
pub(super) fn closed(message: &str) -> Error {
    Error::Unavailable {
        message: message.to_owned(),
        source: None,
    }
}
