//! Per-object exponential backoff with jitter.
//!
//! Controllers and connection loops ask it how long to wait after a failure of one object, and tell
//! it of a success. It remembers only objects that failed, and never more than its capacity: the
//! object not heard of for longest is forgotten first, which merely makes its next wait short.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::Duration;

use parking_lot::Mutex;

/// How waits grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackoffPolicy {
    /// The upper bound of the first wait; each further one doubles it.
    pub base: Duration,
    /// No wait is longer.
    pub max: Duration,
}

impl BackoffPolicy {
    /// The wait after `failures` failures in a row (the first is 1): half fixed, half random, so
    /// that objects that failed together do not come back together.
    pub fn delay(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        let ceiling = self.base.saturating_mul(1 << doublings).min(self.max);
        ceiling.mul_f64(0.5 + 0.5 * rand::random::<f64>())
    }
}

impl Default for BackoffPolicy {
    /// One second, doubling up to five minutes.
    fn default() -> Self {
        Self {
            base: Duration::from_secs(1),
            max: Duration::from_mins(5),
        }
    }
}

/// Failures in a row, by object.
#[derive(Debug)]
pub struct Backoff<K> {
    policy: BackoffPolicy,
    capacity: usize,
    state: Mutex<State<K>>,
}

#[derive(Debug)]
struct State<K> {
    failures: HashMap<K, Failures>,
    by_age: BTreeMap<u64, K>,
    next_age: u64,
}

#[derive(Debug, Clone, Copy)]
struct Failures {
    count: u32,
    age: u64,
}

impl<K: Eq + Hash + Clone> Backoff<K> {
    /// Remembers at most `capacity` objects (at least one).
    pub fn new(policy: BackoffPolicy, capacity: usize) -> Self {
        let state = State {
            failures: HashMap::new(),
            by_age: BTreeMap::new(),
            next_age: 0,
        };
        Self {
            policy,
            capacity: capacity.max(1),
            state: Mutex::new(state),
        }
    }

    /// Counts one more failure of `key` and says how long to wait.
    pub fn next(&self, key: &K) -> Duration {
        self.policy
            .delay(self.state.lock().count(key, self.capacity))
    }

    /// Failures of `key` in a row.
    pub fn failures(&self, key: &K) -> u32 {
        self.state
            .lock()
            .failures
            .get(key)
            .map_or(0, |failures| failures.count)
    }

    /// `key` succeeded, or is gone.
    pub fn reset(&self, key: &K) {
        let mut state = self.state.lock();
        if let Some(failures) = state.failures.remove(key) {
            state.by_age.remove(&failures.age);
        }
    }

    /// How many objects are remembered.
    pub fn len(&self) -> usize {
        self.state.lock().failures.len()
    }

    /// Whether no object is failing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<K: Eq + Hash + Clone> State<K> {
    fn count(&mut self, key: &K, capacity: usize) -> u32 {
        let age = self.next_age;
        self.next_age += 1;
        let count = if let Some(previous) = self.failures.get(key) {
            self.by_age.remove(&previous.age);
            previous.count.saturating_add(1)
        } else {
            if self.failures.len() >= capacity
                && let Some((_, oldest)) = self.by_age.pop_first()
            {
                self.failures.remove(&oldest);
            }
            1
        };
        self.failures.insert(key.clone(), Failures { count, age });
        self.by_age.insert(age, key.clone());
        count
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const POLICY: BackoffPolicy = BackoffPolicy {
        base: Duration::from_secs(1),
        max: Duration::from_mins(1),
    };

    proptest! {
        #[test]
        fn a_wait_lies_between_half_and_all_of_its_ceiling(failures in 1_u32..100) {
            let ceiling = Duration::from_secs(1 << (failures - 1).min(10)).min(POLICY.max);
            let delay = POLICY.delay(failures);
            prop_assert!(delay >= ceiling / 2 && delay <= ceiling, "{delay:?} of {ceiling:?}");
        }

        #[test]
        fn memory_never_exceeds_the_capacity(keys in proptest::collection::vec(0_u8..50, 0..200)) {
            let backoff = Backoff::new(POLICY, 8);
            for key in keys {
                backoff.next(&key);
                prop_assert!(backoff.len() <= 8);
                let state = backoff.state.lock();
                prop_assert_eq!(state.failures.len(), state.by_age.len());
            }
        }
    }

    #[test]
    fn one_object_failing_does_not_slow_another_and_success_resets() {
        let backoff = Backoff::new(POLICY, 8);
        for _ in 0..5 {
            backoff.next(&"a");
        }
        assert_eq!(backoff.failures(&"a"), 5);
        assert!(backoff.next(&"b") <= Duration::from_secs(1));
        backoff.reset(&"a");
        assert_eq!(backoff.failures(&"a"), 0);
        assert!(backoff.next(&"a") <= Duration::from_secs(1));
    }

    #[test]
    fn the_object_not_heard_of_for_longest_is_forgotten_first() {
        let backoff = Backoff::new(POLICY, 2);
        backoff.next(&1);
        backoff.next(&2);
        backoff.next(&1);
        backoff.next(&3);
        assert_eq!([1, 2, 3].map(|key| backoff.failures(&key)), [2, 0, 1]);
    }
}
