//! Leases that are over are removed after a minute, or earlier when there are too many.

use aggregated_api::registry::capability::Companion;
use aggregated_api::registry::collection::Written;

use super::{Desk, Error};
use crate::allocator::leases::LeaseKey;
use crate::status;

/// Leases taken at once.
const BATCH: usize = 256;

// === impl Desk ===

impl Desk {
    /// Runs for ever.
    pub(super) async fn retain(self) {
        loop {
            let over = self.ended.next(BATCH).await;
            self.each(over, |desk, key| async move {
                if let Err(error) = desk.drop_one(&key).await {
                    desk.ended.push(key);
                    desk.pause("removing a lease that is over", &error).await;
                }
            })
            .await;
        }
    }

    async fn drop_one(&self, key: &LeaseKey) -> Result<(), Error> {
        loop {
            let lease = self.read(key).await?.filter(status::is_over);
            // Why: with finalizers it stays until their owners are done.
            let Some(lease) =
                lease.filter(|lease| lease.metadata.finalizers.as_ref().is_none_or(Vec::is_empty))
            else {
                return Ok(());
            };
            if let Written::Committed(_) = self.leases.remove(&lease, Companion::default()).await? {
                return Ok(());
            }
        }
    }
}
