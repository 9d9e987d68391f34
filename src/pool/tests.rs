//! Membership, scale-up and scale-down order, and the status of a pool.

use crawl_api::conditions::{self, Statement};
use crawl_api::pool::{PoolPlacement, ProxyPoolSpec, ProxyTemplate, TemplateMetadata};
use crawl_api::proxy::{Phase, ProxySpec, ProxyStatus, Setback};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::Status;
use kube::runtime::{reflector, watcher};

use super::member::Standing;
use super::observe::{Known, Observation, observe};
use super::placement::Exhausted;
use super::plan::{Action, Cause, plan};
use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn pool(replicas: i32) -> ProxyPool {
    let labels = [("geo".to_owned(), "eu".to_owned())].into();
    let metadata = TemplateMetadata {
        labels,
        ..TemplateMetadata::default()
    };
    let mut pool = ProxyPool::new(
        "eu",
        ProxyPoolSpec {
            replicas,
            ..ProxyPoolSpec::of(ProxyTemplate {
                metadata,
                spec: ProxySpec::managed("local"),
            })
        },
    );
    pool.metadata.namespace = Some("fleet".into());
    pool.metadata.uid = Some("pool-uid".into());
    pool.metadata.generation = Some(3);
    pool
}

fn member(name: &str, created: i64) -> Proxy {
    let mut proxy = act::build_member(&pool(1), None);
    proxy.metadata.name = Some(name.into());
    proxy.metadata.uid = Some(format!("uid-{name}"));
    proxy.metadata.creation_timestamp = Some(Time(at(created)));
    proxy
}

fn provisioned(mut proxy: Proxy, phase: Phase) -> Proxy {
    let mut status = ProxyStatus {
        phase,
        provider_id: Some("mock://a/1".into()),
        ..ProxyStatus::default()
    };
    if phase == Phase::Ready {
        let ready = Statement::new(conditions::READY, true, conditions::REASON_READY, "");
        conditions::set(&mut status.conditions, ready, None, at(0));
    }
    proxy.status = Some(status);
    proxy
}

fn seen(pool: &ProxyPool, proxies: &[Proxy], pending: &Pending, elapsed: u64) -> Observation {
    seen_at(pool, proxies, pending, at(0), elapsed)
}

fn seen_at(
    pool: &ProxyPool,
    proxies: &[Proxy],
    pending: &Pending,
    now: Timestamp,
    elapsed: u64,
) -> Observation {
    let (reader, mut writer) = reflector::store();
    for proxy in proxies {
        writer.apply_watcher_event(&watcher::Event::Apply(proxy.clone()));
    }
    let exhausted = Exhausted::default();
    let known = Known {
        pending,
        exhausted: &exhausted,
    };
    observe(pool, &reader, known, now, Duration::from_secs(elapsed))
}

#[test]
fn members_are_those_whose_controller_is_the_pool_and_that_stay() {
    let foreign = {
        let mut proxy = member("foreign", 1);
        proxy.metadata.owner_references.as_mut().unwrap()[0].uid = "other".into();
        proxy
    };
    let labelled_only = {
        let mut proxy = member("labelled", 1);
        proxy.metadata.owner_references = None;
        proxy
    };
    let going = {
        let mut proxy = member("going", 1);
        proxy.metadata.deletion_timestamp = Some(Time(at(2)));
        proxy
    };
    let proxies = [member("mine", 1), foreign, labelled_only, going];
    let observation = seen(&pool(1), &proxies, &Pending::default(), 0);
    let names: Vec<_> = observation
        .members
        .iter()
        .map(|m| m.name.as_str())
        .collect();
    assert_eq!(names, ["mine"]);
    assert_eq!(
        owner(&proxies[0]),
        Some(ObjectRef::new("eu").within("fleet"))
    );
    assert_eq!(owner(&proxies[2]), None);
}

