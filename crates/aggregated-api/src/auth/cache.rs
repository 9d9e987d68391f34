//! A bounded cache of answers that are asked for over the network, with equal questions in flight
//! merged into one.
//!
//! A hit costs one hash and one comparison and allocates nothing. Entries age in two generations:
//! when the young one is full it becomes the old one, so what is in use survives and the size
//! stays bounded without a list to maintain.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash, RandomState},
    sync::Arc,
    time::Duration,
};

use futures::{
    FutureExt,
    future::{BoxFuture, Shared, WeakShared},
};
use parking_lot::Mutex;
use runtime_kit::Clock;

use super::AuthError;

/// An answer and how long it holds; `None`: not at all.
pub(crate) type Answer<V> = Result<(V, Option<Duration>), AuthError>;

type Flight<V> = Shared<BoxFuture<'static, Result<V, AuthError>>>;

struct Entry<K, V> {
    key: Arc<K>,
    value: V,
    /// On the monotonic clock.
    expires: Duration,
}

struct InFlight<K, V> {
    key: Arc<K>,
    id: u64,
    // Why: weak, so that a call whose askers all went away is dropped and not resumed an hour
    // later with its timeout in the past.
    answer: WeakShared<BoxFuture<'static, Result<V, AuthError>>>,
}

struct State<K, V> {
    young: HashMap<u64, Entry<K, V>>,
    old: HashMap<u64, Entry<K, V>>,
    in_flight: HashMap<u64, InFlight<K, V>>,
    next_id: u64,
}

/// The cache; clones share it.
pub(crate) struct AnswerCache<K, V> {
    hasher: RandomState,
    generation: usize,
    clock: Arc<dyn Clock>,
    state: Arc<Mutex<State<K, V>>>,
}

impl<K, V> AnswerCache<K, V>
where
    K: Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// A cache of at most `capacity` answers.
    pub(crate) fn new(capacity: usize, clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            hasher: RandomState::new(),
            generation: (capacity / 2).max(1),
            state: Arc::new(Mutex::new(State {
                young: HashMap::new(),
                old: HashMap::new(),
                in_flight: HashMap::new(),
                next_id: 0,
            })),
        }
    }

    /// The cached answer to `question`, or the one that `ask` brings. `same` compares a stored key
    /// with the question, `own` makes the key that is stored.
    pub(crate) async fn get_or_ask<Q, F>(
        &self,
        question: &Q,
        same: impl Fn(&K) -> bool + Send,
        own: impl FnOnce() -> K + Send,
        ask: impl FnOnce(Arc<K>) -> F + Send,
    ) -> Result<V, AuthError>
    where
        Q: Hash + Sync,
        F: Future<Output = Answer<V>> + Send + 'static,
    {
        let hash = self.hasher.hash_one(question);
        let flight = {
            let mut state = self.state.lock();
            if let Some(value) = state.lookup(hash, &same, self.clock.elapsed()) {
                return Ok(value);
            }
            match state.join(hash, &same) {
                Some(flight) => flight,
                None => self.depart(&mut state, hash, Arc::new(own()), ask),
            }
        };
        flight.await
    }

    fn depart<F>(
        &self,
        state: &mut State<K, V>,
        hash: u64,
        key: Arc<K>,
        ask: impl FnOnce(Arc<K>) -> F,
    ) -> Flight<V>
    where
        F: Future<Output = Answer<V>> + Send + 'static,
    {
        let id = state.next_id;
        state.next_id += 1;
        let asked = ask(Arc::clone(&key));
        let (cache, clock, generation, stored) = (
            Arc::clone(&self.state),
            Arc::clone(&self.clock),
            self.generation,
            Arc::clone(&key),
        );
        let flight = async move {
            let answer = asked.await;
            let mut state = cache.lock();
            if state
                .in_flight
                .get(&hash)
                .is_some_and(|flight| flight.id == id)
            {
                state.in_flight.remove(&hash);
            }
            let (value, keep) = answer?;
            if let Some(keep) = keep {
                let expires = clock.elapsed() + keep;
                state.store(
                    hash,
                    Entry {
                        key: stored,
                        value: value.clone(),
                        expires,
                    },
                    generation,
                );
            }
            Ok(value)
        }
        .boxed()
        .shared();
        if let Some(answer) = flight.downgrade() {
            state.in_flight.insert(hash, InFlight { key, id, answer });
        }
        flight
    }
}

