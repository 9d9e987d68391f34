//! What an account allows, over random callers.

use std::collections::BTreeMap;

use futures::FutureExt;
use proptest::prelude::*;
use runtime_kit::{Classify, SteppedClock};

use super::*;

const HOUR: Duration = Duration::from_hours(1);

fn limits(calls: u32) -> Limits {
    Limits {
        calls: Rate::new(calls, HOUR, u32::MAX),
        creates: None,
    }
}

fn account(limits: Limits) -> (Allowance, SteppedClock) {
    let clock = SteppedClock::default();
    let allowance = Allowance::new("test", limits, Arc::new(clock.clone()));
    (allowance, clock)
}

fn take(allowance: &Allowance, caller: &str, urgent: bool) -> Result<(), Error> {
    let taking = on_behalf_of(caller, urgent, async { allowance.take() });
    taking.now_or_never().unwrap()
}

fn why(error: &Error) -> Exhausted {
    assert_eq!(error.class(), Class::RateLimited);
    *error.source().unwrap().downcast_ref::<Exhausted>().unwrap()
}

/// The most of these times that lie within any hour.
fn busiest_hour(times: &[Duration]) -> usize {
    let within = |from: Duration| {
        let until = from + HOUR;
        let inside = times.iter().filter(|at| **at >= from && **at < until);
        inside.count()
    };
    times.iter().map(|at| within(*at)).max().unwrap_or_default()
}

