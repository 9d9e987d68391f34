//! What proxies speak and where they come out, on a real control plane.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/maxmind.rs"]
mod maxmind;
mod support;

use std::path::Path;

use crawl_api::endpoint::ProxyEndpoint;
use crawl_api::lease::ProxyLease;
use crawl_api::proxy::{Auth, Expectations, Phase, Proxy, ProxySpec};
use crawl_api::scheme::Scheme;
use crawl_api::{conditions, names};
use devcluster::wait_for;
use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use maxmind::in_country;
use mock_cloud::faults::{Behaviour, Fault, FaultRule, Op};
use serde_json::{Value, json};
use support::{
    Site, TIMEOUT, create, kubectl, proxy, ready, start_lease_apiserver, uid_label, until,
};

/// Lets the operator use the Secrets of a namespace, as docs/credentials.md says.
fn allow_secrets(site: &Site) {
    let role = "--clusterrole=proxy-operator-secrets";
    let account = "--serviceaccount=proxy-operator:proxy-operator";
    let bind = [
        "create",
        "rolebinding",
        "secrets",
        "-n",
        site.namespace,
        role,
        account,
    ];
    kubectl(site.cluster, &bind);
}

/// The Proxy, once it is Ready and published with this scheme.
fn ready_as(scheme: Scheme) -> impl Fn(Option<&Proxy>) -> Option<Proxy> {
    move |proxy| ready(proxy).filter(|proxy| proxy.endpoint().unwrap().scheme == scheme)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_managed_proxy_is_published_and_probed_as_its_scheme_says_and_kept_when_that_changes() {
    let site = Site::new("scheme").await;
    allow_secrets(&site);
    let _operator = site.operator();
    let proxies = site.proxies();
    let mut spec = ProxySpec::managed("local");
    spec.scheme = Some(Scheme::Socks5);
    spec.auth = Some(Auth {
        generate: true,
        ..Auth::default()
    });
    create(&proxies, &proxy("p", spec)).await;
    let first = until(&proxies, "p", "socks5", ready_as(Scheme::Socks5)).await;
    // The echo target tells where it came out, so it went through the proxy.
    assert_eq!(
        first.exit_ip(),
        Some(first.endpoint().unwrap().host.as_str())
    );

    let change = Patch::Merge(json!({"spec": {"scheme": null}}));
    let params = PatchParams::default();
    proxies.patch("p", &params, &change).await.unwrap();
    let second = until(&proxies, "p", "http", ready_as(Scheme::Http)).await;
    let id = |proxy: &Proxy| proxy.status.as_ref().unwrap().provider_id.clone();
    assert_eq!(id(&second), id(&first));
    let books = site.cloud.client.ever_created(&uid_label(&first)).await;
    assert_eq!(books.unwrap().len(), 1, "one machine, ever");
}

/// Replaces a file as mounted volumes and geoipupdate do: another one takes its name.
fn replace(file: &Path, content: &[u8]) {
    let next = file.with_extension("next");
    std::fs::write(&next, content).unwrap();
    std::fs::rename(&next, file).unwrap();
}

/// A lease of a proxy in this namespace whose exit is as the expression says; `Err` with the answer.
async fn lease(site: &Site, name: &str, expression: Value) -> Result<String, String> {
    let leases: Api<ProxyLease> = Api::namespaced(site.client.clone(), site.namespace);
    let spec = json!({"selector": {"matchExpressions": [expression]}});
    let spec = serde_json::from_value(spec).unwrap();
    let lease = leases
        .create(&PostParams::default(), &ProxyLease::new(name, spec))
        .await
        .map_err(|error| error.to_string())?;
    Ok(lease.status.unwrap().proxy.unwrap().name)
}

/// Case 50: where a proxy comes out is recorded, and decides about leases that ask for it, and about
/// health where the spec says where it should be.
#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_is_not_where_it_should_be_is_told_and_leases_choose_by_where_it_is() {
    let site = Site::new("geo").await;
    let _lease_apiserver = start_lease_apiserver(site.cluster).await;
    let file = site.cluster.dir().join("country.mmdb");
    // Machines of the mock are in 127.0.0.0/8.
    let machines = ([127, 0, 0, 0], 8);
    std::fs::write(&file, in_country(machines, "FR")).unwrap();
    let geoip = file.to_str().unwrap();
    let _operator = site.operator_with(&["--no-leader-elect", "--geoip-db", geoip]);
    let proxies = site.proxies();
    let mut spec = ProxySpec::managed("local");
    spec.health_check.expect = Some(Expectations {
        country: Some("DE".into()),
        ..Expectations::default()
    });
    create(&proxies, &proxy("german", spec)).await;
    create(&proxies, &proxy("any", ProxySpec::managed("local"))).await;

    let mismatch = |found: Option<&Proxy>| {
        let condition = found?.condition(conditions::HEALTHY)?;
        (condition.reason == conditions::REASON_GEO_MISMATCH).then(|| condition.message.clone())
    };
    let message = until(&proxies, "german", "the mismatch", mismatch).await;
    assert!(message.contains("in FR, not in DE"), "{message}");
    let in_france = until(&proxies, "any", "the country", located("FR")).await;
    assert_eq!(in_france.phase(), Phase::Ready);

    let country = |operator: &str| json!({"key": names::LABEL_EXIT_COUNTRY, "operator": operator, "values": ["DE"]});
    let granted = async |name: &str, expression: Value| {
        // The lease API hears of the proxies by a watch.
        wait_for("a lease", TIMEOUT, async || {
            Ok(lease(&site, name, expression.clone()).await.ok())
        })
        .await
        .unwrap()
    };
    assert_eq!(granted("not-in-germany", country("NotIn")).await, "any");
    let refused = lease(&site, "in-germany", country("In")).await.unwrap_err();
    assert!(refused.contains("no proxy"), "{refused}");

    // The file is corrected while the operator runs: nothing is restarted, and nothing replaced.
    replace(&file, &in_country(machines, "DE"));
    until(&proxies, "any", "the other country", located("DE")).await;
    until(&proxies, "german", "the proxy to be ready", ready).await;
    granted("in-germany", country("In")).await;

    // Of an exit that no file knows, nobody says that it is elsewhere.
    replace(&file, &in_country(([192, 0, 2, 0], 24), "DE"));
    until(&proxies, "any", "the country to be unknown", |found| {
        ready(found).filter(|proxy| proxy.status.as_ref().unwrap().country.is_none())
    })
    .await;
    until(&proxies, "german", "the mismatch", mismatch).await;
    wait_for("the lease API to know it", TIMEOUT, async || {
        let endpoints: Api<ProxyEndpoint> = Api::namespaced(site.client.clone(), site.namespace);
        let found = endpoints.get("any").await.unwrap();
        Ok((!found.labels().contains_key(names::LABEL_EXIT_COUNTRY)).then_some(()))
    })
    .await
    .unwrap();
    let refused = lease(&site, "elsewhere", country("NotIn")).await;
    assert!(refused.is_err(), "{refused:?}");
}

