//! Aggregated APIs on local ports: a stub, one that nobody serves, and the Go sample-apiserver. Apart from
//! the other tests, because an API that is not available holds up the deletion of namespaces.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/stub.rs"]
mod stub;
mod support;

use std::time::Duration;

use devcluster::wait_for;
use kube::Api;
use kube::api::{DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::json;
use support::{TIMEOUT, cluster, create, namespace, running_pod};

#[tokio::test(flavor = "multi_thread")]
async fn an_aggregated_api_becomes_available_and_is_told_who_asks() {
    const GROUP: &str = "stub.example.com";
    let cluster = cluster().await;
    let client = cluster.client().await.unwrap();
    namespace(&client, "aggregated").await;
    running_pod(&client, "aggregated", "crawler-0").await;
    let port = cluster.free_port().unwrap();
    let registered = cluster
        .register_apiservice(GROUP, "v1", port)
        .await
        .unwrap();
    stub::serve_stub(GROUP, "v1", port, &registered.serving).await;
    cluster
        .wait_apiservice_available(GROUP, "v1")
        .await
        .unwrap();

    // RBAC of kube-apiserver comes first.
    let path = format!("/apis/{GROUP}/v1/whoami");
    let get = || http::Request::get(&path).body(Vec::new()).unwrap();
    let kubeconfig = cluster
        .pod_kubeconfig("aggregated", "crawler-0")
        .await
        .unwrap();
    let crawler = devcluster::client_for(&kubeconfig).await.unwrap();
    let refused = crawler.request_text(get()).await;
    assert!(matches!(refused, Err(kube::Error::Api(status)) if status.code == 403));
    let role = [
        "create",
        "clusterrole",
        "whoami",
        "--verb=list",
        "--resource=whoami.stub.example.com",
    ];
    let binding = [
        "create",
        "clusterrolebinding",
        "whoami",
        "--clusterrole=whoami",
        "--serviceaccount=aggregated:default",
    ];
    for args in [&role[..], &binding[..]] {
        let output = cluster.kubectl(args).unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    let headers = wait_for("the role to take effect", TIMEOUT, async || {
        Ok(crawler.request_text(get()).await.ok())
    })
    .await
    .unwrap();
    assert!(
        headers.contains("system:serviceaccount:aggregated:default"),
        "{headers}"
    );
    assert!(headers.contains("crawler-0"), "{headers}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_nobody_serves_is_reported_with_the_reason_of_the_aggregator() {
    let cluster = cluster().await;
    let port = cluster.free_port().unwrap();
    cluster
        .register_apiservice("nobody.example.com", "v1", port)
        .await
        .unwrap();
    let failed = cluster
        .wait_apiservice_available_within("nobody.example.com", "v1", Duration::from_secs(5))
        .await;
    let message = failed.unwrap_err().to_string();
    assert!(message.contains("connection refused"), "{message}");
    cluster
        .kubectl(&["delete", "apiservice", "v1.nobody.example.com"])
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_go_sample_apiserver_serves_its_group_through_the_aggregator() {
    let cluster = cluster().await;
    let sample = devcluster::sample_apiserver(cluster).await.unwrap();
    let client = cluster.client().await.unwrap();
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(
        devcluster::SAMPLE_GROUP,
        "v1beta1",
        "Flunder",
    ));
    let flunders: Api<DynamicObject> = Api::namespaced_with(client, "default", &kind);
    let flunder = json!({
        "apiVersion": "wardle.example.com/v1beta1",
        "kind": "Flunder",
        "metadata": { "name": "f" },
        "spec": {},
    });
    create(&flunders, flunder).await;
    assert_eq!(
        flunders
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
            .len(),
        1
    );
    sample.process.terminate().await.unwrap();
}
