//! How many calls an account takes: one token bucket for all the providers that share it.
//!
//! A provider holds a clone, asks [`Allowance::take`] before each request that it sends, and passes
//! on what the answers say ([`Allowance::told`]). Whom a request is for, and whether it can wait, is
//! known further up: [`on_behalf_of`] says it for everything within.

use std::cell::Cell;
use std::collections::HashMap;
use std::error::Error as _;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use runtime_kit::{Class, Clock};

use super::Error;
use super::error::MAX_WAIT;

/// One caller gets one in so many calls.
const SHARE: u32 = 10;
/// The last one in so many calls of a burst is kept for what cannot wait.
const RESERVE: u32 = 5;
/// Above so many callers, those that have not called for long are forgotten.
const CALLERS: usize = 1_024;

/// At most so many within any window of that length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    count: u32,
    window: Duration,
    /// How many of them may come at once.
    burst: u32,
}

/// What an account allows; none: there is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Of calls of any kind.
    pub calls: Option<Rate>,
    /// Of creates.
    pub creates: Option<Rate>,
}

/// The calls that an account has left. Clones share them.
#[derive(Clone)]
pub struct Allowance(Arc<Account>);

struct Account {
    name: String,
    limits: Limits,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

/// Times are monotonic.
#[derive(Debug, Default)]
struct State {
    calls: Bucket,
    creates: Bucket,
    callers: HashMap<Arc<str>, Bucket>,
    /// Those who were sent away.
    waiting: Queue,
    /// The same, of those that cannot wait: they are not behind the others.
    urgent: Queue,
    /// The account asked to be left alone until then.
    rest_until: Duration,
}

/// Those who were sent away come back one after the other.
#[derive(Debug, Default)]
struct Queue {
    /// The last turn that was given.
    last: Duration,
    /// By caller. Who comes back earlier keeps its turn, so that it delays nobody.
    turns: HashMap<Arc<str>, Duration>,
}

/// A token bucket, as the time at which it is full again.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    full_at: Duration,
}

/// Why a request was not sent. The source of the error that says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Exhausted {
    /// The account's calls are used up, but for those kept for what cannot wait.
    #[error("its {count} calls within {seconds} s are used up")]
    Calls {
        /// How many it has.
        count: u32,
        /// Within how long.
        seconds: u64,
    },
    /// The caller had its share.
    #[error("this proxy had its tenth of the account's {count} calls within {seconds} s")]
    Share {
        /// How many the account has.
        count: u32,
        /// Within how long.
        seconds: u64,
    },
    /// Enough was created.
    #[error("no more than {count} instances are created within {seconds} s")]
    Creates {
        /// How many may be.
        count: u32,
        /// Within how long.
        seconds: u64,
    },
    /// The account asked to be left alone.
    #[error("it asked to be left alone")]
    Rest,
}

// === Whom a call is for ===

#[derive(Clone, Debug, Default)]
struct Behalf {
    caller: Option<Arc<str>>,
    urgent: bool,
}

tokio::task_local! {
    static BEHALF: Behalf;
    /// Whether the operation that is carried out has sent a request.
    static BEGUN: Cell<bool>;
}

fn behalf() -> Behalf {
    BEHALF.try_with(Clone::clone).unwrap_or_default()
}

/// Runs `work` so that its calls count for `caller`, an object's UID. `urgent` ones go before
/// others: those that create and delete, and not those that only look.
pub async fn on_behalf_of<T>(caller: &str, urgent: bool, work: impl Future<Output = T>) -> T {
    let caller = Some(Arc::from(caller));
    BEHALF.scope(Behalf { caller, urgent }, work).await
}

/// Runs `work` so that its calls go before others.
pub(super) async fn urgently<T>(work: impl Future<Output = T>) -> T {
    let behalf = Behalf {
        urgent: true,
        ..behalf()
    };
    BEHALF.scope(behalf, work).await
}

/// Runs `work` so that its calls count for no caller.
pub(super) async fn for_everybody<T>(work: impl Future<Output = T>) -> T {
    BEHALF.scope(Behalf::default(), work).await
}

/// Runs `work` as one operation: once its first request was allowed, the others are too, and are paid
/// for afterwards. Why: a list of many zones that is refused in the middle has used up what its next
/// attempt needs, and never ends.
pub(super) async fn as_one<T>(work: impl Future<Output = T>) -> T {
    BEGUN.scope(Cell::new(false), work).await
}

/// Whether a request goes on with an operation.
fn goes_on() -> bool {
    BEGUN.try_with(Cell::get).unwrap_or_default()
}

// === impl Rate ===

