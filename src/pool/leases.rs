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

/// After so long without a question, silence is another one, and is waited out anew.
const EPISODE: Duration = Duration::from_mins(10);

/// Asks the lease API, and remembers since when it does not answer, by pool UID.
pub(super) struct LeaseCounts {
    api: LeaseApi,
    silent: Mutex<HashMap<String, Silence>>,
}

/// Questions without an answer. Monotonic times.
#[derive(Clone, Copy, Debug)]
struct Silence {
    since: Duration,
    last_asked: Duration,
}

impl LeaseCounts {
    pub(super) fn new(api: LeaseApi) -> Self {
        Self {
            api,
            silent: Mutex::default(),
        }
    }

    /// How many leases the members of a pool have.
    pub(super) async fn count(&self, pool: &ProxyPool, clock: &dyn Clock) -> Leases {
        let namespace = pool.namespace().unwrap_or_default();
        let label = format!("{}={}", names::LABEL_POOL, pool.name_any());
        let counts = self.api.counts(&namespace, &label).await;
        let mut silent = self.silent.lock();
        judge(
            &mut silent,
            &pool.uid().unwrap_or_default(),
            counts,
            clock.elapsed(),
        )
    }
}

fn judge(
    silent: &mut HashMap<String, Silence>,
    pool: &str,
    counts: Counts,
    elapsed: Duration,
) -> Leases {
    // Why: a silence that nobody asked into any more says nothing of the present one.
    silent.retain(|_, silence| elapsed.saturating_sub(silence.last_asked) < EPISODE);
    match counts {
        Counts::Known(counts) => {
            silent.remove(pool);
            Leases::Known(counts)
        },
        Counts::Unavailable(error) => {
            let silence = silent.entry(pool.to_owned()).or_insert(Silence {
                since: elapsed,
                last_asked: elapsed,
            });
            silence.last_asked = elapsed;
            if elapsed.saturating_sub(silence.since) < PATIENCE {
                return Leases::Awaited(error);
            }
            tracing::warn!(error, "the lease API cannot be asked: chosen without it");
            Leases::Unknown
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_silence_of_the_lease_api_is_waited_out() {
        let mut silent = HashMap::new();
        let mut ask = |second| {
            let counts = Counts::Unavailable("503".into());
            judge(&mut silent, "p", counts, Duration::from_secs(second))
        };
        assert_eq!(ask(0), Leases::Awaited("503".into()));
        assert_eq!(ask(119), Leases::Awaited("503".into()));
        assert_eq!(ask(120), Leases::Unknown);
        // The next roll, days later.
        assert_eq!(ask(300_000), Leases::Awaited("503".into()));
        assert_eq!(ask(300_120), Leases::Unknown);
    }

    #[test]
    fn an_answer_ends_a_silence() {
        let mut silent = HashMap::new();
        let mut ask = |counts, second| judge(&mut silent, "p", counts, Duration::from_secs(second));
        ask(Counts::Unavailable("503".into()), 0);
        ask(Counts::Known([].into()), 100);
        let awaited = ask(Counts::Unavailable("503".into()), 130);
        assert_eq!(awaited, Leases::Awaited("503".into()));
    }
}
