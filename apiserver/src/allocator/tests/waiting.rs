//! Leases that wait, and request ids.

use std::sync::Arc;
use std::time::Duration;

use crawl_api::lease::denial;
use futures::FutureExt;

use super::store::{World, want};
use crate::allocator::leases::RequestKey;
use crate::allocator::testing::facts;

const WAIT: Duration = Duration::from_mins(2);

fn wait_for(world: &mut World, target: Option<&str>) -> Arc<str> {
    let lease = world.new_lease();
    world.allocator.enqueue(&lease, want(target), WAIT);
    lease.key.uid
}

fn served(world: &World) -> Vec<String> {
    world
        .allocator
        .take_bindings()
        .iter()
        .map(|key| key.name.to_string())
        .collect()
}

#[test]
fn a_freed_slot_goes_to_the_oldest_waiter_before_newcomers() {
    let mut world = World::new();
    world.allocator.observe_proxy(facts("a", 1));
    world.plan_grant(&want(None)).unwrap().unwrap();
    world.settle();
    let first = wait_for(&mut world, None);
    let second = wait_for(&mut world, None);
    assert!(served(&world).is_empty());

    world.plan_release(&Arc::from("lease-1"));
    world.settle();
    assert_eq!(served(&world), [&*first]);
    let denial = world.plan_grant(&want(None)).unwrap().unwrap_err();
    assert_eq!(denial.counts, [(denial::RESERVED_FOR_WAITERS, 1)].into());

    let (slot, companion) = world.allocator.bind(&first).unwrap();
    assert_eq!(slot.token, 2);
    companion.reservation.unwrap().committed(9);
    assert!(world.allocator.lease(&first).unwrap().proxy.is_some());
    assert!(world.allocator.lease(&second).unwrap().proxy.is_none());
    assert_eq!(world.allocator.totals().waiting, 1);
}

#[test]
fn a_waiter_that_cannot_be_served_holds_up_nobody_who_can() {
    let mut world = World::new();
    world.allocator.observe_proxy(facts("a", 2));
    world
        .plan_grant(&want(Some("shop.example")))
        .unwrap()
        .unwrap();
    world.settle();
    wait_for(&mut world, Some("shop.example"));
    let other = wait_for(&mut world, Some("other.example"));
    assert_eq!(served(&world), [&*other]);
}

#[test]
fn a_binding_that_conflicts_puts_the_waiter_back_to_its_place() {
    let mut world = World::new();
    let first = wait_for(&mut world, None);
    let second = wait_for(&mut world, None);
    world.allocator.observe_proxy(facts("a", 1));
    assert_eq!(served(&world), [&*first]);
    let (_, companion) = world.allocator.bind(&first).unwrap();
    drop(companion);
    let (records, _) = world.allocator.take_doubts();
    assert_eq!(records.len(), 1);
    assert!(world.allocator.reload(&records[0], None).is_empty());
    assert_eq!(served(&world), [&*first], "not {second}");
}

#[test]
fn a_waiter_that_leaves_gives_its_slot_to_the_next() {
    let mut world = World::new();
    let first = wait_for(&mut world, None);
    let second = wait_for(&mut world, None);
    world.allocator.observe_proxy(facts("a", 1));
    assert_eq!(served(&world), [&*first]);
    world.allocator.dequeue(&first);
    assert_eq!(served(&world), [&*second]);
    assert!(world.allocator.bind(&first).is_none());
}

#[test]
fn a_wait_is_due_when_it_is_over() {
    let mut world = World::new();
    let uid = wait_for(&mut world, None);
    assert!(world.allocator.due(9).is_empty());
    world.clock.advance(WAIT);
    assert_eq!(
        world
            .allocator
            .due(9)
            .first()
            .map(|lease| Arc::clone(&lease.key.uid)),
        Some(uid)
    );
}

#[test]
fn a_request_id_stands_for_one_lease_while_it_lives() {
    let mut world = World::new();
    world.allocator.observe_proxy(facts("a", 2));
    let request = RequestKey {
        namespace: "crawlers".into(),
        user: "u".into(),
        id: "r".into(),
    };
    let claim = world
        .allocator
        .claim(&request)
        .now_or_never()
        .unwrap()
        .unwrap()
        .unwrap();
    assert!(
        world.allocator.claim(&request).now_or_never().is_none(),
        "the first is on its way"
    );
    drop(claim);
    let claim = world
        .allocator
        .claim(&request)
        .now_or_never()
        .unwrap()
        .unwrap()
        .unwrap();
    world.plan_grant(&want(None)).unwrap().unwrap();
    world.settle();
    claim.made("lease-1");
    let made = world
        .allocator
        .claim(&request)
        .now_or_never()
        .unwrap()
        .unwrap();
    assert_eq!(made.unwrap_err(), Arc::from("lease-1"));
    world.plan_release(&Arc::from("lease-1"));
    world.settle();
    assert!(
        world
            .allocator
            .claim(&request)
            .now_or_never()
            .unwrap()
            .unwrap()
            .is_ok()
    );
}

#[test]
fn a_restart_never_ends_a_lease_early() {
    let mut world = World::new();
    world.allocator.observe_proxy(facts("a", 2));
    world.plan_grant(&want(None)).unwrap().unwrap();
    world.settle();
    world.clock.advance(Duration::from_secs(59));
    world.clock.step_wall(jiff::SignedDuration::from_hours(5));
    world.crash(&[facts("a", 2)]);
    world.clock.advance(Duration::from_secs(59));
    assert!(world.allocator.due(9).is_empty());
    world.clock.advance(Duration::from_secs(1));
    assert_eq!(world.allocator.due(9).len(), 1);
}
