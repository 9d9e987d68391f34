//! When the engine probes, what it keeps, and whom it tells.

use std::time::Duration;

use crawl_api::proxy::HealthCheck;
use mock_cloud::faults::Behaviour;

use super::{World, credentials, endpoint, evil, target, until};
use crate::health::Verdict;

#[tokio::test]
async fn nothing_is_known_before_the_first_probe() {
    let world = World::new().await;
    let (address, _connections) = evil::hanging().await;
    world.engine.upsert(target("new", endpoint(address)));
    let verdict = world.engine.verdict("new").unwrap();
    assert_eq!(
        (verdict.healthy, verdict.reason.as_str()),
        (None, "ProbePending")
    );
    assert_eq!(world.engine.verdict("another"), None);
}

#[tokio::test]
async fn proxies_that_hang_delay_no_other() {
    let mut world = World::new().await;
    let (address, _connections) = evil::hanging().await;
    for index in 0..200 {
        world
            .engine
            .upsert(target(&format!("hanging-{index}"), endpoint(address)));
    }
    world.targets = 200;
    let good = world.instance("good", None, Behaviour::Normal).await;
    world.add(target("good", good)).await;
    world.clock.advance(Duration::from_secs(1));
    assert_eq!(
        world.told().await,
        "good",
        "no probe of the others has ended"
    );
    let message = world.engine.verdict("good").unwrap().message;
    let spec = HealthCheck::default().probe_url;
    assert!(
        message.starts_with("a probe of https://127.0.0.1:") && !message.contains(&spec),
        "it names the echo target: {message}"
    );
}

#[tokio::test]
async fn a_change_during_a_probe_waits_for_its_end_and_the_old_result_does_not_count() {
    let mut world = World::new().await;
    let (address, mut connections) = evil::hanging().await;
    let first = target("one", endpoint(address));
    world.add(first.clone()).await;
    world.clock.advance(Duration::from_secs(1));
    connections.recv().await.expect("probed");
    let mut changed = first;
    changed.credentials = Some(credentials("new"));
    world.engine.upsert(changed);
    tokio::task::yield_now().await;
    assert!(connections.try_recv().is_err(), "two probes at once");
    until(async || world.clock.sleepers() == 1).await;
    world.clock.advance(Duration::from_secs(5));
    connections.recv().await.expect("probed again, at once");
    assert!(
        world.transitions.try_recv().is_err(),
        "the first probe was of the old target"
    );
    until(async || world.clock.sleepers() == 1).await;
    world.clock.advance(Duration::from_secs(5));
    world.told().await;
}

#[tokio::test]
async fn an_equal_target_changes_nothing_and_another_endpoint_is_a_new_proxy() {
    let mut world = World::new().await;
    let at = world.instance("good", None, Behaviour::Normal).await;
    let good = target("one", at);
    let verdict = world.decide(good.clone()).await;
    let mut with_seed = good.clone();
    with_seed.seed = Some(Verdict {
        healthy: Some(false),
        ..verdict.clone()
    });
    world.engine.upsert(with_seed);
    assert_eq!(world.engine.verdict("one"), Some(verdict.clone()));

    let mut other_check = good.clone();
    other_check.check.interval_seconds = 60;
    world.engine.upsert(other_check);
    assert_eq!(
        world.engine.verdict("one"),
        Some(verdict),
        "the verdict stays"
    );

    let mut moved = good;
    moved.endpoint.port += 1;
    world.engine.upsert(moved);
    assert_eq!(world.engine.verdict("one").unwrap().healthy, None);
    world.told().await;
    assert_eq!(
        world.engine.verdict("one").unwrap().reason,
        "ConnectionRefused"
    );
}

#[tokio::test]
async fn a_seed_is_believed_until_probes_contradict_it() {
    let mut world = World::new().await;
    let dead = world.instance("dead", None, Behaviour::Dead).await;
    let mut seeded = target("one", dead);
    let seed = Verdict {
        healthy: Some(true),
        reason: "ProbeSucceeded".into(),
        message: String::new(),
        exit_ip: Some("192.0.2.1".into()),
        location: crate::health::Location::default(),
        flapping: false,
        hold: None,
        latency: Some(Duration::from_millis(12)),
        since: jiff::Timestamp::UNIX_EPOCH,
        last_probe: None,
    };
    seeded.seed = Some(seed.clone());
    seeded.check.failure_threshold = 2;
    world.add(seeded).await;
    assert_eq!(world.engine.verdict("one"), Some(seed));
    world.probe_again().await;
    assert!(
        world.transitions.try_recv().is_err(),
        "one failure decides nothing"
    );
    world.probe_again().await;
    world.told().await;
    let verdict = world.engine.verdict("one").unwrap();
    assert_eq!(
        (verdict.healthy, verdict.reason.as_str()),
        (Some(false), "ConnectionRefused")
    );
    assert_eq!(
        verdict.exit_ip.as_deref(),
        Some("192.0.2.1"),
        "the exit is not forgotten"
    );
}

#[tokio::test]
async fn a_change_that_finds_the_channel_full_is_told_later() {
    let mut world = World::with_buffer(1).await;
    let dead = world.instance("dead", None, Behaviour::Dead).await;
    let names = ["a", "b", "c"];
    for name in names {
        world.add(target(name, dead.clone())).await;
    }
    world.clock.advance(Duration::from_secs(1));
    let mut told = Vec::new();
    for _ in names {
        let World {
            clock,
            transitions,
            engine,
            ..
        } = &mut world;
        until(async || {
            clock.advance(Duration::from_millis(100));
            let Ok(proxy) = transitions.try_recv() else {
                return false;
            };
            assert_eq!(engine.verdict(&proxy.name).unwrap().healthy, Some(false));
            told.push(proxy.name);
            true
        })
        .await;
    }
    told.sort();
    assert_eq!(told, names);
}

#[tokio::test]
async fn a_removed_proxy_is_not_probed_any_more_and_leaves_no_series() {
    let mut world = World::new().await;
    let good = world.instance("good", None, Behaviour::Normal).await;
    world.decide(target("one", good)).await;
    let series = |world: &World| {
        let families = world.registry.gather();
        let labelled = families
            .iter()
            .flat_map(prometheus::proto::MetricFamily::get_metric);
        labelled
            .filter(|metric| !metric.get_label().is_empty())
            .count()
    };
    assert_eq!(series(&world), 2);
    world.engine.remove("one");
    assert_eq!((world.engine.verdict("one"), series(&world)), (None, 0));
    until(async || world.clock.sleepers() == 0).await;
}

#[tokio::test]
async fn a_steady_proxy_is_probed_every_interval_and_told_once() {
    let mut world = World::new().await;
    let good = world.instance("good", None, Behaviour::Normal).await;
    world.decide(target("one", good)).await;
    for _ in 0..10 {
        world.probe_again().await;
    }
    assert!(world.transitions.try_recv().is_err());
}
