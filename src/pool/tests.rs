//! Membership, scale-up and scale-down order, and the status of a pool.

use std::time::Duration;

use crawl_api::conditions::{self, Statement};
use crawl_api::pool::{LeasePolicy, ProxyPoolSpec, ProxyTemplate, TemplateMetadata};
use crawl_api::proxy::{Phase, ProxySpec, ProxyStatus};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::Status;
use kube::runtime::{reflector, watcher};

use super::observe::{Observation, Standing, observe};
use super::plan::{Action, plan};
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
            template: ProxyTemplate {
                metadata,
                spec: ProxySpec::managed("local"),
            },
            allowed_namespaces: None,
            lease_policy: LeasePolicy::default(),
            max_leases_per_target: 1,
        },
    );
    pool.metadata.namespace = Some("fleet".into());
    pool.metadata.uid = Some("pool-uid".into());
    pool.metadata.generation = Some(3);
    pool
}

fn member(name: &str, created: i64) -> Proxy {
    let mut proxy = act::build_member(&pool(1));
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
    let (reader, mut writer) = reflector::store();
    for proxy in proxies {
        writer.apply_watcher_event(&watcher::Event::Apply(proxy.clone()));
    }
    observe(pool, &reader, pending, Duration::from_secs(elapsed))
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
        Action::Create(2)
    );
    assert_eq!(
        plan(&seen(&pool(1), &[member("a", 1)], &none, 0)),
        Action::Rest
    );
    assert_eq!(
        plan(&seen(&pool(100_000), &[], &none, 0)),
        Action::Create(50)
    );
}

#[test]
fn members_go_in_order_of_their_use_and_the_youngest_first() {
    let proxies = [
        provisioned(member("ready-old", 1), Phase::Ready),
        provisioned(member("ready-new", 9), Phase::Ready),
        provisioned(member("unhealthy", 5), Phase::Unhealthy),
        provisioned(member("failed", 5), Phase::Failed),
        member("never", 1),
    ];
    let order = |replicas| match plan(&seen(&pool(replicas), &proxies, &Pending::default(), 0)) {
        Action::Delete(members) => members.into_iter().map(|m| m.name).collect::<Vec<_>>(),
        Action::Rest | Action::Create(_) => Vec::new(),
    };
    assert_eq!(
        order(0),
        ["never", "failed", "unhealthy", "ready-new", "ready-old"]
    );
    assert_eq!(order(3), ["never", "failed"]);
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
fn a_create_that_is_never_seen_is_given_up_and_made_again() {
    let pending = Pending::default();
    pending.creating(&pool(1), "a", Duration::ZERO);
    assert_eq!(plan(&seen(&pool(1), &[], &pending, 29)), Action::Rest);
    assert_eq!(plan(&seen(&pool(1), &[], &pending, 30)), Action::Create(1));
}

#[test]
fn a_member_has_the_template_the_label_and_a_name_of_its_own() {
    let built = act::build_member(&pool(1));
    assert_eq!(built.labels()["crawl.example.com/pool"], "eu");
    assert_eq!(built.labels()["geo"], "eu");
    assert_eq!(built.spec, ProxySpec::managed("local"));
    let name = built.name_any();
    assert!(name.starts_with("eu-") && name.len() == 8, "{name}");
    assert_ne!(name, act::build_member(&pool(1)).name_any());
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
