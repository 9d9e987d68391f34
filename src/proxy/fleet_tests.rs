//! The books: what the objects do not show yet, and what somebody took note of.

use crawl_api::conditions::{self as c, Statement};
use crawl_api::pool::{PoolLimits, ProxyPoolSpec, ProxyTemplate, TemplateMetadata};
use crawl_api::proxy::{ProxySpec, ProxyStatus};
use kube::Resource;
use kube::runtime::{reflector, watcher};
use runtime_kit::SteppedClock;

use super::*;

fn pool(limit: Option<u32>) -> ProxyPool {
    let mut pool = ProxyPool::new(
        "eu",
        ProxyPoolSpec {
            limits: Some(PoolLimits {
                creates_per_hour: limit,
                ..PoolLimits::default()
            }),
            ..ProxyPoolSpec::of(ProxyTemplate {
                metadata: TemplateMetadata::default(),
                spec: ProxySpec::managed("local"),
            })
        },
    );
    pool.metadata.namespace = Some("fleet".into());
    pool.metadata.uid = Some("pool-uid".into());
    pool
}

fn state(proxy: &mut Proxy, type_: &'static str, status: bool, reason: &str) {
    let statement = Statement::new(type_, status, reason, "");
    let list = &mut proxy.status.get_or_insert_default().conditions;
    c::set(list, statement, None, Timestamp::from_second(100).unwrap());
}

/// A member of the pool that can be leased.
fn member(name: &str) -> Proxy {
    let mut proxy = Proxy::new(name, ProxySpec::managed("local"));
    proxy.metadata.namespace = Some("fleet".into());
    proxy.metadata.uid = Some(name.into());
    proxy.metadata.owner_references = pool(None)
        .controller_owner_ref(&())
        .map(|owner| vec![owner]);
    proxy.status = Some(ProxyStatus::default());
    state(&mut proxy, c::READY, true, c::REASON_READY);
    proxy
}

fn lost(name: &str) -> Proxy {
    let mut proxy = member(name);
    state(&mut proxy, c::READY, false, c::REASON_NOT_PROVISIONED);
    state(&mut proxy, c::PROVISIONED, false, c::REASON_INSTANCE_LOST);
    proxy
}

fn fleets(pool: &ProxyPool, proxies: &[Proxy]) -> Fleets {
    let (reader, mut writer) = reflector::store();
    for proxy in proxies {
        writer.apply_watcher_event(&watcher::Event::Apply(proxy.clone()));
    }
    let (pools, mut pool_writer) = reflector::store();
    pool_writer.apply_watcher_event(&watcher::Event::Apply(pool.clone()));
    Fleets::new(reader, pools)
}

fn reason(verdict: Result<(), Withheld>) -> Option<&'static str> {
    verdict.err().map(|withheld| withheld.reason)
}

fn clock() -> SteppedClock {
    SteppedClock::new(Timestamp::from_second(200).unwrap())
}

#[test]
fn two_passes_do_not_share_the_last_place_and_it_is_free_again_when_nothing_came_of_it() {
    let members = ["a", "b", "c"].map(member);
    let fleets = fleets(&pool(None), &members);
    let clock = clock();
    let ask = |index: usize| reason(fleets.ask(&members[index], Request::Replace, &clock));
    assert_eq!(ask(0), None);
    assert_eq!(ask(1), Some("DisruptionBudget"));
    assert_eq!(ask(0), None, "the same one may ask again");
    clock.advance(SETTLE);
    assert_eq!(ask(1), None);
    // From here on the object counts, as the store has it.
    fleets.shown(&members[1]);
    assert_eq!(ask(2), None);
}

#[test]
fn members_share_a_budget_with_their_pool_and_single_proxies_with_their_namespace() {
    let mut single = member("single");
    single.metadata.owner_references = None;
    let mut elsewhere = single.clone();
    elsewhere.metadata.name = Some("elsewhere".into());
    elsewhere.metadata.uid = Some("elsewhere".into());
    elsewhere.metadata.namespace = Some("other".into());
    let all = [member("a"), single, elsewhere];
    let fleets = fleets(&pool(None), &all);
    for proxy in &all {
        let verdict = fleets.ask(proxy, Request::Replace, &clock());
        assert_eq!(reason(verdict), None, "{}", proxy.name_any());
    }
}

