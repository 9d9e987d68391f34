//! Where the store's keys are in etcd: `<prefix>/d/<key>`, with bookkeeping under `<prefix>/m/`.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use super::wire;
use crate::store::{Error, Record, Revision};

/// Longest prefix, in bytes. With [`MAX_OPERATIONS`](crate::store::MAX_OPERATIONS) keys it stays
/// within what the limit on a transaction leaves for etcd's encoding.
const MAX_PREFIX: usize = 64;

/// Maps keys of the contract to those in etcd.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    data: Bytes,
    meta: Bytes,
}

impl Keys {
    /// A prefix must begin with a slash, not end with one, and have at most 64 bytes.
    pub(super) fn new(prefix: &str) -> Result<Self, Error> {
        let valid = prefix.len() > 1
            && prefix.len() <= MAX_PREFIX
            && prefix.starts_with('/')
            && !prefix.ends_with('/');
        if !valid {
            return Err(Error::Unavailable {
                message: format!(
                    "the etcd prefix {prefix:?} must begin with '/', not end with it, and have at \
                     most {MAX_PREFIX} bytes"
                ),
                source: None,
            });
        }
        Ok(Self {
            data: Bytes::from(format!("{prefix}/d/")),
            meta: Bytes::from(format!("{prefix}/m/")),
        })
    }

    /// A key of the contract in etcd.
    pub(super) fn data(&self, key: &str) -> Bytes {
        joined(&self.data, key)
    }

    /// A key of the bookkeeping.
    pub(super) fn meta(&self, name: &str) -> Bytes {
        joined(&self.meta, name)
    }

    /// First key with a prefix, and the first one after all of them.
    pub(super) fn range(&self, prefix: &str) -> (Bytes, Bytes) {
        let start = self.data(prefix);
        let mut end = BytesMut::from(&start[..]);
        while let Some(last) = end.last_mut() {
            if *last < u8::MAX {
                *last += 1;
                break;
            }
            end.truncate(end.len() - 1);
        }
        (start, end.freeze())
    }

    /// What etcd has, as the contract gives it.
    pub(super) fn record(&self, kv: wire::KeyValue) -> Result<Record, Error> {
        Ok(Record {
            key: self.key(&kv.key)?,
            value: kv.value,
            create_revision: unsigned(kv.create_revision),
            mod_revision: unsigned(kv.mod_revision),
            version: unsigned(kv.version),
        })
    }

    /// The key of the contract.
    pub(super) fn key(&self, key: &[u8]) -> Result<Arc<str>, Error> {
        key.strip_prefix(&self.data[..])
            .and_then(|key| std::str::from_utf8(key).ok())
            .map(Arc::from)
            .ok_or_else(|| {
                Error::Corrupt(format!(
                    "etcd has the key {:?}, which this store does not write",
                    String::from_utf8_lossy(key)
                ))
            })
    }
}

fn joined(prefix: &[u8], key: &str) -> Bytes {
    let mut joined = BytesMut::with_capacity(prefix.len() + key.len());
    joined.put_slice(prefix);
    joined.put_slice(key.as_bytes());
    joined.freeze()
}

/// etcd's numbers are signed and never negative.
pub(super) fn unsigned(number: i64) -> Revision {
    u64::try_from(number).unwrap_or(0)
}

/// A number for etcd; one that is too large for it becomes one that nothing ever equals.
pub(super) fn signed(number: Revision) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_all_keys_with_the_prefix_and_no_other() {
        let keys = Keys::new("/store").unwrap();
        assert_eq!(
            keys.range("/a"),
            (Bytes::from("/store/d//a"), Bytes::from("/store/d//b"))
        );
        let (start, end) = keys.range("");
        assert_eq!(
            (&start[..], &end[..]),
            (&b"/store/d/"[..], &b"/store/d0"[..])
        );
        let top = keys.data("\u{10ffff}");
        assert!(start <= top && top < end);
        assert!(!(start..end).contains(&keys.meta("x")));
    }

    #[test]
    fn a_prefix_that_could_meet_another_ones_keys_is_refused() {
        for prefix in ["", "/", "a", "/a/", &format!("/{}", "a".repeat(64))] {
            assert!(Keys::new(prefix).is_err(), "{prefix}");
        }
    }
}
