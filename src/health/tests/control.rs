//! Whose fault a failure is, and how many probes run at once.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use mock_cloud::faults::Behaviour;

use super::{Config, World, auth, credentials, endpoint, evil, target, target_at, until};
use crate::health::Verdict;

fn hold(verdict: &Verdict) -> Option<&str> {
    verdict.hold.as_ref().map(|hold| hold.reason.as_str())
}

/// An address that refuses connections.
async fn nothing() -> SocketAddr {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
    listener.unwrap().local_addr().unwrap()
}

#[tokio::test]
async fn a_failure_that_the_target_has_without_the_proxy_too_is_held() {
    let mut world = World::new().await;
    let at = world.instance("good", None, Behaviour::Normal).await;
    let url = format!("http://{}/", nothing().await);
    let verdict = world.decide(target_at("one", at, &url)).await;
    assert_eq!(verdict.healthy, Some(false), "it is not leased");
    assert_eq!(hold(&verdict), Some("ControlProbeFailed"));
}

#[tokio::test]
async fn a_failure_that_the_target_has_only_through_the_proxy_is_not_held() {
    let mut world = World::new().await;
    let url = world.plain_target().await;
    let at = endpoint(evil::answering("HTTP/1.1 403 Forbidden\r\n\r\n").await);
    let verdict = world.decide(target_at("one", at, &url)).await;
    assert_eq!(
        (verdict.healthy, verdict.reason.as_str()),
        (Some(false), "UnexpectedStatus")
    );
    assert_eq!(hold(&verdict), None);
}

/// Case 15: an answer that everybody gets shows that traffic flows.
#[tokio::test]
async fn a_status_that_the_target_sends_without_the_proxy_too_does_not_count() {
    let mut world = World::new().await;
    let at = world.instance("good", None, Behaviour::Normal).await;
    let failing = evil::answering("HTTP/1.1 503 Service Unavailable\r\n\r\n").await;
    let url = format!("http://{failing}/");
    let verdict = world.decide(target_at("one", at, &url)).await;
    assert_eq!(verdict.healthy, None, "{}", verdict.message);
    assert!(verdict.message.contains("503"), "{}", verdict.message);
}

#[tokio::test]
async fn of_two_targets_one_may_fail() {
    let mut world = World::new().await;
    let at = world.instance("good", None, Behaviour::Normal).await;
    let mut two = target("one", at);
    let good = world.plain_target().await;
    two.check.probes = vec![good, format!("http://{}/", nothing().await)];
    let verdict = world.decide(two).await;
    assert_eq!(verdict.healthy, Some(true));
    for _ in 0..6 {
        world.probe_again().await;
    }
    assert_eq!(world.engine.verdict("one").unwrap().healthy, Some(true));
}

#[tokio::test]
async fn when_both_targets_fail_without_the_proxy_it_is_unhealthy_and_held() {
    let mut world = World::new().await;
    let at = world.instance("good", None, Behaviour::Normal).await;
    let mut two = target("one", at);
    two.check.probes = vec![
        format!("http://{}/", nothing().await),
        format!("http://{}/", nothing().await),
    ];
    world.add(two).await;
    world.clock.advance(Duration::from_secs(1));
    world.told().await;
    assert_eq!(
        world.engine.verdict("one").unwrap().healthy,
        None,
        "the other target may tell more"
    );
    world.probe_again().await;
    world.told().await;
    let verdict = world.engine.verdict("one").unwrap();
    assert_eq!(verdict.healthy, Some(false));
    assert_eq!(hold(&verdict), Some("ControlProbeFailed"));
}

/// Case 10: refused credentials are no matter of the target, and not asked for at the usual rate.
#[tokio::test]
async fn refused_credentials_are_never_held_and_seldom_tried_again() {
    let mut world = World::new().await;
    let at = world
        .instance("locked", Some(auth("s3cret")), Behaviour::Normal)
        .await;
    let url = format!("http://{}/", nothing().await);
    let mut locked = target_at("one", at, &url);
    locked.credentials = Some(credentials("wrong"));
    let verdict = world.decide(locked.clone()).await;
    assert_eq!(verdict.reason, "ProxyAuthFailed");
    assert_eq!(hold(&verdict), None);
    let probes = world.probes();
    until(async || world.clock.sleepers() == 1).await;
    world.clock.advance(Duration::from_secs(299));
    until(async || world.clock.sleepers() == 1).await;
    assert!(world.probes() <= probes, "it waits for five minutes");
    locked.credentials = Some(credentials("s3cret"));
    world.engine.upsert(locked);
    until(async || world.probes() > probes).await;
}

