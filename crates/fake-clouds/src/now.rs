//! The time of a call.

use std::time::Duration;

use jiff::Timestamp;
use runtime_kit::Clock;

/// The time of a call, on both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    pub(crate) wall: Timestamp,
    pub(crate) elapsed: Duration,
}

impl Now {
    pub(crate) fn of(clock: &dyn Clock) -> Self {
        Self {
            wall: clock.now(),
            elapsed: clock.elapsed(),
        }
    }
}
