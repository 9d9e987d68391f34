//! The backend for several replicas: a prefix of an etcd cluster. The registry calls it through
//! [`Store`].
//!
//! A revision of the store is etcd's own, which counts the transactions of all its users: it grows
//! strictly and is the same on every replica, but has gaps. Where keys are is in `keys`, the order
//! of transactions in `lanes`, the connections in `client`, watches in `watch`, the giving up
//! of history in `compaction`, how old it is in `marks`, and what happens when etcd was restored in `timeline`.

mod client;
mod compaction;
mod keys;
mod lanes;
mod marks;
mod timeline;
mod watch;
mod wire;

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;

use self::client::{Answer, Call, Client, Failure, unavailable};
use self::keys::{Keys, signed};
use self::lanes::Lanes;
use self::timeline::Timeline;
use self::wire::{
    CompareTarget, CompareValue, DeleteRangeRequest, PutRequest, RangeRequest, Request, RequestOp,
    TxnRequest,
};
use super::{Batch, Compare, Error, Listing, Mark, Op, Outcome, Record, Revision, Store, limits};

/// Records asked for in one request of a list.
const PAGE: usize = 1000;

/// Where the store is, and how long it may take.
#[derive(Clone, Debug)]
pub struct Options {
    /// URLs of the members of one cluster, `https://` with [`Self::tls`] and `http://` without.
    pub endpoints: Vec<String>,
    /// What all keys begin with, for example `/lease-apiserver`; at most 64 bytes.
    pub prefix: String,
    /// Encryption and authentication of the connections.
    pub tls: Option<Tls>,
    /// Longest wait for an answer of etcd. A transaction may wait as long again for its turn.
    pub timeout: Duration,
}

impl Options {
    /// One endpoint without TLS, five seconds.
    pub fn new(endpoint: impl Into<String>, prefix: impl Into<String>) -> Self {
        Self {
            endpoints: vec![endpoint.into()],
            prefix: prefix.into(),
            tls: None,
            timeout: Duration::from_secs(5),
        }
    }
}

/// PEM files for connections to etcd. They are read by [`EtcdStore::connect`] and not again.
#[derive(Clone, Debug)]
pub struct Tls {
    /// Authorities that sign etcd's certificates.
    pub ca_file: PathBuf,
    /// Certificate and key this client shows.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// A [`Store`] in etcd 3.5.8 or newer. Several processes may use one prefix at once.
///
/// While etcd cannot be reached, calls fail with [`Error::Unavailable`] within twice
/// [`Options::timeout`], and watches wait; both go on by themselves afterwards. A transaction that
/// fails so may still have been, or be, committed.
///
/// When etcd's space is exhausted, only transactions that put nothing are accepted, until somebody
/// has made room in etcd and disarmed its alarm.
///
/// An etcd that was restored from a snapshot without `--bump-revision` gives its revisions twice. A
/// process that notices ends its use of the store with [`Error::Corrupt`]; the next one goes on
/// behind the highest revision that was noticed. Processes that were all stopped meanwhile notice
/// nothing.
#[derive(Clone)]
pub struct EtcdStore {
    shared: Arc<Shared>,
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdStore")
            .field("endpoints", &self.shared.client)
            .field("revision", &self.shared.timeline.seen())
            .finish_non_exhaustive()
    }
}

/// What the store and its watchers have in common.
#[derive(Debug)]
struct Shared {
    client: Arc<Client>,
    keys: Keys,
    lanes: Arc<Lanes>,
    timeline: Arc<Timeline>,
    /// A revision that a reader waits for its watch to reach.
    wanted: tokio::sync::watch::Sender<Revision>,
    /// Oldest revision that can be read, as far as is known.
    oldest: AtomicU64,
    size_bytes: AtomicU64,
    reading: tokio::sync::Mutex<Reading>,
    readers: AtomicU64,
}

/// The last read of the current revision.
#[derive(Debug, Default)]
struct Reading {
    /// Readers that had come before it began.
    readers: u64,
    revision: Revision,
}

impl Shared {
    /// Calls etcd, checks that it is still the same, and gives the revision of the answer.
    ///
    /// Only for calls whose answer is never older than what was acknowledged before.
    async fn call<C: Call>(&self, request: C) -> Result<(C::Answer, Revision), Failure> {
        self.timeline.check().map_err(Failure::Other)?;
        let floor = self.timeline.seen();
        let answer = self.client.call(request).await?;
        match self.timeline.observe(answer.header(), floor) {
            Ok(revision) => Ok((answer, revision)),
            Err(why) => Err(Failure::Other(self.end(why).await)),
        }
    }

