//! Candidates against a scripted Lease endpoint with resourceVersions, under a stepped clock.

use std::convert::Infallible;

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use jiff::SignedDuration;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::json;

use super::*;
use crate::clock::SteppedClock;

const LEASE: Duration = Duration::from_secs(15);

fn spec(holder: &str) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(holder.to_owned()),
        lease_duration_seconds: Some(15),
        ..LeaseSpec::default()
    }
}

#[test]
fn without_a_lease_one_is_created() {
    assert_eq!(plan_step(None, Duration::ZERO, "me", LEASE), Step::Create);
}

#[test]
fn a_free_or_own_lease_is_taken_at_once() {
    for holder in ["", "me"] {
        assert_eq!(
            plan_step(Some(&spec(holder)), Duration::ZERO, "me", LEASE),
            Step::Take
        );
    }
}

#[test]
fn a_foreign_lease_is_taken_only_after_it_was_seen_unchanged_for_its_duration() {
    let other = spec("other");
    let seconds = Duration::from_secs;
    assert_eq!(
        plan_step(Some(&other), seconds(0), "me", LEASE),
        Step::Wait(seconds(15))
    );
    assert_eq!(
        plan_step(Some(&other), seconds(14), "me", LEASE),
        Step::Wait(seconds(1))
    );
    assert_eq!(
        plan_step(Some(&other), seconds(15), "me", LEASE),
        Step::Take
    );
}

/// The Lease endpoint of an API server: optimistic concurrency, and faults on request.
#[derive(Default)]
struct Endpoint {
    lease: Option<Lease>,
    version: u64,
    calls: u32,
    /// Answer writes with 503 and do not apply them.
    down: bool,
    /// Apply the next write, then answer 503: a lost answer.
    lose_next_answer: bool,
}

impl Endpoint {
    fn handle(&mut self, method: &Method, body: &[u8]) -> (u16, serde_json::Value) {
        self.calls += 1;
        let status = |code: u16, reason: &str| {
            (
                code,
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                "code": code, "reason": reason, "message": reason}),
            )
        };
        if *method == Method::GET {
            return match &self.lease {
                Some(lease) => (200, serde_json::to_value(lease).expect("a lease")),
                None => status(404, "NotFound"),
            };
        }
        if self.down {
            return status(503, "ServiceUnavailable");
        }
        let mut sent: Lease = serde_json::from_slice(body).expect("a lease");
        match (&self.lease, *method == Method::POST) {
            (Some(_), true) => return status(409, "AlreadyExists"),
            (None, false) => return status(404, "NotFound"),
            (Some(current), false)
                if current.metadata.resource_version != sent.metadata.resource_version =>
            {
                return status(409, "Conflict");
            },
            _ => {},
        }
        self.version += 1;
        sent.metadata.resource_version = Some(self.version.to_string());
        self.lease = Some(sent.clone());
        if std::mem::take(&mut self.lose_next_answer) {
            return status(503, "ServiceUnavailable");
        }
        (200, serde_json::to_value(&sent).expect("a lease"))
    }
}

#[derive(Clone, Default)]
struct Cluster {
    endpoint: Arc<Mutex<Endpoint>>,
    clock: SteppedClock,
}

impl Cluster {
    fn candidate(&self, identity: &str) -> Candidate {
        let endpoint = Arc::clone(&self.endpoint);
        let service = tower::service_fn(move |request: Request<Body>| {
            let endpoint = Arc::clone(&endpoint);
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.expect("a body").to_bytes();
                let (code, answer) = endpoint.lock().handle(&parts.method, &body);
                let response = Response::builder()
                    .status(code)
                    .body(Body::from(answer.to_string().into_bytes()))
                    .expect("a response");
                Ok::<_, Infallible>(response)
            }
        });
        let mut config = LeaderConfig::new("system", "operator", identity);
        identity.clone_into(&mut config.identity);
        Candidate::new(
            Client::new(service, "system"),
            config,
            Arc::new(self.clock.clone()),
        )
    }

    fn holder(&self) -> Option<String> {
        let endpoint = self.endpoint.lock();
        endpoint
            .lease
            .as_ref()?
            .spec
            .as_ref()?
            .holder_identity
            .clone()
    }

    /// Steps the clock by a second at a time until `done`, letting tasks run in between.
    async fn step_until(&self, done: impl Fn() -> bool) {
        let stepping = async {
            while !done() {
                self.clock.advance(Duration::from_secs(1));
                self.settle().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), stepping)
            .await
            .expect("it happens");
    }

    /// Lets all tasks run until nothing happens without the clock moving.
    async fn settle(&self) {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }
}

fn endless() -> CancellationToken {
    CancellationToken::new()
}