impl<K, V: Clone> State<K, V> {
    fn lookup(&mut self, hash: u64, same: impl Fn(&K) -> bool, now: Duration) -> Option<V> {
        let entry = self.young.get(&hash).or_else(|| self.old.get(&hash))?;
        if now >= entry.expires {
            self.young.remove(&hash);
            self.old.remove(&hash);
            return None;
        }
        same(&entry.key).then(|| entry.value.clone())
    }

    fn join(&self, hash: u64, same: impl Fn(&K) -> bool) -> Option<Flight<V>> {
        let flight = self.in_flight.get(&hash)?;
        if same(&flight.key) {
            flight.answer.upgrade()
        } else {
            None
        }
    }

    fn store(&mut self, hash: u64, entry: Entry<K, V>, generation: usize) {
        if self.young.len() >= generation && !self.young.contains_key(&hash) {
            self.old = std::mem::take(&mut self.young);
        }
        self.old.remove(&hash);
        self.young.insert(hash, entry);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use runtime_kit::SteppedClock;

    use super::*;

    struct Asked {
        cache: AnswerCache<u32, u32>,
        times: AtomicUsize,
        clock: SteppedClock,
    }

    impl Asked {
        fn new(capacity: usize) -> Self {
            let clock = SteppedClock::default();
            Self {
                cache: AnswerCache::new(capacity, Arc::new(clock.clone())),
                times: AtomicUsize::new(0),
                clock,
            }
        }

        /// Whether the question had to be asked.
        async fn asks(&self, question: u32) -> bool {
            let before = self.times.load(Ordering::Relaxed);
            let answer = self
                .cache
                .get_or_ask(
                    &question,
                    |asked| *asked == question,
                    || question,
                    |_| {
                        self.times.fetch_add(1, Ordering::Relaxed);
                        async move { Ok((question, Some(Duration::from_secs(10)))) }
                    },
                )
                .await;
            assert_eq!(answer.unwrap(), question);
            self.times.load(Ordering::Relaxed) > before
        }

        fn len(&self) -> usize {
            let state = self.cache.state.lock();
            assert!(state.in_flight.is_empty());
            state.young.len() + state.old.len()
        }
    }

    #[tokio::test]
    async fn the_size_is_bounded_and_the_latest_are_known() {
        let asked = Asked::new(8);
        for question in 0..100 {
            assert!(asked.asks(question).await);
            assert!(asked.len() <= 8);
        }
        for question in 96..100 {
            assert!(!asked.asks(question).await, "{question}");
        }
        assert!(asked.asks(0).await);
    }

    #[tokio::test]
    async fn an_answer_expires_and_is_asked_for_again() {
        let asked = Asked::new(8);
        assert!(asked.asks(1).await);
        asked.clock.advance(Duration::from_millis(9_999));
        assert!(!asked.asks(1).await);
        asked.clock.advance(Duration::from_millis(1));
        assert!(asked.asks(1).await);
        assert_eq!(asked.len(), 1);
    }

    #[tokio::test]
    async fn a_call_that_nobody_waits_for_any_more_is_made_anew() {
        let asked = Asked::new(8);
        let silent = asked.cache.get_or_ask(
            &1_u32,
            |asked| *asked == 1,
            || 1,
            |_| std::future::pending(),
        );
        assert!(futures::poll!(Box::pin(silent)).is_pending());
        assert!(asked.asks(1).await);
    }
}
