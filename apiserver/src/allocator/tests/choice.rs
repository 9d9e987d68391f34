//! Which proxy is chosen, why none is, and that busy ones cost nothing.

use std::sync::Arc;

use crawl_api::lease::denial;
use crawl_api::pool::LeasePolicy;
use crawl_api::proxy::NotAccepting;
use crawl_api::scheme::Scheme;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::store::{World, want};
use crate::allocator::facts::PoolFacts;
use crate::allocator::testing::{self, facts};
use crate::allocator::want::{Candidates, Want};

fn granted(world: &mut World, want: &Want) -> String {
    let slot = world.plan_grant(want).unwrap().unwrap();
    world.settle();
    slot.facts.name.to_string()
}

fn last_lease(world: &World) -> Arc<str> {
    format!("lease-{}", world.names).into()
}

#[test]
fn the_last_slot_goes_to_one_of_two_concurrent_creates() {
    let mut world = World::new();
    world.allocator.observe_proxy(facts("a", 1));
    assert!(world.plan_grant(&want(None)).unwrap().is_ok());
    let denial = world.plan_grant(&want(None)).unwrap().unwrap_err();
    assert_eq!(denial.counts, [(denial::AT_CAPACITY, 1)].into());
    world.settle();
    assert_eq!(world.leases.len(), 1);
}

#[test]
fn creates_on_one_proxy_do_not_wait_for_one_another() {
    let mut world = World::new();
    world.allocator.observe_proxy(facts("a", 64));
    for number in 1..=64 {
        assert_eq!(
            world.plan_grant(&want(None)).unwrap().unwrap().token,
            number
        );
    }
    while !world.pending.is_empty() {
        assert!(world.decide(0, true), "in order, none conflicts");
    }
    assert_eq!(world.leases.len(), 64);
}

#[test]
fn a_reply_that_nobody_hears_leaves_a_lease_that_is_known() {
    let mut world = World::new();
    world.allocator.observe_proxy(facts("a", 2));
    assert!(world.plan_grant(&want(None)).unwrap().is_ok());
    world.decide(0, false);
    assert!(
        world.plan_grant(&want(None)).is_none(),
        "nothing is decided before it is read again"
    );
    world.doubts();
    let lease = world.allocator.lease(&Arc::from("lease-1")).unwrap();
    assert!(lease.committed);
    assert_eq!(world.plan_grant(&want(None)).unwrap().unwrap().token, 2);
}

#[test]
fn fewest_leases_go_first_then_latency_then_the_longest_released() {
    let mut world = World::new();
    for (name, latency) in [("slow", 512), ("fast", 32), ("unknown", 0)] {
        let mut facts = facts(name, 3);
        facts.latency_bucket = latency;
        world.allocator.observe_proxy(facts);
    }
    let order: Vec<_> = (0..6).map(|_| granted(&mut world, &want(None))).collect();
    assert_eq!(
        order,
        ["fast", "slow", "unknown", "fast", "slow", "unknown"]
    );
}

#[test]
fn a_target_comes_back_to_an_exit_last() {
    let mut world = World::new();
    for name in ["a", "b", "c"] {
        world.allocator.observe_proxy(facts(name, 3));
    }
    let shop = want(Some("shop.example"));
    let first = granted(&mut world, &shop);
    world.plan_release(&last_lease(&world));
    world.settle();
    let second = granted(&mut world, &shop);
    world.plan_release(&last_lease(&world));
    world.settle();
    let third = granted(&mut world, &shop);
    world.plan_release(&last_lease(&world));
    world.settle();
    let mut all = [first.clone(), second, third];
    all.sort();
    assert_eq!(all, ["a", "b", "c"]);
    assert_eq!(granted(&mut world, &shop), first);
}

#[test]
fn pack_fills_one_proxy_before_it_opens_another() {
    let mut world = World::new();
    let packed = PoolFacts {
        policy: LeasePolicy::Pack,
        per_target: 9,
    };
    world.allocator.observe_pool(&testing::pool(), Some(packed));
    for name in ["a", "b"] {
        world.allocator.observe_proxy(facts(name, 2));
    }
    let order: Vec<_> = (0..4)
        .map(|_| granted(&mut world, &want(Some("x.example"))))
        .collect();
    assert_eq!(order[0], order[1]);
    assert_eq!(order[2], order[3]);
}

