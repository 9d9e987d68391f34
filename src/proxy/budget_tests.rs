//! Each budget at its limit, from both sides.

use crawl_api::conditions::Statement;
use crawl_api::proxy::{ProxySpec, ProxyStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// So many members, `m0` and so on, all of them available.
fn fleet(count: usize) -> Fleet {
    let member = |index| Member {
        uid: format!("m{index}"),
        available: true,
        ..Member::default()
    };
    Fleet {
        name: "pool eu".into(),
        members: (0..count).map(member).collect(),
    }
}

fn with(count: usize, changed: usize, change: impl Fn(&mut Member)) -> Fleet {
    let mut fleet = fleet(count);
    for member in fleet.members.iter_mut().rev().take(changed) {
        change(member);
    }
    fleet
}

fn reason(verdict: Result<(), Withheld>) -> Option<&'static str> {
    verdict.err().map(|withheld| withheld.reason)
}

fn setbacks(times: &[i64], reason: &str) -> Vec<Setback> {
    let setback = |second: &i64| Setback {
        time: Time(at(*second)),
        reason: reason.into(),
        address: None,
        generation: Some(4),
    };
    times.iter().map(setback).collect()
}

#[test]
fn a_tenth_and_at_least_one_may_be_replaced_at_a_time() {
    let unavailable = |count, changed| {
        let fleet = with(count, changed, |member| member.available = false);
        reason(disruption(&fleet, "m0", &[]))
    };
    assert_eq!(unavailable(1, 0), None);
    assert_eq!(unavailable(5, 0), None);
    assert_eq!(unavailable(5, 1), Some("DisruptionBudget"));
    assert_eq!(unavailable(30, 2), None);
    assert_eq!(unavailable(30, 3), Some("DisruptionBudget"));
}

#[test]
fn replacements_in_flight_count_as_unavailable_before_the_objects_show_them() {
    let begun = ["m7".to_owned()];
    assert_eq!(
        reason(disruption(&fleet(10), "m0", &begun)),
        Some("DisruptionBudget")
    );
    assert_eq!(reason(disruption(&fleet(20), "m0", &begun)), None);
    let both = with(20, 1, |member| member.available = false);
    let same = [both.members[19].uid.clone()];
    assert_eq!(
        reason(disruption(&both, "m0", &same)),
        None,
        "one that is both counts once"
    );
}

/// Case 4: what keeps a failing proxy from being replaced has a reason.
#[test]
fn remediation_stops_when_more_than_a_fifth_fail_and_one_always_may_be_replaced() {
    let failing = |count, changed| {
        let mut fleet = with(count, changed, |member| member.failing = true);
        fleet.members[0].failing = true;
        reason(remediation(&fleet, "m0", &[], &[], at(0)))
    };
    assert_eq!(failing(1, 1), None);
    assert_eq!(failing(4, 0), None);
    assert_eq!(failing(4, 1), Some("RemediationPaused"));
    assert_eq!(failing(20, 3), None);
    assert_eq!(failing(20, 4), Some("RemediationPaused"));
}

/// Case 2.
#[test]
fn the_kth_replacement_within_an_hour_waits_two_to_the_k_minutes() {
    let verdict = |times: &[i64], now| {
        let list = setbacks(times, "UnhealthyTimedOut");
        remediation(&fleet(10), "m0", &[], &list, at(now))
    };
    assert_eq!(reason(verdict(&[], 0)), None);
    let minute = 60;
    let second = verdict(&[0], 4 * minute - 1);
    assert_eq!(
        second.clone().unwrap_err().wait,
        Some(Duration::from_secs(1))
    );
    assert_eq!(reason(second), Some("RemediationBackoff"));
    assert_eq!(reason(verdict(&[0], 4 * minute)), None);
    assert!(verdict(&[0, 4 * minute], 12 * minute - 1).is_err());
    assert!(verdict(&[0, 4 * minute], 12 * minute).is_ok());
    assert!(verdict(&[0, 240, 720], 720 + 16 * minute - 1).is_err());
    assert!(verdict(&[0], 3600).is_ok(), "an hour later nothing counts");
}

