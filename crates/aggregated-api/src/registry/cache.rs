//! The watch cache: the present state of every kind, and its recent changes, fed by one pump from
//! the store.
//!
//! Watchers pull from the shared history at their own pace and hold no queue of their own, so ten
//! thousand of them cost no copies; one that falls behind the history is cut and starts over.
//! Reads see every acknowledged write: they wait until the pump has passed the store's revision.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use imbl::OrdMap;
use parking_lot::RwLock;
use tokio::sync::watch;

use super::entry::{Entry, EntryError};
use crate::http::status::ApiError;
use crate::store::{self, Batch, Compare, Op, Revision, SERVED_PREFIX, Store};

/// How much of the past of one kind is kept in memory for watches to resume from. The latest change
/// is kept whatever its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryLimits {
    /// Most changes.
    pub changes: usize,
    /// What the changes may keep in memory, in bytes; an object that two of them share counts for
    /// both.
    pub bytes: usize,
}

impl Default for HistoryLimits {
    fn default() -> Self {
        Self {
            changes: 16_384,
            bytes: 48 * 1024 * 1024,
        }
    }
}

/// The key that is written to a store that nobody has written to.
const BEGUN: &str = "/internal/begun";
/// How far back the history is read from the store at start.
const RELOADED_REVISIONS: u64 = 16_384;
/// Records read from the store at a time at start. Everything at once would be in memory twice, and the
/// allocator keeps what it got.
const LOADED_AT_ONCE: usize = 1000;
/// Longest wait of a read for the cache to catch up.
const CATCH_UP: Duration = Duration::from_secs(3);

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// It came into being.
    Added,
    /// It changed.
    Modified,
    /// It is gone.
    Deleted,
}