/// Case 6: an unsteady proxy is what is left, not what is left out.
#[test]
fn a_flapping_proxy_is_given_out_when_no_other_has_room() {
    for policy in [LeasePolicy::LeastLoaded, LeasePolicy::Pack] {
        let mut world = World::new();
        let pool = PoolFacts {
            policy,
            per_target: 9,
        };
        world.allocator.observe_pool(&testing::pool(), Some(pool));
        let steady = facts("steady", 2);
        let mut flapping = facts("flapping", 2);
        flapping.latency_bucket = 1;
        flapping.flapping = true;
        for facts in [&steady, &flapping] {
            world.allocator.observe_proxy(facts.clone());
        }
        let shop = want(Some("shop.example"));
        let order: Vec<_> = (0..3).map(|_| granted(&mut world, &shop)).collect();
        assert_eq!(order, ["steady", "steady", "flapping"], "{policy:?}");
        world.plan_release(&Arc::from("lease-1"));
        world.settle();
        assert_eq!(granted(&mut world, &shop), "steady");

        // Calm again, it is the faster one.
        for lease in ["lease-2", "lease-3", "lease-4"] {
            world.plan_release(&Arc::from(lease));
        }
        world.settle();
        flapping.resource_version = 2;
        flapping.flapping = false;
        world.allocator.observe_proxy(flapping);
        assert_eq!(granted(&mut world, &want(Some("new.example"))), "flapping");
    }
}

#[test]
fn a_flapping_proxy_comes_last_also_when_many_are_busy_with_the_target() {
    let mut world = World::new();
    for number in 0..200 {
        let mut facts = facts(&format!("{number:03}"), 2);
        facts.flapping = number % 2 == 0;
        world.allocator.observe_proxy(facts);
    }
    let shop = want(Some("shop.example"));
    let order: Vec<u32> = (0..200)
        .map(|_| granted(&mut world, &shop).parse().unwrap())
        .collect();
    let (first, last) = order.split_at(100);
    assert!(first.iter().all(|number| number % 2 == 1), "{order:?}");
    assert!(last.iter().all(|number| number % 2 == 0), "{order:?}");
}

#[test]
fn every_reason_is_counted_and_the_counts_add_up() {
    let mut world = World::new();
    let add = |name: &str, change: &dyn Fn(&mut crate::allocator::facts::ProxyFacts)| {
        let mut facts = facts(name, 1);
        change(&mut facts);
        world.allocator.observe_proxy(facts);
    };
    add("full", &|_| {});
    add("shared", &|facts| {
        facts.exit_ip = Some("203.0.113.1".into());
        facts.latency_bucket = 1;
    });
    add("twin", &|facts| {
        facts.exit_ip = Some("203.0.113.1".into());
    });
    add("unhealthy", &|facts| {
        facts.accepting = Err(NotAccepting::Unhealthy);
    });
    add("draining", &|facts| {
        facts.accepting = Err(NotAccepting::Draining);
    });
    add("cordoned", &|facts| {
        facts.accepting = Err(NotAccepting::Cordoned);
    });
    add("unleasable", &|facts| {
        facts.accepting = Err(NotAccepting::Unleasable);
    });
    add("socks", &|facts| {
        facts.endpoint.as_mut().unwrap().scheme = Scheme::Socks5;
    });
    add("denied", &|facts| {
        facts.denied_targets = vec!["example.com".into()];
    });
    let shop = want(Some("shop.example.com"));
    assert_eq!(granted(&mut world, &shop), "shared");
    assert_eq!(granted(&mut world, &shop), "full");
    let denial = world.plan_grant(&shop).unwrap().unwrap_err();
    let expected = [
        (denial::AT_CAPACITY, 2),
        (denial::AT_TARGET_CAPACITY, 1),
        (denial::UNHEALTHY, 1),
        (denial::DRAINING, 1),
        (denial::CORDONED, 1),
        (denial::UNLEASABLE, 1),
        (denial::SCHEME_MISMATCH, 1),
        (denial::TARGET_NOT_ALLOWED, 1),
    ];
    assert_eq!(denial.counts, expected.into());
    assert_eq!(denial.candidates, 9);

    let resource = aggregated_api::http::status::GroupResource {
        group: "leases.crawl.example.com".into(),
        resource: "proxyleases".into(),
    };
    let error = denial.to_error(&resource, "x", &shop, world.now());
    let body: serde_json::Value = serde_json::from_slice(&error.to_json()).unwrap();
    assert_eq!(body["reason"], "NoProxyAvailable");
    assert_eq!(body["code"], 409);
    assert_eq!(body["details"]["retryAfterSeconds"], 60);
    let causes = body["details"]["causes"].as_array().unwrap();
    let sum: usize = causes
        .iter()
        .map(|cause| {
            cause["message"]
                .as_str()
                .unwrap()
                .split(' ')
                .next()
                .unwrap()
        })
        .map(|count| count.parse::<usize>().unwrap())
        .sum();
    assert_eq!(sum, 9);
    let message = body["message"].as_str().unwrap();
    assert!(
        message.contains("of 9 proxies") && message.contains("2 AtCapacity"),
        "{message}"
    );
}

