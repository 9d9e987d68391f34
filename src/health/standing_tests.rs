//! Thresholds, dwell, flapping, and what is told.

use super::*;
use crawl_api::conditions::REASON_PROBE_SUCCEEDED;

const THREE_ONE: Thresholds = Thresholds {
    failures: 3,
    successes: 1,
    patience: Duration::from_mins(10),
};
const TWO_TWO: Thresholds = Thresholds {
    failures: 2,
    successes: 2,
    patience: Duration::from_mins(10),
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
        location: Location::default(),
        reason: REASON_PROBE_SUCCEEDED,
        remark: String::new(),
    }
}

fn exit(ip: &str) -> Success {
    Success {
        exit_ip: Some(ip.parse().unwrap()),
        ..ok(10)
    }
}

/// Plays one result every ten seconds. `+` a success, `r` refused, `a` 407; returns what is told: `H`
/// for healthy, `R` and `A` for unhealthy by reason, `?` for undecided, `.` for nothing.
fn play(standing: &mut Standing, thresholds: Thresholds, results: &str) -> String {
    let mut told = String::new();
    for (second, result) in (0..).zip(results.chars()) {
        let result = match result {
            '+' => Finding::Works(ok(10)),
            'r' => Finding::Fails(Failure::ConnectionRefused),
            'a' => Finding::Fails(Failure::ProxyAuth),
            't' => Finding::TargetFails(Failure::UnexpectedStatus(503)),
            other => panic!("{other}"),
        };
        let changed = standing.record(&result, thresholds, at(10 * second));
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
        Finding::Works(Success {
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
    assert_eq!(verdict.since, at(40).wall);
    assert_eq!(verdict.last_probe, Some(at(40).wall));
}

#[test]
fn an_exit_address_that_moves_is_told_at_once_and_one_that_is_not_seen_is_kept() {
    let mut standing = Standing::unknown(Timestamp::UNIX_EPOCH);
    assert!(standing.record(&Finding::Works(exit("192.0.2.1")), THREE_ONE, at(0)));
    assert!(!standing.record(&Finding::Works(exit("192.0.2.1")), THREE_ONE, at(1)));
    assert!(!standing.record(&Finding::Works(ok(10)), THREE_ONE, at(2)));
    assert_eq!(standing.verdict().exit_ip.as_deref(), Some("192.0.2.1"));
    assert!(standing.record(&Finding::Works(exit("192.0.2.2")), THREE_ONE, at(3)));
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
        assert!(standing.record(&Finding::Works(ok(first)), THREE_ONE, at(0)));
        let mut changes = 0;
        // Long enough for the average to arrive at the new value.
        for second in 1..40 {
            changes += u32::from(standing.record(&Finding::Works(ok(then)), THREE_ONE, at(second)));
        }
        assert_eq!(changes, 0, "not within a minute: {first} to {then}");
        assert_eq!(
            standing.record(&Finding::Works(ok(then)), THREE_ONE, at(61)),
            told,
            "{first} to {then}"
        );
        assert!(!standing.record(&Finding::Works(ok(then)), THREE_ONE, at(62)));
    }
}

#[test]
fn a_new_leader_waits_a_minute_before_it_tells_another_latency() {
    let mut before = Standing::unknown(Timestamp::UNIX_EPOCH);
    before.record(&Finding::Works(ok(100)), THREE_ONE, at(0));
    let mut standing = Standing::seeded(before.verdict().clone());
    for second in 0..60 {
        assert!(!standing.record(&Finding::Works(ok(400)), THREE_ONE, at(second)));
    }
    assert!(standing.record(&Finding::Works(ok(400)), THREE_ONE, at(61)));
}

#[test]
fn one_slow_probe_is_not_told() {
    let mut standing = Standing::unknown(Timestamp::UNIX_EPOCH);
    standing.record(&Finding::Works(ok(100)), THREE_ONE, at(0));
    assert!(!standing.record(&Finding::Works(ok(250)), THREE_ONE, at(100)));
    assert!(!standing.record(&Finding::Works(ok(100)), THREE_ONE, at(130)));
    assert_eq!(standing.verdict().latency, Some(Duration::from_millis(100)));
}

/// Case 1: a failed probe is no reason to change anything.
#[test]
fn one_failed_probe_of_three_changes_nothing() {
    let mut standing = Standing::unknown(Timestamp::UNIX_EPOCH);
    assert_eq!(play(&mut standing, THREE_ONE, "+r+rr+"), "H.....");
    assert_eq!(standing.verdict().healthy, Some(true));
}

/// Case 1: nor do the smallest thresholds at the shortest interval.
#[test]
fn a_decision_stands_for_a_while_however_small_the_thresholds_are() {
    let eager = Thresholds {
        failures: 1,
        ..THREE_ONE
    };
    let fails = Finding::Fails(Failure::ConnectionRefused);
    let mut standing = Standing::unknown(Timestamp::UNIX_EPOCH);
    assert!(standing.record(&Finding::Works(ok(10)), eager, at(0)));
    for second in 1..5 {
        assert!(!standing.record(&fails, eager, at(second)), "{second}");
    }
    assert!(standing.record(&fails, eager, at(5)));
    assert!(!standing.record(&Finding::Works(ok(10)), eager, at(6)));
    assert_eq!(standing.verdict().healthy, Some(false));
}

/// Case 6.
#[test]
fn more_than_five_changes_in_ten_minutes_are_flapping_until_it_calms_down() {
    let mut standing = Standing::unknown(Timestamp::UNIX_EPOCH);
    // Up at 0; each further letter of these is a change: five of them, within 190 seconds.
    assert_eq!(
        play(&mut standing, THREE_ONE, "+rrr+rrr+rrr+"),
        "H..RH..RH..RH"
    );
    assert!(standing.verdict().flapping, "six changes");
    let mut other = Standing::unknown(Timestamp::UNIX_EPOCH);
    play(&mut other, THREE_ONE, "+rrr+rrr+rrr");
    assert!(!other.verdict().flapping, "five changes");
    // The oldest of the six was at 30.
    let fine = Finding::Works(ok(10));
    assert!(!standing.record(&fine, THREE_ONE, at(629)));
    assert!(standing.record(&fine, THREE_ONE, at(630)));
    assert!(!standing.verdict().flapping);
}

/// Case 12.
#[test]
fn a_proxy_that_never_worked_says_so_with_the_last_cause_once_its_time_is_up() {
    let fails = Finding::Fails(Failure::ConnectionRefused);
    let refused = Finding::Fails(Failure::ProxyAuth);
    let mut standing = Standing::unknown(Timestamp::UNIX_EPOCH);
    for second in [0, 30, 60] {
        standing.record(&fails, THREE_ONE, at(second));
    }
    assert_eq!(standing.verdict().reason, "ConnectionRefused");
    let mut seeded = Standing::seeded(standing.verdict().clone());
    for second in [599, 600, 630] {
        standing.record(&fails, THREE_ONE, at(second));
        seeded.record(&fails, THREE_ONE, at(second + 60));
    }
    assert_eq!(standing.verdict().reason, "ProbeNeverSucceeded");
    assert_eq!(
        standing.verdict().message,
        "no probe has succeeded in 600 seconds; the last one failed with ConnectionRefused: \
         nothing listens on the proxy's port"
    );
    assert_eq!(seeded.verdict().reason, "ProbeNeverSucceeded");
    assert!(!standing.record(&fails, THREE_ONE, at(660)), "said once");
    // Waiting does not help against refused credentials: they keep their reason.
    for second in [690, 720, 750] {
        standing.record(&refused, THREE_ONE, at(second));
    }
    assert_eq!(standing.verdict().reason, "ProxyAuthFailed");
    // One that worked before keeps its causes too.
    let mut worked = Standing::unknown(Timestamp::UNIX_EPOCH);
    worked.record(&Finding::Works(ok(10)), THREE_ONE, at(0));
    for second in [700, 730, 760] {
        worked.record(&fails, THREE_ONE, at(second));
    }
    assert_eq!(worked.verdict().reason, "ConnectionRefused");
}

/// Case 15.
#[test]
fn a_target_that_fails_by_itself_says_nothing_about_the_proxy() {
    let mut standing = Standing::unknown(Timestamp::UNIX_EPOCH);
    assert_eq!(play(&mut standing, THREE_ONE, "tt+ttttrrtr"), "?.H.......R");
    let mut undecided = Standing::unknown(Timestamp::UNIX_EPOCH);
    play(&mut undecided, THREE_ONE, "ttttt");
    assert_eq!(undecided.verdict().healthy, None);
    let message = &undecided.verdict().message;
    assert!(message.contains("target itself fails"), "{message}");
}

/// Case 5.
#[test]
fn a_failure_that_clients_contradict_is_said_once_and_counts_when_they_fall_silent() {
    let url = Url::parse("https://target.example/").unwrap();
    let disputed = Finding::Disputed(Failure::TimedOut, url.clone());
    let mut standing = Standing::unknown(Timestamp::UNIX_EPOCH);
    assert_eq!(play(&mut standing, THREE_ONE, "+rr"), "H..");
    assert!(standing.is_at_the_brink(THREE_ONE, at(30)));
    assert!(standing.record(&disputed, THREE_ONE, at(30)));
    assert_eq!(
        (standing.verdict().healthy, standing.verdict().since),
        (Some(true), at(0).wall)
    );
    let message = &standing.verdict().message;
    assert!(message.contains("probes of https://target.example/ fail"));
    let other = Finding::Disputed(Failure::ConnectionRefused, url);
    for (second, finding) in [(40, &disputed), (50, &other), (60, &disputed)] {
        assert!(!standing.record(finding, THREE_ONE, at(second)), "said");
    }
    let mut silent = standing.clone();
    assert!(silent.record(&Finding::Fails(Failure::TimedOut), THREE_ONE, at(70)));
    assert_eq!(silent.verdict().healthy, Some(false));
    assert_eq!(silent.verdict().reason, "ProbeTimedOut");

    assert!(standing.record(&Finding::Works(ok(10)), THREE_ONE, at(70)));
    assert_eq!(standing.verdict().reason, REASON_PROBE_SUCCEEDED);
    assert!(!standing.is_at_the_brink(THREE_ONE, at(80)));
}

#[test]
fn only_an_unhealthy_proxy_is_held() {
    let hold = || {
        Some(Hold {
            reason: "ControlProbeFailed".into(),
            message: String::new(),
        })
    };
    let mut standing = Standing::unknown(Timestamp::UNIX_EPOCH);
    play(&mut standing, THREE_ONE, "+rr");
    assert!(!standing.hold(hold()));
    play(&mut standing, THREE_ONE, "rr");
    assert!(standing.hold(hold()));
    assert!(!standing.hold(hold()), "said already");
    standing.record(&Finding::Works(ok(10)), THREE_ONE, at(100));
    assert_eq!(standing.verdict().hold, None);
}
