//! Random histories of creates, renewals, releases, expiries, limit changes, lost replies and
//! crashes, whose transactions are decided in any order.

use std::sync::Arc;
use std::time::Duration;

use crawl_api::proxy::NotAccepting;
use proptest::prelude::*;

use super::store::{TTL, World, want};
use crate::allocator::facts::ProxyFacts;
use crate::allocator::{Denial, Slot, testing};

const TARGETS: [Option<&str>; 3] = [None, Some("a.example"), Some("b.example")];

#[derive(Clone, Debug)]
enum Step {
    Grant(usize),
    Release(usize),
    Renew(usize),
    Advance(u64),
    Limit { proxy: usize, max: usize },
    Accept { proxy: usize, accepting: bool },
    Flap { proxy: usize, flapping: bool },
    Decide { at: usize, reported: bool },
    Settle,
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..TARGETS.len()).prop_map(Step::Grant),
        4 => any::<usize>().prop_map(Step::Release),
        2 => any::<usize>().prop_map(Step::Renew),
        2 => (1..90_u64).prop_map(Step::Advance),
        1 => (any::<usize>(), 0..4_usize).prop_map(|(proxy, max)| Step::Limit { proxy, max }),
        1 => (any::<usize>(), any::<bool>())
            .prop_map(|(proxy, accepting)| Step::Accept { proxy, accepting }),
        1 => (any::<usize>(), any::<bool>())
            .prop_map(|(proxy, flapping)| Step::Flap { proxy, flapping }),
        6 => (any::<usize>(), prop::bool::weighted(0.9))
            .prop_map(|(at, reported)| Step::Decide { at, reported }),
        2 => Just(Step::Settle),
        1 => Just(Step::Crash),
    ]
}

/// Proxies of the model; the last two share an exit.
fn fleet() -> Vec<ProxyFacts> {
    let mut proxies: Vec<_> = ["a", "b", "c", "d"]
        .map(|name| testing::facts(name, 2))
        .into();
    for facts in &mut proxies[2..] {
        facts.exit_ip = Some("203.0.113.9".into());
    }
    proxies
}

fn observe(world: &World, facts: &mut ProxyFacts, change: impl FnOnce(&mut ProxyFacts)) {
    change(facts);
    facts.resource_version += 1;
    world.allocator.observe_proxy(facts.clone());
}

/// Holders in the records are exactly the leases, and no record that was just granted on exceeds
/// what it says itself.
fn check_store(world: &World, granted_on: Option<&str>) {
    let mut held = 0;
    for (key, (_, record)) in &world.records {
        for grant in &record.holders {
            let row = world
                .leases
                .get(&grant.lease_uid)
                .expect("every holder has a lease");
            assert!(
                key.ends_with(&*row.proxy),
                "{grant:?} is held on the lease's proxy"
            );
            held += 1;
        }
        if granted_on.is_some_and(|uid| key.ends_with(uid)) {
            assert!(
                record.accepting,
                "granted on a record that refuses: {record:?}"
            );
            assert!(
                record.holders.len() <= record.max_leases,
                "over the limit: {record:?}"
            );
        }
    }
    assert_eq!(held, world.leases.len(), "every lease holds a slot");
}

/// Leases per exit and target stay within one, which is the default.
fn check_targets(world: &World, proxies: &[ProxyFacts]) {
    let exit = |uid: &str| {
        let facts = proxies.iter().find(|facts| &*facts.uid == uid).unwrap();
        facts
            .exit_ip
            .clone()
            .unwrap_or_else(|| Arc::clone(&facts.uid))
    };
    let mut taken: Vec<_> = world
        .leases
        .values()
        .filter_map(|row| Some((exit(&row.proxy), row.target.clone()?)))
        .collect();
    let all = taken.len();
    taken.sort();
    taken.dedup();
    assert_eq!(
        taken.len(),
        all,
        "two leases for one target behind one exit: {:?}",
        world.leases
    );
}

/// Whether a proxy can be had for a target, when nothing is on its way.
fn has_room(
    world: &World,
    proxies: &[ProxyFacts],
    facts: &ProxyFacts,
    target: Option<&str>,
) -> bool {
    let exit = |uid: &str| {
        let facts = proxies.iter().find(|facts| &*facts.uid == uid).unwrap();
        facts.exit_ip.as_ref().unwrap_or(&facts.uid)
    };
    let held = world.leases.values();
    let taken = held.clone().filter(|row| row.proxy == facts.uid).count();
    let busy = held
        .filter(|row| exit(&row.proxy) == exit(&facts.uid))
        .any(|row| target.is_some() && row.target.as_deref() == target);
    facts.accepting.is_ok() && taken < facts.max_leases && !busy
}