impl ChangeKind {
    /// The `type` of a watch event.
    pub fn name(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

/// One change of one object.
#[derive(Debug)]
pub struct Change {
    /// Its revision.
    pub revision: Revision,
    /// What happened.
    pub kind: ChangeKind,
    /// The new state; for a deletion the last one, at the revision of the deletion.
    pub entry: Arc<Entry>,
    /// The state before, as it was: what a selector's watcher is shown, at the revision of the
    /// change, when the object leaves the selection. `None` for an addition.
    pub previous: Option<Arc<Entry>>,
}

impl Change {
    /// What this change keeps in memory, roughly, in bytes.
    fn weight(&self) -> usize {
        let previous = self.previous.as_ref().map_or(0, |entry| entry.weight());
        self.entry.weight() + previous
    }
}

/// Appends a line of a watch.
pub fn write_frame(to: &mut BytesMut, kind: ChangeKind, object: &[u8]) {
    to.reserve(object.len() + 40);
    to.extend_from_slice(br#"{"type":""#);
    to.extend_from_slice(kind.name().as_bytes());
    to.extend_from_slice(br#"","object":"#);
    to.extend_from_slice(object);
    to.extend_from_slice(b"}\n");
}

/// Objects of one kind at one revision.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// By store key.
    pub objects: OrdMap<Arc<str>, Arc<Entry>>,
    /// Revision of this state.
    pub revision: Revision,
    /// Revision of the last change of this kind: the state has been the same since.
    pub changed: Revision,
}

struct State {
    snapshot: Snapshot,
    history: VecDeque<Arc<Change>>,
    history_bytes: usize,
    limits: HistoryLimits,
    /// Changes up to this revision are no longer in the history.
    forgotten: Revision,
}

impl State {
    fn remember(&mut self, change: Arc<Change>) {
        self.history_bytes += change.weight();
        self.history.push_back(change);
        while self.history.len() > 1
            && (self.history.len() > self.limits.changes || self.history_bytes > self.limits.bytes)
        {
            let Some(oldest) = self.history.pop_front() else {
                break;
            };
            self.history_bytes -= oldest.weight();
            self.forgotten = oldest.revision;
        }
    }
}

/// The cache of one kind.
pub struct KindCache {
    state: RwLock<State>,
    progress: watch::Sender<Revision>,
}

/// The changes a watcher has missed.
#[derive(Debug)]
pub struct Missed {
    /// In order of revision.
    pub changes: Vec<Arc<Change>>,
    /// All changes up to this revision are among them or were seen before.
    pub revision: Revision,
}

impl KindCache {
    fn new(revision: Revision, limits: HistoryLimits) -> Self {
        Self {
            state: RwLock::new(State {
                snapshot: Snapshot {
                    objects: OrdMap::new(),
                    revision,
                    // Why: what was deleted before is unknown, so earlier states are the store's to tell.
                    changed: revision,
                },
                history: VecDeque::new(),
                history_bytes: 0,
                limits,
                forgotten: revision,
            }),
            progress: watch::Sender::new(revision),
        }
    }

    /// The present state; cheap, shares everything.
    pub fn snapshot(&self) -> Snapshot {
        self.state.read().snapshot.clone()
    }

    /// One object.
    pub fn get(&self, key: &str) -> Option<Arc<Entry>> {
        self.state.read().snapshot.objects.get(key).cloned()
    }

    /// Tells when the cache moves on.
    pub fn subscribe(&self) -> watch::Receiver<Revision> {
        self.progress.subscribe()
    }

    /// Changes newer than `after`, at most `limit`.
    ///
    /// # Errors
    /// The oldest revision a watch can start from, when `after` is older than the history.
    pub fn missed(&self, after: Revision, limit: usize) -> Result<Missed, Revision> {
        let state = self.state.read();
        if after < state.forgotten {
            return Err(state.forgotten);
        }
        let start = state
            .history
            .partition_point(|change| change.revision <= after);
        let changes: Vec<_> = state.history.range(start..).take(limit).cloned().collect();
        let complete = start + changes.len() == state.history.len();
        let revision = match changes.last() {
            Some(last) if !complete => last.revision,
            _ => state.snapshot.revision.max(after),
        };
        Ok(Missed { changes, revision })
    }

    fn apply(&self, revision: Revision, changes: Vec<Arc<Change>>) {
        {
            let mut state = self.state.write();
            for change in changes {
                let key = &change.entry.key;
                if change.kind == ChangeKind::Deleted {
                    state.snapshot.objects.remove(key);
                } else {
                    state
                        .snapshot
                        .objects
                        .insert(Arc::clone(key), Arc::clone(&change.entry));
                }
                state.snapshot.changed = change.revision;
                state.remember(change);
            }
            state.snapshot.revision = revision;
        }
        self.progress.send_replace(revision);
    }
}

/// All kinds of one store.
pub struct StoreCache {
    store: Arc<dyn Store>,
    kinds: RwLock<HashMap<String, Arc<KindCache>>>,
    limits: HistoryLimits,
    progress: watch::Sender<Revision>,
    failure: watch::Sender<Option<String>>,
}

impl StoreCache {
    /// Loads the store and keeps up with it until the cache is dropped or the store fails.
    ///
    /// # Errors
    /// The store cannot be read, or holds what this version cannot.
    pub async fn start(store: Arc<dyn Store>) -> Result<Arc<Self>, ApiError> {
        Self::start_with(store, HistoryLimits::default()).await
    }

    /// As [`Self::start`], with other limits on the history of each kind.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_with(
        store: Arc<dyn Store>,
        limits: HistoryLimits,
    ) -> Result<Arc<Self>, ApiError> {
        if store.revision() == 0 {
            // Why: clients ask for any state with 0, so no state may be at it.
            let compare = Compare::Version(BEGUN.into(), 0);
            let op = Op::Put(BEGUN.into(), Bytes::new());
            store.txn(vec![compare], vec![op]).await?;
        }
        let from = store.revision().saturating_sub(RELOADED_REVISIONS).max(1);
        let begin = |at| store.list(SERVED_PREFIX, Some(at), None, Some(LOADED_AT_ONCE));
        let mut listing = match begin(from).await {
            Err(store::Error::Compacted { oldest, .. }) => begin(oldest).await?,
            other => other?,
        };
        let revision = listing.revision;
        let cache = Arc::new(Self {
            kinds: RwLock::new(HashMap::new()),
            limits,
            progress: watch::Sender::new(revision),
            failure: watch::Sender::new(None),
            store: Arc::clone(&store),
        });
        loop {
            for record in &listing.records {
                let entry = Entry::decode(&record.key, &record.value, record.mod_revision)
                    .map_err(|e| ApiError::internal("the store holds an unreadable object", e))?;
                let kind = cache.kind(kind_prefix(&record.key));
                let mut state = kind.state.write();
                state
                    .snapshot
                    .objects
                    .insert(Arc::clone(&record.key), Arc::new(entry));
            }
            let Some(last) = listing.records.last().filter(|_| listing.more) else {
                break;
            };
            let next = format!("{}\0", last.key);
            listing = store
                .list(
                    SERVED_PREFIX,
                    Some(revision),
                    Some(&next),
                    Some(LOADED_AT_ONCE),
                )
                .await?;
        }
        let target = store.revision();
        let mut changes = store.watch(SERVED_PREFIX, revision);
        let pump = Arc::downgrade(&cache);
        drop(tokio::spawn(async move {
            while let Some(batch) = changes.next().await {
                let Some(pump) = pump.upgrade() else {
                    return;
                };
                let result = match batch {
                    Ok(batch) => pump.apply(batch).map_err(|e| e.to_string()),
                    Err(error) => Err(error.to_string()),
                };
                if let Err(message) = result {
                    tracing::error!(%message, "the watch cache lost the store");
                    pump.failure.send_replace(Some(message));
                    return;
                }
            }
            if let Some(pump) = pump.upgrade() {
                pump.failure
                    .send_replace(Some("the store was closed".to_owned()));
            }
        }));
        cache.reached(target).await?;
        Ok(cache)
    }

    /// The store behind.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Completes with the cause when the cache can no longer follow the store: the process must
    /// end, since its answers would be stale.
    pub async fn failed(&self) -> String {
        let mut failure = self.failure.subscribe();
        match failure.wait_for(Option::is_some).await {
            Ok(message) => message.clone().unwrap_or_default(),
            Err(_) => "the cache was dropped".to_owned(),
        }
    }

    /// The cache of the kind with this key prefix.
    pub fn kind(&self, prefix: &str) -> Arc<KindCache> {
        if let Some(kind) = self.kinds.read().get(prefix) {
            return Arc::clone(kind);
        }
        let mut kinds = self.kinds.write();
        let revision = *self.progress.borrow();
        let kind = kinds
            .entry(prefix.to_owned())
            .or_insert_with(|| Arc::new(KindCache::new(revision, self.limits)));
        Arc::clone(kind)
    }

    fn apply(&self, batch: Batch) -> Result<(), EntryError> {
        let mut by_kind: HashMap<String, Vec<Arc<Change>>> = HashMap::new();
        // What the keys of this batch have come to, before the caches know it.
        let mut latest: HashMap<Arc<str>, Option<Arc<Entry>>> = HashMap::new();
        for event in batch.events {
            let prefix = kind_prefix(&event.key);
            let known = latest.get(&event.key).cloned();
            let previous = known.unwrap_or_else(|| {
                self.kinds
                    .read()
                    .get(prefix)
                    .and_then(|kind| kind.get(&event.key))
            });
            let current = event
                .current
                .as_ref()
                .map(|record| Entry::decode(&record.key, &record.value, record.mod_revision))
                .transpose()?
                .map(Arc::new);
            let (kind, entry) = match (&current, &previous) {
                (Some(current), None) => (ChangeKind::Added, Arc::clone(current)),
                (Some(current), Some(_)) => (ChangeKind::Modified, Arc::clone(current)),
                (None, Some(previous)) => {
                    (ChangeKind::Deleted, Arc::new(previous.at(event.revision)))
                },
                (None, None) => continue,
            };
            let revision = event.revision;
            by_kind
                .entry(prefix.to_owned())
                .or_default()
                .push(Arc::new(Change {
                    revision,
                    kind,
                    entry,
                    previous,
                }));
            latest.insert(event.key, current);
        }
        for prefix in by_kind.keys() {
            drop(self.kind(prefix));
        }
        let kinds: Vec<_> = self
            .kinds
            .read()
            .iter()
            .map(|(p, k)| (p.clone(), Arc::clone(k)))
            .collect();
        for (prefix, kind) in kinds {
            kind.apply(batch.revision, by_kind.remove(&prefix).unwrap_or_default());
        }
        self.progress.send_replace(batch.revision);
        Ok(())
    }

    /// Waits until every write acknowledged before this call, by any replica, is in the caches.
    ///
    /// # Errors
    /// 503 when the store cannot be asked, 504 when the caches do not catch up in time.
    pub async fn consistent(&self) -> Result<(), ApiError> {
        self.reached(self.store.current_revision().await?).await
    }

    /// Waits until the caches are at `revision` or later.
    ///
    /// # Errors
    /// 504 when `revision` does not arrive in time.
    pub async fn reached(&self, revision: Revision) -> Result<(), ApiError> {
        if *self.progress.borrow() >= revision {
            return Ok(());
        }
        let mut progress = self.progress.subscribe();
        let arrived = tokio::time::timeout(CATCH_UP, progress.wait_for(|r| *r >= revision)).await;
        if matches!(arrived, Ok(Ok(_))) {
            return Ok(());
        }
        let current = *self.progress.borrow();
        Err(ApiError::resource_version_too_large(revision, current))
    }
}

/// `/registry/<group>/<resource>/` of a key.
fn kind_prefix(key: &str) -> &str {
    let mut slashes = key.match_indices('/').map(|(at, _)| at);
    slashes.nth(3).map_or(key, |at| &key[..=at])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redb::{Options, RedbStore};

    #[tokio::test]
    async fn a_start_finds_more_objects_than_are_read_at_a_time() {
        let store: Arc<dyn Store> = Arc::new(RedbStore::in_memory(Options::default()).unwrap());
        let count = 2 * LOADED_AT_ONCE + 1;
        let puts = (0..count).map(|number| {
            let value = format!(r#"{{"metadata":{{"name":"{number}"}}}}"#);
            let put = Op::Put(format!("/registry/g/ks/{number}").into(), value.into());
            store.txn(Vec::new(), vec![put])
        });
        futures::future::try_join_all(puts).await.unwrap();
        // So that nothing comes by the changes since.
        store.compact(store.revision()).await.unwrap();
        let cache = StoreCache::start(store).await.unwrap();
        let found = cache.kind("/registry/g/ks/").snapshot();
        assert_eq!(found.objects.len(), count);
    }

    #[test]
    fn keys_belong_to_their_group_and_resource() {
        assert_eq!(kind_prefix("/registry/g.x/ks/ns/n"), "/registry/g.x/ks/");
        assert_eq!(kind_prefix("/registry/g.x/ks/n"), "/registry/g.x/ks/");
    }

    fn entry(name: &str, revision: Revision, size: usize) -> Arc<Entry> {
        let filler = "x".repeat(size);
        let value = format!(r#"{{"metadata":{{"name":"{name}"}},"filler":"{filler}"}}"#);
        let key = format!("/registry/g/ks/{name}").into();
        Arc::new(Entry::decode(&key, value.as_bytes(), revision).unwrap())
    }

    #[test]
    fn what_the_history_keeps_alive_stays_below_its_limit_also_when_objects_shrink() {
        const LIMIT: usize = 1 << 20;
        let limits = HistoryLimits {
            changes: 1000,
            bytes: LIMIT,
        };
        let kind = KindCache::new(0, limits);
        for revision in 1..500 {
            let change = Change {
                revision,
                kind: ChangeKind::Modified,
                entry: entry("a", revision, 10),
                previous: Some(entry("a", revision - 1, 30_000)),
            };
            kind.apply(revision, vec![Arc::new(change)]);
            let state = kind.state.read();
            let kept: usize = state
                .history
                .iter()
                .flat_map(|change| [Some(&change.entry), change.previous.as_ref()])
                .flatten()
                .map(|entry| entry.body.len())
                .sum();
            assert!(kept <= LIMIT, "{kept} bytes at revision {revision}");
            assert!(kept > LIMIT / 2 || revision < 30, "the limit is used");
        }
        assert!(kind.missed(1, 10).is_err(), "the oldest are forgotten");
    }

    #[test]
    fn the_latest_change_is_kept_whatever_its_size() {
        let limits = HistoryLimits {
            changes: 0,
            bytes: 0,
        };
        let kind = KindCache::new(0, limits);
        for revision in 1..4 {
            let change = Change {
                revision,
                kind: ChangeKind::Added,
                entry: entry("a", revision, 10),
                previous: None,
            };
            kind.apply(revision, vec![Arc::new(change)]);
        }
        assert_eq!(kind.missed(2, 10).unwrap().changes.len(), 1);
        assert_eq!(kind.missed(1, 10).unwrap_err(), 2);
    }
}
