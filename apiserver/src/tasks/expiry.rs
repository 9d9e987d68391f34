//! Leases and waits whose time is up.

use crawl_api::lease::LeasePhase;

use super::{Desk, Error};
use crate::allocator::leases::Tracked;
use crate::status::{self, End, REASON_DRAIN_TIMED_OUT};

/// Leases taken at once.
const BATCH: usize = 256;

// === impl Desk ===

impl Desk {
    /// Runs for ever.
    pub(super) async fn expire(self) {
        loop {
            let rung = self.allocator.bells().timers.notified();
            let due = self.allocator.due(BATCH);
            if due.is_empty() {
                match self.allocator.next_due() {
                    None => rung.await,
                    Some(at) => {
                        let left = at.saturating_sub(self.clock.elapsed());
                        // Why: what is due but not durable yet rings when it is.
                        if left.is_zero() {
                            rung.await;
                        } else {
                            tokio::select! {
                                () = rung => {},
                                () = self.clock.sleep(left) => {},
                            }
                        }
                    },
                }
                continue;
            }
            self.each(due, |desk, tracked| async move {
                if let Err(error) = desk.expire_one(&tracked).await {
                    desk.pause("ending a lease", &error).await;
                }
            })
            .await;
        }
    }

    async fn expire_one(&self, tracked: &Tracked) -> Result<(), Error> {
        let Some(lease) = self.read(&tracked.key).await? else {
            return self.give_back(&tracked.key).await;
        };
        let stored = status::stored(&lease);
        if status::is_over(&lease) || lease.metadata.deletion_timestamp.is_some() {
            self.allocator.adopt(stored);
            return Ok(());
        }
        if stored.renewed_at != tracked.renewed_at {
            // A renewal that nobody told of: it counts from now.
            self.allocator.adopt(stored);
            return Ok(());
        }
        let end = match status::phase(&lease) {
            LeasePhase::Pending => End::WaitTimedOut,
            LeasePhase::Bound | LeasePhase::Expired | LeasePhase::Revoked => {
                match tracked.cut.filter(|cut| *cut <= tracked.expires) {
                    Some(_) => End::Revoked(REASON_DRAIN_TIMED_OUT),
                    None => End::Expired,
                }
            },
        };
        self.end(lease, end).await.map(drop)
    }
}
