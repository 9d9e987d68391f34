//! What the probes of one proxy add up to: thresholds, and which changes are worth telling.
//!
//! Pure; the engine ([`super`]) gives it results and times, and reports what it says has changed.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use crawl_api::conditions::{
    REASON_PROBE_NEVER_SUCCEEDED, REASON_PROBE_PENDING, REASON_TRAFFIC_REPORTED,
};
use jiff::{SignedDuration, Timestamp};
use url::Url;

use super::failure::Failure;
use super::geo::Location;
use super::target::{Hold, Verdict};

/// A latency that moved by less than this, or by less than half, is not told.
const LATENCY_STEP: Duration = Duration::from_millis(20);
/// Latency is told at most this often.
const LATENCY_PAUSE: Duration = Duration::from_mins(1);
/// One probe moves the average by one part in this many.
const LATENCY_WEIGHT: u32 = 4;
/// A decision stays at least this long, however small the thresholds are.
const MIN_DWELL: Duration = Duration::from_secs(5);
/// More changes than this within [`FLAP_WINDOW`] are flapping.
const FLAPS: usize = 5;
const FLAP_WINDOW: Duration = Duration::from_mins(10);

/// What is said of a proxy before its first verdict.
pub(crate) const UNDECIDED: &str = "no probe has decided yet";

/// What one probe found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Success {
    /// How long it took.
    pub(crate) latency: Duration,
    /// The address it came out at, when the target told.
    pub(crate) exit_ip: Option<IpAddr>,
    /// Where that is, as far as known.
    pub(crate) location: Location,
    /// The reason of the Healthy condition.
    pub(crate) reason: &'static str,
    /// What was asked, and what a person should know although it succeeded.
    pub(crate) remark: String,
}

/// What one probe says of its proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// It works.
    Works(Success),
    /// It does not.
    Fails(Failure),
    /// Probes of this URL fail, but clients report that traffic goes through.
    Disputed(Failure, Url),
    /// Nothing: the target fails by itself, in this way.
    TargetFails(Failure),
}

/// What a finding has to reach before it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Thresholds {
    pub(crate) failures: u32,
    pub(crate) successes: u32,
    /// How long a proxy may go without a first success until that is said.
    pub(crate) patience: Duration,
}

/// When a probe ended, on both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) wall: Timestamp,
    pub(crate) elapsed: Duration,
}

/// Where a proxy stands.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    verdict: Verdict,
    successes: u32,
    failures: u32,
    /// The reason of the newest failures, and how many in a row had it.
    streak: Option<(&'static str, u32)>,
    /// The message may name what is not probed any more; the next success decides.
    message_is_old: bool,
    average: Option<Duration>,
    latency_told: Option<Duration>,
    /// The cause of the newest decision against the proxy.
    cause: Option<&'static str>,
    /// Since when no probe has succeeded, for one that never did.
    waiting_since: Timestamp,
    decided: Option<Duration>,
    /// When the proxy went from healthy to unhealthy or back, within the window.
    changes: VecDeque<Duration>,
}

impl Standing {
    /// Nothing is known.
    pub(crate) fn unknown(since: Timestamp) -> Self {
        Self::seeded(Verdict {
            healthy: None,
            reason: REASON_PROBE_PENDING.into(),
            message: UNDECIDED.into(),
            since,
            ..Verdict::default()
        })
    }

    /// Another process decided this; counters start at 0.
    pub(crate) fn seeded(verdict: Verdict) -> Self {
        Self {
            average: verdict.latency,
            waiting_since: verdict.since,
            cause: None,
            decided: None,
            changes: VecDeque::new(),
            verdict,
            successes: 0,
            failures: 0,
            streak: None,
            message_is_old: true,
            latency_told: None,
        }
    }

    /// What the probes so far say.
    pub(crate) fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// Forgets the counters, as after a change of what is probed.
    pub(crate) fn restart(&mut self) {
        self.successes = 0;
        self.failures = 0;
        self.streak = None;
        self.message_is_old = true;
    }

