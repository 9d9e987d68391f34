//! kwok and its Node, so that Pods become Running without kubelets, and the policy that stands in for a
//! scheduler. Started by [`Cluster::start`] when [`crate::Options::kwok`] is set.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Node, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::json;

use crate::binaries::Binary;
use crate::cluster::Cluster;
use crate::error::{Error, Result};
use crate::pki::write_file;
use crate::process::Process;
use crate::wait::wait_for;

/// Name of the Node that kwok plays.
pub const KWOK_NODE: &str = "kwok-node-0";

const STAGES: &str = include_str!("kwok/stages.yaml");
const POLICY: &str = "devcluster-place-pods.example.com";
const READY_TIMEOUT: Duration = Duration::from_mins(1);

pub(crate) async fn start(cluster: &Cluster) -> Result<Process> {
    let client = cluster.client().await?;
    let patch = PatchParams::apply("devcluster").force();
    let nodes: Api<Node> = Api::all(client.clone());
    let node = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": KWOK_NODE,
            "annotations": { "kwok.x-k8s.io/node": "fake" },
            "labels": { "kubernetes.io/hostname": KWOK_NODE, "type": "kwok" },
        },
        "status": { "allocatable": { "cpu": "64", "memory": "256Gi", "pods": "10000" },
                    "capacity": { "cpu": "64", "memory": "256Gi", "pods": "10000" } },
    });
    nodes
        .patch(KWOK_NODE, &patch, &Patch::Apply(node))
        .await
        .map_err(Error::api("create the kwok Node"))?;
    for (kind, object) in placement_policy() {
        let gvk = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&gvk));
        api.patch(POLICY, &patch, &Patch::Apply(object))
            .await
            .map_err(Error::api(format!("create {kind} {POLICY}")))?;
    }
    let stages = cluster.dir().join("kwok.yaml");
    write_file(&stages, STAGES)?;
    let mut command = cluster.command(Binary::Kwok)?;
    command
        .arg("--kubeconfig")
        .arg(cluster.kubeconfig_path())
        .arg("--config")
        .arg(&stages)
        .args(["--manage-all-nodes=true", "--cidr=10.1.0.0/16", "--node-ip=10.1.255.254"])
        .args(["--node-name", KWOK_NODE, "--node-lease-duration-seconds=40"])
        .arg(format!("--server-address=127.0.0.1:{}", cluster.free_port()?))
        // Why: a kwok.yaml of the user's must not change what tests see.
        .env("HOME", cluster.dir());
    let process = cluster.spawn("kwok", command)?;
    wait_for("the kwok Node to be ready", READY_TIMEOUT, async || {
        process.check_running()?;
        let node = nodes
            .get(KWOK_NODE)
            .await
            .map_err(Error::api("read the kwok Node"))?;
        let conditions = node
            .status
            .and_then(|status| status.conditions)
            .unwrap_or_default();
        let ready = conditions
            .iter()
            .any(|c| c.type_ == "Ready" && c.status == "True");
        Ok(ready.then_some(()))
    })
    .await?;
    wait_for_placement(client).await?;
    Ok(process)
}

/// Admission policies take effect a moment after they were created.
async fn wait_for_placement(client: Client) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client, "default");
    let container = Container {
        name: "probe".to_owned(),
        image: Some("none".to_owned()),
        ..Container::default()
    };
    let probe = Pod {
        metadata: ObjectMeta {
            name: Some("devcluster-probe".to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers: vec![container],
            ..PodSpec::default()
        }),
        ..Pod::default()
    };
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    wait_for(
        "new Pods to be placed on the kwok Node",
        READY_TIMEOUT,
        async || {
            let pod = pods
                .create(&dry_run, &probe)
                .await
                .map_err(Error::api("try to create a Pod"))?;
            let node = pod.spec.and_then(|spec| spec.node_name);
            Ok((node.as_deref() == Some(KWOK_NODE)).then_some(()))
        },
    )
    .await
}

/// There is no scheduler, so Pods without a node are put on kwok's when they are created.
fn placement_policy() -> [(&'static str, serde_json::Value); 2] {
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicy",
        "metadata": { "name": POLICY },
        "spec": {
            "matchConstraints": { "resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"],
            }]},
            "matchConditions": [{ "name": "unplaced", "expression": "!has(object.spec.nodeName) || object.spec.nodeName == ''" }],
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "mutations": [{
                "patchType": "ApplyConfiguration",
                "applyConfiguration": {
                    "expression": format!("Object{{spec: Object.spec{{nodeName: '{KWOK_NODE}'}}}}"),
                },
            }],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": { "name": POLICY },
        "spec": { "policyName": POLICY },
    });
    [
        ("MutatingAdmissionPolicy", policy),
        ("MutatingAdmissionPolicyBinding", binding),
    ]
}
