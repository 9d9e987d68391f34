//! Deciding one transaction on the tables of the commit it will be part of.

use std::sync::Arc;

use ::redb::Table;

use super::Submission;
use crate::store::redb::history::header;
use crate::store::redb::tables::{Header, decode_record, encode_record, failure, push_log_key};
use crate::store::{Compare, Error, Event, Op, Outcome, Record, Revision};

/// Buffers that are used again for each record.
#[derive(Default)]
pub(super) struct Scratch {
    record: Vec<u8>,
    log: Vec<u8>,
}

/// The tables of one commit.
pub(super) struct Tables<'txn, 'scratch> {
    pub(super) current: Table<'txn, &'static str, &'static [u8]>,
    pub(super) undo: Table<'txn, (&'static str, u64), &'static [u8]>,
    pub(super) log: Table<'txn, u64, &'static [u8]>,
    pub(super) scratch: &'scratch mut Scratch,
}

impl Tables<'_, '_> {
    /// Applies a transaction if its compares hold. Takes the next revision if it changes something.
    pub(super) fn decide(
        &mut self,
        submission: &Submission,
        last: &mut Revision,
        events: &mut Vec<Event>,
    ) -> Result<Outcome, Error> {
        for compare in &submission.compares {
            let (found, wanted) = match compare {
                Compare::ModRevision(key, wanted) => (
                    self.header(key)?.map_or(0, |header| header.mod_revision),
                    wanted,
                ),
                Compare::Version(key, wanted) => {
                    (self.header(key)?.map_or(0, |header| header.version), wanted)
                },
            };
            if found != *wanted {
                return Ok(Outcome::Conflict);
            }
        }
        let revision = *last + 1;
        self.scratch.log.clear();
        for op in &submission.ops {
            let event = match op {
                Op::Put(key, value) => self.put(key, value.clone(), revision)?,
                Op::Delete(key) => match self.delete(key, revision)? {
                    Some(event) => event,
                    None => continue,
                },
            };
            push_log_key(&mut self.scratch.log, &event.key)?;
            events.push(event);
        }
        if self.scratch.log.is_empty() {
            return Ok(Outcome::Committed(*last));
        }
        self.log
            .insert(revision, self.scratch.log.as_slice())
            .map_err(failure)?;
        *last = revision;
        Ok(Outcome::Committed(revision))
    }

    fn header(&self, key: &str) -> Result<Option<Header>, Error> {
        header(&self.current, key)
    }

    fn put(&mut self, key: &Arc<str>, value: bytes::Bytes, revision: u64) -> Result<Event, Error> {
        let before = self.header(key)?;
        let header = Header {
            create_revision: before.map_or(revision, |before| before.create_revision),
            mod_revision: revision,
            version: before.map_or(1, |before| before.version + 1),
        };
        encode_record(&mut self.scratch.record, header, &value);
        let replaced = self
            .current
            .insert(&**key, self.scratch.record.as_slice())
            .map_err(failure)?;
        let previous = match replaced {
            Some(replaced) => {
                self.undo
                    .insert((&**key, revision), replaced.value())
                    .map_err(failure)?;
                Some(decode_record(key, replaced.value())?)
            },
            None => None,
        };
        let Header {
            create_revision,
            mod_revision,
            version,
        } = header;
        let key = Arc::clone(key);
        let current = Record {
            key: Arc::clone(&key),
            value,
            create_revision,
            mod_revision,
            version,
        };
        Ok(Event {
            revision,
            key,
            current: Some(current),
            previous,
        })
    }

    fn delete(&mut self, key: &Arc<str>, revision: u64) -> Result<Option<Event>, Error> {
        let Some(replaced) = self.current.remove(&**key).map_err(failure)? else {
            return Ok(None);
        };
        self.undo
            .insert((&**key, revision), replaced.value())
            .map_err(failure)?;
        let previous = decode_record(key, replaced.value())?;
        Ok(Some(Event {
            revision,
            key: Arc::clone(key),
            current: None,
            previous: Some(previous),
        }))
    }
}