/// Something is given out whenever something is there, and what flaps only when nothing else is.
/// `room` are the proxies that could be had.
fn check_choice(room: &[&ProxyFacts], answer: &Result<Slot, Denial>) {
    match answer {
        Ok(slot) => {
            let chosen = room.iter().find(|facts| facts.uid == slot.facts.uid);
            let chosen = chosen.expect("it could be had");
            let steady = room.iter().any(|facts| !facts.flapping);
            assert!(!chosen.flapping || !steady, "{chosen:?} of {room:?}");
        },
        Err(denial) => assert!(room.is_empty(), "{denial:?} although {room:?}"),
    }
}

fn check_settled(world: &World) {
    let totals = world.allocator.totals();
    assert_eq!(
        totals.active,
        world.leases.len(),
        "memory counts what is stored"
    );
    for row in world.leases.values() {
        let tracked = world
            .allocator
            .lease(&row.key.uid)
            .expect("a stored lease is tracked");
        assert!(tracked.committed);
    }
}

fn run(steps: Vec<Step>) {
    let mut world = World::new();
    let mut proxies = fleet();
    for facts in &proxies {
        world.allocator.observe_proxy(facts.clone());
    }
    for step in steps {
        let count = proxies.len();
        match step {
            Step::Grant(target) => {
                let target = TARGETS[target];
                let settled = world.pending.is_empty();
                let room = proxies.iter();
                let room: Vec<_> = room
                    .filter(|facts| has_room(&world, &proxies, facts, target))
                    .collect();
                let answer = world.plan_grant(&want(target));
                if let Some(answer) = answer.as_ref().filter(|_| settled) {
                    check_choice(&room, answer);
                }
                if let Some(Err(denial)) = answer {
                    assert_eq!(denial.counts.values().sum::<usize>(), denial.candidates);
                    assert_eq!(denial.candidates, count);
                    assert!(denial.retry_after(world.now()) >= 1);
                }
            },
            Step::Release(at) => {
                let uid = world
                    .leases
                    .keys()
                    .nth(at % world.leases.len().max(1))
                    .cloned();
                if let Some(uid) = uid {
                    world.plan_release(&uid);
                }
            },
            Step::Renew(at) => {
                let at = at % world.leases.len().max(1);
                let now = world.now();
                if let Some(row) = world.leases.values_mut().nth(at) {
                    row.renewals += 1;
                    let renewed = jiff::Timestamp::from_second(row.renewals).unwrap();
                    world.allocator.renewed(&row.key.uid, renewed, now + TTL);
                }
            },
            Step::Advance(seconds) => {
                world.clock.advance(Duration::from_secs(seconds));
                world.expire();
            },
            Step::Limit { proxy, max } => {
                let facts = &mut proxies[proxy % count];
                observe(&world, facts, |facts| {
                    facts.max_leases = max;
                    facts.accepting = if max == 0 {
                        Err(NotAccepting::Unleasable)
                    } else {
                        Ok(())
                    };
                });
                world.plan_limits(&facts.uid.clone());
            },
            Step::Accept { proxy, accepting } => {
                let facts = &mut proxies[proxy % count];
                let accepting = if accepting && facts.max_leases > 0 {
                    Ok(())
                } else {
                    Err(NotAccepting::Draining)
                };
                observe(&world, facts, |facts| facts.accepting = accepting);
                world.plan_limits(&facts.uid.clone());
            },
            Step::Flap { proxy, flapping } => {
                let facts = &mut proxies[proxy % count];
                observe(&world, facts, |facts| facts.flapping = flapping);
            },
            Step::Decide { at, reported } => {
                if !world.pending.is_empty() {
                    let at = at % world.pending.len();
                    let on = world.pending[at].granted_on();
                    let committed = world.decide(at, reported);
                    check_store(&world, on.as_deref().filter(|_| committed));
                    world.doubts();
                }
            },
            Step::Settle => {
                world.settle();
                check_settled(&world);
            },
            Step::Crash => {
                world.crash(&proxies);
                check_settled(&world);
            },
        }
        check_store(&world, None);
        check_targets(&world, &proxies);
    }
    world.settle();
    check_settled(&world);
    lone_client(&mut world);
}

/// Somebody who is denied and waits as long as told gets a proxy, when nobody else acts.
fn lone_client(world: &mut World) {
    let Some(Err(denial)) = world.plan_grant(&want(Some("a.example"))) else {
        return;
    };
    if denial.free_at.is_none() {
        return;
    }
    let wait = denial.retry_after(world.now());
    world.clock.advance(Duration::from_secs(u64::from(wait)));
    world.expire();
    let answer = world.plan_grant(&want(Some("a.example")));
    assert!(
        matches!(answer, Some(Ok(_))),
        "waited {wait} s for {denial:?}, got {answer:?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn no_history_grants_too_much_or_loses_a_slot(steps in prop::collection::vec(step(), 1..60)) {
        run(steps);
    }
}