#[test]
fn missing_members_are_created_and_an_exact_number_rests() {
    let none = Pending::default();
    assert_eq!(
        plan(&seen(&pool(3), &[member("a", 1)], &none, 0)),
        Action::Create(2, None)
    );
    assert_eq!(
        plan(&seen(&pool(1), &[member("a", 1)], &none, 0)),
        Action::Rest
    );
    assert_eq!(
        plan(&seen(&pool(100_000), &[], &none, 0)),
        Action::Create(50, None)
    );
}

/// Case 55.
#[test]
fn members_go_in_order_of_their_use_and_the_oldest_first() {
    let proxies = [
        provisioned(member("ready-old", 1), Phase::Ready),
        provisioned(member("ready-new", 9), Phase::Ready),
        provisioned(member("unhealthy", 5), Phase::Unhealthy),
        provisioned(member("failed", 5), Phase::Failed),
        member("never", 1),
    ];
    let order = |replicas, leases: &Leases| {
        let mut observation = seen(&pool(replicas), &proxies, &Pending::default(), 0);
        observation.leases = leases.clone();
        names(plan(&observation))
    };
    let not_asked = Leases::NotAsked;
    assert_eq!(
        order(0, &not_asked),
        ["never", "failed", "unhealthy", "ready-old", "ready-new"]
    );
    assert_eq!(order(3, &not_asked), ["never", "failed"]);

    // Which of the two ready ones goes is a question of leases.
    let one = seen(&pool(1), &proxies, &Pending::default(), 0);
    assert_eq!(plan(&one), Action::CountLeases);
    let known = Leases::Known([("uid-ready-old".to_owned(), 1)].into());
    let idle = ["never", "failed", "unhealthy", "ready-new"];
    assert_eq!(order(1, &known), idle);
    let oldest = ["never", "failed", "unhealthy", "ready-old"];
    assert_eq!(order(1, &Leases::Known([].into())), oldest);
    assert_eq!(order(1, &Leases::Unknown), oldest);
    let awaited = Observation {
        leases: Leases::Awaited("503".into()),
        ..one
    };
    assert_eq!(plan(&awaited), Action::AwaitLeases);
}

/// The members that an action deletes.
fn names(action: Action) -> Vec<String> {
    let Action::Delete(_, members) = action else {
        panic!("{action:?}");
    };
    members.into_iter().map(|member| member.name).collect()
}

#[test]
fn a_store_that_is_behind_causes_neither_a_second_create_nor_a_second_delete() {
    let pending = Pending::default();
    let pool_of = |replicas| pool(replicas);
    pending.creating(&pool_of(1), "a", Duration::ZERO);
    assert_eq!(plan(&seen(&pool_of(1), &[], &pending, 1)), Action::Rest);
    assert!(pending.wait(&pool_of(1), Duration::from_secs(1)).is_some());
    assert_eq!(
        plan(&seen(&pool_of(1), &[member("a", 1)], &pending, 2)),
        Action::Rest
    );
    assert_eq!(pending.wait(&pool_of(1), Duration::from_secs(2)), None);

    pending.deleting(&pool_of(0), "uid-a", Duration::from_secs(3));
    assert_eq!(
        plan(&seen(&pool_of(0), &[member("a", 1)], &pending, 4)),
        Action::Rest
    );
    assert_eq!(plan(&seen(&pool_of(0), &[], &pending, 5)), Action::Rest);
}

#[test]
fn a_state_older_than_our_last_write_is_behind() {
    let at_version = |version: &str| {
        let mut pool = pool(1);
        pool.metadata.resource_version = Some(version.into());
        pool
    };
    let written = Written::default();
    assert!(!written.is_behind(&at_version("5")));
    written.note(&at_version("11"));
    assert!(written.is_behind(&at_version("9")));
    assert!(!written.is_behind(&at_version("11")));
    written.forget(&at_version("11"));
    assert!(!written.is_behind(&at_version("9")));
}

#[test]
fn a_create_that_is_never_seen_is_given_up_and_made_again() {
    let pending = Pending::default();
    pending.creating(&pool(1), "a", Duration::ZERO);
    assert_eq!(plan(&seen(&pool(1), &[], &pending, 29)), Action::Rest);
    assert_eq!(
        plan(&seen(&pool(1), &[], &pending, 30)),
        Action::Create(1, None)
    );
}

