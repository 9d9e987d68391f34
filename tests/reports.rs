//! What holders of leases report, against what probes find: the operator and lease-apiserver
//! together.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use crawl_api::conditions;
use crawl_api::endpoint::ProxyEndpoint;
use crawl_api::lease::{LeasePhase, ProxyLease, ProxyLeaseSpec};
use crawl_api::proxy::{Proxy, ProxySpec};
use crawl_api::report::{LeaseReport, ReportResult};
use kube::Api;
use kube::api::PostParams;
use mock_cloud::faults::Behaviour;
use support::{Site, create, proxy, ready, start_lease_apiserver, until};

fn healthy(wanted: &'static str, reason: &'static str) -> impl Fn(Option<&Proxy>) -> Option<()> {
    move |proxy| {
        let condition = proxy?.condition(conditions::HEALTHY)?;
        (condition.status == wanted && condition.reason == reason).then_some(())
    }
}

/// Case 5, from the client's report to the condition.
#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_clients_use_stays_healthy_while_its_target_fails_and_as_long_as_they_say_so()
{
    let site = Site::new("reports").await;
    let _lease_apiserver = start_lease_apiserver(site.cluster).await;
    let _operator = site.operator();
    let proxies = site.proxies();
    create(&proxies, &proxy("p", ProxySpec::managed("local"))).await;
    let made = until(&proxies, "p", "the proxy to be ready", ready).await;
    let endpoints: Api<ProxyEndpoint> = Api::namespaced(site.client.clone(), site.namespace);
    let accepting = until(&endpoints, "p", "the lease API to know it", |endpoint| {
        endpoint?.status.as_ref()?.accepting.then_some(())
    });
    accepting.await;

    let leases: Api<ProxyLease> = Api::namespaced(site.client.clone(), site.namespace);
    create(&leases, &ProxyLease::new("mine", ProxyLeaseSpec::default())).await;
    let report = async || {
        let report = LeaseReport::new(ReportResult::Ok, Some(200));
        let params = PostParams::default();
        let sent = leases.create_subresource("report", "mine", &params, &report);
        let answer: LeaseReport = sent.await.unwrap();
        assert_eq!(answer.spec, report.spec);
    };
    report().await;
    let shown = until(&endpoints, "p", "the report to be shown", |endpoint| {
        endpoint?.status.as_ref()?.last_success_report_time.clone()
    });
    shown.await;

    let id = made.status.as_ref().unwrap().provider_id.clone().unwrap();
    let (zone, key) = id.strip_prefix("mock://").unwrap().split_once('/').unwrap();
    let dead = site.cloud.client.set_behaviour(zone, key, &Behaviour::Dead);
    dead.await.unwrap();
    let kept = healthy("True", conditions::REASON_TRAFFIC_REPORTED);
    until(&proxies, "p", "reports to speak for it", kept).await;
    let held = leases.get("mine").await.unwrap();
    assert_eq!(held.status.unwrap().phase, LeasePhase::Bound);

    // Nobody reports any more.
    let dead = healthy("False", conditions::REASON_CONNECTION_REFUSED);
    until(&proxies, "p", "the probes to decide", dead).await;
}
