//! One control plane per test binary, and objects that several tests create.

use std::time::Duration;

use devcluster::{Cluster, Options, wait_for};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::PostParams;
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// For what takes seconds at most.
pub(crate) const TIMEOUT: Duration = Duration::from_mins(1);

/// One control plane for all tests of a file. Never dropped: the reaper ends it with this process.
pub(crate) async fn cluster() -> &'static Cluster {
    static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
    CLUSTER
        .get_or_init(async || Cluster::start(Options::default().kwok()).await.unwrap())
        .await
}

pub(crate) async fn create<K>(api: &Api<K>, object: Value) -> K
where
    K: serde::Serialize + DeserializeOwned + Clone + std::fmt::Debug,
{
    api.create(
        &PostParams::default(),
        &serde_json::from_value(object).unwrap(),
    )
    .await
    .unwrap()
}

pub(crate) async fn namespace(client: &Client, name: &str) {
    create(
        &Api::<Namespace>::all(client.clone()),
        json!({ "metadata": { "name": name } }),
    )
    .await;
}

pub(crate) async fn running_pod(client: &Client, namespace: &str, name: &str) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let spec = json!({ "containers": [{ "name": "c", "image": "none" }] });
    create(&pods, json!({ "metadata": { "name": name }, "spec": spec })).await;
    wait_for("the pod to run", TIMEOUT, async || {
        let status = pods.get(name).await.unwrap().status;
        Ok(status.filter(|status| status.phase.as_deref() == Some("Running")))
    })
    .await
    .unwrap();
}