    /// Adds a probe. Returns whether the verdict changed.
    pub(crate) fn record(&mut self, finding: &Finding, thresholds: Thresholds, at: Moment) -> bool {
        let was_flapping = self.verdict.flapping;
        let changed = match finding {
            Finding::Works(success) => self.succeeded(success, thresholds.successes, at),
            Finding::Fails(failure) => self.failed(failure, thresholds, at),
            Finding::Disputed(failure, url) => self.disputed(failure, url),
            Finding::TargetFails(failure) => {
                let message = format!("{UNDECIDED}: the probe's target itself fails: {failure}");
                self.tell_undecided(message)
            },
        };
        let within = |change: &Duration| at.elapsed.saturating_sub(*change) < FLAP_WINDOW;
        self.changes.retain(within);
        self.verdict.flapping = self.changes.len() > FLAPS;
        let changed = changed || self.verdict.flapping != was_flapping;
        if changed {
            self.verdict.last_probe = Some(at.wall);
        }
        changed
    }

    /// Says why the failure is hardly the proxy's own, or that it is. Only an unhealthy proxy has
    /// a hold. Returns whether the verdict changed.
    pub(crate) fn hold(&mut self, hold: Option<Hold>) -> bool {
        let hold = hold.filter(|_| self.verdict.healthy == Some(false));
        let changed = self.verdict.hold != hold;
        self.verdict.hold = hold;
        changed
    }

    /// Whether another failure now makes a healthy proxy unhealthy.
    pub(crate) fn is_at_the_brink(&self, thresholds: Thresholds, at: Moment) -> bool {
        self.verdict.healthy == Some(true)
            && self.failures.saturating_add(1) >= thresholds.failures
            && self.may_decide(at)
    }

    /// Whether a decision has stood long enough to be overturned.
    fn may_decide(&self, at: Moment) -> bool {
        self.decided
            .is_none_or(|decided| at.elapsed.saturating_sub(decided) >= MIN_DWELL)
    }

    fn decide(&mut self, healthy: bool, at: Moment) {
        if self.verdict.healthy.is_some() {
            self.changes.push_back(at.elapsed);
        }
        self.decided = Some(at.elapsed);
        self.verdict.healthy = Some(healthy);
        self.verdict.since = at.wall;
    }

    fn succeeded(&mut self, success: &Success, threshold: u32, at: Moment) -> bool {
        self.failures = 0;
        self.streak = None;
        self.successes = self.successes.saturating_add(1);
        let Success {
            latency,
            exit_ip,
            location,
            reason,
            remark,
        } = success;
        let exit_ip = exit_ip.map(|ip| ip.to_string());
        let message_is_old = std::mem::take(&mut self.message_is_old);
        if self.verdict.healthy != Some(true) {
            if self.successes < threshold || !self.may_decide(at) {
                return false;
            }
            self.decide(true, at);
            self.average = Some(*latency);
            self.latency_told = Some(at.elapsed);
            if exit_ip.is_some() {
                self.verdict.exit_ip = exit_ip;
                self.verdict.location.clone_from(location);
            }
            self.verdict.reason = (*reason).into();
            self.verdict.message.clone_from(remark);
            self.verdict.latency = Some(*latency);
            self.verdict.hold = None;
            return true;
        }
        let average = self.average.map_or(*latency, |average| {
            (average * (LATENCY_WEIGHT - 1) + *latency) / LATENCY_WEIGHT
        });
        self.average = Some(average);
        let mut changed =
            message_is_old && (self.verdict.message != *remark || self.verdict.reason != *reason);
        // Several targets take turns: only one that tells an address says anything about it.
        if exit_ip.is_some()
            && (exit_ip != self.verdict.exit_ip || *location != self.verdict.location)
        {
            self.verdict.exit_ip = exit_ip;
            self.verdict.location.clone_from(location);
            changed = true;
        }
        if changed {
            self.verdict.reason = (*reason).into();
            self.verdict.message.clone_from(remark);
        }
        if self.is_latency_worth_telling(average, at.elapsed) {
            self.verdict.latency = Some(average);
            self.latency_told = Some(at.elapsed);
            changed = true;
        }
        changed
    }