#[test]
fn without_candidates_the_denial_says_so() {
    let mut world = World::new();
    let denial = world.plan_grant(&want(None)).unwrap().unwrap_err();
    assert_eq!((denial.candidates, denial.counts.len()), (0, 0));
    assert!(denial.retry_after(world.now()) >= 1);
}

#[test]
fn a_selector_serves_the_proxies_whose_labels_match_now() {
    let mut world = World::new();
    let labels = |geo: &str| LabelSelector {
        match_labels: Some([("geo".to_owned(), geo.to_owned())].into()),
        ..LabelSelector::default()
    };
    let by = |geo| Want {
        candidates: Candidates::labels("fleet", &labels(geo)).unwrap(),
        ..want(None)
    };
    world.allocator.observe_proxy(facts("a", 5));
    assert_eq!(granted(&mut world, &by("eu")), "a");
    assert_eq!(
        world.plan_grant(&by("us")).unwrap().unwrap_err().candidates,
        0
    );
    let mut moved = facts("a", 5);
    moved.resource_version = 2;
    moved.labels.insert("geo".into(), "us".into());
    world.allocator.observe_proxy(moved);
    assert_eq!(granted(&mut world, &by("us")), "a");
    assert_eq!(
        world.plan_grant(&by("eu")).unwrap().unwrap_err().candidates,
        0
    );
}

#[test]
fn a_state_older_than_what_grants_knew_is_ignored() {
    let mut world = World::new();
    let mut drained = facts("a", 1);
    drained.resource_version = 7;
    drained.accepting = Err(NotAccepting::Draining);
    world.allocator.observe_proxy(drained);
    world.plan_limits("uid-a");
    world.settle();
    world.crash(&[facts("a", 1)]);
    let denial = world.plan_grant(&want(None)).unwrap().unwrap_err();
    assert_eq!(
        denial.candidates, 0,
        "the stale state did not bring the proxy back"
    );
}

#[test]
fn a_target_that_many_are_busy_with_still_gets_the_free_ones() {
    let mut world = World::new();
    for number in 0..400 {
        world
            .allocator
            .observe_proxy(facts(&format!("{number:03}"), 2));
    }
    let shop = want(Some("shop.example"));
    let mut names = std::collections::BTreeSet::new();
    for _ in 0..400 {
        names.insert(granted(&mut world, &shop));
    }
    assert_eq!(names.len(), 400, "each exit once");
    let denial = world.plan_grant(&shop).unwrap().unwrap_err();
    assert_eq!(denial.counts, [(denial::AT_TARGET_CAPACITY, 400)].into());
    world.plan_release(&Arc::from("lease-17"));
    world.settle();
    assert!(world.plan_grant(&shop).unwrap().is_ok());
    assert!(
        world
            .plan_grant(&want(Some("other.example")))
            .unwrap()
            .is_ok()
    );
}