/// A broken cloud-init would otherwise be tried for ever, one machine after the other.
#[test]
fn a_second_machine_on_which_cloud_init_fails_is_kept_until_the_spec_changes_or_somebody_resumes() {
    let list = setbacks(&[100], "BootstrapFailed");
    let verdict = |list: &[Setback], generation, resumed: Option<i64>| {
        reason(bootstrap(list, Some(generation), resumed.map(at)))
    };
    assert_eq!(verdict(&[], 4, None), None, "one is replaced");
    assert_eq!(verdict(&list, 4, None), Some("BootstrapFailing"));
    assert_eq!(verdict(&list, 5, None), None);
    assert_eq!(verdict(&list, 4, Some(99)), Some("BootstrapFailing"));
    assert_eq!(verdict(&list, 4, Some(100)), None);
    let others = setbacks(&[100], "UnhealthyTimedOut");
    assert_eq!(verdict(&others, 4, None), None);
}

#[test]
fn what_a_provider_takes_back_is_not_held_against_the_proxy() {
    let list = setbacks(&[0, 1, 2, 3], "Preempted");
    assert_eq!(remediation(&fleet(10), "m0", &[], &list, at(5)), Ok(()));
}

#[test]
fn re_creation_stops_when_three_and_more_than_a_fifth_are_lost() {
    let lost = |count, changed| {
        let fleet = with(count, changed, |member| member.lost = true);
        reason(recreation(&fleet, &[]))
    };
    assert_eq!(lost(2, 2), None, "two may be a coincidence");
    assert_eq!(lost(3, 3), Some("MassExternalDeletion"));
    assert_eq!(lost(15, 3), None);
    assert_eq!(lost(14, 3), Some("MassExternalDeletion"));
    let some = with(10, 2, |member| member.lost = true);
    let message = recreation(&some, &["m0".into()]).unwrap_err().message;
    assert!(message.contains("pool eu"), "{message}");
    assert!(message.contains("kubectl px resume"), "{message}");
}

#[test]
fn a_loss_is_over_once_somebody_took_note_of_it() {
    let mut proxy = Proxy::new("p", ProxySpec::managed("local"));
    proxy.status = Some(ProxyStatus::default());
    let lost = Statement::new(c::PROVISIONED, false, c::REASON_INSTANCE_LOST, "");
    c::set(
        &mut proxy.status.as_mut().unwrap().conditions,
        lost,
        None,
        at(100),
    );
    assert!(Member::of(&proxy, None).lost);
    assert!(Member::of(&proxy, Some(at(99))).lost);
    assert!(!Member::of(&proxy, Some(at(100))).lost);
}

/// Case 56.
#[test]
fn creates_per_hour_is_a_limit_and_says_when_the_next_may_be() {
    let minutes = |list: &[u64]| list.iter().copied().map(Duration::from_mins).collect();
    let creates = |ages: &[u64], limit| Creates {
        asked: minutes(ages),
        failed: Vec::new(),
        limit,
    };
    assert_eq!(creation(&fleet(1), &creates(&[1, 2, 50], None)), Ok(()));
    assert_eq!(creation(&fleet(1), &creates(&[1, 2], Some(3))), Ok(()));
    let full = creation(&fleet(1), &creates(&[1, 2, 50], Some(3))).unwrap_err();
    assert_eq!(full.reason, "CreateLimit");
    assert_eq!(full.wait, Some(Duration::from_mins(10)));
}

/// Case 56.
#[test]
fn after_more_than_three_failed_creates_one_is_tried_every_five_minutes() {
    let minutes = |list: &[u64]| list.iter().copied().map(Duration::from_mins).collect();
    let creates = |ages: &[u64]| Creates {
        asked: minutes(ages),
        failed: minutes(ages),
        limit: None,
    };
    assert_eq!(creation(&fleet(1), &creates(&[1, 2, 3])), Ok(()));
    let spaced = creation(&fleet(1), &creates(&[4, 5, 6, 7])).unwrap_err();
    assert_eq!(spaced.reason, "CreatesFailing");
    assert_eq!(spaced.wait, Some(Duration::from_mins(1)));
    assert_eq!(creation(&fleet(1), &creates(&[5, 6, 7, 8])), Ok(()));
}

proptest! {
    /// However the replacements come, never more than a tenth (or one) are away at a time.
    #[test]
    fn the_disruption_budget_is_never_exceeded(
        count in 1_usize..80,
        asking in prop::collection::vec(0_usize..80, 1..200),
    ) {
        let mut fleet = fleet(count);
        for index in asking {
            let index = index % count;
            let uid = fleet.members[index].uid.clone();
            if fleet.members[index].available && disruption(&fleet, &uid, &[]).is_ok() {
                fleet.members[index].available = false;
            }
            let away = fleet.members.iter().filter(|member| !member.available).count();
            prop_assert!(away <= (count / 10).max(1));
        }
    }
}