/// Case 63 of the public reports: one bad proxy must not use up what an account allows.
fn is_shared_fairly(calls: u32, steps: &[(u8, u16, bool)]) {
    let (allowance, clock) = account(limits(calls));
    let mut all = Vec::new();
    let mut by_caller: BTreeMap<u8, Vec<Duration>> = BTreeMap::new();
    for (caller, milliseconds, urgent) in steps {
        clock.advance(Duration::from_millis((*milliseconds).into()));
        let now = clock.elapsed();
        match take(&allowance, &caller.to_string(), *urgent) {
            Ok(()) => {
                all.push(now);
                by_caller.entry(*caller).or_default().push(now);
            },
            Err(error) => {
                why(&error);
                assert!(error.wait().is_some_and(|wait| !wait.is_zero()));
            },
        }
    }
    let most = usize::try_from(calls).unwrap();
    assert!(busiest_hour(&all) <= most);
    for (caller, times) in by_caller {
        assert!(busiest_hour(&times) <= most / 10, "caller {caller}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_hour_has_more_calls_than_the_account_allows_and_no_caller_more_than_a_tenth(
        calls in 40_u32..400,
        steps in prop::collection::vec((0_u8..30, 0_u16..20_000, any::<bool>()), 0..1_500),
    ) {
        is_shared_fairly(calls, &steps);
    }

    /// One caller asks all the time; the others ask for half of what there is, at random.
    #[test]
    fn a_caller_that_never_stops_takes_nothing_from_the_others(
        order in prop::collection::vec(0_u8..20, 300),
    ) {
        let (allowance, clock) = account(limits(3_600));
        for other in order {
            for _ in 0..20 {
                clock.advance(Duration::from_millis(100));
                match take(&allowance, "hog", true) {
                    Ok(()) => {},
                    Err(error) => assert!(matches!(why(&error), Exhausted::Share { .. })),
                }
            }
            prop_assert!(take(&allowance, &other.to_string(), false).is_ok());
        }
    }
}

#[test]
fn what_cannot_wait_goes_before_what_only_looks_when_little_is_left() {
    let (allowance, clock) = account(limits(3_600));
    let mut polls = 0;
    let refused = loop {
        match take(&allowance, &format!("poll-{polls}"), false) {
            Ok(()) => polls += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(
        why(&refused),
        Exhausted::Calls { count: 3_600, .. }
    ));
    assert!(take(&allowance, "delete", true).is_ok());
    assert_eq!(
        allowance.left(),
        Some(179),
        "a fifth of the 900 that may come at once is kept, and one of it is used"
    );
    // After the time that it was told there is one again.
    clock.advance(refused.wait().unwrap() + Duration::from_secs(2));
    assert!(take(&allowance, "later", false).is_ok());
}

#[test]
fn those_who_are_sent_away_come_back_one_after_the_other() {
    let (allowance, _clock) = account(limits(3_600));
    let mut waits = Vec::new();
    for caller in 0..1_000 {
        if let Err(error) = take(&allowance, &caller.to_string(), false) {
            waits.push(error.wait().unwrap());
        }
    }
    assert!(waits.len() > 200);
    for pair in waits.windows(2) {
        assert!(pair[1] >= pair[0] + Duration::from_secs(1), "{pair:?}");
    }
}

#[test]
fn an_answer_that_says_less_is_left_is_believed_and_one_that_says_more_is_not() {
    let (allowance, clock) = account(limits(3_600));
    assert_eq!(allowance.left(), Some(900));
    allowance.told(7);
    assert_eq!(allowance.left(), Some(7));
    allowance.told(3_000);
    assert_eq!(allowance.left(), Some(7));
    allowance.told(0);
    let refused = take(&allowance, "a", true).unwrap_err();
    clock.advance(refused.wait().unwrap());
    assert!(take(&allowance, "a", true).is_ok());
}

#[test]
fn no_minute_has_more_creates_than_the_account_allows() {
    let (allowance, clock) = account(Limits {
        calls: None,
        creates: Rate::new(60, Duration::from_mins(1), u32::MAX),
    });
    let mut created = 0;
    let refused = loop {
        match allowance.take_create() {
            Ok(()) => created += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(
        why(&refused),
        Exhausted::Creates {
            count: 60,
            seconds: 60
        }
    ));
    for _ in 0..59 {
        clock.advance(Duration::from_secs(1));
        created += u32::from(allowance.take_create().is_ok());
    }
    assert!((50..=60).contains(&created), "{created}");
}

#[test]
fn without_limits_everything_may_be_called() {
    let (allowance, _clock) = account(Limits::default());
    for _ in 0..10_000 {
        allowance.take().unwrap();
        allowance.take_create().unwrap();
    }
    assert_eq!(allowance.left(), None);
}

#[test]
fn callers_that_have_their_share_again_are_forgotten() {
    let (allowance, clock) = account(limits(1_000_000));
    for caller in 0..5_000 {
        clock.advance(Duration::from_secs(1));
        assert!(take(&allowance, &caller.to_string(), false).is_ok());
    }
    assert!(allowance.0.state.lock().callers.len() <= CALLERS);
}

#[test]
fn two_providers_of_an_account_have_the_lower_limits_of_both() {
    let rate = |count| Rate::new(count, HOUR, u32::MAX);
    let limits = |calls, creates| Limits {
        calls: rate(calls),
        creates: rate(creates),
    };
    assert_eq!(limits(100, 400).lower(limits(200, 300)), limits(100, 300));
    assert_eq!(limits(100, 19).lower(limits(0, 300)), limits(100, 300));
}

/// A tenant who changes a Proxy all the time is sent away each time, and must not move the turns of
/// others away by that.
#[test]
fn who_comes_back_before_its_turn_keeps_it_and_delays_nobody() {
    let (allowance, _clock) = account(limits(3_600));
    allowance.told(0);
    let first = take(&allowance, "hasty", true).unwrap_err().wait();
    for _ in 0..1_000 {
        let again = take(&allowance, "hasty", true).unwrap_err();
        assert_eq!(again.wait(), first);
    }
    let other = take(&allowance, "other", true).unwrap_err();
    assert!(other.wait() < Some(Duration::from_secs(10)), "{other:?}");
}

#[test]
fn what_cannot_wait_does_not_wait_behind_those_who_only_look() {
    let (allowance, _clock) = account(limits(3_600));
    allowance.told(0);
    for poll in 0..1_000 {
        assert!(take(&allowance, &format!("poll-{poll}"), false).is_err());
    }
    let urgent = take(&allowance, "delete", true).unwrap_err();
    assert!(urgent.wait() < Some(Duration::from_secs(10)), "{urgent:?}");
}

/// A cloud, or something in between, may say anything.
#[test]
fn an_endless_rest_is_an_hour() {
    let (allowance, _clock) = account(limits(3_600));
    allowance.rest(Duration::MAX);
    assert_eq!(allowance.resting(), HOUR);
}

/// A list of more zones than a caller may ask at once comes to its end, and is paid for before the
/// next one begins.
#[test]
fn an_operation_that_has_begun_is_carried_to_its_end_and_paid_for() {
    const ZONES: u32 = 40;
    let (allowance, clock) = account(limits(1_000));
    let mut times = Vec::new();
    while clock.elapsed() < HOUR {
        let list = as_one(async {
            for _ in 0..ZONES {
                allowance.take()?;
            }
            Ok(())
        });
        let listed: Result<(), Error> = on_behalf_of("a", false, list).now_or_never().unwrap();
        match listed {
            Ok(()) => {
                times.push(clock.elapsed());
                clock.advance(Duration::from_secs(1));
            },
            Err(error) => clock.advance(error.wait().unwrap()),
        }
    }
    // A tenth of 1,000 calls are two lists and a half.
    assert_eq!(times.len(), 3, "{times:?}");
}