#[test]
fn a_mass_loss_stops_re_creation_until_the_pool_is_resumed() {
    let members = ["a", "b", "c", "d"].map(lost);
    let stopped = fleets(&pool(None), &members);
    let ask = |fleets: &Fleets| reason(fleets.ask(&members[0], Request::Create, &clock()));
    assert_eq!(ask(&stopped), Some("MassExternalDeletion"));
    let resumed = |text: &str| {
        let mut pool = pool(None);
        let annotations = pool.annotations_mut();
        annotations.insert(names::ANNOTATION_RESUME.into(), text.into());
        ask(&fleets(&pool, &members))
    };
    assert_eq!(resumed("1970-01-01T00:01:40Z"), None);
    assert_eq!(
        resumed("1970-01-01T00:01:39Z"),
        Some("MassExternalDeletion"),
        "resumed before it happened"
    );
    assert_eq!(resumed("yes, please"), Some("MassExternalDeletion"));
}

#[test]
fn losses_that_were_made_up_for_count_for_a_while() {
    let members = [lost("a"), member("b"), member("c"), member("d")];
    let fleets = fleets(&pool(None), &members);
    let clock = clock();
    let ask = || reason(fleets.ask(&members[0], Request::Create, &clock));
    assert_eq!(ask(), None);
    fleets.lost(&members[1], &clock);
    fleets.lost(&members[2], &clock);
    assert_eq!(ask(), Some("MassExternalDeletion"));
    clock.advance(budget::LOSS_WINDOW);
    assert_eq!(ask(), None);
}

#[test]
fn a_new_member_is_created_during_a_mass_loss() {
    let mut all = ["a", "b", "c", "d"].map(lost).to_vec();
    all.push(member("new"));
    let fleets = fleets(&pool(None), &all);
    assert_eq!(fleets.ask(&all[4], Request::Create, &clock()), Ok(()));
}

#[test]
fn creates_of_a_pool_are_counted_against_its_limit() {
    let members = ["a", "b", "c"].map(member);
    let fleets = fleets(&pool(Some(2)), &members);
    let clock = clock();
    let ask = |index: usize| reason(fleets.ask(&members[index], Request::Create, &clock));
    assert_eq!([ask(0), ask(1), ask(2)], [None, None, Some("CreateLimit")]);
    clock.advance(budget::CREATES_WINDOW);
    assert_eq!(ask(2), None);
}

#[test]
fn failed_creates_slow_down_the_whole_pool_and_otherwise_only_the_proxy_itself() {
    let slowed = |single: bool| {
        let members = ["a", "b"].map(|name| {
            let mut proxy = member(name);
            if single {
                proxy.metadata.owner_references = None;
            }
            proxy
        });
        let fleets = fleets(&pool(None), &members);
        let clock = clock();
        for _ in 0..4 {
            fleets.create_failed(&members[0], clock.elapsed());
        }
        let ask = |index: usize| reason(fleets.ask(&members[index], Request::Create, &clock));
        // The first is the one that is tried.
        [ask(0), ask(0), ask(1)]
    };
    let failing = Some("CreatesFailing");
    assert_eq!(slowed(false), [None, failing, failing]);
    assert_eq!(slowed(true), [None, failing, None]);
}

#[test]
fn members_with_something_withheld_are_looked_at_when_their_pool_changes() {
    let mut waiting = member("waiting");
    state(&mut waiting, c::WITHHELD, true, c::REASON_DISRUPTION_BUDGET);
    let mut foreign = waiting.clone();
    foreign.metadata.name = Some("foreign".into());
    foreign.metadata.owner_references = None;
    let (reader, mut writer) = reflector::store();
    for proxy in [waiting, foreign, member("calm")] {
        writer.apply_watcher_event(&watcher::Event::Apply(proxy));
    }
    let found = withheld_members(&reader, &pool(None));
    let names: Vec<_> = found.iter().map(|found| found.name.as_str()).collect();
    assert_eq!(names, ["waiting"]);
}