impl Rate {
    /// At most `count` within any window. A part of them may come at once; they come back evenly.
    /// Why not all: right after they came back, as many again would come within the same window.
    ///
    /// `None` for fewer than [`Self::LEAST`]: one caller's share would be less than one call.
    pub fn new(count: u32, window: Duration, burst: u32) -> Option<Self> {
        let burst = burst.min(count / 4).max(SHARE);
        (count >= Self::LEAST && !window.is_zero()).then_some(Self {
            count,
            window,
            burst,
        })
    }

    /// The lowest count.
    pub const LEAST: u32 = 20;

    /// How many may come at once.
    pub fn burst(self) -> u32 {
        self.burst
    }

    /// The lower of two.
    #[must_use]
    pub fn lower(self, other: Self) -> Self {
        if other.interval() > self.interval() {
            other
        } else {
            self
        }
    }

    /// After how long one comes back.
    fn interval(self) -> Duration {
        self.window / (self.count - self.burst)
    }

    /// After how long an empty bucket is full.
    fn capacity(self) -> Duration {
        self.interval() * self.burst
    }
}

// === impl Limits ===

impl Limits {
    /// The lower of two, each by itself.
    #[must_use]
    pub fn lower(self, other: Self) -> Self {
        let lower = |one: Option<Rate>, other: Option<Rate>| match (one, other) {
            (Some(one), Some(other)) => Some(one.lower(other)),
            (rate, None) | (None, rate) => rate,
        };
        Self {
            calls: lower(self.calls, other.calls),
            creates: lower(self.creates, other.creates),
        }
    }
}

// === impl Bucket ===

impl Bucket {
    /// How long the bucket needs to be full.
    fn debt(self, now: Duration) -> Duration {
        self.full_at.saturating_sub(now)
    }

    /// How long to wait until `cost` fits into `capacity`.
    fn wait(self, now: Duration, cost: Duration, capacity: Duration) -> Duration {
        (self.debt(now) + cost).saturating_sub(capacity)
    }

    fn take(&mut self, now: Duration, cost: Duration) {
        self.full_at = self.full_at.max(now) + cost;
    }

    /// How many times `cost` are left in `capacity`.
    fn left(self, now: Duration, cost: Duration, capacity: Duration) -> u32 {
        let left = capacity.saturating_sub(self.debt(now));
        u32::try_from(left.as_nanos() / cost.as_nanos().max(1)).unwrap_or(u32::MAX)
    }
}

// === impl Queue ===

impl Queue {
    /// When a caller may come back, which is not before `soonest`.
    fn turn(&mut self, caller: Option<Arc<str>>, soonest: Duration, cost: Duration) -> Duration {
        let given = caller.as_ref().and_then(|caller| self.turns.get(caller));
        if let Some(given) = given.filter(|given| **given >= soonest) {
            return *given;
        }
        let turn = soonest.max(self.last + cost);
        self.last = turn;
        if let Some(caller) = caller {
            if self.turns.len() >= CALLERS {
                self.turns.retain(|_, turn| *turn >= soonest);
            }
            self.turns.insert(caller, turn);
        }
        turn
    }
}

// === impl Allowance ===