    fn is_latency_worth_telling(&mut self, average: Duration, elapsed: Duration) -> bool {
        let Some(told) = self.verdict.latency else {
            return true;
        };
        // Why: when a seed was told is not known; a new leader must not write the whole fleet at once.
        let told_at = *self.latency_told.get_or_insert(elapsed);
        let paused = elapsed.saturating_sub(told_at) >= LATENCY_PAUSE;
        paused && average.abs_diff(told) > LATENCY_STEP.max(told / 2)
    }

    /// Counts a failure; returns how many in a row had its reason.
    fn count(&mut self, failure: &Failure) -> u32 {
        self.successes = 0;
        self.failures = self.failures.saturating_add(1);
        let reason = failure.reason();
        let in_a_row = match self.streak {
            Some((of, count)) if of == reason => count.saturating_add(1),
            Some(_) | None => 1,
        };
        self.streak = Some((reason, in_a_row));
        in_a_row
    }

    /// The proxy stays healthy. That is said once, however often probes fail meanwhile.
    fn disputed(&mut self, failure: &Failure, url: &Url) -> bool {
        self.count(failure);
        self.message_is_old = true;
        if self.verdict.reason == REASON_TRAFFIC_REPORTED {
            return false;
        }
        self.verdict.reason = REASON_TRAFFIC_REPORTED.into();
        self.verdict.message = format!(
            "holders of leases report that traffic goes through, so it counts as healthy, although \
             probes of {url} fail: {failure}"
        );
        true
    }

    fn failed(&mut self, failure: &Failure, thresholds: Thresholds, at: Moment) -> bool {
        let threshold = thresholds.failures;
        let in_a_row = self.count(failure);
        let reason = failure.reason();
        let (told_reason, message) = if self.has_run_out_of(thresholds.patience, failure, at) {
            let text = format!(
                "no probe has succeeded in {} seconds; the last one failed with {reason}: {failure}",
                thresholds.patience.as_secs()
            );
            (REASON_PROBE_NEVER_SUCCEEDED, text)
        } else {
            (reason, failure.to_string())
        };
        if self.verdict.healthy == Some(false) {
            let told = self.verdict.reason == told_reason
                && self.cause.is_none_or(|cause| cause == reason);
            // A cause that comes and goes is not worth a write each time.
            if told || in_a_row < threshold {
                return false;
            }
        } else if self.failures < threshold || !self.may_decide(at) {
            let message = format!("{UNDECIDED}; the last one failed: {failure}");
            return in_a_row == 1 && self.tell_undecided(message);
        } else {
            self.decide(false, at);
        }
        self.cause = Some(reason);
        self.verdict.reason = told_reason.into();
        self.verdict.message = message;
        true
    }

    /// Whether the proxy has never worked, for too long. A measured latency is the trace of a
    /// success, also in a verdict that was taken over.
    fn has_run_out_of(&self, patience: Duration, failure: &Failure, at: Moment) -> bool {
        let waited = at.wall.duration_since(self.waiting_since);
        self.verdict.latency.is_none()
            && !failure.is_configured()
            && SignedDuration::try_from(patience).is_ok_and(|patience| waited >= patience)
    }

    /// Changes the message of an undecided proxy; false when nothing is new.
    fn tell_undecided(&mut self, message: String) -> bool {
        if self.verdict.healthy.is_some() {
            return false;
        }
        let new = self.verdict.message != message;
        self.verdict.message = message;
        new
    }
}

#[cfg(test)]
#[path = "standing_tests.rs"]
mod tests;
