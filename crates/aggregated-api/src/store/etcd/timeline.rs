//! Notices that etcd lost transactions: that it was restored from an older snapshot, or that
//! another cluster answers at its address.
//!
//! A process remembers the highest revision it was told. When etcd answers with a lower one, nothing
//! that this process serves is true any more: it stops using the store, and leaves a note in etcd
//! (`m/passed`) with the revision that clients may have seen. The next process to connect
//! counts etcd's revision past the note and compacts up to there, so that no revision is given
//! twice, and a client that resumes at one from before is told to start over.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::keys::unsigned;
use super::wire::ResponseHeader;
use crate::store::{Error, Revision};

/// Name of the note among the bookkeeping keys.
pub(super) const NOTE: &str = "passed";

/// What this process knows of etcd's history.
#[derive(Debug)]
pub(super) struct Timeline {
    /// Last revision this process has been told of.
    seen: watch::Sender<Revision>,
    cluster: AtomicU64,
    lost: OnceLock<String>,
    /// Ends the watches.
    ended: CancellationToken,
}

impl Timeline {
    pub(super) fn new() -> Self {
        Self {
            seen: watch::Sender::new(0),
            cluster: AtomicU64::new(0),
            lost: OnceLock::new(),
            ended: CancellationToken::new(),
        }
    }

    pub(super) fn seen(&self) -> Revision {
        *self.seen.borrow()
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Revision> {
        self.seen.subscribe()
    }

    /// Notes that etcd has reached a revision.
    pub(super) fn saw(&self, revision: Revision) {
        self.seen.send_if_modified(|seen| {
            let newer = revision > *seen;
            *seen = revision.max(*seen);
            newer
        });
    }

    /// Fails once etcd has been seen to have lost transactions.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self.lost.get() {
            None => Ok(()),
            Some(why) => Err(Error::Corrupt(why.clone())),
        }
    }

    /// Completes when etcd is seen to have lost transactions.
    pub(super) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Checks an answer that cannot be older than what was seen before its question, `floor`.
    /// Returns the revision that it was given at, or what etcd has lost.
    pub(super) fn observe(
        &self,
        header: Option<ResponseHeader>,
        floor: Revision,
    ) -> Result<Revision, String> {
        let ResponseHeader {
            cluster_id,
            revision,
        } = header.unwrap_or_default();
        let revision = unsigned(revision);
        let known = self
            .cluster
            .compare_exchange(0, cluster_id, Ordering::Relaxed, Ordering::Relaxed)
            .map_or_else(|known| known, |_| cluster_id);
        if known != cluster_id {
            return Err(format!(
                "etcd's cluster is {cluster_id:x} and was {known:x}; it has been restored or \
                 replaced, so this process must start again"
            ));
        }
        if revision < floor {
            return Err(format!(
                "etcd is at revision {revision} and was at {floor}; it has been restored from an \
                 older snapshot, so this process must start again (restoring with \
                 --bump-revision and --mark-compacted avoids this)"
            ));
        }
        Ok(revision)
    }

    /// Ends the use of the store.
    pub(super) fn lose(&self, why: String) {
        if self.lost.set(why).is_ok() {
            self.ended.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(cluster_id: u64, revision: i64) -> ResponseHeader {
        ResponseHeader {
            cluster_id,
            revision,
        }
    }

    #[test]
    fn an_answer_below_what_was_seen_before_the_question_is_told_from_others() {
        let timeline = Timeline::new();
        let observe = |answer, floor| timeline.observe(Some(answer), floor);
        assert_eq!(observe(header(7, 10), 10).unwrap(), 10);
        assert_eq!(observe(header(7, 8), 7).unwrap(), 8, "asked before");
        assert!(observe(header(7, 9), 10).is_err());
        assert!(timeline.check().is_ok(), "until it is said");
        timeline.lose("why".to_owned());
        assert!(matches!(timeline.check(), Err(Error::Corrupt(_))));
    }

    #[test]
    fn another_cluster_at_the_same_address_is_told_from_the_first() {
        let timeline = Timeline::new();
        timeline.observe(Some(header(7, 10)), 0).unwrap();
        assert!(timeline.observe(Some(header(8, 20)), 10).is_err());
    }
}