impl Allowance {
    /// A full one. `name` is for messages: `gcp PROJECT`.
    pub fn new(name: impl Into<String>, limits: Limits, clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Account {
            name: name.into(),
            limits,
            clock,
            state: Mutex::default(),
        }))
    }

    /// One without limits.
    pub fn unlimited(clock: Arc<dyn Clock>) -> Self {
        Self::new("without limits", Limits::default(), clock)
    }

    /// Takes a call, to be asked before each request.
    ///
    /// # Errors
    /// [`Class::RateLimited`] with the time to wait: there are none left, or none for this caller.
    /// Never for a request that goes on with an operation.
    pub fn take(&self) -> Result<(), Error> {
        let Some(rate) = self.0.limits.calls else {
            return Ok(());
        };
        let Behalf { caller, urgent } = behalf();
        let now = self.0.clock.elapsed();
        let mut state = self.0.state.lock();
        if !goes_on() {
            self.admit(&mut state, rate, caller.as_ref(), urgent)?;
        }
        // Outside an operation each request is one.
        BEGUN.try_with(|begun| begun.set(true)).unwrap_or_default();
        let cost = rate.interval();
        state.calls.take(now, cost);
        if let Some(caller) = caller {
            if state.callers.len() >= CALLERS {
                state.callers.retain(|_, own| !own.debt(now).is_zero());
            }
            state
                .callers
                .entry(caller)
                .or_default()
                .take(now, cost * SHARE);
        }
        Ok(())
    }

    /// Whether an operation may begin.
    fn admit(
        &self,
        state: &mut State,
        rate: Rate,
        caller: Option<&Arc<str>>,
        urgent: bool,
    ) -> Result<(), Error> {
        let now = self.0.clock.elapsed();
        let (cost, capacity) = (rate.interval(), rate.capacity());
        if let Some(caller) = caller {
            // A tenth of the rate and of the burst: a call costs ten times as much of as large a
            // bucket.
            let own = state.callers.get(caller).copied().unwrap_or_default();
            let wait = own.wait(now, cost * SHARE, capacity);
            if !wait.is_zero() {
                return Err(self.refuse(wait, Exhausted::share(rate)));
            }
        }
        let usable = if urgent {
            capacity
        } else {
            capacity.saturating_sub(capacity / RESERVE)
        };
        let wait = state.calls.wait(now, cost, usable);
        if !wait.is_zero() {
            // Why a turn each: sent away with the same time to wait, all would come back at once.
            let State {
                waiting,
                urgent: first,
                ..
            } = &mut *state;
            let queue = if urgent { first } else { waiting };
            let turn = queue.turn(caller.cloned(), now + wait, cost);
            return Err(self.refuse(turn.saturating_sub(now), Exhausted::calls(rate)));
        }
        Ok(())
    }

    /// Takes a create, beside the call that it is.
    ///
    /// # Errors
    /// [`Class::RateLimited`] with the time to wait: enough was created lately.
    pub(super) fn take_create(&self) -> Result<(), Error> {
        let Some(rate) = self.0.limits.creates else {
            return Ok(());
        };
        let now = self.0.clock.elapsed();
        let mut state = self.0.state.lock();
        let wait = state.creates.wait(now, rate.interval(), rate.capacity());
        if !wait.is_zero() {
            return Err(self.refuse(wait, Exhausted::creates(rate)));
        }
        state.creates.take(now, rate.interval());
        Ok(())
    }

    /// Passes on how many calls are left by what an answer says: others may use the account too.
    pub fn told(&self, remaining: u32) {
        let Some(rate) = self.0.limits.calls else {
            return;
        };
        let now = self.0.clock.elapsed();
        let left = rate.interval().saturating_mul(remaining);
        let full_at = now + rate.capacity().saturating_sub(left);
        let bucket = &mut self.0.state.lock().calls;
        bucket.full_at = bucket.full_at.max(full_at);
    }

    /// Leaves the account alone for so long, [`MAX_WAIT`] at most. A shorter rest does not end a
    /// longer one.
    pub(super) fn rest(&self, rest: Duration) {
        let until = self.0.clock.elapsed() + rest.min(MAX_WAIT);
        let mut state = self.0.state.lock();
        state.rest_until = state.rest_until.max(until);
    }

    /// How long the account is to be left alone yet.
    pub fn resting(&self) -> Duration {
        let now = self.0.clock.elapsed();
        self.0.state.lock().rest_until.saturating_sub(now)
    }

    /// Whether the account may be called at all.
    ///
    /// # Errors
    /// It asked to be left alone.
    pub(super) fn awake(&self) -> Result<(), Error> {
        let rest = self.resting();
        if rest.is_zero() {
            Ok(())
        } else {
            Err(self.refuse(rest, Exhausted::Rest))
        }
    }

    /// Type and account, as in messages.
    pub(super) fn account(&self) -> &str {
        &self.0.name
    }

    /// How many calls may be made at once now; none: there is no limit.
    pub fn left(&self) -> Option<u32> {
        let rate = self.0.limits.calls?;
        let now = self.0.clock.elapsed();
        let calls = self.0.state.lock().calls;
        Some(calls.left(now, rate.interval(), rate.capacity()))
    }

    fn refuse(&self, wait: Duration, why: Exhausted) -> Error {
        let message = format!("the account {} is not called now", self.0.name);
        Error::new(Class::RateLimited, message)
            .retry_after(Some(wait))
            .caused_by(why)
    }
}

// === impl Exhausted ===

impl Exhausted {
    fn calls(Rate { count, window, .. }: Rate) -> Self {
        let seconds = window.as_secs();
        Self::Calls { count, seconds }
    }

    fn share(Rate { count, window, .. }: Rate) -> Self {
        let seconds = window.as_secs();
        Self::Share { count, seconds }
    }

    fn creates(Rate { count, window, .. }: Rate) -> Self {
        let seconds = window.as_secs();
        Self::Creates { count, seconds }
    }

    /// Whether an error says that a request was not sent, and nothing of the provider.
    pub(super) fn is_cause_of(error: &Error) -> bool {
        let source = error.source();
        source
            .and_then(|source| source.downcast_ref::<Self>())
            .is_some()
    }
}

#[cfg(test)]
#[path = "allowance_tests.rs"]
mod tests;