#[tokio::test]
async fn many_failures_with_one_secret_are_the_vendors() {
    let mut world = World::new().await;
    let at = world
        .instance("locked", Some(auth("s3cret")), Behaviour::Normal)
        .await;
    let of = |uid: &str, password: &str, secret: &str| {
        let mut target = target(uid, at.clone());
        target.credentials = Some(credentials(password));
        target.secret = Some(secret.into());
        target
    };
    let good = world.decide(of("good", "s3cret", "vendor")).await;
    assert_eq!(good.healthy, Some(true));
    for (uid, secret, held) in [
        ("a", "vendor", None),
        // Two of three.
        ("b", "vendor", Some("VendorFailing")),
        ("c", "vendor", Some("VendorFailing")),
        ("other", "another", None),
    ] {
        let verdict = world.decide(of(uid, "wrong", secret)).await;
        assert_eq!(verdict.reason, "ProxyAuthFailed", "{uid}");
        assert_eq!(hold(&verdict), held, "{uid}");
    }
    assert_eq!(hold(&world.engine.verdict("good").unwrap()), None);
}

/// Case 6.
#[tokio::test]
async fn a_verdict_that_flaps_is_told_once_a_minute() {
    let mut world = World::new().await;
    let client = world.cloud.client();
    let at = world.instance("flapping", None, Behaviour::Normal).await;
    let mut flapping = target("one", at);
    flapping.check.interval_seconds = 10;
    world.decide(flapping).await;
    let mut told = 0;
    for round in 0..30 {
        let behaviour = if round % 2 == 0 {
            Behaviour::CaptivePortal
        } else {
            Behaviour::Normal
        };
        let set = client.set_behaviour(super::ZONE, "flapping", &behaviour);
        set.await.unwrap();
        let before = world.probes();
        let clock = &world.clock;
        until(async || {
            clock.advance(Duration::from_secs(1));
            world.probes() > before
        })
        .await;
        tokio::time::sleep(Duration::from_millis(5)).await;
        while world.transitions.try_recv().is_ok() {
            told += 1;
        }
    }
    assert!(world.engine.verdict("one").unwrap().flapping);
    // Six until it is known, and then one a minute of what is at least 240 seconds.
    let minutes = usize::try_from(world.elapsed().as_secs() / 60).unwrap();
    assert!(told <= 6 + minutes, "{told} in {minutes} minutes");
    assert!(told > 6, "it is still told: {told}");
}

#[tokio::test]
async fn probes_at_once_are_bounded_and_those_that_hang_leave_places_for_healthy_ones() {
    let config = Config {
        max_concurrent_probes: 8,
        ..Config::default()
    };
    let mut world = World::with(64, config).await;
    let good = world.instance("good", None, Behaviour::Normal).await;
    world.decide(target("good", good)).await;
    let (address, mut connections) = evil::hanging().await;
    for index in 0..20 {
        let hanging = target(&format!("hanging-{index}"), endpoint(address));
        world.add(hanging).await;
    }
    world.clock.advance(Duration::from_secs(1));
    for _ in 0..4 {
        connections.recv().await.expect("probed");
    }
    // Sixteen wait for a place: they sleep no more. The healthy one is probed meanwhile.
    until(async || world.clock.sleepers() == 5).await;
    let before = world.probes();
    for _ in 0..3 {
        world.clock.advance(Duration::from_secs(1));
    }
    assert!(
        connections.try_recv().is_err(),
        "half of the places are taken"
    );
    assert!(world.probes() <= before, "none of them has ended");
    world.clock.advance(Duration::from_secs(2));
    for _ in 0..4 {
        connections.recv().await.expect("the next four");
    }
}

/// Case 14, in the time of a stepped clock.
#[tokio::test]
async fn with_a_thousand_proxies_of_which_most_hang_probes_start_within_an_interval() {
    const PROXIES: usize = 1000;
    let mut world = World::with(PROXIES, Config::default()).await;
    let url = world.plain_target().await;
    let good = endpoint(evil::answering("HTTP/1.1 204 No Content\r\n\r\n").await);
    let (address, mut connections) = evil::hanging().await;
    for index in 0..PROXIES {
        let at = if index % 5 == 0 {
            good.clone()
        } else {
            endpoint(address)
        };
        world
            .engine
            .upsert(target_at(&format!("p{index}"), at, &url));
    }
    world.targets = PROXIES;
    until(async || world.clock.sleepers() == PROXIES).await;
    for _ in 0..100 {
        world.clock.advance(Duration::from_secs(1));
        // Whoever can start now has started, when nothing moves any more.
        let mut last = (0, 0);
        until(async || {
            let seen = (world.lags(), world.clock.sleepers());
            std::mem::replace(&mut last, seen) == seen
        })
        .await;
        while world.transitions.try_recv().is_ok() {}
    }
    let mut hung = 0;
    while connections.try_recv().is_ok() {
        hung += 1;
    }
    assert!(hung > 2 * 800, "each was probed several times: {hung}");
    let (all, in_time) = world.lags_within(30.0);
    assert!(all >= 3 * 1000, "{all}");
    assert!(in_time * 100 >= all * 99, "{in_time} of {all}");
}
