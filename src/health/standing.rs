//! What the probes of one proxy add up to: thresholds, and which changes are worth telling.
//!
//! Pure; the engine ([`super`]) gives it results and times, and reports what it says has changed.

use std::net::IpAddr;
use std::time::Duration;

use crawl_api::conditions::{REASON_PROBE_PENDING, REASON_PROBE_SUCCEEDED};
use jiff::Timestamp;

use super::failure::Failure;
use super::target::Verdict;

/// A latency that moved by less than this, or by less than half, is not told.
const LATENCY_STEP: Duration = Duration::from_millis(20);
/// Latency is told at most this often.
const LATENCY_PAUSE: Duration = Duration::from_mins(1);
/// One probe moves the average by one part in this many.
const LATENCY_WEIGHT: u32 = 4;

/// What is said of a proxy before its first verdict.
pub(crate) const UNDECIDED: &str = "no probe has decided yet";

/// What one probe found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Success {
    /// How long it took.
    pub(crate) latency: Duration,
    /// The address it came out at, when the target told.
    pub(crate) exit_ip: Option<IpAddr>,
    /// What was asked, and what a person should know although it succeeded.
    pub(crate) remark: String,
}

/// The thresholds of a health check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Thresholds {
    pub(crate) failures: u32,
    pub(crate) successes: u32,
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
}

impl Standing {
    /// Nothing is known.
    pub(crate) fn unknown(since: Timestamp) -> Self {
        Self::seeded(Verdict {
            healthy: None,
            reason: REASON_PROBE_PENDING.into(),
            message: UNDECIDED.into(),
            exit_ip: None,
            latency: None,
            since,
            last_probe: None,
        })
    }

