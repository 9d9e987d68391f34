//! Whether what clients report can speak for a proxy whose probes fail.
//!
//! A probe asks one target now and then; clients ask many all the time. So reports of success weigh
//! more than failures at a single target, for a while. They say nothing about who answered: failures
//! of that kind, and failures at several targets, leave no doubt. Pure.

use std::time::Duration;

use crawl_api::endpoint::REPORT_STEP;
use jiff::{SignedDuration, Timestamp};
use url::Url;

use super::failure::Failure;
use super::standing::Finding;

/// What the failures since the last success leave open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Doubt {
    failed: Failed,
    /// Since when only reports have kept the proxy healthy.
    kept_since: Option<Duration>,
}

/// Where probes failed since the last success.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Failed {
    /// Nowhere.
    #[default]
    Nowhere,
    /// At this URL only, in ways that reports can contradict.
    At(Url),
    /// At several, or in another way.
    Clearly,
}

// === impl Doubt ===

impl Doubt {
    /// Whether reports can speak for the proxy after this failure as well: at the monotonic time
    /// `elapsed`, if they may for `limit`.
    pub(crate) fn is_left(
        &self,
        url: &Url,
        failure: &Failure,
        limit: Duration,
        elapsed: Duration,
    ) -> bool {
        let single = match self.after(url, failure) {
            Failed::At(_) => true,
            Failed::Nowhere | Failed::Clearly => false,
        };
        let kept = self.kept_since.map(|since| elapsed.saturating_sub(since));
        single && kept.unwrap_or_default() < limit
    }

    /// Takes note of what a probe found.
    pub(crate) fn record(&mut self, url: &Url, finding: &Finding, elapsed: Duration) {
        match finding {
            Finding::Works(_) => *self = Self::default(),
            Finding::Fails(failure) => self.failed = self.after(url, failure),
            Finding::Disputed(failure, _) => {
                self.failed = self.after(url, failure);
                self.kept_since.get_or_insert(elapsed);
            },
            Finding::TargetFails(_) => {},
        }
    }

    fn after(&self, url: &Url, failure: &Failure) -> Failed {
        match &self.failed {
            Failed::Nowhere if failure.is_about_reach() => Failed::At(url.clone()),
            Failed::At(other) if other == url && failure.is_about_reach() => {
                Failed::At(other.clone())
            },
            Failed::Nowhere | Failed::At(_) | Failed::Clearly => Failed::Clearly,
        }
    }
}

/// Whether the last report of success is from within the last interval, as far as it is known.
pub(crate) fn is_recent(reported: Timestamp, interval: Duration, now: Timestamp) -> bool {
    SignedDuration::try_from(interval + REPORT_STEP)
        .is_ok_and(|recent| now.duration_since(reported) <= recent)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_mins(5);

    fn url(host: &str) -> Url {
        Url::parse(&format!("https://{host}/")).unwrap()
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn fail(doubt: &mut Doubt, host: &str, failure: Failure) {
        doubt.record(&url(host), &Finding::Fails(failure), at(0));
    }

    /// Case 5: what one target says can be wrong, what two say is not.
    #[test]
    fn only_failures_at_a_single_target_leave_doubt() {
        let mut doubt = Doubt::default();
        for _ in 0..3 {
            assert!(doubt.is_left(&url("a"), &Failure::TimedOut, LIMIT, at(0)));
            fail(&mut doubt, "a", Failure::TimedOut);
        }
        assert!(!doubt.is_left(&url("b"), &Failure::TimedOut, LIMIT, at(0)));
        fail(&mut doubt, "b", Failure::TimedOut);
        for again in ["a", "b"] {
            assert!(!doubt.is_left(&url(again), &Failure::TimedOut, LIMIT, at(0)));
        }
    }

    /// Reports say that traffic flows, not where it comes out or who answers.
    #[test]
    fn what_reports_say_nothing_about_leaves_no_doubt() {
        let exit = "192.0.2.1".parse().unwrap();
        for failure in [
            Failure::ProxyAuth,
            Failure::TlsIntercepted("x".into()),
            Failure::UnexpectedContent("x".into()),
            Failure::ExitIpIsOwn(exit),
        ] {
            let mut doubt = Doubt::default();
            assert!(!doubt.is_left(&url("a"), &failure, LIMIT, at(0)));
            fail(&mut doubt, "a", failure);
            assert!(!doubt.is_left(&url("a"), &Failure::TimedOut, LIMIT, at(0)));
        }
    }

    #[test]
    fn doubt_ends_with_its_limit() {
        let mut doubt = Doubt::default();
        let left = |doubt: &Doubt, seconds| {
            doubt.is_left(&url("a"), &Failure::ConnectionRefused, LIMIT, at(seconds))
        };
        fail(&mut doubt, "a", Failure::ConnectionRefused);
        assert!(left(&doubt, 1000), "nobody spoke for it yet");
        for second in [1000, 1200] {
            let disputed = Finding::Disputed(Failure::ConnectionRefused, url("a"));
            doubt.record(&url("a"), &disputed, at(second));
        }
        assert!(left(&doubt, 1299));
        assert!(!left(&doubt, 1300));
        assert!(!doubt.is_left(&url("a"), &Failure::TimedOut, Duration::ZERO, at(1000)));
    }

    #[test]
    fn a_report_is_recent_for_an_interval_and_the_step_it_is_shown_in() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let interval = Duration::from_secs(30);
        assert!(is_recent(at(100), interval, at(145)));
        assert!(!is_recent(at(100), interval, at(146)));
        assert!(is_recent(at(100), interval, at(90)), "clocks differ");
    }
}
