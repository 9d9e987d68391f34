//! What the store holds when the process starts, put into the allocator's memory.

use std::collections::HashSet;
use std::sync::Arc;

use super::{Desk, Error};
use crate::allocator::Stage;
use crate::allocator::record::{GrantsRecord, PREFIX};
use crate::status;

// === impl Desk ===

impl Desk {
    /// Loads grants and leases. A live lease gets its full ttl again: nobody knows how long the
    /// process was away, and none may end early.
    ///
    /// # Errors
    /// The store cannot be read, or holds grants that this version cannot.
    pub async fn load(&self) -> Result<(), Error> {
        let listing = self.store.list(PREFIX, None, None, None).await?;
        let mut holders = Vec::new();
        for stored in listing.records {
            let uid: Arc<str> = stored.key.strip_prefix(PREFIX).unwrap_or_default().into();
            let record = GrantsRecord::decode(&stored.value).map_err(|error| {
                aggregated_api::store::Error::Corrupt(format!(
                    "grants record of proxy {uid}: {error}"
                ))
            })?;
            holders.extend(
                record
                    .holders
                    .iter()
                    .map(|grant| (Arc::clone(&uid), grant.clone())),
            );
            self.allocator.load(&uid, record, stored.version);
        }
        let held: HashSet<_> = holders
            .iter()
            .map(|(_, grant)| Arc::clone(&grant.lease_uid))
            .collect();
        let mut leases = self.leases.list();
        leases.sort_by(|a, b| {
            let age = |lease: &crawl_api::lease::ProxyLease| {
                (
                    lease.metadata.creation_timestamp.clone(),
                    lease.metadata.name.clone(),
                )
            };
            age(a).cmp(&age(b))
        });
        let (mut active, mut over) = (0_usize, 0_usize);
        for lease in &leases {
            let stored = status::stored(lease);
            match &stored.stage {
                Stage::Over => {
                    over += 1;
                    if status::is_over(lease) {
                        self.ended.push(stored.key);
                    } else if status::is_kept(lease) {
                        self.allocator.doubt(stored.key);
                    }
                },
                Stage::Bound(proxy) if !held.contains(&stored.key.uid) => {
                    tracing::error!(
                        %proxy, namespace = %stored.key.namespace, lease = %stored.key.name,
                        "a lease is Bound and holds no slot; it ends when it is not renewed"
                    );
                    self.allocator.adopt(stored);
                },
                Stage::Bound(_) | Stage::Pending(..) => {
                    active += 1;
                    self.allocator.adopt(stored);
                },
            }
        }
        for (proxy, grant) in &holders {
            if self.allocator.lease(&grant.lease_uid).is_none() {
                self.meet_holder(proxy, grant).await?;
            }
        }
        tracing::info!(active, over, "leases loaded");
        Ok(())
    }
}
