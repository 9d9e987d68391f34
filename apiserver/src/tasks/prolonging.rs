//! Leases that were given their full ttl again when the process started: they show it.
//!
//! Without this, a lease that works would show an end in the past until it is renewed. Those that
//! show a warning about their proxy are told of its fate anyway, and that shows their end too.

use aggregated_api::registry::capability::Companion;
use aggregated_api::registry::collection::Written;
use crawl_api::lease::{LeasePhase, ProxyLease};

use super::{Desk, Error};
use crate::status;

// === impl Desk ===

impl Desk {
    /// Goes through all leases once, those that end first before the others; then rests for ever.
    pub(super) async fn show_prolonged(self) {
        let mut leases = self.leases.list();
        leases.retain(|lease| status::phase(lease) == LeasePhase::Bound);
        leases.sort_by_cached_key(|lease| {
            let ends = lease.status.as_ref()?.expires_at.as_ref()?;
            Some(ends.0)
        });
        self.each(leases, |desk, mut lease| async move {
            loop {
                match desk.show_end(lease.clone()).await {
                    Ok(None) => return,
                    Ok(Some(changed)) => lease = changed,
                    Err(error) => desk.pause("showing when a lease ends", &error).await,
                }
            }
        })
        .await;
        // Why: a task that ends stops the process.
        std::future::pending::<()>().await;
    }

    /// `Some`: it changed in between, to this.
    async fn show_end(&self, mut lease: ProxyLease) -> Result<Option<ProxyLease>, Error> {
        if status::is_warned(&lease) || !self.prolong(&mut lease) {
            return Ok(None);
        }
        let key = status::key(&lease);
        match self.leases.replace(lease, Companion::default()).await? {
            Written::Committed(_) => Ok(None),
            Written::Conflict => self.read(&key).await,
        }
    }

    /// Puts the end that counts into a lease that shows an earlier one; whether it did.
    pub(super) fn prolong(&self, lease: &mut ProxyLease) -> bool {
        let bound = status::phase(lease) == LeasePhase::Bound
            && lease.metadata.deletion_timestamp.is_none();
        let Some(tracked) = self.allocator.lease(&status::key(lease).uid) else {
            return false;
        };
        // Why: a renewal on its way shows an end of its own.
        if !bound || !tracked.committed || tracked.renewed_at != status::renewed_at(lease) {
            return false;
        }
        let left = tracked.expires.saturating_sub(self.clock.elapsed());
        status::set_later_end(lease, status::later(self.clock.now(), left))
    }
}
