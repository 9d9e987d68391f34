//! Disks that are full, fail, or lose what was not synced.

use std::collections::BTreeSet;
use std::io;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ::redb::backends::InMemoryBackend;
use ::redb::{BackendError, StorageBackend};
use bytes::Bytes;
use futures::StreamExt;
use parking_lot::Mutex;
use rand::RngExt;

use super::super::medium::Medium;
use super::{Options, RedbStore};
use crate::store::{Error, Op, Outcome, Revision, Store};

/// Offset and bytes.
type Write = (u64, Vec<u8>);

const BLOCK: u64 = 4096;

/// A disk with faults.
#[derive(Clone, Debug)]
struct Disk(Arc<State>);

#[derive(Debug)]
struct State {
    /// What the process sees.
    seen: InMemoryBackend,
    /// Bytes there are.
    capacity: AtomicU64,
    /// Blocks in use.
    blocks: Mutex<BTreeSet<u64>>,
    reserve: AtomicU64,
    sync_fails: AtomicBool,
    /// What survives a loss of power, and the writes since it was synced.
    durable: Mutex<(Vec<u8>, Vec<Write>)>,
}

impl Disk {
    fn new(capacity: u64) -> Self {
        Self(Arc::new(State {
            seen: InMemoryBackend::new(),
            capacity: AtomicU64::new(capacity),
            blocks: Mutex::default(),
            reserve: AtomicU64::new(0),
            sync_fails: AtomicBool::new(false),
            durable: Mutex::default(),
        }))
    }

    /// Takes the blocks between two offsets.
    fn take(&self, from: u64, to: u64) -> io::Result<()> {
        let mut blocks = self.0.blocks.lock();
        for block in from / BLOCK..to.div_ceil(BLOCK) {
            if !blocks.contains(&block) {
                if self.free(&blocks) < BLOCK {
                    return Err(io::Error::from(io::ErrorKind::StorageFull));
                }
                blocks.insert(block);
            }
        }
        Ok(())
    }

    fn free(&self, blocks: &BTreeSet<u64>) -> u64 {
        let used = u64::try_from(blocks.len()).unwrap() * BLOCK;
        let held = self.0.reserve.load(Ordering::Relaxed);
        self.0
            .capacity
            .load(Ordering::Relaxed)
            .saturating_sub(used + held)
    }

    /// A disk as it may be after the power went: each write since the last sync happened or not.
    fn after_power_loss(&self) -> Self {
        let mut rng = rand::rng();
        let (mut bytes, unsynced) = self.0.durable.lock().clone();
        for (offset, data) in unsynced {
            if rng.random() {
                let start = usize::try_from(offset).unwrap();
                let end = start + data.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[start..end].copy_from_slice(&data);
            }
        }
        let disk = Self::new(u64::MAX);
        disk.0
            .seen
            .set_len(u64::try_from(bytes.len()).unwrap())
            .unwrap();
        disk.0.seen.write(0, &bytes).unwrap();
        disk.0.durable.lock().0 = bytes;
        disk
    }
}