    /// etcd's revision, not older than any transaction acknowledged to anybody before this call.
    /// Calls that come while one is under way share the next one.
    async fn current_revision(&self) -> Result<Revision, Error> {
        let ticket = self.readers.fetch_add(1, Ordering::AcqRel);
        let mut reading = self.reading.lock().await;
        if reading.readers > ticket {
            return Ok(reading.revision);
        }
        let readers = self.readers.load(Ordering::Acquire);
        let request = RangeRequest {
            key: self.keys.meta("revision"),
            ..RangeRequest::default()
        };
        let (_, revision) = self.call(request).await?;
        *reading = Reading { readers, revision };
        drop(reading);
        self.timeline.saw(revision);
        self.wanted.send_if_modified(|wanted| {
            let newer = revision > *wanted;
            *wanted = revision.max(*wanted);
            newer
        });
        Ok(revision)
    }

    fn request(&self, compares: &[Compare], ops: Vec<Op>) -> TxnRequest {
        let compare = compares.iter().map(|compare| {
            let (target, key, value) = match compare {
                Compare::ModRevision(key, revision) => (
                    CompareTarget::Mod,
                    key,
                    CompareValue::ModRevision(signed(*revision)),
                ),
                Compare::Version(key, version) => (
                    CompareTarget::Version,
                    key,
                    CompareValue::Version(signed(*version)),
                ),
            };
            wire::Compare {
                target: target.into(),
                key: self.keys.data(key),
                value: Some(value),
            }
        });
        let success = ops.into_iter().map(|op| {
            let request = match op {
                Op::Put(key, value) => Request::Put(PutRequest {
                    key: self.keys.data(&key),
                    value,
                }),
                Op::Delete(key) => Request::Delete(DeleteRangeRequest {
                    key: self.keys.data(&key),
                    range_end: Bytes::new(),
                }),
            };
            RequestOp {
                request: Some(request),
            }
        });
        TxnRequest {
            compare: compare.collect(),
            success: success.collect(),
        }
    }

    /// Sends a transaction once it has its turn, and says what etcd said.
    async fn commit(&self, mut turn: lanes::Turn, request: TxnRequest) -> Result<Outcome, Error> {
        if tokio::time::timeout(self.client.timeout(), turn.come())
            .await
            .is_err()
        {
            return Err(unavailable(
                "etcd has not answered the transactions before this one; it was not sent",
            ));
        }
        let (answer, revision) = self.call(request).await?;
        self.timeline.saw(revision);
        drop(turn);
        Ok(if answer.succeeded {
            Outcome::Committed(revision)
        } else {
            Outcome::Conflict
        })
    }

    async fn list(
        &self,
        prefix: &str,
        at: Option<Revision>,
        from: Option<&str>,
        limit: Option<usize>,
    ) -> Result<Listing, Failure> {
        let (mut start, end) = self.keys.range(prefix);
        if let Some(from) = from {
            start = start.max(self.keys.data(from));
        }
        // Nothing was there before etcd's first revision, and 0 means "now" to it.
        let mut pinned = at.map(|at| at.max(1));
        let mut records = Vec::new();
        loop {
            let wanted = limit.map_or(PAGE, |limit| PAGE.min(limit - records.len().min(limit)));
            let request = RangeRequest {
                // Where nothing can be, the revision is still checked.
                key: start.clone().min(end.clone()),
                range_end: end.clone(),
                // Why at least 1: 0 means "all" to etcd.
                limit: signed(u64::try_from(wanted.max(1)).unwrap_or(u64::MAX)),
                revision: pinned.map_or(0, signed),
            };
            let request = if request.key == request.range_end {
                RangeRequest {
                    key: self.keys.meta("nothing"),
                    range_end: Bytes::new(),
                    ..request
                }
            } else {
                request
            };
            let (answer, now) = self.call(request).await?;
            self.timeline.saw(now);
            let snapshot = *pinned.get_or_insert(now);
            let revision = at.unwrap_or(snapshot);
            if wanted == 0 {
                let more = !answer.kvs.is_empty();
                return Ok(Listing {
                    records,
                    revision,
                    more,
                });
            }
            if let Some(last) = answer.kvs.last() {
                let mut next = Vec::from(&last.key[..]);
                next.push(0);
                start = Bytes::from(next);
            }
            for kv in answer.kvs {
                records.push(self.keys.record(kv).map_err(Failure::Other)?);
            }
            let full = limit.is_some_and(|limit| records.len() >= limit);
            if full || !answer.more {
                return Ok(Listing {
                    records,
                    revision,
                    more: answer.more,
                });
            }
        }
    }
}

