//! Until when a Proxy's provider is left alone after a failure.
//!
//! Why not the controller's requeue alone: the pass that writes the failure into status wakes the
//! controller by that very write. A changed generation, which a deletion is too, lifts a hold.

use std::collections::HashMap;
use std::time::Duration;

use crawl_api::proxy::Proxy;
use kube::ResourceExt;
use parking_lot::Mutex;

/// Holds by UID, in monotonic time.
#[derive(Debug, Default)]
pub(super) struct Holds(Mutex<HashMap<String, Hold>>);

#[derive(Debug)]
struct Hold {
    generation: Option<i64>,
    until: Duration,
}

impl Holds {
    /// Leaves the provider alone until then, for this generation.
    pub(super) fn hold(&self, proxy: &Proxy, until: Duration) {
        let hold = Hold {
            generation: proxy.metadata.generation,
            until,
        };
        self.0.lock().insert(proxy.uid().unwrap_or_default(), hold);
    }

    /// Forgets a hold.
    pub(super) fn release(&self, uid: &str) {
        self.0.lock().remove(uid);
    }

    /// How long the provider is left alone yet.
    pub(super) fn remaining(&self, proxy: &Proxy, elapsed: Duration) -> Option<Duration> {
        let mut holds = self.0.lock();
        let uid = proxy.uid().unwrap_or_default();
        let Hold { generation, until } = holds.get(&uid)?;
        let left = until.saturating_sub(elapsed);
        if *generation != proxy.metadata.generation || left.is_zero() {
            holds.remove(&uid);
            return None;
        }
        Some(left)
    }
}

#[cfg(test)]
mod tests {
    use crawl_api::proxy::ProxySpec;

    use super::*;

    #[test]
    fn a_hold_ends_with_its_time_or_with_another_generation() {
        let mut proxy = Proxy::new("p", ProxySpec::managed("local"));
        proxy.metadata.uid = Some("u".into());
        proxy.metadata.generation = Some(1);
        let second = Duration::from_secs;
        let holds = Holds::default();
        assert_eq!(holds.remaining(&proxy, second(0)), None);
        holds.hold(&proxy, second(10));
        assert_eq!(holds.remaining(&proxy, second(4)), Some(second(6)));
        assert_eq!(holds.remaining(&proxy, second(10)), None);
        holds.hold(&proxy, second(20));
        proxy.metadata.generation = Some(2);
        assert_eq!(holds.remaining(&proxy, second(11)), None);
    }
}