impl Medium for Disk {
    fn backend(&self) -> io::Result<Box<dyn StorageBackend>> {
        Ok(Box::new(self.clone()))
    }
    fn allocate(&self, from: u64, to: u64) -> io::Result<()> {
        self.take(from, to)
    }
    fn hold_reserve(&self, bytes: u64, spare: u64) -> io::Result<()> {
        self.release_reserve()?;
        if self.free(&self.0.blocks.lock()) < bytes + spare {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        self.0.reserve.store(bytes, Ordering::Relaxed);
        Ok(())
    }
    fn release_reserve(&self) -> io::Result<()> {
        self.0.reserve.store(0, Ordering::Relaxed);
        Ok(())
    }
    fn used_bytes(&self) -> u64 {
        self.0.seen.len().unwrap()
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        self.0.seen.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.seen.read(offset, out)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.seen.set_len(len)?;
        self.0.blocks.lock().split_off(&len.div_ceil(BLOCK));
        // A journal: lengths are durable at once.
        self.0
            .durable
            .lock()
            .0
            .resize(usize::try_from(len).map_err(io::Error::other)?, 0);
        Ok(())
    }
    fn sync_data(&self) -> io::Result<()> {
        if self.0.sync_fails.load(Ordering::Relaxed) {
            return Err(io::Error::other("the device is gone"));
        }
        let mut durable = self.0.durable.lock();
        let (bytes, unsynced) = &mut *durable;
        for (offset, data) in unsynced.drain(..) {
            let start = usize::try_from(offset).map_err(io::Error::other)?;
            let end = (start + data.len()).min(bytes.len());
            bytes[start..end].copy_from_slice(&data[..end - start]);
        }
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let length = u64::try_from(data.len()).map_err(io::Error::other)?;
        self.take(offset, offset + length)?;
        self.0.seen.write(offset, data)?;
        self.0.durable.lock().1.push((offset, data.to_vec()));
        Ok(())
    }
    fn try_lock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<bool, BackendError> {
        Ok(true)
    }
    fn unlock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<(), BackendError> {
        Ok(())
    }
}

const OPTIONS: Options = Options {
    cache_bytes: 8 << 20,
    window_bytes: 1 << 20,
    queue_bytes: 64 << 20,
    reserve_bytes: 4 << 20,
    lock_wait: Duration::ZERO,
};

async fn put(store: &RedbStore, key: &str, size: usize) -> Result<Revision, Error> {
    let value = Bytes::from(vec![7; size]);
    match store
        .txn(Vec::new(), vec![Op::Put(Arc::from(key), value)])
        .await?
    {
        Outcome::Committed(revision) => Ok(revision),
        Outcome::Conflict => panic!("there was nothing to conflict with"),
    }
}

/// Puts until the disk is full; gives the keys that were acknowledged.
async fn fill(store: &RedbStore) -> Vec<String> {
    let mut keys = Vec::new();
    for number in 0..10_000 {
        let key = format!("/k/{number}");
        match put(store, &key, 50_000).await {
            Ok(revision) => {
                assert_eq!(revision, store.revision());
                keys.push(key);
            },
            Err(Error::NoSpace) => return keys,
            Err(err) => panic!("{err}"),
        }
    }
    panic!("the disk never became full");
}

async fn assert_holds(store: &RedbStore, keys: &[String]) {
    let listing = store.list("/k/", None, None, None).await.unwrap();
    assert_eq!(listing.records.len(), keys.len());
    assert!(
        listing
            .records
            .iter()
            .all(|record| record.value.len() == 50_000)
    );
    for key in keys {
        assert!(store.get(key).await.unwrap().is_some());
    }
}

#[tokio::test]
async fn a_full_disk_refuses_puts_lets_deletes_through_and_recovers_with_space() {
    let disk = Disk::new(16 << 20);
    let store = RedbStore::on(Arc::new(disk.clone()), OPTIONS).unwrap();
    let mut watch = store.watch("/k/", 0);
    let mut keys = fill(&store).await;
    assert_holds(&store, &keys).await;
    let revision = store.revision();
    assert!(matches!(
        put(&store, "/k/more", 10).await,
        Err(Error::NoSpace)
    ));
    assert_eq!(
        store.revision(),
        revision,
        "a refused transaction takes no revision"
    );

    let gone = keys.pop().unwrap();
    let delete = vec![
        Op::Delete(Arc::from(&*gone)),
        Op::Put(Arc::from("/grants"), Bytes::new()),
    ];
    assert_eq!(
        store.txn(Vec::new(), delete).await.unwrap(),
        Outcome::Committed(revision + 1)
    );
    assert_holds(&store, &keys).await;

    disk.0.capacity.store(64 << 20, Ordering::Relaxed);
    assert_eq!(put(&store, "/k/more", 50_000).await.unwrap(), revision + 2);
    keys.push("/k/more".to_owned());
    assert_holds(&store, &keys).await;

    let mut revisions = Vec::new();
    while revisions.last() != Some(&(revision + 2)) {
        let batch = watch.next().await.unwrap().unwrap();
        revisions.extend(batch.events.iter().map(|event| event.revision));
    }
    assert_eq!(revisions, (1..=revision + 2).collect::<Vec<_>>());
    drop(store);
    let store = RedbStore::on(Arc::new(disk), OPTIONS).unwrap();
    assert_holds(&store, &keys).await;
    assert_eq!(store.revision(), revision + 2);
}

#[tokio::test]
async fn deleting_and_compacting_makes_room_on_a_disk_that_stays_full() {
    let store = RedbStore::on(Arc::new(Disk::new(16 << 20)), OPTIONS).unwrap();
    let keys = fill(&store).await;
    let (gone, kept) = keys.split_at(keys.len() / 2);
    for key in gone {
        let delete = vec![Op::Delete(Arc::from(&**key))];
        store.txn(Vec::new(), delete).await.unwrap();
    }
    store.compact(store.revision()).await.unwrap();
    assert_holds(&store, kept).await;
    let mut kept = kept.to_vec();
    for key in &gone[..gone.len() / 2] {
        put(&store, key, 50_000).await.unwrap();
        kept.push(key.clone());
    }
    assert_holds(&store, &kept).await;
}

#[tokio::test]
async fn a_store_opens_on_a_disk_that_is_full_already() {
    let disk = Disk::new(16 << 20);
    let keys = fill(&RedbStore::on(Arc::new(disk.clone()), OPTIONS).unwrap()).await;
    let store = RedbStore::on(Arc::new(disk), OPTIONS).unwrap();
    assert_holds(&store, &keys).await;
    let delete = vec![Op::Delete(Arc::from(&*keys[0]))];
    store.txn(Vec::new(), delete).await.unwrap();
    assert_holds(&store, &keys[1..]).await;
}

#[tokio::test]
async fn after_a_failed_sync_nothing_is_acknowledged_or_read_until_it_is_opened_anew() {
    let disk = Disk::new(u64::MAX);
    let store = RedbStore::on(Arc::new(disk.clone()), OPTIONS).unwrap();
    put(&store, "/k/a", 10).await.unwrap();
    let mut watch = store.watch("", 1);
    assert!(watch.next().await.unwrap().unwrap().events.is_empty());
    disk.0.sync_fails.store(true, Ordering::Relaxed);
    for _ in 0..2 {
        assert!(matches!(
            put(&store, "/k/b", 10).await,
            Err(Error::Unavailable { .. })
        ));
    }
    assert!(matches!(
        watch.next().await,
        Some(Err(Error::Unavailable { .. }))
    ));
    assert!(store.get("/k/a").await.is_err());
    assert!(store.compact(1).await.is_err());
    assert_eq!(store.revision(), 1);
    drop(store);
    disk.0.sync_fails.store(false, Ordering::Relaxed);
    let store = RedbStore::on(Arc::new(disk.after_power_loss()), OPTIONS).unwrap();
    assert!(store.get("/k/a").await.unwrap().is_some());
}

#[tokio::test]
async fn what_was_acknowledged_survives_a_loss_of_power() {
    let mut disk = Disk::new(u64::MAX);
    let mut acknowledged = 0;
    for round in 0..30_u64 {
        if round % 3 == 2 {
            // While the repair is being written.
            disk.0.sync_fails.store(true, Ordering::Relaxed);
            assert!(RedbStore::on(Arc::new(disk.clone()), OPTIONS).is_err());
            disk = disk.after_power_loss();
        }
        let store = RedbStore::on(Arc::new(disk.clone()), OPTIONS).unwrap();
        assert!(store.revision() >= acknowledged);
        for number in 0..acknowledged {
            let record = store.get(&format!("/k/{number}")).await.unwrap().unwrap();
            assert_eq!(record.mod_revision, number + 1);
        }
        for number in store.revision()..=store.revision() + round % 4 {
            acknowledged = put(&store, &format!("/k/{number}"), 3000).await.unwrap();
            assert_eq!(acknowledged, number + 1);
        }
        // While one more is on its way.
        let next = format!("/k/{acknowledged}");
        let mut last = std::pin::pin!(put(&store, &next, 3000));
        if let std::task::Poll::Ready(revision) = futures::poll!(&mut last) {
            acknowledged = revision.unwrap();
        }
        for _ in 0..rand::rng().random_range(0..2000) {
            std::hint::spin_loop();
        }
        disk = disk.after_power_loss();
    }
}