impl EtcdStore {
    /// Whether [`EtcdStore::connect`] can use these options; asks no etcd.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with what is wrong with an endpoint, the prefix, or a file.
    pub fn check(options: &Options) -> Result<(), Error> {
        Client::new(options)?;
        Keys::new(&options.prefix)?;
        Ok(())
    }

    /// Connects to etcd and looks at what is there.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when no endpoint answers in time, or an option is not usable;
    /// [`Error::Corrupt`] when etcd was restored from a snapshot that is too old to go on from.
    pub async fn connect(options: Options) -> Result<Self, Error> {
        let shared = Arc::new(Shared {
            client: Arc::new(Client::new(&options)?),
            keys: Keys::new(&options.prefix)?,
            lanes: Arc::default(),
            timeline: Arc::new(Timeline::new()),
            wanted: tokio::sync::watch::Sender::new(0),
            oldest: AtomicU64::new(0),
            size_bytes: AtomicU64::new(0),
            reading: tokio::sync::Mutex::default(),
            readers: AtomicU64::new(0),
        });
        shared.heed_note().await?;
        shared.current_revision().await?;
        shared.measure().await?;
        Ok(Self { shared })
    }
}

#[async_trait::async_trait]
impl Store for EtcdStore {
    async fn get(&self, key: &str) -> Result<Option<Record>, Error> {
        let request = RangeRequest {
            key: self.shared.keys.data(key),
            ..RangeRequest::default()
        };
        let (answer, revision) = self.shared.call(request).await?;
        self.shared.timeline.saw(revision);
        answer
            .kvs
            .into_iter()
            .next()
            .map(|kv| self.shared.keys.record(kv))
            .transpose()
    }

    async fn list(
        &self,
        prefix: &str,
        at: Option<Revision>,
        from: Option<&str>,
        limit: Option<usize>,
    ) -> Result<Listing, Error> {
        let asked = at.unwrap_or(0);
        match self.shared.list(prefix, at, from, limit).await {
            Ok(listing) => Ok(listing),
            Err(Failure::Compacted) => Err(Error::Compacted {
                asked,
                oldest: self.shared.find_oldest().await?,
            }),
            Err(Failure::Future) => Err(Error::Future {
                asked,
                current: self.shared.current_revision().await?,
            }),
            Err(Failure::Other(error)) => Err(error),
        }
    }

    async fn txn(&self, compares: Vec<Compare>, ops: Vec<Op>) -> Result<Outcome, Error> {
        let _: usize = limits::check(self.max_transaction_bytes(), &compares, &ops)?;
        // No await before this: the order of first polls is the order of turns.
        let turn = self.shared.lanes.enter(&compares, &ops);
        let request = self.shared.request(&compares, ops);
        let shared = Arc::clone(&self.shared);
        // Why a task: a caller that goes away must not cut the call off and let later ones pass.
        let sending = tokio::spawn(async move { shared.commit(turn, request).await });
        match sending.await {
            Ok(outcome) => outcome,
            Err(err) if err.is_panic() => std::panic::resume_unwind(err.into_panic()),
            Err(_) => Err(unavailable("the process is shutting down")),
        }
    }

    fn watch(&self, prefix: &str, after: Revision) -> BoxStream<'static, Result<Batch, Error>> {
        watch::stream(Arc::clone(&self.shared), prefix, after).boxed()
    }

    fn revision(&self) -> Revision {
        self.shared.timeline.seen()
    }

    async fn current_revision(&self) -> Result<Revision, Error> {
        self.shared.current_revision().await
    }

    async fn compact(&self, revision: Revision) -> Result<(), Error> {
        self.shared.compact(revision).await
    }

    async fn mark(&self, mark: Mark) -> Result<(), Error> {
        self.shared.mark(mark).await
    }

    async fn marks(&self) -> Result<Vec<Mark>, Error> {
        self.shared.marks().await
    }

    fn size_bytes(&self) -> u64 {
        self.shared.size_bytes.load(Ordering::Relaxed)
    }
}
