//! How old the history is, remembered in etcd: `m/marks/<revision>` holds when that revision was the
//! latest one. Every replica adds its own; whichever compacts removes those that are gone.

use jiff::Timestamp;

use super::Shared;
use super::keys::unsigned;
use super::wire::{DeleteRangeRequest, RangeRequest, Request, RequestOp, TxnRequest};
use crate::store::{Error, Mark, Revision};

/// Names begin with this; the revision follows, with as many digits as the largest one has.
const MARKS: &str = "marks/";
/// The first name behind all marks.
const END: &str = "marks0";

fn name(revision: Revision) -> String {
    format!("{MARKS}{revision:020}")
}

impl Shared {
    /// See [`Store::mark`](crate::store::Store::mark).
    pub(super) async fn mark(&self, mark: Mark) -> Result<(), Error> {
        let milliseconds = unsigned(mark.at.as_millisecond());
        self.put_meta(&name(mark.revision), milliseconds, None)
            .await
            .map(drop)
    }

    /// See [`Store::marks`](crate::store::Store::marks).
    pub(super) async fn marks(&self) -> Result<Vec<Mark>, Error> {
        let request = RangeRequest {
            key: self.keys.meta(MARKS),
            range_end: self.keys.meta(END),
            ..RangeRequest::default()
        };
        let (answer, _) = self.call(request).await?;
        let prefix = self.keys.meta(MARKS);
        let marks = answer.kvs.into_iter().map(|kv| {
            let revision = number(kv.key.strip_prefix(&prefix[..]).unwrap_or_default());
            let at = number::<i64>(&kv.value).map(Timestamp::from_millisecond);
            match (revision, at) {
                (Some(revision), Some(Ok(at))) => Ok(Mark { at, revision }),
                _ => Err(Error::Corrupt(format!(
                    "etcd's key {:?} is no mark of this store",
                    String::from_utf8_lossy(&kv.key)
                ))),
            }
        });
        marks.collect()
    }

    /// Removes the marks up to a revision that has been compacted.
    pub(super) async fn forget_marks(&self, upto: Revision) -> Result<(), Error> {
        let delete = DeleteRangeRequest {
            key: self.keys.meta(MARKS),
            range_end: self.keys.meta(&name(upto.saturating_add(1))),
        };
        let request = TxnRequest {
            compare: Vec::new(),
            success: vec![RequestOp {
                request: Some(Request::Delete(delete)),
            }],
        };
        self.call(request).await?;
        Ok(())
    }
}

fn number<N: std::str::FromStr>(text: &[u8]) -> Option<N> {
    std::str::from_utf8(text).ok()?.parse().ok()
}
