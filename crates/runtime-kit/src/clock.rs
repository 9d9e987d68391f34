//! Time as a value that is passed in.
//!
//! Everything that asks for the time takes an `Arc<dyn Clock>`. This module is the only place that
//! reads the machine's clocks. Two readings are kept apart on purpose: [`Clock::now`] is what is
//! written into objects for others to read and may jump; [`Clock::elapsed`] is what deadlines on
//! this machine are measured with and never jumps.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;

/// A source of wall and monotonic time, and of sleeps measured with the latter.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Wall time. It may jump in both directions: never measure a duration with it.
    fn now(&self) -> Timestamp;

    /// Monotonic time since an origin that is fixed for the life of this clock.
    fn elapsed(&self) -> Duration;

    /// Completes once [`Clock::elapsed`] has advanced by `duration`.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }

    fn elapsed(&self) -> Duration {
        (**self).elapsed()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        (**self).sleep(duration)
    }
}

/// The machine's clocks.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// A clock whose monotonic origin is now.
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads the machine's clock"
    )]
    pub fn new() -> Self {
        Self {
            origin: Instant::now(),
        }
    }

    /// The same, ready to be shared.
    pub fn shared() -> Arc<dyn Clock> {
        Arc::new(Self::new())
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads the machine's clock"
    )]
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn elapsed(&self) -> Duration {
        self.origin.elapsed()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// A clock for tests that moves only when told to; clones share their time.
///
/// Wall and monotonic time are stepped apart, so that a test can set the wall clock back while
/// deadlines go on.
#[derive(Debug, Clone)]
pub struct SteppedClock {
    time: Arc<watch::Sender<Reading>>,
}

#[derive(Debug, Clone, Copy)]
struct Reading {
    wall: Timestamp,
    elapsed: Duration,
}

impl SteppedClock {
    /// A clock that shows `wall` and has nothing elapsed.
    pub fn new(wall: Timestamp) -> Self {
        let (time, _) = watch::channel(Reading {
            wall,
            elapsed: Duration::ZERO,
        });
        Self {
            time: Arc::new(time),
        }
    }

    /// Lets time pass: both readings move, and sleepers that are due wake.
    pub fn advance(&self, by: Duration) {
        self.time.send_modify(|reading| {
            reading.elapsed = reading.elapsed.saturating_add(by);
            reading.wall = shifted(reading.wall, SignedDuration::try_from(by));
        });
    }

    /// Moves monotonic time alone, as when the wall clock stands still.
    pub fn advance_monotonic(&self, by: Duration) {
        self.time
            .send_modify(|reading| reading.elapsed = reading.elapsed.saturating_add(by));
    }

    /// Moves the wall clock alone, in either direction, as an administrator or NTP would.
    pub fn step_wall(&self, by: SignedDuration) {
        self.time
            .send_modify(|reading| reading.wall = shifted(reading.wall, Ok::<_, ()>(by)));
    }

    /// How many sleeps are pending; lets a test wait until the code under test sleeps.
    pub fn sleepers(&self) -> usize {
        self.time.receiver_count()
    }
}

impl Default for SteppedClock {
    /// Starts at the Unix epoch plus one day, so that stepping back stays positive.
    fn default() -> Self {
        Self::new(shifted(
            Timestamp::UNIX_EPOCH,
            Ok::<_, ()>(SignedDuration::from_hours(24)),
        ))
    }
}

fn shifted<E>(wall: Timestamp, by: Result<SignedDuration, E>) -> Timestamp {
    by.ok()
        .and_then(|by| wall.checked_add(by).ok())
        .unwrap_or(Timestamp::MAX)
}

impl Clock for SteppedClock {
    fn now(&self) -> Timestamp {
        self.time.borrow().wall
    }

    fn elapsed(&self) -> Duration {
        self.time.borrow().elapsed
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let mut time = self.time.subscribe();
        let until = self.elapsed().saturating_add(duration);
        Box::pin(async move {
            if time
                .wait_for(|reading| reading.elapsed >= until)
                .await
                .is_err()
            {
                // Why: the clock is gone, so this time never comes; returning would be a lie.
                futures::future::pending::<()>().await;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn stepping_the_wall_clock_leaves_monotonic_time_alone() {
        let clock = SteppedClock::default();
        let before = clock.now();
        clock.step_wall(SignedDuration::from_hours(-2));
        assert_eq!(clock.elapsed(), Duration::ZERO);
        assert_eq!(clock.now(), before - SignedDuration::from_hours(2));
    }

    #[test]
    fn monotonic_time_advances_without_the_wall_clock() {
        let clock = SteppedClock::default();
        let before = clock.now();
        clock.advance_monotonic(Duration::from_secs(7));
        assert_eq!(clock.elapsed(), Duration::from_secs(7));
        assert_eq!(clock.now(), before);
    }

    #[test]
    fn a_sleeper_wakes_only_when_monotonic_time_is_due() {
        let clock = SteppedClock::default();
        let mut sleep = clock.sleep(Duration::from_secs(10));
        clock.step_wall(SignedDuration::from_hours(1));
        assert!((&mut sleep).now_or_never().is_none());
        clock.advance(Duration::from_secs(9));
        assert!((&mut sleep).now_or_never().is_none());
        clock.advance(Duration::from_secs(1));
        assert!((&mut sleep).now_or_never().is_some());
    }

    #[test]
    fn clones_and_shared_handles_show_the_same_time() {
        let clock = SteppedClock::default();
        let shared: Arc<dyn Clock> = Arc::new(clock.clone());
        clock.advance(Duration::from_secs(3));
        assert_eq!(shared.elapsed(), Duration::from_secs(3));
        assert_eq!(shared.now(), clock.now());
    }
}
