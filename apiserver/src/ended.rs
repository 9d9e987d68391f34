//! Leases that are over and stay for a minute, so that their holders can see why.
//!
//! A queue in memory, filled by the tasks and emptied by `tasks::retention`; rebuilt at start.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use runtime_kit::clock::Clock;
use tokio::sync::Notify;

use crate::allocator::leases::LeaseKey;

/// How long they stay.
const KEPT_FOR: Duration = Duration::from_mins(1);
/// How many stay; beyond, the oldest goes.
const KEPT: usize = 10_000;

/// Leases that are over, oldest first.
#[derive(Debug)]
pub struct Ended {
    clock: Arc<dyn Clock>,
    queue: Mutex<Queue>,
    bell: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    order: BTreeSet<(Duration, LeaseKey)>,
    when: HashMap<LeaseKey, Duration>,
}

// === impl Ended ===

impl Ended {
    /// None yet.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            clock,
            queue: Mutex::default(),
            bell: Notify::new(),
        })
    }

    /// A lease is over.
    pub fn push(&self, key: LeaseKey) {
        let until = self.clock.elapsed() + KEPT_FOR;
        let mut queue = self.queue.lock();
        if !queue.when.contains_key(&key) {
            queue.when.insert(key.clone(), until);
            queue.order.insert((until, key));
        }
        drop(queue);
        self.bell.notify_one();
    }

    /// A lease is gone.
    pub fn forget(&self, key: &LeaseKey) {
        let mut queue = self.queue.lock();
        if let Some(until) = queue.when.remove(key) {
            queue.order.remove(&(until, key.clone()));
        }
    }

    /// Waits for leases that have been kept long enough, and takes at most `limit` of them.
    pub async fn next(&self, limit: usize) -> Vec<LeaseKey> {
        loop {
            let rung = self.bell.notified();
            let wait = {
                let mut queue = self.queue.lock();
                let now = self.clock.elapsed();
                let surplus = queue.order.len().saturating_sub(KEPT);
                let due = queue
                    .order
                    .iter()
                    .take_while(|(until, _)| *until <= now)
                    .count();
                let number = due.max(surplus).min(limit);
                let mut taken = Vec::with_capacity(number);
                for _ in 0..number {
                    let Some((_, key)) = queue.order.pop_first() else {
                        break;
                    };
                    queue.when.remove(&key);
                    taken.push(key);
                }
                if !taken.is_empty() {
                    return taken;
                }
                queue
                    .order
                    .first()
                    .map(|(until, _)| until.saturating_sub(now))
            };
            match wait {
                None => rung.await,
                Some(wait) => tokio::select! {
                    () = rung => {},
                    () = self.clock.sleep(wait) => {},
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use runtime_kit::SteppedClock;

    use super::*;

    fn key(name: &str) -> LeaseKey {
        LeaseKey {
            namespace: "ns".into(),
            name: name.into(),
            uid: name.into(),
        }
    }

    #[test]
    fn leases_that_are_over_stay_a_minute_unless_they_are_too_many() {
        let clock = SteppedClock::default();
        let ended = Ended::new(Arc::new(clock.clone()));
        ended.push(key("a"));
        assert_eq!(ended.next(8).now_or_never(), None);
        clock.advance(Duration::from_mins(1));
        assert_eq!(ended.next(8).now_or_never(), Some(vec![key("a")]));

        for number in 0..=KEPT {
            ended.push(key(&format!("{number:05}")));
        }
        assert_eq!(ended.next(8).now_or_never(), Some(vec![key("00000")]));
        assert_eq!(ended.next(8).now_or_never(), None);
    }

    #[test]
    fn a_lease_that_was_deleted_is_not_removed_again() {
        let clock = SteppedClock::default();
        let ended = Ended::new(Arc::new(clock.clone()));
        ended.push(key("a"));
        ended.forget(&key("a"));
        clock.advance(Duration::from_mins(2));
        assert_eq!(ended.next(8).now_or_never(), None);
    }
}
