//! What clients report, against what probes find.

use std::time::Duration;

use async_trait::async_trait;
use crawl_api::proxy::Proxy;
use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use mock_cloud::faults::Behaviour;
use parking_lot::Mutex;
use runtime_kit::Clock;

use super::{World, ZONE, auth, credentials, expecting, target, target_at, until};
use crate::health::{Reports, Target, Verdict};

/// Clients that say what a test lets them say.
#[derive(Default)]
pub(super) struct Clients {
    success: Mutex<Option<Timestamp>>,
    asked: Mutex<usize>,
}

#[async_trait]
impl Reports for Clients {
    async fn last_success(&self, proxy: &ObjectRef<Proxy>, uid: &str) -> Option<Timestamp> {
        assert_eq!(proxy.name, uid, "targets of tests are named by their UID");
        *self.asked.lock() += 1;
        *self.success.lock()
    }
}

impl World {
    /// A client reports success now.
    fn report(&self) {
        *self.clients.success.lock() = Some(self.clock.now());
    }

    fn asked(&self) -> usize {
        *self.clients.asked.lock()
    }

    async fn behave(&self, name: &str, behaviour: Behaviour) {
        let client = self.cloud.client();
        client.set_behaviour(ZONE, name, &behaviour).await.unwrap();
    }

    fn verdict(&self) -> Verdict {
        self.engine.verdict("one").unwrap()
    }

    /// Lets a failing probe, and all that it leads to, end.
    async fn fail_again(&mut self) {
        self.probe_again().await;
        let Self { clock, .. } = self;
        until(async || clock.sleepers() == 1).await;
    }

    /// A proxy that worked, and does not any more.
    async fn broken(&mut self, of: impl FnOnce(Target) -> Target) {
        let at = self.instance("one", None, Behaviour::Normal).await;
        let verdict = self.decide(of(target("one", at))).await;
        assert_eq!(verdict.healthy, Some(true));
        self.behave("one", Behaviour::Dead).await;
    }
}

/// Case 5: an idle probe fails while traffic flows.
#[tokio::test]
async fn a_proxy_that_clients_use_is_not_marked_dead_by_one_target() {
    let mut world = World::new().await;
    world
        .broken(|mut target| {
            target.check.failure_threshold = 3;
            target
        })
        .await;
    for _ in 0..2 {
        world.report();
        world.fail_again().await;
    }
    assert_eq!(world.asked(), 0, "two failures of three decide nothing");
    world.report();
    world.fail_again().await;
    world.told().await;
    let kept = world.verdict();
    assert_eq!(
        (kept.healthy, kept.reason.as_str()),
        (Some(true), "TrafficReported")
    );
    assert!(
        kept.message.contains("holders of leases report")
            && kept.message.contains("nothing listens on the proxy's port"),
        "{}",
        kept.message
    );
    for asked in 2..5 {
        world.report();
        world.fail_again().await;
        assert_eq!(world.asked(), asked);
    }
    assert!(world.transitions.try_recv().is_err(), "it is said once");
    assert_eq!(world.verdict(), kept);

    world.behave("one", Behaviour::Normal).await;
    world.probe_again().await;
    world.told().await;
    let verdict = world.verdict();
    assert_eq!(
        (verdict.healthy, verdict.reason.as_str()),
        (Some(true), "ProbeSucceeded")
    );
}

#[tokio::test]
async fn a_proxy_whose_clients_fall_silent_is_marked_dead() {
    let mut world = World::new().await;
    world.broken(|target| target).await;
    world.report();
    world.fail_again().await;
    world.told().await;
    assert_eq!(world.verdict().reason, "TrafficReported");
    // The report is a whole interval older than it may be by now.
    world.fail_again().await;
    world.told().await;
    let verdict = world.verdict();
    assert_eq!(
        (verdict.healthy, verdict.reason.as_str()),
        (Some(false), "ConnectionRefused")
    );
}

