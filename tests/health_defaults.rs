//! Upgrades of the health check's defaults. A file of its own, because it changes the definition of
//! Proxy for the whole control plane.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use crawl_api::proxy::Proxy;
use devcluster::wait_for;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, CustomResourceExt, ResourceExt};
use serde_json::{Value, json};
use support::{Site, TIMEOUT, create, ready, until};

/// What somebody writes who leaves all of the health check to us.
fn terse(name: &str) -> DynamicObject {
    let object = json!({
        "apiVersion": "crawl.example.com/v1alpha1", "kind": "Proxy",
        "metadata": {"name": name}, "spec": {"provider": "local"},
    });
    serde_json::from_value(object).unwrap()
}

/// A later version of the definition, with defaults that are harder to meet.
async fn install_other_defaults(definitions: &Api<CustomResourceDefinition>) {
    let check = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/healthCheck";
    let replace = |path: &str, value: Value| json!({"op": "replace", "path": format!("{check}/{path}"), "value": value});
    let changes = json!([
        replace("properties/failureThreshold/default", json!(1)),
        replace("properties/expectedStatusCodes/default", json!([418])),
        replace("default/failureThreshold", json!(1)),
        replace("default/expectedStatusCodes", json!([418])),
    ]);
    let patch: Patch<()> = Patch::Json(serde_json::from_value(changes).unwrap());
    let name = Proxy::crd().name_any();
    let params = PatchParams::default();
    definitions.patch(&name, &params, &patch).await.unwrap();
}

/// Case 3: health defaults are stored in the object, so an upgrade with other ones changes no
/// verdict.
#[tokio::test(flavor = "multi_thread")]
async fn other_defaults_of_the_health_check_do_not_reach_objects_that_exist() {
    let site = Site::new("upgraded").await;
    let first = site.operator();
    let proxies = site.proxies();
    let resource = Proxy::api_resource();
    let terse_proxies: Api<DynamicObject> =
        Api::namespaced_with(site.client.clone(), site.namespace, &resource);
    create(&terse_proxies, &terse("p")).await;
    let before = until(&proxies, "p", "the proxy to be ready", ready).await;
    assert_eq!(before.spec.health_check.failure_threshold, 3);
    assert_eq!(before.spec.health_check.expected_status_codes, [200, 204]);

    let definitions: Api<CustomResourceDefinition> = Api::all(site.client.clone());
    install_other_defaults(&definitions).await;
    wait_for("the other defaults", TIMEOUT, async || {
        let params = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let new = terse_proxies.create(&params, &terse("new")).await.unwrap();
        let check = &new.data["spec"]["healthCheck"];
        let known = check["failureThreshold"] == 1 && check["expectedStatusCodes"] == json!([418]);
        Ok(known.then_some(()))
    })
    .await
    .unwrap();

    // The next version of the operator starts, and has looked at the proxy several times.
    first.process.kill9().unwrap();
    let second = site.operator();
    let gets = r#"proxy_operator_provider_requests_total{op="get",provider="local",result="ok"}"#;
    wait_for("three passes", TIMEOUT, async || {
        Ok((second.metric(gets).await >= 3.0).then_some(()))
    })
    .await
    .unwrap();
    let probes =
        r#"proxy_operator_probes_total{name="p",namespace="upgraded",result="ProbeSucceeded"}"#;
    wait_for("a probe", TIMEOUT, async || {
        Ok((second.metric(probes).await >= 1.0).then_some(()))
    })
    .await
    .unwrap();
    let after = proxies.get("p").await.unwrap();
    assert_eq!(after.spec, before.spec);
    let conditions = |proxy: &Proxy| proxy.status.as_ref().unwrap().conditions.clone();
    assert_eq!(
        conditions(&after),
        conditions(&before),
        "no verdict has changed"
    );
    assert_eq!(
        site.cloud.client.calls().await.unwrap().len(),
        1,
        "nothing was replaced"
    );
}