    /// Another process decided this; counters start at 0.
    pub(crate) fn seeded(verdict: Verdict) -> Self {
        Self {
            average: verdict.latency,
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
    pub(crate) fn record(
        &mut self,
        result: &Result<Success, Failure>,
        thresholds: Thresholds,
        at: Moment,
    ) -> bool {
        let changed = match result {
            Ok(success) => self.succeeded(success, thresholds.successes, at),
            Err(failure) => self.failed(failure, thresholds.failures, at),
        };
        if changed {
            self.verdict.last_probe = Some(at.wall);
        }
        changed
    }

    fn succeeded(&mut self, success: &Success, threshold: u32, at: Moment) -> bool {
        self.failures = 0;
        self.streak = None;
        self.successes = self.successes.saturating_add(1);
        let Success {
            latency,
            exit_ip,
            remark,
        } = success;
        let exit_ip = exit_ip.map(|ip| ip.to_string());
        let message_is_old = std::mem::take(&mut self.message_is_old);
        if self.verdict.healthy != Some(true) {
            if self.successes < threshold {
                return false;
            }
            self.average = Some(*latency);
            self.latency_told = Some(at.elapsed);
            let exit_ip = exit_ip.or_else(|| self.verdict.exit_ip.take());
            self.verdict = Verdict {
                healthy: Some(true),
                reason: REASON_PROBE_SUCCEEDED.into(),
                message: remark.clone(),
                exit_ip,
                latency: Some(*latency),
                since: at.wall,
                last_probe: Some(at.wall),
            };
            return true;
        }
        let average = self.average.map_or(*latency, |average| {
            (average * (LATENCY_WEIGHT - 1) + *latency) / LATENCY_WEIGHT
        });
        self.average = Some(average);
        let mut changed = message_is_old && self.verdict.message != *remark;
        if changed {
            self.verdict.message.clone_from(remark);
        }
        // Several targets take turns: only one that tells an address says anything about it.
        if exit_ip.is_some() && exit_ip != self.verdict.exit_ip {
            self.verdict.exit_ip = exit_ip;
            self.verdict.message.clone_from(remark);
            changed = true;
        }
        if self.is_latency_worth_telling(average, at.elapsed) {
            self.verdict.latency = Some(average);
            self.latency_told = Some(at.elapsed);
            changed = true;
        }
        changed
    }

    fn is_latency_worth_telling(&self, average: Duration, elapsed: Duration) -> bool {
        let Some(told) = self.verdict.latency else {
            return true;
        };
        let paused = self
            .latency_told
            .is_none_or(|at| elapsed.saturating_sub(at) >= LATENCY_PAUSE);
        paused && average.abs_diff(told) > LATENCY_STEP.max(told / 2)
    }

    fn failed(&mut self, failure: &Failure, threshold: u32, at: Moment) -> bool {
        self.successes = 0;
        self.failures = self.failures.saturating_add(1);
        let reason = failure.reason();
        let in_a_row = match self.streak {
            Some((of, count)) if of == reason => count.saturating_add(1),
            Some(_) | None => 1,
        };
        self.streak = Some((reason, in_a_row));
        if self.verdict.healthy == Some(false) {
            // A cause that comes and goes is not worth a write each time.
            if self.verdict.reason == reason || in_a_row < threshold {
                return false;
            }
        } else if self.failures < threshold {
            return in_a_row == 1 && self.tell_undecided(failure);
        } else {
            self.verdict.healthy = Some(false);
            self.verdict.since = at.wall;
        }
        self.verdict.reason = reason.into();
        self.verdict.message = failure.to_string();
        true
    }

    /// Lets the message of an undecided proxy name the failure; false when nothing is new.
    fn tell_undecided(&mut self, failure: &Failure) -> bool {
        if self.verdict.healthy.is_some() {
            return false;
        }
        let message = format!("{UNDECIDED}; the last one failed: {failure}");
        let new = self.verdict.message != message;
        self.verdict.message = message;
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREE_ONE: Thresholds = Thresholds {
        failures: 3,
        successes: 1,
    };
    const TWO_TWO: Thresholds = Thresholds {
        failures: 2,
        successes: 2,
    };

    fn at(seconds: i64) -> Moment {
        Moment {
            wall: Timestamp::from_second(seconds).unwrap(),
            elapsed: Duration::from_secs(u64::try_from(seconds).unwrap()),
        }
    }

    fn ok(milliseconds: u64) -> Success {
        Success {
            latency: Duration::from_millis(milliseconds),
            exit_ip: None,
            remark: String::new(),
        }
    }

    fn exit(ip: &str) -> Success {
        Success {
            exit_ip: Some(ip.parse().unwrap()),
            ..ok(10)
        }
    }

    /// Plays one result a second. `+` a success, `r` refused, `a` 407; returns what is told: `H`
    /// for healthy, `R` and `A` for unhealthy by reason, `?` for undecided, `.` for nothing.
    fn play(standing: &mut Standing, thresholds: Thresholds, results: &str) -> String {
        let mut told = String::new();
        for (second, result) in (0..).zip(results.chars()) {
            let result = match result {
                '+' => Ok(ok(10)),
                'r' => Err(Failure::ConnectionRefused),
                'a' => Err(Failure::ProxyAuth),
                other => panic!("{other}"),
            };
            let changed = standing.record(&result, thresholds, at(second));
            let verdict = standing.verdict();
            told.push(match (changed, verdict.healthy, verdict.reason.as_str()) {
                (false, ..) => '.',
                (true, None, "ProbePending") => '?',
                (true, Some(true), _) => 'H',
                (true, Some(false), "ConnectionRefused") => 'R',
                (true, Some(false), "ProxyAuthFailed") => 'A',
                other => panic!("{other:?}"),
            });
        }
        told
    }

    #[test]
    fn thresholds_decide_when_a_verdict_changes() {
        let unknown = || Standing::unknown(Timestamp::UNIX_EPOCH);
        for (thresholds, results, told) in [
            // One success is enough by default; further ones are not told.
            (THREE_ONE, "++++", "H..."),
            // Three failures in a row, not two.
            (THREE_ONE, "+rr+rr+rrr", "H........R"),
            // An unknown proxy needs as many; meanwhile the first failure of a cause is told.
            (THREE_ONE, "ra+", "??H"),
            (THREE_ONE, "rrr", "?.R"),
            (THREE_ONE, "rr+", "?.H"),
            // Up again at once.
            (THREE_ONE, "rrr+", "?.RH"),
            // Flapping never reaches the threshold.
            (THREE_ONE, "+r+r+r+r+", "H........"),
            (TWO_TWO, "+r+r+r+r", ".?......"),
            (TWO_TWO, "++r+rr+r++", ".H...R...H"),
            // While it is down, another cause counts when it stays.
            (THREE_ONE, "rrraara", "?.R...."),
            (THREE_ONE, "rrraaa", "?.R..A"),
            (THREE_ONE, "rrraaaarrr", "?.R..A...R"),
            // Mixed causes are failures in a row all the same; the last one is named.
            (THREE_ONE, "rra", "?.A"),
        ] {
            assert_eq!(play(&mut unknown(), thresholds, results), told, "{results}");
        }
    }

    #[test]
    fn a_seed_stays_until_the_thresholds_are_met_anew() {
        let mut healthy = Standing::unknown(Timestamp::UNIX_EPOCH);
        play(&mut healthy, THREE_ONE, "+");
        let mut seeded = Standing::seeded(healthy.verdict().clone());
        assert_eq!(play(&mut seeded, THREE_ONE, "rr+rrr"), ".....R");
    }

    #[test]
    fn restarting_counts_from_zero_and_keeps_the_verdict() {
        let mut standing = Standing::unknown(Timestamp::UNIX_EPOCH);
        assert_eq!(play(&mut standing, THREE_ONE, "+rr"), "H..");
        standing.restart();
        assert_eq!(standing.verdict().healthy, Some(true));
        assert_eq!(play(&mut standing, THREE_ONE, "rrr"), "..R");
    }

    #[test]
    fn an_undecided_proxy_says_how_its_last_probe_failed() {
        let mut standing = Standing::unknown(Timestamp::UNIX_EPOCH);
        assert_eq!(play(&mut standing, THREE_ONE, "r"), "?");
        assert_eq!(
            standing.verdict().message,
            "no probe has decided yet; the last one failed: nothing listens on the proxy's port"
        );
        assert_eq!(standing.verdict().healthy, None);
    }

    #[test]
    fn after_a_change_of_what_is_probed_the_message_follows_once() {
        let of = |url: &str| {
            Ok(Success {
                remark: url.into(),
                ..ok(10)
            })
        };
        let mut standing = Standing::unknown(Timestamp::UNIX_EPOCH);
        assert!(standing.record(&of("a"), THREE_ONE, at(0)));
        assert!(!standing.record(&of("b"), THREE_ONE, at(1)), "its turn");
        standing.restart();
        assert!(standing.record(&of("b"), THREE_ONE, at(2)));
        assert_eq!(standing.verdict().message, "b");
        assert!(!standing.record(&of("a"), THREE_ONE, at(3)));
    }

    #[test]
    fn the_time_of_a_change_is_that_of_the_deciding_probe() {
        let mut standing = Standing::unknown(Timestamp::UNIX_EPOCH);
        play(&mut standing, THREE_ONE, "++rrrr");
        let verdict = standing.verdict();
        assert_eq!(verdict.since, at(4).wall);
        assert_eq!(verdict.last_probe, Some(at(4).wall));
    }

    #[test]
    fn an_exit_address_that_moves_is_told_at_once_and_one_that_is_not_seen_is_kept() {
        let mut standing = Standing::unknown(Timestamp::UNIX_EPOCH);
        assert!(standing.record(&Ok(exit("192.0.2.1")), THREE_ONE, at(0)));
        assert!(!standing.record(&Ok(exit("192.0.2.1")), THREE_ONE, at(1)));
        assert!(!standing.record(&Ok(ok(10)), THREE_ONE, at(2)));
        assert_eq!(standing.verdict().exit_ip.as_deref(), Some("192.0.2.1"));
        assert!(standing.record(&Ok(exit("192.0.2.2")), THREE_ONE, at(3)));
        assert_eq!(standing.verdict().exit_ip.as_deref(), Some("192.0.2.2"));
        assert_eq!(standing.verdict().since, at(0).wall);
        play(&mut standing, THREE_ONE, "rrr+");
        assert_eq!(standing.verdict().exit_ip.as_deref(), Some("192.0.2.2"));
    }

    #[test]
    fn latency_is_told_when_it_moved_far_and_a_minute_passed() {
        for (first, then, told) in [
            // 20 ms is the least step, half the least share.
            (10, 29, false),
            (10, 31, true),
            (100, 149, false),
            (100, 151, true),
            (100, 49, true),
            (100, 51, false),
            (400, 590, false),
        ] {
            let mut standing = Standing::unknown(Timestamp::UNIX_EPOCH);
            assert!(standing.record(&Ok(ok(first)), THREE_ONE, at(0)));
            let mut changes = 0;
            // Long enough for the average to arrive at the new value.
            for second in 1..40 {
                changes += u32::from(standing.record(&Ok(ok(then)), THREE_ONE, at(second)));
            }
            assert_eq!(changes, 0, "not within a minute: {first} to {then}");
            assert_eq!(
                standing.record(&Ok(ok(then)), THREE_ONE, at(61)),
                told,
                "{first} to {then}"
            );
            assert!(!standing.record(&Ok(ok(then)), THREE_ONE, at(62)));
        }
    }

    #[test]
    fn one_slow_probe_is_not_told() {
        let mut standing = Standing::unknown(Timestamp::UNIX_EPOCH);
        standing.record(&Ok(ok(100)), THREE_ONE, at(0));
        assert!(!standing.record(&Ok(ok(250)), THREE_ONE, at(100)));
        assert!(!standing.record(&Ok(ok(100)), THREE_ONE, at(130)));
        assert_eq!(standing.verdict().latency, Some(Duration::from_millis(100)));
    }
}