#[test]
fn a_member_has_the_template_the_label_and_a_name_of_its_own() {
    let built = act::build_member(&pool(1), None);
    assert_eq!(built.labels()["crawl.example.com/pool"], "eu");
    assert_eq!(built.labels()["geo"], "eu");
    assert_eq!(built.spec, ProxySpec::managed("local"));
    let name = built.name_any();
    assert!(name.starts_with("eu-") && name.len() == 8, "{name}");
    assert_ne!(name, act::build_member(&pool(1), None).name_any());
}

#[test]
fn status_counts_members_and_says_why_the_pool_is_not_ready() {
    let proxies = [provisioned(member("a", 1), Phase::Ready), member("b", 2)];
    let observation = seen(&pool(2), &proxies, &Pending::default(), 0);
    let status = status::compute(&pool(2), &observation, None, at(10));
    assert_eq!((status.replicas, status.ready_replicas), (2, 1));
    assert_eq!(
        status.selector.as_deref(),
        Some("crawl.example.com/pool=eu")
    );
    assert_eq!(status.observed_generation, Some(3));
    let ready = conditions::find(&status.conditions, conditions::READY).unwrap();
    assert_eq!(
        (ready.status.as_str(), ready.reason.as_str()),
        ("False", "MembersNotReady")
    );

    let full = seen(&pool(1), &proxies[..1], &Pending::default(), 0);
    let status = status::compute(&pool(1), &full, None, at(10));
    assert!(conditions::is_true(&status.conditions, conditions::READY));

    let refused = kube::Error::Api(Box::new(Status::failure("exceeded quota", "Forbidden")));
    let failure = Error::Create {
        name: "eu-x".into(),
        source: refused,
    };
    let status = status::compute(&pool(2), &full, Some(&failure), at(10));
    let ready = conditions::find(&status.conditions, conditions::READY).unwrap();
    assert_eq!(ready.reason, "MemberWriteFailed");
    assert!(
        ready.message.contains("exceeded quota"),
        "{}",
        ready.message
    );
    assert_eq!(
        Standing::NeverProvisioned.cmp(&Standing::Ready),
        std::cmp::Ordering::Less
    );
}

/// Each attempt has another name; a status that names it would be written each time, and wake the
/// controller for the next attempt at once.
#[test]
fn two_refused_creates_say_the_same() {
    let said = |name: &str| {
        let text = format!("proxies.crawl.example.com \"{name}\" is forbidden: exceeded quota");
        let source = kube::Error::Api(Box::new(Status::failure(&text, "Forbidden")));
        let name = name.to_owned();
        Error::Create { name, source }.told()
    };
    assert_eq!(said("eu-bcdfg"), said("eu-hjklm"));
    assert!(said("eu-bcdfg").contains("\"eu-*\" is forbidden: exceeded quota"));
}

#[test]
fn a_member_without_the_label_gets_it_even_if_it_is_outdated() {
    let patched = |change: fn(&mut Proxy)| {
        let mut proxy = provisioned(member("a", 1), Phase::Ready);
        change(&mut proxy);
        let action = plan(&seen(&pool(1), &[proxy], &Pending::default(), 0));
        if let Action::Update(updates) = action {
            return Some(updates[0].1.patch.clone());
        }
        None
    };
    let label = serde_json::json!({"crawl.example.com/pool": "eu"});
    assert_eq!(patched(|_| {}), None);
    let only_that = serde_json::json!({"metadata": {"labels": label}});
    let lost = patched(|proxy| {
        proxy.labels_mut().remove("crawl.example.com/pool");
    });
    assert_eq!(lost, Some(only_that.clone()));
    let outdated = patched(|proxy| {
        proxy.labels_mut().remove("crawl.example.com/pool");
        let hash = "crawl.example.com/template-hash".to_owned();
        proxy.annotations_mut().insert(hash, "v1:0".into());
    });
    assert_eq!(outdated, Some(only_that));
    let adopted = patched(|proxy| {
        proxy.metadata.labels = None;
        proxy.metadata.annotations = None;
    });
    assert_eq!(adopted.unwrap()["metadata"]["labels"], label);
}

