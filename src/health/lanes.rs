//! How many probes run at once, so that the sockets are bounded.
//!
//! Proxies that are not healthy get at most half of the places: however many of them hang until
//! their time is up, a healthy one finds a place.

use tokio::sync::{Semaphore, SemaphorePermit};

/// The places for probes.
pub(super) struct Lanes {
    all: Semaphore,
    /// A place here comes first for what is not healthy.
    unproven: Semaphore,
}

/// A place; given back on drop.
pub(super) struct Place<'a> {
    _all: Option<SemaphorePermit<'a>>,
    _unproven: Option<SemaphorePermit<'a>>,
}

impl Lanes {
    /// So many places, at least two.
    pub(super) fn new(places: u16) -> Self {
        let places = usize::from(places.max(2));
        Self {
            all: Semaphore::new(places),
            unproven: Semaphore::new(places / 2),
        }
    }

    /// Waits for a place.
    pub(super) async fn enter(&self, healthy: bool) -> Place<'_> {
        // Neither is ever closed, which is the only way not to get a permit.
        let unproven = if healthy {
            None
        } else {
            self.unproven.acquire().await.ok()
        };
        Place {
            _all: self.all.acquire().await.ok(),
            _unproven: unproven,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_healthy_proxy_finds_a_place_however_many_others_hang() {
        let lanes = Lanes::new(4);
        let hanging: Vec<_> = (0..2)
            .map(|_| lanes.enter(false).now_or_never().unwrap())
            .collect();
        assert!(lanes.enter(false).now_or_never().is_none(), "half at most");
        let healthy: Vec<_> = (0..2)
            .map(|_| lanes.enter(true).now_or_never().unwrap())
            .collect();
        assert!(lanes.enter(true).now_or_never().is_none(), "four in all");
        drop(hanging);
        assert!(lanes.enter(false).now_or_never().is_some());
        drop(healthy);
    }
}