#[tokio::test]
async fn the_first_candidate_leads_and_a_second_waits_until_release() {
    let cluster = Cluster::default();
    let first = cluster
        .candidate("first")
        .campaign(&endless())
        .await
        .expect("leads");
    let release = CancellationToken::new();
    let holding = tokio::spawn(first.hold(release.clone()));
    let second = tokio::spawn({
        let candidate = cluster.candidate("second");
        async move { candidate.campaign(&endless()).await.is_some() }
    });
    for _ in 0..60 {
        cluster.clock.advance(Duration::from_secs(1));
        cluster.settle().await;
    }
    assert_eq!(
        cluster.holder().as_deref(),
        Some("first"),
        "renewals keep it"
    );

    release.cancel();
    holding.await.expect("ended").expect("released, not lost");
    cluster
        .step_until(|| cluster.holder().as_deref() == Some("second"))
        .await;
    assert!(second.await.expect("ended"));
}

#[tokio::test]
async fn a_dead_leader_is_replaced_by_time_seen_and_not_by_wall_clocks() {
    let cluster = Cluster::default();
    let dead = cluster
        .candidate("dead")
        .campaign(&endless())
        .await
        .expect("leads");
    drop(dead);
    // The wall clock of this machine is hours ahead of the renew time in the record.
    cluster.clock.step_wall(SignedDuration::from_hours(5));
    let start = cluster.clock.elapsed();
    let next = tokio::spawn({
        let candidate = cluster.candidate("next");
        async move { candidate.campaign(&endless()).await.is_some() }
    });
    cluster.settle().await;
    cluster.clock.advance(Duration::from_secs(14));
    cluster.settle().await;
    assert_eq!(cluster.holder().as_deref(), Some("dead"));
    cluster
        .step_until(|| cluster.holder().as_deref() == Some("next"))
        .await;
    assert!(cluster.clock.elapsed() >= start + LEASE);
    assert!(next.await.expect("ended"));
}

#[tokio::test]
async fn a_leader_that_cannot_renew_gives_up_before_others_take_over() {
    let cluster = Cluster::default();
    let leader = cluster
        .candidate("leader")
        .campaign(&endless())
        .await
        .expect("leads");
    let start = cluster.clock.elapsed();
    cluster.endpoint.lock().down = true;
    let holding = tokio::spawn(leader.hold(endless()));
    cluster.step_until(|| holding.is_finished()).await;
    let lost = holding.await.expect("ended").expect_err("lost");
    assert!(
        matches!(
            lost,
            Lost::NotRenewed {
                source: Some(_),
                ..
            }
        ),
        "{lost}"
    );
    assert!(cluster.clock.elapsed() < start + LEASE);
}

#[tokio::test]
async fn a_leader_whose_lease_was_taken_says_by_whom() {
    let cluster = Cluster::default();
    let leader = cluster
        .candidate("leader")
        .campaign(&endless())
        .await
        .expect("leads");
    let holding = tokio::spawn(leader.hold(endless()));
    {
        let mut endpoint = cluster.endpoint.lock();
        endpoint.version += 1;
        let version = endpoint.version.to_string();
        let lease = endpoint.lease.as_mut().expect("a lease");
        lease.spec = Some(spec("usurper"));
        lease.metadata.resource_version = Some(version);
    }
    cluster.step_until(|| holding.is_finished()).await;
    let lost = holding.await.expect("ended").expect_err("lost");
    assert!(matches!(lost, Lost::TakenOver { holder } if holder == "usurper"));
}

#[tokio::test]
async fn a_renewal_whose_answer_was_lost_is_not_taken_for_a_takeover() {
    let cluster = Cluster::default();
    let leader = cluster
        .candidate("leader")
        .campaign(&endless())
        .await
        .expect("leads");
    let release = CancellationToken::new();
    let holding = tokio::spawn(leader.hold(release.clone()));
    cluster.endpoint.lock().lose_next_answer = true;
    for _ in 0..30 {
        cluster.clock.advance(Duration::from_secs(1));
        cluster.settle().await;
    }
    assert!(!holding.is_finished());
    release.cancel();
    holding.await.expect("ended").expect("still the leader");
    assert_eq!(cluster.holder(), None);
}

#[tokio::test]
async fn a_campaign_ends_when_the_process_stops() {
    let cluster = Cluster::default();
    drop(
        cluster
            .candidate("leader")
            .campaign(&endless())
            .await
            .expect("leads"),
    );
    let stop = CancellationToken::new();
    let standby = tokio::spawn({
        let (candidate, stop) = (cluster.candidate("standby"), stop.clone());
        async move { candidate.campaign(&stop).await.is_none() }
    });
    cluster.settle().await;
    stop.cancel();
    assert!(standby.await.expect("ended"));
}
