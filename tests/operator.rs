//! The operator as a process on a real control plane, with a cloud as a process whose instances are
//! real proxies.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::net::TcpStream;

use crawl_api::address::Endpoint;
use crawl_api::pool::{ProxyPool, ProxyPoolSpec, ProxyTemplate, TemplateMetadata};
use crawl_api::proxy::{Phase, Proxy, ProxySpec};
use crawl_api::scheme::Scheme;
use crawl_api::{conditions, names};
use devcluster::wait_for;
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use mock_cloud::faults::{FailWith, Fault, FaultRule, Op};
use mock_cloud::model::{CreateInstance, InstanceState, Labels};
use serde_json::json;
use support::{Site, TIMEOUT, create, gone, kubectl, proxy, ready, reason, uid_label, until};

async fn patch(site: &Site, name: &str, change: serde_json::Value) {
    let patched = site
        .proxies()
        .patch(name, &PatchParams::default(), &Patch::Merge(change))
        .await;
    patched.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_managed_proxy_becomes_ready_then_nothing_is_written_until_it_is_deleted() {
    let site = Site::new("managed").await;
    let operator = site.operator();
    let proxies = site.proxies();
    create(&proxies, &proxy("p", ProxySpec::managed("local"))).await;
    let found = until(&proxies, "p", "the proxy to be ready", ready).await;
    let status = found.status.clone().unwrap();
    assert_eq!(found.accepts_leases(), Ok(()));
    assert_eq!(
        status.exit_ip, status.ip,
        "the exit was learnt through the proxy"
    );
    assert_eq!(status.observed_generation, Some(1));
    assert_eq!(found.finalizers(), [names::FINALIZER_INSTANCE]);
    assert!(found.annotations()[names::ANNOTATION_SPEC_HASH].starts_with("v1:"));
    let endpoint = found.endpoint().unwrap().clone();
    TcpStream::connect((endpoint.host.as_str(), endpoint.port)).unwrap();

    // Steady state: many looks at the cloud, and not one write.
    let gets = r#"proxy_operator_provider_requests_total{op="get",provider="local",result="ok"}"#;
    let before = operator.metric(gets).await;
    wait_for("ten more looks at the instance", TIMEOUT, async || {
        Ok((operator.metric(gets).await >= before + 10.0).then_some(()))
    })
    .await
    .unwrap();
    let after = proxies.get("p").await.unwrap();
    assert_eq!(after.resource_version(), found.resource_version());
    assert_eq!(site.cloud.client.calls().await.unwrap().len(), 1);
    assert!(
        operator
            .metric(r#"proxy_operator_proxies{phase="Ready"}"#)
            .await
            > 0.0
    );
    assert_eq!(operator.get("/healthz").await.0, 200);
    assert_eq!(operator.get("/readyz").await.0, 200);

    let events: Api<Event> = Api::namespaced(site.client.clone(), "managed");
    let told = wait_for("events", TIMEOUT, async || {
        let list = events.list(&ListParams::default()).await.unwrap();
        let told: Vec<_> = list
            .items
            .into_iter()
            .filter_map(|event| event.reason)
            .collect();
        Ok((told.len() >= 3).then_some(told))
    });
    let mut told = told.await.unwrap();
    told.sort();
    assert_eq!(told, ["Created", "ProbeSucceeded", "Provisioning"]);

    proxies.delete("p", &DeleteParams::default()).await.unwrap();
    until(&proxies, "p", "the object to go", gone).await;
    let books = site
        .cloud
        .client
        .ever_created(&uid_label(&found))
        .await
        .unwrap();
    assert_eq!(books.len(), 1);
    assert!(books[0].deleted_at.is_some());
    assert!(TcpStream::connect((endpoint.host.as_str(), endpoint.port)).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_spec_replaces_the_instance_and_other_changes_do_not() {
    let site = Site::new("replace").await;
    let _operator = site.operator();
    let proxies = site.proxies();
    create(&proxies, &proxy("p", ProxySpec::managed("local"))).await;
    let first = until(&proxies, "p", "the proxy to be ready", ready).await;
    let id = |proxy: &Proxy| proxy.status.as_ref().unwrap().provider_id.clone();

    patch(
        &site,
        "p",
        json!({"spec": {"maxLeases": 0, "cordoned": true}}),
    )
    .await;
    let observed = |proxy: Option<&Proxy>| {
        proxy
            .filter(|p| p.status.as_ref().unwrap().observed_generation == Some(2))
            .cloned()
    };
    let same = until(&proxies, "p", "the change to be observed", observed).await;
    assert_eq!(id(&same), id(&first));
    assert_eq!(same.spec.max_leases, 0);

    patch(&site, "p", json!({"spec": {"port": 3129}})).await;
    let second = until(&proxies, "p", "another instance to be ready", |proxy| {
        ready(proxy).filter(|proxy| id(proxy) != id(&first))
    });
    let second = second.await;
    assert_eq!(second.endpoint().unwrap().port, 3129);
    let books = site
        .cloud
        .client
        .ever_created(&uid_label(&first))
        .await
        .unwrap();
    assert_eq!(books.len(), 2);
    assert!(
        books[0].deleted_at.unwrap() <= books[1].created_at,
        "not found before the create"
    );
    assert!(books[1].deleted_at.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_external_proxy_is_ready_on_the_first_good_probe_and_goes_without_finalizer() {
    let site = Site::new("external").await;
    let _operator = site.operator();
    let request = CreateInstance {
        name: "vendor".into(),
        labels: Labels::new(),
        metadata: Labels::new(),
        cloud_init: None,
        port: 3128,
        auth: None,
    };
    let id = site
        .cloud
        .client
        .create("z", &request)
        .await
        .unwrap()
        .instance
        .id;
    let ip = wait_for("the vendor's proxy", TIMEOUT, async || {
        let instance = site.cloud.client.get("z", &id).await.unwrap();
        Ok(instance
            .ip
            .filter(|_| instance.state == InstanceState::Running))
    });
    let ip = ip.await.unwrap().to_string();
    let endpoint = Endpoint {
        scheme: Scheme::Http,
        host: ip.clone(),
        port: 3128,
    };
    let proxies = site.proxies();
    create(&proxies, &proxy("p", ProxySpec::external(endpoint.clone()))).await;
    let found = until(&proxies, "p", "the proxy to be ready", ready).await;
    assert_eq!(found.endpoint(), Some(&endpoint));
    assert_eq!(found.exit_ip(), Some(ip.as_str()));
    assert_eq!(reason(&found, conditions::PROVISIONED), "ExternalEndpoint");
    assert!(found.finalizers().is_empty());

    site.cloud.client.delete("z", &id).await.unwrap();
    let sick = until(&proxies, "p", "the proxy to be unhealthy", |proxy| {
        proxy
            .filter(|proxy| proxy.phase() == Phase::Unhealthy)
            .cloned()
    });
    assert_eq!(
        reason(&sick.await, conditions::HEALTHY),
        "ConnectionRefused"
    );
    proxies.delete("p", &DeleteParams::default()).await.unwrap();
    until(&proxies, "p", "the object to go", gone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_provider_refuses_is_in_the_status_and_refused_specs_are_not_sent_again() {
    let site = Site::new("refused").await;
    let operator = site.operator_with(&["--no-leader-elect", "--quota-retry", "1s"]);
    let proxies = site.proxies();
    let provisioned = |wanted: &'static str| {
        move |proxy: Option<&Proxy>| {
            proxy
                .filter(|proxy| reason(proxy, conditions::PROVISIONED) == wanted)
                .cloned()
        }
    };

    // Lack of quota that the operation tells, then in the answer; then it is there.
    let with = FailWith::Stockout;
    let fault = Fault::FailOperation { with };
    let rule = FaultRule {
        op: Op::Create,
        zone: None,
        count: 1,
        fault,
    };
    site.cloud.client.add_fault(&rule).await.unwrap();
    site.cloud
        .client
        .fail_next_creates(1, FailWith::Quota)
        .await
        .unwrap();
    create(&proxies, &proxy("quota", ProxySpec::managed("local"))).await;
    let short = until(
        &proxies,
        "quota",
        "the lack of quota",
        provisioned("QuotaExceeded"),
    )
    .await;
    assert_eq!(short.phase(), Phase::Pending);
    until(&proxies, "quota", "the proxy to be ready after all", ready).await;

    site.cloud
        .client
        .fail_next_creates(1, FailWith::Invalid)
        .await
        .unwrap();
    create(&proxies, &proxy("invalid", ProxySpec::managed("local"))).await;
    let invalid = until(
        &proxies,
        "invalid",
        "the refusal",
        provisioned("InvalidSpec"),
    )
    .await;
    assert_eq!(invalid.phase(), Phase::Failed);
    let calls =
        r#"proxy_operator_provider_requests_total{op="create",provider="local",result="invalid"}"#;
    assert!((operator.metric(calls).await - 1.0).abs() < 0.1);
    // The spec changes, and it is tried again.
    patch(&site, "invalid", json!({"spec": {"port": 3130}})).await;
    until(&proxies, "invalid", "the proxy to be ready", ready).await;
    assert!((operator.metric(calls).await - 1.0).abs() < 0.1);

    create(&proxies, &proxy("unknown", ProxySpec::managed("elsewhere"))).await;
    let unknown = until(
        &proxies,
        "unknown",
        "the reason",
        provisioned("UnknownProvider"),
    )
    .await;
    let message = &unknown.condition(conditions::PROVISIONED).unwrap().message;
    assert!(
        message.contains("elsewhere") && message.contains("known: local"),
        "{message}"
    );
    assert!(unknown.finalizers().is_empty());
    proxies
        .delete("unknown", &DeleteParams::default())
        .await
        .unwrap();
    until(&proxies, "unknown", "the object to go", gone).await;
}

/// Case 66.
#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_is_taken_back_is_replaced() {
    let site = Site::new("preempted").await;
    let _operator = site.operator();
    let proxies = site.proxies();
    create(&proxies, &proxy("p", ProxySpec::managed("local"))).await;
    let first = until(&proxies, "p", "the proxy to be ready", ready).await;
    let id = first.status.as_ref().unwrap().provider_id.clone().unwrap();
    let (zone, key) = id.strip_prefix("mock://").unwrap().split_once('/').unwrap();
    site.cloud.client.preempt(zone, key).await.unwrap();
    until(&proxies, "p", "another instance", |proxy| {
        ready(proxy).filter(|p| p.status.as_ref().unwrap().provider_id.as_ref() != Some(&id))
    })
    .await;
    let books = site
        .cloud
        .client
        .ever_created(&uid_label(&first))
        .await
        .unwrap();
    assert_eq!(books.len(), 2);
}

fn pool(replicas: i32) -> ProxyPool {
    let template = ProxyTemplate {
        metadata: TemplateMetadata::default(),
        spec: proxy("template", ProxySpec::managed("local")).spec,
    };
    ProxyPool::new(
        "eu",
        ProxyPoolSpec {
            replicas,
            ..ProxyPoolSpec::of(template)
        },
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_has_as_many_members_as_it_asks_for() {
    let site = Site::new("pool").await;
    let _operator = site.operator();
    let pools: Api<ProxyPool> = Api::namespaced(site.client.clone(), "pool");
    let sized = |count: i32| {
        move |pool: Option<&ProxyPool>| {
            let status = pool?.status.as_ref()?;
            (status.replicas == count && status.ready_replicas == count).then_some(())
        }
    };
    create(&pools, &pool(2)).await;
    until(&pools, "eu", "two members", sized(2)).await;

    kubectl(
        site.cluster,
        &["scale", "-n", "pool", "pxp/eu", "--replicas=4"],
    );
    until(&pools, "eu", "four members", sized(4)).await;
    let selector = pools
        .get("eu")
        .await
        .unwrap()
        .status
        .unwrap()
        .selector
        .unwrap();
    let members = site
        .proxies()
        .list(&ListParams::default().labels(&selector))
        .await
        .unwrap();
    let names: Vec<_> = members.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names.len(), 4);
    assert!(
        names
            .iter()
            .all(|name| name.starts_with("eu-") && name.len() == 8),
        "{names:?}"
    );

    // A member that somebody deletes is made up for.
    site.proxies()
        .delete(&names[0], &DeleteParams::default())
        .await
        .unwrap();
    until(&site.proxies(), &names[0], "the member to go", gone).await;
    until(&pools, "eu", "four members again", sized(4)).await;

    kubectl(
        site.cluster,
        &["scale", "-n", "pool", "pxp/eu", "--replicas=1"],
    );
    until(&pools, "eu", "one member", sized(1)).await;
    kubectl(
        site.cluster,
        &["wait", "-n", "pool", "pxp/eu", "--for=condition=Ready"],
    );

    // The garbage collector takes the members with the pool, and each its instance.
    pools.delete("eu", &DeleteParams::default()).await.unwrap();
    wait_for("the members to go", TIMEOUT, async || {
        let left = site.proxies().list(&ListParams::default()).await.unwrap();
        Ok(left.items.is_empty().then_some(()))
    })
    .await
    .unwrap();
    let books = site
        .cloud
        .client
        .ever_created(&Labels::new())
        .await
        .unwrap();
    assert_eq!(books.len(), 5);
    assert!(
        books.iter().all(|instance| instance.deleted_at.is_some()),
        "{books:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_ready_and_takes_over_at_once_when_the_leader_is_asked_to_stop() {
    let site = Site::new("leader").await;
    let proxies = site.proxies();
    let first = site.operator_with(&["--leader-elect-namespace", support::OPERATOR]);
    first
        .process
        .wait_for_log("leading", TIMEOUT)
        .await
        .unwrap();
    let second = site.operator_with(&["--leader-elect-namespace", support::OPERATOR]);
    wait_for("the standby to be ready", TIMEOUT, async || {
        Ok((second.get("/readyz").await.0 == 200).then_some(()))
    })
    .await
    .unwrap();
    create(&proxies, &proxy("first", ProxySpec::managed("local"))).await;
    until(&proxies, "first", "the proxy to be ready", ready).await;
    assert!(!second.process.log().contains("leading"));

    assert!(first.process.terminate().await.unwrap().success());
    create(&proxies, &proxy("second", ProxySpec::managed("local"))).await;
    until(&proxies, "second", "the proxy to be ready", ready).await;
    assert!(second.process.log().contains("leading"));
    assert_eq!(
        ready(Some(&proxies.get("first").await.unwrap())).map(|p| p.name_any()),
        Some("first".into())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn generated_credentials_are_asked_for_by_the_proxy_and_go_with_it() {
    let site = Site::new("auth").await;
    let binding = [
        "--clusterrole=proxy-operator-secrets",
        "--serviceaccount=proxy-operator:proxy-operator",
    ];
    let create_binding = [
        "create",
        "rolebinding",
        "-n",
        "auth",
        "proxy-operator-secrets",
    ];
    kubectl(
        site.cluster,
        &[create_binding.as_slice(), &binding].concat(),
    );
    let _operator = site.operator();
    let mut spec = ProxySpec::managed("local");
    spec.auth.get_or_insert_default().generate = true;
    create(&site.proxies(), &proxy("p", spec)).await;
    until(&site.proxies(), "p", "the proxy to be ready", ready).await;
    let secrets: Api<k8s_openapi::api::core::v1::Secret> =
        Api::namespaced(site.client.clone(), "auth");
    let data = secrets.get("p-proxy-auth").await.unwrap().data.unwrap();
    assert_eq!(data.keys().collect::<Vec<_>>(), ["password", "username"]);
    site.proxies()
        .delete("p", &DeleteParams::default())
        .await
        .unwrap();
    until(&secrets, "p-proxy-auth", "the Secret to go", gone).await;
}
