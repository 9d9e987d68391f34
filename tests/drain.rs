//! The drain handshake of the operator, with a lease API whose answers the test writes itself: a
//! custom resource of the same group and shape stands in for lease-apiserver.
//!
//! A file of its own, because a lease API concerns the whole control plane.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use crawl_api::conditions;
use crawl_api::endpoint::{ProxyEndpoint, ProxyEndpointSpec, ProxyEndpointStatus};
use crawl_api::proxy::{Phase, Proxy, ProxySpec};
use devcluster::wait_for;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, CustomResourceExt, ResourceExt};
use serde_json::json;
use support::{Site, TIMEOUT, create, gone, proxy, ready, reason, until};

async fn install_lease_api(site: &Site) -> Api<ProxyEndpoint> {
    let definitions: Api<CustomResourceDefinition> = Api::all(site.client.clone());
    create(&definitions, &ProxyEndpoint::crd()).await;
    let endpoints: Api<ProxyEndpoint> = Api::namespaced(site.client.clone(), site.namespace);
    wait_for("the lease API", TIMEOUT, async || {
        Ok(endpoints
            .list(&kube::api::ListParams::default())
            .await
            .ok()
            .map(drop))
    })
    .await
    .unwrap();
    endpoints
}

async fn publish(
    endpoints: &Api<ProxyEndpoint>,
    proxy: &Proxy,
    observed: &str,
    accepting: bool,
    active: i32,
) {
    let status = ProxyEndpointStatus {
        accepting,
        active,
        observed_proxy_resource_version: observed.into(),
        ..ProxyEndpointStatus::default()
    };
    let patch = Patch::Merge(json!({"status": status}));
    let params = PatchParams::default();
    endpoints
        .patch_status(&proxy.name_any(), &params, &patch)
        .await
        .unwrap();
}

/// The Proxy, once the operator waits for leases and has noted the mark.
fn draining(proxy: Option<&Proxy>) -> Option<Proxy> {
    let proxy = proxy?;
    let waits = proxy.condition(conditions::DRAINED)?.status == "False";
    (waits && proxy.status.as_ref()?.drain_mark.is_some()).then(|| proxy.clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_goes_only_when_the_lease_api_saw_the_mark_and_nothing_is_active() {
    let site = Site::new("drain").await;
    let endpoints = install_lease_api(&site).await;
    let operator = site.operator();
    let proxies = site.proxies();
    create(&proxies, &proxy("p", ProxySpec::managed("local"))).await;
    let found = until(&proxies, "p", "the proxy to be ready", ready).await;
    let view = ProxyEndpoint::new(
        "p",
        ProxyEndpointSpec {
            proxy_uid: found.uid().unwrap(),
        },
    );
    create(&endpoints, &view).await;
    let before = found.resource_version().unwrap();
    publish(&endpoints, &found, &before, true, 1).await;

    proxies.delete("p", &DeleteParams::default()).await.unwrap();
    let marked = until(&proxies, "p", "the drain", draining).await;
    assert_eq!(marked.phase(), Phase::Draining);
    let mark = marked.status.as_ref().unwrap().drain_mark.clone().unwrap();
    assert!(mark.parse::<u64>().unwrap() > before.parse().unwrap());
    assert!(
        marked.endpoint().is_some(),
        "leases keep working while it drains"
    );

    // None of these answers is enough; each is looked at at least twice.
    let gets = r#"proxy_operator_provider_requests_total{op="get",provider="local",result="ok"}"#;
    for (observed, accepting, active) in [
        (&before, false, 0),
        (&mark, true, 0),
        (&mark, false, 1),
        (&before, true, 0),
    ] {
        publish(&endpoints, &found, observed, accepting, active).await;
        let seen = operator.metric(gets).await;
        wait_for("three more passes", TIMEOUT, async || {
            Ok((operator.metric(gets).await >= seen + 3.0).then_some(()))
        })
        .await
        .unwrap();
        assert!(proxies.get_opt("p").await.unwrap().is_some());
        let calls = site.cloud.client.calls().await.unwrap();
        assert_eq!(calls.len(), 1, "{observed} {accepting} {active}: {calls:?}");
    }
    publish(&endpoints, &found, &mark, false, 0).await;
    until(&proxies, "p", "the object to go", gone).await;

    // A replacement waits in the same way, and the proxy is leasable again afterwards.
    create(&proxies, &proxy("r", ProxySpec::managed("local"))).await;
    let found = until(&proxies, "r", "the proxy to be ready", ready).await;
    let id = found.status.as_ref().unwrap().provider_id.clone();
    let view = ProxyEndpoint::new(
        "r",
        ProxyEndpointSpec {
            proxy_uid: found.uid().unwrap(),
        },
    );
    create(&endpoints, &view).await;
    publish(
        &endpoints,
        &found,
        &found.resource_version().unwrap(),
        true,
        1,
    )
    .await;
    let change = Patch::Merge(json!({"spec": {"port": 3131}}));
    proxies
        .patch("r", &PatchParams::default(), &change)
        .await
        .unwrap();
    let marked = until(&proxies, "r", "the drain", draining).await;
    assert_eq!(marked.phase(), Phase::Replacing);
    assert_eq!(reason(&marked, conditions::PROVISIONED), "Replacing");
    assert!(marked.accepts_leases().is_err());
    let mark = marked.status.as_ref().unwrap().drain_mark.clone().unwrap();
    publish(&endpoints, &found, &mark, false, 0).await;
    let second = until(&proxies, "r", "another instance to be ready", |proxy| {
        ready(proxy).filter(|proxy| proxy.status.as_ref().unwrap().provider_id != id)
    });
    let second = second.await;
    assert!(second.condition(conditions::DRAINED).is_none());
    assert!(second.status.as_ref().unwrap().drain_mark.is_none());
    assert_eq!(second.accepts_leases(), Ok(()));

    // A wished drain that is over, and a lease API that never answers what is needed: the deadline.
    let change = Patch::Merge(json!({"spec": {"drain": true, "drainTimeoutSeconds": 1}}));
    proxies
        .patch("r", &PatchParams::default(), &change)
        .await
        .unwrap();
    let cut = until(&proxies, "r", "the deadline", |proxy| {
        let drained = proxy?.condition(conditions::DRAINED)?;
        (drained.status == "True").then(|| drained.reason.clone())
    });
    assert_eq!(cut.await, "DrainTimedOut");
    proxies.delete("r", &DeleteParams::default()).await.unwrap();
    until(&proxies, "r", "the object to go", gone).await;
}
