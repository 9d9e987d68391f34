//! The library on the real thing: a control plane starts, is usable by everybody it should be, and ends.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use devcluster::{Cluster, Options, wait_for};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

const TIMEOUT: Duration = Duration::from_mins(1);

async fn namespace(client: &Client, name: &str) {
    let object = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
    Api::<Namespace>::all(client.clone())
        .create(&PostParams::default(), &object)
        .await
        .unwrap();
}

async fn whoami(client: Client) -> SelfSubjectReview {
    let api: Api<SelfSubjectReview> = Api::all(client);
    api.create(&PostParams::default(), &SelfSubjectReview::default())
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn everybody_gets_the_rights_they_should_have() {
    let cluster = Cluster::start(Options::default().kwok()).await.unwrap();
    let client = cluster.client().await.unwrap();
    namespace(&client, "crawlers").await;

    // A user without roles is known, in all groups asked for, and may read nothing.
    let user = cluster
        .user_client("alice", &["crawlers", "readers", "third"])
        .await
        .unwrap();
    let info = whoami(user.clone())
        .await
        .status
        .unwrap()
        .user_info
        .unwrap();
    assert_eq!(info.username.as_deref(), Some("alice"));
    assert_eq!(
        info.groups.unwrap(),
        ["crawlers", "readers", "third", "system:authenticated"]
    );
    let denied = Api::<ConfigMap>::namespaced(user, "crawlers")
        .list(&ListParams::default())
        .await;
    assert!(matches!(denied, Err(kube::Error::Api(status)) if status.code == 403));

    // A pod is placed and runs; its token names it, and dies with it.
    let pods: Api<Pod> = Api::namespaced(client.clone(), "crawlers");
    let pod = json!({
        "metadata": { "name": "crawler-0" },
        "spec": { "containers": [{ "name": "c", "image": "none" }] },
    });
    pods.create(
        &PostParams::default(),
        &serde_json::from_value(pod).unwrap(),
    )
    .await
    .unwrap();
    wait_for("the pod to run", TIMEOUT, async || {
        let pod = pods.get("crawler-0").await.unwrap();
        Ok(pod
            .status
            .filter(|status| status.phase.as_deref() == Some("Running")))
    })
    .await
    .unwrap();
    let kubeconfig = cluster
        .pod_kubeconfig("crawlers", "crawler-0")
        .await
        .unwrap();
    let info = whoami(devcluster::client_for(&kubeconfig).await.unwrap())
        .await
        .status
        .unwrap()
        .user_info
        .unwrap();
    assert_eq!(
        info.username.as_deref(),
        Some("system:serviceaccount:crawlers:default")
    );
    let extra = info.extra.unwrap();
    assert_eq!(
        extra["authentication.kubernetes.io/pod-name"],
        ["crawler-0"]
    );

    // kubectl works for both, and the version is told.
    let version = cluster.kubectl(&["version", "-o", "json"]).unwrap();
    assert!(
        String::from_utf8_lossy(&version.stdout).contains("v1.36.3"),
        "{version:?}"
    );
    let refused = cluster.kubectl_as(&kubeconfig, &["get", "pods"]).unwrap();
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("Forbidden"),
        "{refused:?}"
    );

    pods.delete("crawler-0", &DeleteParams::default())
        .await
        .unwrap();
}
