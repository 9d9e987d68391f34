//! The library on the real thing: who may do what on a fresh control plane, and that its controllers run.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use devcluster::wait_for;
use k8s_openapi::api::authentication::v1::{SelfSubjectReview, UserInfo};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};
use support::{TIMEOUT, cluster, create, namespace, running_pod};

async fn whoami(client: Client) -> UserInfo {
    let api: Api<SelfSubjectReview> = Api::all(client);
    let review = api
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await
        .unwrap();
    review.status.unwrap().user_info.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_roles_is_known_with_all_groups_and_may_read_nothing() {
    let cluster = cluster().await;
    let user = cluster
        .user_client("alice", &["crawlers", "readers", "third"])
        .await
        .unwrap();
    let info = whoami(user.clone()).await;
    assert_eq!(info.username.as_deref(), Some("alice"));
    assert_eq!(
        info.groups.unwrap(),
        ["crawlers", "readers", "third", "system:authenticated"]
    );
    let denied = Api::<ConfigMap>::namespaced(user, "default")
        .list(&ListParams::default())
        .await;
    assert!(matches!(denied, Err(kube::Error::Api(status)) if status.code == 403));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_of_a_pod_names_the_pod_and_dies_with_it() {
    let cluster = cluster().await;
    let client = cluster.client().await.unwrap();
    namespace(&client, "pod-token").await;
    running_pod(&client, "pod-token", "crawler-0").await;
    let kubeconfig = cluster
        .pod_kubeconfig("pod-token", "crawler-0")
        .await
        .unwrap();
    let crawler = devcluster::client_for(&kubeconfig).await.unwrap();
    let info = whoami(crawler.clone()).await;
    assert_eq!(
        info.username.as_deref(),
        Some("system:serviceaccount:pod-token:default")
    );
    assert_eq!(
        info.extra.unwrap()["authentication.kubernetes.io/pod-name"],
        ["crawler-0"]
    );

    let refused = cluster.kubectl_as(&kubeconfig, &["get", "pods"]).unwrap();
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("Forbidden"),
        "{refused:?}"
    );

    let pods: Api<Pod> = Api::namespaced(client, "pod-token");
    pods.delete("crawler-0", &DeleteParams::default())
        .await
        .unwrap();
    let reviews: Api<SelfSubjectReview> = Api::all(crawler);
    wait_for("the token to die", TIMEOUT, async || {
        let answer = reviews
            .create(&PostParams::default(), &SelfSubjectReview::default())
            .await;
        Ok(matches!(answer, Err(kube::Error::Api(status)) if status.code == 401).then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_account_has_a_kubeconfig_without_a_pod() {
    let cluster = cluster().await;
    let kubeconfig = cluster
        .service_account_kubeconfig("default", "default")
        .await
        .unwrap();
    let info = whoami(devcluster::client_for(&kubeconfig).await.unwrap()).await;
    assert_eq!(
        info.username.as_deref(),
        Some("system:serviceaccount:default:default")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_is_told_the_version_of_the_server() {
    let version = cluster().await.kubectl(&["version", "-o", "json"]).unwrap();
    let version: Value = serde_json::from_slice(&version.stdout).unwrap();
    assert_eq!(version["serverVersion"]["gitVersion"], "v1.36.3");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_brings_up_its_pods() {
    let client = cluster().await.client().await.unwrap();
    namespace(&client, "deployment").await;
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("apps", "v1", "Deployment"));
    let deployments: Api<DynamicObject> = Api::namespaced_with(client, "deployment", &kind);
    let pod = json!({
        "metadata": { "labels": { "app": "web" } },
        "spec": { "containers": [{ "name": "c", "image": "none" }] },
    });
    let spec =
        json!({ "replicas": 2, "selector": { "matchLabels": { "app": "web" } }, "template": pod });
    let object = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" }, "spec": spec,
    });
    create(&deployments, object).await;
    wait_for("two ready replicas", TIMEOUT, async || {
        let deployment = deployments.get("web").await.unwrap();
        Ok((deployment.data["status"]["readyReplicas"] == 2).then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_with_objects_can_be_deleted() {
    let client = cluster().await.client().await.unwrap();
    namespace(&client, "short-lived").await;
    running_pod(&client, "short-lived", "p").await;
    let namespaces: Api<Namespace> = Api::all(client);
    namespaces
        .delete("short-lived", &DeleteParams::default())
        .await
        .unwrap();
    wait_for("the namespace to be gone", TIMEOUT, async || {
        Ok(namespaces
            .get_opt("short-lived")
            .await
            .unwrap()
            .is_none()
            .then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_garbage_collector_deletes_what_its_owner_left() {
    let client = cluster().await.client().await.unwrap();
    namespace(&client, "garbage").await;
    let maps: Api<ConfigMap> = Api::namespaced(client, "garbage");
    let owner = create(&maps, json!({ "metadata": { "name": "owner" } })).await;
    let reference = json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.metadata.uid });
    create(
        &maps,
        json!({ "metadata": { "name": "owned", "ownerReferences": [reference] } }),
    )
    .await;
    maps.delete("owner", &DeleteParams::default())
        .await
        .unwrap();
    wait_for("the dependent to be gone", TIMEOUT, async || {
        Ok(maps.get_opt("owned").await.unwrap().is_none().then_some(()))
    })
    .await
    .unwrap();
}