fn place(zone: &str, spot: bool) -> PoolPlacement {
    PoolPlacement {
        zone: Some(zone.into()),
        spot,
        paused: false,
        price_per_hour: None,
    }
}

/// A pool with spot in zone a, then spot in b, then on demand in b.
fn placed(replicas: i32) -> ProxyPool {
    let mut pool = pool(replicas);
    pool.spec.placements = vec![place("a", true), place("b", true), place("b", false)];
    pool
}

fn member_at(pool: &ProxyPool, name: &str, index: usize) -> Proxy {
    let mut proxy = act::build_member(pool, Some(&pool.spec.placements[index]));
    proxy.metadata.name = Some(name.into());
    proxy.metadata.uid = Some(format!("uid-{name}"));
    proxy
}

fn because(proxy: &mut Proxy, reason: &str) {
    let statement = Statement::new(conditions::PROVISIONED, false, reason, "");
    let list = &mut proxy.status.get_or_insert_default().conditions;
    conditions::set(list, statement, None, at(0));
}

fn judged(pool: &ProxyPool, proxies: &[Proxy], exhausted: &Exhausted, minute: u64) -> Observation {
    let (reader, mut writer) = reflector::store();
    for proxy in proxies {
        writer.apply_watcher_event(&watcher::Event::Apply(proxy.clone()));
    }
    let known = Known {
        pending: &Pending::default(),
        exhausted,
    };
    let now = at(i64::try_from(minute).unwrap() * 60);
    observe(pool, &reader, known, now, Duration::from_mins(minute))
}

#[test]
fn new_members_go_to_the_first_placement_that_is_not_paused() {
    let mut pool = placed(1);
    let chosen = |pool: &ProxyPool| {
        let Action::Create(1, chosen) = plan(&seen(pool, &[], &Pending::default(), 0)) else {
            panic!("no member is created");
        };
        chosen
    };
    assert_eq!(chosen(&pool), Some(place("a", true)));
    pool.spec.placements[0].paused = true;
    assert_eq!(chosen(&pool), Some(place("b", true)));
    for placement in &mut pool.spec.placements {
        placement.paused = true;
    }
    let none = seen(&pool, &[], &Pending::default(), 0);
    assert_eq!(plan(&none), Action::Rest);
    let status = status::compute(&pool, &none, None, at(10));
    let ready = conditions::find(&status.conditions, conditions::READY).unwrap();
    assert!(ready.message.contains("every placement is paused"));
}

#[test]
fn a_placement_overrides_zone_and_spot_of_the_template_and_nothing_else() {
    let mut pool = placed(1);
    let template = pool.spec.template.spec.placement.get_or_insert_default();
    template.machine_type = Some("small".into());
    template.zone = Some("template".into());
    let anywhere = PoolPlacement {
        zone: None,
        ..place("", true)
    };
    let at_b = act::build_member(&pool, Some(&place("b", true)));
    let at_b = at_b.spec.placement.unwrap();
    assert_eq!((at_b.zone.as_deref(), at_b.spot), (Some("b"), true));
    assert_eq!(at_b.machine_type.as_deref(), Some("small"));
    let inherits = act::build_member(&pool, Some(&anywhere));
    let inherits = inherits.spec.placement.unwrap();
    assert_eq!(inherits.zone.as_deref(), Some("template"));
}

