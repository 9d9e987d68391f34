//! What is not known for sure: read again from the store.
//!
//! A transaction that conflicted, failed, or whose request was cancelled leaves the allocator's
//! memory in doubt. Before anything is read here, a transaction that cannot succeed goes through
//! the store's queue: whatever was queued before it has been decided then.

use std::sync::Arc;
use std::time::Duration;

use aggregated_api::registry::capability::Companion;
use aggregated_api::registry::collection::Written;
use aggregated_api::store::Compare;
use crawl_api::lease::ProxyLease;

use super::{Desk, Error, is_full};
use crate::allocator::leases::LeaseKey;
use crate::allocator::record::{self, Grant, GrantsRecord};
use crate::allocator::{Release, Unsettled};
use crate::status::{self, End};

/// A slot whose lease is gone is given back after this, and tried again as often.
const GIVEN_BACK_AFTER: Duration = Duration::from_secs(5);

// === impl Desk ===

impl Desk {
    /// Runs for ever.
    pub(super) async fn settle_doubts(self) {
        loop {
            let rung = self.allocator.bells().doubts.notified();
            let (proxies, leases) = self.allocator.take_doubts();
            if proxies.is_empty() && leases.is_empty() {
                rung.await;
                continue;
            }
            while let Err(error) = self.settle(&proxies, &leases).await {
                self.pause("reading grants again", &error).await;
            }
        }
    }

    async fn settle(&self, proxies: &[Arc<str>], leases: &[LeaseKey]) -> Result<(), Error> {
        let never = Compare::Version(Arc::from("/internal/fence"), u64::MAX);
        self.store.txn(vec![never], Vec::new()).await?;
        for uid in proxies {
            for grant in self.allocator.reload(uid, self.read_record(uid).await?) {
                self.meet_holder(uid, &grant).await?;
            }
        }
        for key in leases {
            match self.read(key).await? {
                Some(lease) if status::is_kept(&lease) => self.tell_released(lease).await?,
                Some(lease) => {
                    let stored = status::stored(&lease);
                    if status::is_over(&lease) {
                        self.ended.push(key.clone());
                    }
                    self.allocator.adopt(stored);
                },
                None => self.meet_absent(key),
            }
        }
        Ok(())
    }

    /// A lease that is not there. Its slot may still be recorded, when the store had space for the
    /// deletion only: then it is due soon, and given back by whoever ends leases.
    fn meet_absent(&self, key: &LeaseKey) {
        let recorded = self
            .allocator
            .lease(&key.uid)
            .is_some_and(|tracked| tracked.committed && tracked.proxy.is_some());
        if recorded {
            let due = self.clock.elapsed() + GIVEN_BACK_AFTER;
            self.allocator.renewed(&key.uid, self.clock.now(), due);
        } else {
            self.allocator.absent(key);
        }
    }

    /// Gives back the slot of a lease that is not there. Without space it is tried again later.
    pub(super) async fn give_back(&self, key: &LeaseKey) -> Result<(), Error> {
        match self.allocator.release(&key.uid).await {
            Ok(Release::Slot(companion)) => match self.commit(companion).await {
                Err(Error::Store(error)) if is_full(&error) => {
                    tracing::warn!(
                        namespace = %key.namespace, lease = %key.name, uid = %key.uid,
                        "the slot of a lease that is gone stays taken until the store has space"
                    );
                    Ok(())
                },
                other => other.map(drop),
            },
            // Why: what is being settled finds the slot again if it is recorded.
            Ok(Release::Nothing) | Err(Unsettled) => {
                self.allocator.absent(key);
                Ok(())
            },
        }
    }

    /// A deleted lease that finalizers keep says that it holds nothing any more.
    async fn tell_released(&self, mut lease: ProxyLease) -> Result<(), Error> {
        self.allocator.adopt(status::stored(&lease));
        let key = status::key(&lease);
        status::set_over(&mut lease, End::Released, self.clock.now());
        if let Written::Conflict = self.leases.replace(lease, Companion::default()).await? {
            self.allocator.doubt(key);
        }
        Ok(())
    }

    async fn read_record(&self, uid: &str) -> Result<Option<(GrantsRecord, u64)>, Error> {
        let Some(stored) = self.store.get(&record::key(uid)).await? else {
            return Ok(None);
        };
        match GrantsRecord::decode(&stored.value) {
            Ok(grants) => Ok(Some((grants, stored.version))),
            Err(error) => Err(aggregated_api::store::Error::Corrupt(format!(
                "grants record of proxy {uid}: {error}"
            ))
            .into()),
        }
    }

    /// A holder of a slot that nobody tracks: adopted. When it has no lease, it is due soon.
    pub(super) async fn meet_holder(&self, proxy: &Arc<str>, grant: &Grant) -> Result<(), Error> {
        let key = LeaseKey {
            namespace: Arc::clone(&grant.namespace),
            name: Arc::clone(&grant.name),
            uid: Arc::clone(&grant.lease_uid),
        };
        if let Some(lease) = self.read(&key).await?
            && !status::is_over(&lease)
            && lease.metadata.deletion_timestamp.is_none()
        {
            self.allocator.adopt(status::stored(&lease));
            return Ok(());
        }
        tracing::error!(
            %proxy, namespace = %key.namespace, lease = %key.name, uid = %key.uid,
            "a slot was held by a lease that does not exist; giving it back"
        );
        // Why not at once: the record may be in doubt, and this task is the one that settles it.
        self.allocator.adopt_orphan(proxy, &key);
        Ok(())
    }
}
