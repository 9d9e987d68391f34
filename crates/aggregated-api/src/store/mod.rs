//! The store contract: what a backend must do for the registry to keep its promises.
//!
//! One `u64` counter numbers every committed transaction of the whole store; it is the
//! `resourceVersion` of everything, survives restarts, never goes back, and may have gaps. A watcher
//! resumes at "newer than N", so a revision may change **at most one served object** (a key under
//! [`SERVED_PREFIX`]); internal keys ride along in the same transaction. Group commit may batch
//! transactions into one sync to disk, it never merges their revisions.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream::BoxStream;
use jiff::Timestamp;

pub mod compactor;
#[doc(hidden)]
pub mod contract;
pub mod etcd;
mod limits;
pub mod redb;
pub mod transform;

/// Keys of served objects: `/registry/<group>/<resource>/[<namespace>/]<name>`.
pub const SERVED_PREFIX: &str = "/registry/";

/// Number of a committed transaction; 0 means "none yet" or "absent".
pub type Revision = u64;

/// One key with its value at some revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The key.
    pub key: Arc<str>,
    /// The value as it was put.
    pub value: Bytes,
    /// Revision at which the key came into being (after its last deletion).
    pub create_revision: Revision,
    /// Revision of the last put.
    pub mod_revision: Revision,
    /// Number of puts since creation; 1 for a new key. A caller that has queued a put of version
    /// `v` may queue the next one with a compare on `v`, without knowing the revision it will get.
    pub version: u64,
}

/// A condition of a transaction; all must hold, else nothing is changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    /// The key's `mod_revision` is this; 0: the key does not exist.
    ModRevision(Arc<str>, Revision),
    /// The key's `version` is this; 0: the key does not exist.
    Version(Arc<str>, u64),
}

/// A change in a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Sets a key.
    Put(Arc<str>, Bytes),
    /// Removes a key; removing an absent key is no change of that key.
    Delete(Arc<str>),
}

/// What [`Store::txn`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Durable at this revision.
    Committed(Revision),
    /// A compare did not hold; nothing changed.
    Conflict,
}

/// Part of a [`Store::list`].
#[derive(Clone, Debug)]
pub struct Listing {
    /// Records in key order.
    pub records: Vec<Record>,
    /// The revision of the snapshot they were read from.
    pub revision: Revision,
    /// Whether more records follow the last one.
    pub more: bool,
}

/// A change of one key.
#[derive(Clone, Debug)]
pub struct Event {
    /// Revision of the change.
    pub revision: Revision,
    /// The key.
    pub key: Arc<str>,
    /// The new record; `None` when the key was deleted.
    pub current: Option<Record>,
    /// The record before the change; `None` when the key came into being.
    pub previous: Option<Record>,
}

/// Everything up to and including `revision` that concerns a watch; `events` may be empty, so that
/// a reader learns that it has caught up.
#[derive(Clone, Debug)]
pub struct Batch {
    /// All changes with a revision up to this one have now been delivered.
    pub revision: Revision,
    /// In order of revision.
    pub events: Vec<Event>,
}

/// That a revision was the latest one at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// When, by the clock on the wall, to the millisecond.
    pub at: Timestamp,
    /// The revision.
    pub revision: Revision,
}

/// Why a store could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The asked-for revision has been compacted away.
    #[error("revision {asked} has been compacted; the oldest kept one is {oldest}")]
    Compacted {
        /// Revision that was asked for.
        asked: Revision,
        /// Oldest revision that can still be read or watched from.
        oldest: Revision,
    },
    /// The asked-for revision has not happened yet.
    #[error("revision {asked} has not been reached; the current one is {current}")]
    Future {
        /// Revision that was asked for.
        asked: Revision,
        /// Current revision.
        current: Revision,
    },
    /// A transaction exceeds the limits that hold on every backend.
    #[error("transaction refused: {0}")]
    Limit(String),
    /// The medium is full; deletes still work. On etcd the one transaction that meets the limit may have
    /// been committed all the same: it is checked before and after it is applied, and refused either way
    /// (etcd, `server/etcdserver/apply`, `quotaApplierV3.Txn`).
    #[error("the store is out of space; delete objects or enlarge its volume")]
    NoSpace,
    /// The data cannot be read as what this version writes.
    #[error("the store's data is damaged: {0}")]
    Corrupt(String),
    /// A value is stored in a form that cannot be read back with the present configuration.
    #[error("a stored value cannot be read: {0}")]
    Unreadable(String),
    /// The backend cannot be reached or has been closed.
    #[error("the store is unavailable: {message}")]
    Unavailable {
        /// What failed.
        message: String,
        /// The backend's own error.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
}

/// Operations in one transaction, compares and changes together.
pub const MAX_OPERATIONS: usize = 128;
/// Keys and values in one transaction, in bytes: the 1.5 MiB that etcd takes unless configured
/// otherwise, less 32 KiB for its encoding.
pub const MAX_TRANSACTION_BYTES: usize = 1_540_096;

/// A durable, revisioned, ordered key-value store.
#[async_trait::async_trait]
pub trait Store: Send + Sync + 'static {
    /// The latest record of a key.
    async fn get(&self, key: &str) -> Result<Option<Record>, Error>;

    /// Records whose key starts with `prefix`, in key order: from the key `from` (inclusive) on, at
    /// most `limit`, as they were at revision `at` (`None`: now).
    async fn list(
        &self,
        prefix: &str,
        at: Option<Revision>,
        from: Option<&str>,
        limit: Option<usize>,
    ) -> Result<Listing, Error>;

    /// Applies `ops` if every compare holds, as one revision, durable when this returns.
    ///
    /// Transactions that have a key in common are decided in the order in which their futures were
    /// first polled by this process. One without operations is decided after all those before it.
    /// After [`Error::Unavailable`] it is not known whether the transaction is, or will be,
    /// committed.
    async fn txn(&self, compares: Vec<Compare>, ops: Vec<Op>) -> Result<Outcome, Error>;

    /// Every change under `prefix` with a revision greater than `after`, in order and without gaps,
    /// ending with an error when the store fails or the watcher fell behind the kept history.
    fn watch(&self, prefix: &str, after: Revision) -> BoxStream<'static, Result<Batch, Error>>;

    /// The revision of the last committed transaction that this process knows of; never less than
    /// that of a transaction or read it has had an answer to.
    fn revision(&self) -> Revision;

    /// A revision not less than that of any transaction that was acknowledged to anybody, in any
    /// process, before this call. A watch reaches it soon, also when nothing changes.
    async fn current_revision(&self) -> Result<Revision, Error> {
        Ok(self.revision())
    }

    /// Forgets history up to and including `revision`; the latest value of every key stays.
    async fn compact(&self, revision: Revision) -> Result<(), Error>;

    /// Remembers a mark across restarts, until its revision is compacted. It is no transaction: no
    /// watcher is told. A store that leaves this out forgets.
    async fn mark(&self, _mark: Mark) -> Result<(), Error> {
        Ok(())
    }

    /// The marks that are remembered, in order of revision.
    async fn marks(&self) -> Result<Vec<Mark>, Error> {
        Ok(Vec::new())
    }

    /// Bytes used on the medium, for metrics.
    fn size_bytes(&self) -> u64;

    /// Keys and values that fit into one transaction, in bytes; less where values are stored in a
    /// longer form.
    fn max_transaction_bytes(&self) -> usize {
        MAX_TRANSACTION_BYTES
    }
}
