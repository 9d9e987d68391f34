//! How many leases members have: asked when a choice depends on it, and waited for only so long.

use std::collections::HashMap;
use std::time::Duration;

use crawl_api::names;
use crawl_api::pool::ProxyPool;
use kube::ResourceExt;
use parking_lot::Mutex;
use runtime_kit::Clock;

use super::order::Leases;
use crate::proxy::{Counts, LeaseApi};

/// How long a choice waits for a lease API that cannot be asked. Then it is made without: the drain
/// of the members that are chosen still waits for their leases.
const PATIENCE: Duration = Duration::from_mins(2);

/// When it is asked again.
pub(super) const RETRY: Duration = Duration::from_secs(5);

/// Asks the lease API, and remembers since when it does not answer, by pool UID.
pub(super) struct LeaseCounts {
    api: LeaseApi,
    silent_since: Mutex<HashMap<String, Duration>>,
}

impl LeaseCounts {
    pub(super) fn new(api: LeaseApi) -> Self {
        Self {
            api,
            silent_since: Mutex::default(),
        }
    }

    /// How many leases the members of a pool have.
    pub(super) async fn count(&self, pool: &ProxyPool, clock: &dyn Clock) -> Leases {
        let namespace = pool.namespace().unwrap_or_default();
        let label = format!("{}={}", names::LABEL_POOL, pool.name_any());
        let counts = self.api.counts(&namespace, &label).await;
        self.judge(&pool.uid().unwrap_or_default(), counts, clock.elapsed())
    }

    fn judge(&self, pool: &str, counts: Counts, elapsed: Duration) -> Leases {
        let mut silent_since = self.silent_since.lock();
        match counts {
            Counts::Known(counts) => {
                silent_since.remove(pool);
                Leases::Known(counts)
            },
            Counts::Unavailable(error) => {
                let since = *silent_since.entry(pool.to_owned()).or_insert(elapsed);
                if elapsed.saturating_sub(since) < PATIENCE {
                    return Leases::Awaited(error);
                }
                tracing::warn!(error, "the lease API cannot be asked: chosen without it");
                Leases::Unknown
            },
        }
    }
}
