//! Giving up history, agreed among replicas; and going on after etcd was restored.
//!
//! Every replica may run a compactor. The key `m/compacted` holds the revision that one of them has
//! compacted to: whoever writes it compacts, the others see that it is done.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures::StreamExt;

use super::Shared;
use super::client::{Client, Failure, unavailable};
use super::keys::{signed, unsigned};
use super::timeline::NOTE;
use super::wire::{
    self, CompactionRequest, CompareTarget, CompareValue, PutRequest, RangeRequest, Request,
    RequestOp, StatusRequest, TxnRequest, WatchCommand, WatchCreateRequest, WatchRequest,
};
use crate::store::{Error, Revision};

/// Name of the key that replicas agree by.
const COMPACTED: &str = "compacted";
/// Name of a key that is put to count etcd's revision up.
const COUNTED: &str = "counted";
/// More lost transactions than this are not counted up one by one.
const MAX_COUNTED: u64 = 200_000;
/// Puts under way at once while counting.
const COUNTING: usize = 64;
/// The first etcd whose progress notifications can be relied upon.
const OLDEST_ETCD: (u32, u32, u32) = (3, 5, 8);

impl Shared {
    /// See [`Store::compact`](crate::store::Store::compact).
    pub(super) async fn compact(&self, revision: Revision) -> Result<(), Error> {
        loop {
            let (done, version, current) = self.meta(COMPACTED).await?;
            self.note_oldest(done);
            if revision > current {
                return Err(Error::Future {
                    asked: revision,
                    current,
                });
            }
            if done >= revision {
                return Ok(());
            }
            // Why before the compaction: a replica that finds less there would serve a watch whose
            // history may be gone.
            match self.put_meta(COMPACTED, revision, Some(version)).await {
                Ok(None) => {},
                // Why go on without space: etcd takes no put, and compaction is what makes room.
                Ok(Some(_)) | Err(Error::NoSpace) => break,
                Err(error) => return Err(error),
            }
        }
        let request = CompactionRequest {
            revision: signed(revision),
        };
        match self.call(request).await {
            // Why `Compacted` is fine: another user of etcd has gone further.
            Ok(_) | Err(Failure::Compacted) => {},
            Err(failure @ (Failure::Future | Failure::Other(_))) => return Err(failure.into()),
        }
        self.note_oldest(revision);
        self.forget_marks(revision).await?;
        self.measure().await
    }