/// Case 67.
#[test]
fn a_member_without_capacity_moves_to_the_next_placement_which_is_remembered_for_a_while() {
    let pool = placed(2);
    let exhausted = Exhausted::default();
    let mut short = member_at(&pool, "short", 0);
    because(&mut short, conditions::REASON_QUOTA_EXCEEDED);
    let fine = provisioned(member_at(&pool, "fine", 0), Phase::Ready);
    let seen = judged(&pool, &[short.clone(), fine.clone()], &exhausted, 0);
    assert_eq!(seen.newly_exhausted.len(), 1);
    let note = &seen.newly_exhausted[0];
    assert!(
        note.contains("placement a (spot) has no capacity"),
        "{note}"
    );
    assert_eq!(names(plan(&seen)), ["short"]);
    // Told once, and left out although nobody is short of it any more.
    let next = |minute| {
        plan(&judged(
            &pool,
            std::slice::from_ref(&fine),
            &exhausted,
            minute,
        ))
    };
    assert_eq!(next(1), Action::Create(1, Some(place("b", true))));
    assert_eq!(next(15), Action::Create(1, Some(place("a", true))));
    let again = judged(&pool, &[short, fine.clone()], &exhausted, 16);
    assert_eq!(again.newly_exhausted.len(), 1);
}

#[test]
fn without_an_alternative_a_member_waits_where_it_is() {
    let mut pool = placed(1);
    pool.spec.placements.truncate(1);
    let mut short = member_at(&pool, "short", 0);
    because(&mut short, conditions::REASON_QUOTA_EXCEEDED);
    let exhausted = Exhausted::default();
    let seen = judged(&pool, &[short], &exhausted, 0);
    assert_eq!(plan(&seen), Action::Rest);
    let gone = judged(&pool, &[], &exhausted, 1);
    assert_eq!(
        plan(&gone),
        Action::Create(1, Some(place("a", true))),
        "better than nothing"
    );
}

/// Case 68.
#[test]
fn spot_instances_that_are_taken_back_too_often_are_followed_by_others_on_demand() {
    let mut pool = placed(1);
    pool.spec.placements.remove(0);
    let taken = |count: i64| {
        let mut proxy = provisioned(member_at(&pool, "taken", 0), Phase::Replacing);
        because(&mut proxy, conditions::REASON_PREEMPTED);
        let setback = |index| Setback {
            time: Time(at(index)),
            reason: conditions::REASON_PREEMPTED.into(),
            address: None,
            generation: None,
        };
        proxy.status.as_mut().unwrap().setbacks = (0..count).map(setback).collect();
        proxy
    };
    let after = |count, minute| {
        let exhausted = Exhausted::default();
        plan(&judged(&pool, &[taken(count)], &exhausted, minute))
    };
    assert_eq!(after(3, 1), Action::Rest, "it comes back where it was");
    assert!(matches!(after(4, 1), Action::Delete(Cause::NoCapacity, _)));
    assert_eq!(after(4, 61), Action::Rest, "an hour later nothing counts");

    let exhausted = Exhausted::default();
    judged(&pool, &[taken(4)], &exhausted, 1);
    let next = plan(&judged(&pool, &[], &exhausted, 2));
    assert_eq!(next, Action::Create(1, Some(place("b", false))));
}

/// At most as old as the pool says, a tenth younger at the most, and not all at the same age.
#[test]
fn members_that_are_too_old_are_rolled_each_at_an_age_of_its_own() {
    const MAX_AGE: i64 = 36_000;
    let mut pool = pool(2);
    pool.spec.max_age_seconds = Some(36_000);
    let members = ["a", "b"].map(|name| provisioned(member(name, 0), Phase::Ready));
    let seen = |second| seen_at(&pool, &members, &Pending::default(), at(second), 0);
    let outdated = |observation: &Observation| {
        let aged = observation.members.iter();
        aged.filter(|member| member.outdated == Some(member::Outdated::Age))
            .count()
    };

    let young = seen(MAX_AGE * 9 / 10 - 1);
    assert_eq!((outdated(&young), plan(&young)), (0, Action::Rest));
    let first = young.next.expect("the pool is looked at again in time");
    assert!(first <= Duration::from_secs(3_601), "{first:?}");

    let due = MAX_AGE * 9 / 10 - 1 + i64::try_from(first.as_secs()).unwrap() + 1;
    let one = seen(due);
    assert_eq!((outdated(&one), plan(&one)), (1, Action::Create(1, None)));
    assert_eq!(outdated(&seen(MAX_AGE)), 2);
}