#[tokio::test]
async fn without_reports_or_without_a_lease_api_probes_decide() {
    let mut world = World::new().await;
    world.broken(|target| target).await;
    world.fail_again().await;
    world.told().await;
    assert_eq!(world.verdict().healthy, Some(false));
    assert_eq!(world.asked(), 1);
    world.report();
    world.fail_again().await;
    assert_eq!(world.asked(), 1, "reports heal nothing");
    assert_eq!(world.verdict().healthy, Some(false));
}

/// Who holds a lease cannot keep a dead proxy in the fleet for ever.
#[tokio::test]
async fn reports_speak_for_a_failing_proxy_no_longer_than_its_unhealthy_timeout() {
    let mut world = World::new().await;
    world
        .broken(|mut target| {
            target.report_limit = Duration::from_secs(75);
            target
        })
        .await;
    // Every 30 seconds; the first of them begins the time.
    for _ in 0..3 {
        world.report();
        world.fail_again().await;
        assert_eq!(world.verdict().reason, "TrafficReported");
    }
    world.report();
    world.fail_again().await;
    let verdict = world.verdict();
    assert_eq!(
        (verdict.healthy, verdict.reason.as_str()),
        (Some(false), "ConnectionRefused")
    );
}

#[tokio::test]
async fn failures_at_two_targets_outweigh_reports() {
    let mut world = World::new().await;
    let targets = [world.plain_target().await, world.plain_target().await];
    world
        .broken(|mut target| {
            target.check.probes = targets.into();
            target.check.failure_threshold = 2;
            target
        })
        .await;
    for _ in 0..2 {
        world.report();
        world.fail_again().await;
    }
    world.told().await;
    assert_eq!(world.verdict().healthy, Some(false));
    assert_eq!(world.asked(), 0);
}

/// Reports say that traffic flows, not whose it is or where it comes out.
#[tokio::test]
async fn refused_credentials_and_what_comes_out_wrong_outweigh_reports() {
    for (behaviour, reason) in [
        (Behaviour::CaptivePortal, "UnexpectedContent"),
        (Behaviour::Normal, "WrongExitIP"),
        (Behaviour::Normal, "ProxyAuthFailed"),
    ] {
        let mut world = World::new().await;
        let locked = Some(auth("s3cret"));
        let at = world.instance("one", locked, Behaviour::Normal).await;
        let mut good = target("one", at);
        good.credentials = Some(credentials("s3cret"));
        let verdict = world.decide(good.clone()).await;
        assert_eq!(verdict.healthy, Some(true));
        world.behave("one", behaviour).await;
        match reason {
            "WrongExitIP" => good.check.expect = Some(expecting("192.0.2.99")),
            "ProxyAuthFailed" => good.credentials = Some(credentials("wrong")),
            _ => {},
        }
        world.report();
        world.clock.advance(Duration::from_secs(10));
        world.engine.upsert(good);
        if reason == "UnexpectedContent" {
            world.clock.advance(Duration::from_secs(30));
        }
        world.told().await;
        let verdict = world.verdict();
        assert_eq!(verdict.healthy, Some(false), "{reason}");
        assert_eq!(verdict.reason, reason);
        assert_eq!(world.asked(), 0, "{reason}");
    }
}

/// Case 15: a status that only this target sends, through this exit, is the target's opinion of the
/// exit. Clients that get through know better.
#[tokio::test]
async fn a_target_that_bans_the_exit_does_not_outweigh_reports() {
    let mut world = World::new().await;
    let url = world.plain_target().await;
    let at = world.instance("one", None, Behaviour::Normal).await;
    world.decide(target_at("one", at, &url)).await;
    let banned = super::evil::answering("HTTP/1.1 403 Forbidden\r\n\r\n").await;
    let seed = world.verdict();
    world.engine.remove("one");
    until(async || world.clock.sleepers() == 0).await;
    world.targets = 0;
    let mut failing = target_at("one", super::endpoint(banned), &url);
    failing.seed = Some(seed);
    world.add(failing).await;
    world.report();
    world.fail_again().await;
    world.told().await;
    let verdict = world.verdict();
    assert_eq!(
        (verdict.healthy, verdict.reason.as_str()),
        (Some(true), "TrafficReported")
    );
    assert!(verdict.message.contains("403"), "{}", verdict.message);
}