    /// One key of the bookkeeping: its value as a number, its version, and etcd's revision.
    async fn meta(&self, name: &str) -> Result<(u64, i64, Revision), Error> {
        let request = RangeRequest {
            key: self.keys.meta(name),
            ..RangeRequest::default()
        };
        let (answer, revision) = self.call(request).await?;
        let Some(kv) = answer.kvs.into_iter().next() else {
            return Ok((0, 0, revision));
        };
        let number = std::str::from_utf8(&kv.value)
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| Error::Corrupt(format!("etcd's key m/{name} is not a number")))?;
        Ok((number, kv.version, revision))
    }

    /// Writes a number to a key of the bookkeeping if it has this version. `None`: it has not.
    pub(super) async fn put_meta(
        &self,
        name: &str,
        number: u64,
        version: Option<i64>,
    ) -> Result<Option<Revision>, Error> {
        let request = number_put(self.keys.meta(name), number, version);
        let (answer, revision) = self.call(request).await?;
        Ok(answer.succeeded.then_some(revision))
    }

    fn note_oldest(&self, revision: Revision) {
        self.oldest.fetch_max(revision, Ordering::AcqRel);
    }

    /// Oldest revision that replicas have agreed to keep, and the current one.
    pub(super) async fn agreed_oldest(&self) -> Result<(Revision, Revision), Error> {
        let (done, _, current) = self.meta(COMPACTED).await?;
        self.note_oldest(done);
        Ok((self.oldest.load(Ordering::Acquire), current))
    }

    /// Oldest revision that can be read, also when another user of etcd has compacted.
    pub(super) async fn find_oldest(&self) -> Result<Revision, Error> {
        let (agreed, _) = self.agreed_oldest().await?;
        // etcd names it only to a watch that comes too late.
        let create = WatchCreateRequest {
            key: self.keys.meta(COMPACTED),
            start_revision: 1,
            ..WatchCreateRequest::default()
        };
        let mut link = self
            .client
            .watch(WatchRequest {
                command: Some(WatchCommand::Create(create)),
            })
            .await?;
        let asking = async {
            while let Some(Ok(answer)) = link.answers.next().await {
                if answer.compact_revision > 0 {
                    return unsigned(answer.compact_revision);
                }
                if !answer.created || answer.canceled {
                    break;
                }
            }
            0
        };
        let told = tokio::time::timeout(self.client.timeout(), asking)
            .await
            .unwrap_or(0);
        Ok(agreed.max(told))
    }

    /// Asks for the size of etcd's data, and refuses an etcd that is too old.
    pub(super) async fn measure(&self) -> Result<(), Error> {
        // Why not through the check of revisions: a member answers this from what it has.
        let status = self.client.call(StatusRequest {}).await?;
        if version(&status.version).is_some_and(|version| version < OLDEST_ETCD) {
            let (major, minor, patch) = OLDEST_ETCD;
            return Err(unavailable(format!(
                "etcd is version {}, which may tell a watch of progress before the changes; use \
                 {major}.{minor}.{patch} or newer",
                status.version
            )));
        }
        self.size_bytes
            .store(unsigned(status.db_size), Ordering::Relaxed);
        Ok(())
    }

    /// Ends the use of the store because etcd has lost transactions, once the revision that clients
    /// may have seen is noted for whoever connects next. Returns the error of all calls from now on.
    pub(super) async fn end(&self, why: String) -> Error {
        let (client, timeline) = (Arc::clone(&self.client), Arc::clone(&self.timeline));
        let (key, passed) = (self.keys.meta(NOTE), timeline.seen());
        let error = Error::Corrupt(why.clone());
        // Why a task: a caller that goes away must not take the note with it.
        let ending = tokio::spawn(async move {
            if let Err(error) = leave_note(&client, &key, passed).await {
                tracing::error!(
                    error = %runtime_kit::chain(&error),
                    revision = passed,
                    "the revision that etcd had reached could not be noted in it; restore it \
                     again with --bump-revision and --mark-compacted"
                );
            }
            timeline.lose(why);
        });
        if let Err(err) = ending.await
            && err.is_panic()
        {
            std::panic::resume_unwind(err.into_panic());
        }
        error
    }

    /// Goes on after etcd was restored, if a process has noted that it was.
    pub(super) async fn heed_note(&self) -> Result<(), Error> {
        let (passed, _, current) = self.meta(NOTE).await?;
        if passed == 0 {
            return Ok(());
        }
        if passed >= current {
            let missing = passed - current + 1;
            if missing > MAX_COUNTED {
                return Err(Error::Corrupt(format!(
                    "etcd was restored to revision {current}, and clients have seen {passed}; \
                     restore it again with --bump-revision {missing} or more and --mark-compacted"
                )));
            }
            tracing::warn!(
                current,
                passed,
                "etcd was restored; counting its revision up"
            );
            self.count_up(passed).await?;
        }
        // Clients that resume at a revision from before are told to start over.
        let (_, _, current) = self.meta(NOTE).await?;
        self.compact(current).await?;
        self.put_meta(NOTE, 0, None).await?;
        Ok(())
    }

    async fn count_up(&self, passed: Revision) -> Result<(), Error> {
        loop {
            let (_, _, current) = self.meta(COUNTED).await?;
            if current > passed {
                return Ok(());
            }
            let missing = passed - current + 1;
            let mut puts = futures::stream::iter(0..missing)
                .map(|_| self.put_meta(COUNTED, passed, None))
                .buffer_unordered(COUNTING);
            while let Some(put) = puts.next().await {
                let _: Option<Revision> = put?;
            }
        }
    }
}

/// Raises the note to `passed`.
async fn leave_note(client: &Client, key: &Bytes, passed: Revision) -> Result<(), Error> {
    loop {
        let read = RangeRequest {
            key: key.clone(),
            ..RangeRequest::default()
        };
        let noted = client.call(read).await?.kvs.into_iter().next();
        let (version, noted) = noted.map_or((0, 0), |kv| {
            let number = std::str::from_utf8(&kv.value).map(str::parse);
            (kv.version, number.map_or(0, |number| number.unwrap_or(0)))
        });
        if noted >= passed {
            return Ok(());
        }
        let request = number_put(key.clone(), passed, Some(version));
        if client.call(request).await?.succeeded {
            return Ok(());
        }
    }
}

/// A transaction that puts a number, if the key has this version.
fn number_put(key: Bytes, number: u64, version: Option<i64>) -> TxnRequest {
    let compare = version.map(|version| wire::Compare {
        target: CompareTarget::Version.into(),
        key: key.clone(),
        value: Some(CompareValue::Version(version)),
    });
    let put = PutRequest {
        key,
        value: Bytes::from(number.to_string()),
    };
    TxnRequest {
        compare: compare.into_iter().collect(),
        success: vec![RequestOp {
            request: Some(Request::Put(put)),
        }],
    }
}

/// The numbers of a version such as `3.6.8` or `3.6.0-rc.1`.
fn version(text: &str) -> Option<(u32, u32, u32)> {
    let numbers = text.split(['-', '+']).next()?;
    let mut numbers = numbers.split('.').map(str::parse);
    let mut next = || numbers.next()?.ok();
    Some((next()?, next()?, next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        assert_eq!(version("3.6.8"), Some((3, 6, 8)));
        assert_eq!(version("3.6.0-rc.1"), Some((3, 6, 0)));
        assert_eq!(version("3.6"), None);
        assert!(version("3.5.10") > Some(OLDEST_ETCD));
        assert!(version("3.5.7") < Some(OLDEST_ETCD));
    }
}