/// The Proxy, once its exit is known to be in this country.
fn located(country: &str) -> impl Fn(Option<&Proxy>) -> Option<Proxy> {
    move |proxy| {
        let known = proxy?.status.as_ref()?.country.as_deref() == Some(country);
        proxy.filter(|_| known).cloned()
    }
}

/// Lets the proxy of the next machine misbehave.
async fn misbehave(site: &Site, behaviour: Behaviour) {
    let rule = FaultRule {
        op: Op::Create,
        zone: None,
        count: 1,
        fault: Fault::Misbehave { behaviour },
    };
    site.cloud.client.add_fault(&rule).await.unwrap();
}

/// Case 12: a machine that runs and never lets traffic through says so, and why, in the status and
/// in an event.
#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_never_worked_says_why_in_status_and_event() {
    let site = Site::new("never").await;
    misbehave(&site, Behaviour::Dead).await;
    let _operator = site.operator();
    let proxies = site.proxies();
    let mut spec = ProxySpec::managed("local");
    spec.provisioning_timeout_seconds = 10;
    spec.unhealthy_timeout_seconds = 3600;
    create(&proxies, &proxy("p", spec)).await;
    let never = conditions::REASON_PROBE_NEVER_SUCCEEDED;
    let cause = "nothing listens on the proxy's port";
    until(&proxies, "p", "the reason", |found| {
        let condition = found?.condition(conditions::HEALTHY)?;
        let says = condition.status == "False" && condition.reason == never;
        (says && condition.message.contains(cause)).then_some(())
    })
    .await;
    let events: Api<Event> = Api::namespaced(site.client.clone(), site.namespace);
    wait_for("an event", TIMEOUT, async || {
        let list = events.list(&ListParams::default()).await.unwrap();
        let told = list.items.iter().any(|event| {
            let note = event.note.as_deref().unwrap_or_default();
            event.reason.as_deref() == Some(never) && note.contains(cause)
        });
        Ok(told.then_some(()))
    })
    .await
    .unwrap();
}

/// Case 10: another machine would refuse the credentials too.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_refuses_its_credentials_is_unhealthy_and_not_replaced() {
    let site = Site::new("refusing").await;
    misbehave(&site, Behaviour::RejectAuth).await;
    let operator = site.operator();
    let proxies = site.proxies();
    let mut spec = ProxySpec::managed("local");
    spec.health_check.failure_threshold = 1;
    spec.unhealthy_timeout_seconds = 1;
    create(&proxies, &proxy("p", spec)).await;
    let refused = |found: Option<&Proxy>| {
        let condition = found?.condition(conditions::HEALTHY)?;
        (condition.reason == conditions::REASON_PROXY_AUTH_FAILED).then(|| found.cloned())?
    };
    let found = until(&proxies, "p", "the refusal", refused).await;
    // Looked at every half a second, and unhealthy for too long after one.
    let gets = r#"proxy_operator_provider_requests_total{op="get",provider="local",result="ok"}"#;
    let seen = operator.metric(gets).await;
    wait_for("six more passes", TIMEOUT, async || {
        Ok((operator.metric(gets).await >= seen + 6.0).then_some(()))
    })
    .await
    .unwrap();
    let books = site.cloud.client.ever_created(&uid_label(&found)).await;
    assert_eq!(books.unwrap().len(), 1, "one machine, ever");
}
