//! Leader election and the waiting connection against a real API server.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use devcluster::{Cluster, Options};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::Api;
use runtime_kit::admin::Health;
use runtime_kit::api_requests::ApiRequests;
use runtime_kit::kubeconfig::{KubeArgs, connect};
use runtime_kit::leader::{Candidate, LeaderConfig, Leadership};
use runtime_kit::{Clock, SystemClock};
use tokio_util::sync::CancellationToken;

const DEADLINE: Duration = Duration::from_mins(1);

async fn within_deadline<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future).await.expect(what)
}

async fn campaign(cluster: &Cluster, host: &str) -> (String, Option<Leadership>) {
    let client = cluster.client().await.expect("a client");
    let config = LeaderConfig::new("default", "operator", host);
    let identity = config.identity.clone();
    let candidate = Candidate::new(client, config, SystemClock::shared());
    (
        identity,
        candidate.campaign(&CancellationToken::new()).await,
    )
}

async fn record(cluster: &Cluster) -> LeaseSpec {
    let client = cluster.client().await.expect("a client");
    let leases = Api::<Lease>::namespaced(client, "default");
    leases
        .get("operator")
        .await
        .expect("a lease")
        .spec
        .expect("a spec")
}

/// Returns when the leader has renewed twice.
async fn two_renewals(cluster: &Cluster) {
    let mut seen = vec![record(cluster).await.renew_time];
    while seen.len() < 3 {
        let now = record(cluster).await.renew_time;
        if seen.last() != Some(&now) {
            seen.push(now);
        }
        SystemClock::new().sleep(Duration::from_millis(50)).await;
    }
}

async fn a_released_lease_goes_to_the_standby_at_once(cluster: &Cluster) {
    let (first, leadership) = campaign(cluster, "first").await;
    assert_eq!(record(cluster).await.holder_identity, Some(first));
    let release = CancellationToken::new();
    let holding = tokio::spawn(leadership.expect("leads").hold(release.clone()));

    let standby = campaign(cluster, "second");
    tokio::pin!(standby);
    let stood_by = tokio::select! {
        _ = &mut standby => false,
        () = within_deadline("the leader renews", two_renewals(cluster)) => true,
    };
    assert!(stood_by, "two leaders");
    release.cancel();
    within_deadline("released", holding)
        .await
        .expect("ended")
        .expect("not lost");
    let (second, leadership) = within_deadline("the standby leads", standby).await;
    assert!(leadership.is_some());
    assert_eq!(record(cluster).await.holder_identity, Some(second));
}

fn with_token(folder: &Path, cluster: &Cluster, token: &str) -> PathBuf {
    let path = folder.join("kubeconfig");
    let text = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster":
            {"server": cluster.url(), "insecure-skip-tls-verify": true}}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    });
    std::fs::write(&path, text.to_string()).expect("written");
    path
}

async fn connect_waits_for_a_renewed_kubeconfig(cluster: &Cluster) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = with_token(folder.path(), cluster, "expired");
    let args = KubeArgs {
        kubeconfig: Some(path),
        context: None,
    };
    let health = Health::new();
    let ready = health.ready_flag("api-server", "not connected yet");
    let clock: Arc<dyn Clock> = SystemClock::shared();
    let stop = CancellationToken::new();
    let requests = ApiRequests::register(&prometheus::Registry::new()).expect("registered");
    let connecting = connect(&args, &requests, &*clock, &ready, &stop);
    let renewing = async {
        let rejected = || match health.ready() {
            Ok(()) => false,
            Err(failed) => failed[0].1.contains("rejects the credentials"),
        };
        while !rejected() {
            clock.sleep(Duration::from_millis(20)).await;
        }
        let token = cluster
            .service_account_token("default", "default")
            .await
            .expect("a token");
        with_token(folder.path(), cluster, &token);
    };
    let both = futures::future::join(connecting, renewing);
    let (connection, ()) = within_deadline("connected", both).await;
    assert!(connection.is_some());
    assert!(health.ready().is_ok());
}

/// One control plane for all: starting it is most of the time.
#[tokio::test(flavor = "multi_thread")]
async fn leader_election_and_connecting_work_on_a_real_control_plane() {
    runtime_kit::tls::install_default_provider();
    let cluster = Cluster::start(Options::default())
        .await
        .expect("a control plane");
    a_released_lease_goes_to_the_standby_at_once(&cluster).await;
    connect_waits_for_a_renewed_kubeconfig(&cluster).await;
}
