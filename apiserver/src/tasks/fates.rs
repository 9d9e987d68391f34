//! Leases of proxies that are drained, fail, or are gone: told so, or taken back.

use std::time::Duration;

use aggregated_api::registry::capability::Companion;
use aggregated_api::registry::collection::Written;
use jiff::Timestamp;

use super::{Desk, Error};
use crate::allocator::facts::Fate;
use crate::allocator::leases::Tracked;
use crate::status::{self, End};

// === impl Desk ===

impl Desk {
    /// Runs for ever.
    pub(super) async fn tell_fates(self) {
        loop {
            let rung = self.allocator.bells().fates.notified();
            let fates = self.allocator.take_fates();
            if fates.is_empty() {
                rung.await;
                continue;
            }
            self.each(fates, |desk, (tracked, fate)| async move {
                match desk.tell(&tracked, fate).await {
                    Ok(true) => {},
                    Ok(false) => desk.allocator.retell(&tracked.key.uid),
                    Err(error) => {
                        desk.pause("telling a lease of its proxy's fate", &error)
                            .await;
                        desk.allocator.retell(&tracked.key.uid);
                    },
                }
            })
            .await;
        }
    }

    async fn tell(&self, tracked: &Tracked, fate: Fate) -> Result<bool, Error> {
        let Some(mut lease) = self.read(&tracked.key).await? else {
            self.allocator.absent(&tracked.key);
            return Ok(true);
        };
        if status::is_over(&lease) || lease.metadata.deletion_timestamp.is_some() {
            self.allocator.adopt(status::stored(&lease));
            return Ok(true);
        }
        let (now, elapsed) = (self.clock.now(), self.clock.elapsed());
        let cut = match &fate {
            Fate::Revoke { reason } => return self.end(lease, End::Revoked(reason)).await,
            Fate::Drain { deadline } => Some(elapsed + until(*deadline, now)),
            Fate::Keep | Fate::Warn { .. } => None,
        };
        // Why: what it shows may be from before a restart, or cut by a drain that was called off.
        self.prolong(&mut lease);
        status::set_fate(&mut lease, &fate, now);
        match self.leases.replace(lease, Companion::default()).await? {
            Written::Committed(_) => {
                self.allocator.shown(&tracked.key.uid, fate, cut);
                Ok(true)
            },
            Written::Conflict => Ok(false),
        }
    }
}

fn until(deadline: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(deadline.duration_since(now)).unwrap_or(Duration::ZERO)
}
