//! Waiters that were given a slot: the lease says so, and the slot becomes a grant, in one
//! transaction.

use aggregated_api::registry::collection::Written;
use crawl_api::lease::LeasePhase;

use super::{Desk, Error};
use crate::allocator::leases::LeaseKey;
use crate::status;

// === impl Desk ===

impl Desk {
    /// Runs for ever.
    pub(super) async fn bind_waiters(self) {
        loop {
            let rung = self.allocator.bells().bindings.notified();
            let waiters = self.allocator.take_bindings();
            if waiters.is_empty() {
                rung.await;
                continue;
            }
            self.each(waiters, |desk, key| async move {
                if let Err(error) = desk.bind_one(&key).await {
                    desk.pause("binding a waiting lease", &error).await;
                    desk.allocator.doubt(key);
                }
            })
            .await;
        }
    }

    async fn bind_one(&self, key: &LeaseKey) -> Result<(), Error> {
        loop {
            let lease = self.read(key).await?.filter(|lease| {
                status::phase(lease) == LeasePhase::Pending
                    && lease.metadata.deletion_timestamp.is_none()
            });
            let Some(mut lease) = lease else {
                self.allocator.dequeue(&key.uid);
                return Ok(());
            };
            // Why: no hold any more means that it stands in line again.
            let Some((slot, companion)) = self.allocator.bind(&key.uid) else {
                return Ok(());
            };
            status::set_bound_after_wait(&mut lease, &slot, self.clock.now());
            match self.leases.replace(lease, companion).await? {
                Written::Committed(_) => return Ok(()),
                Written::Conflict => {},
            }
        }
    }
}
