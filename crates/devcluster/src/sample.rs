//! The Go sample-apiserver on a cluster: the peer in benchmarks, and the oracle of what an aggregated API
//! server answers.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::aggregation::Registered;
use crate::binaries::Binary;
use crate::cluster::{self, Cluster};
use crate::error::{Error, Result};
use crate::kubeconfig::Credential;
use crate::process::Process;

/// The group sample-apiserver serves.
pub const SAMPLE_GROUP: &str = "wardle.example.com";
/// The versions of [`SAMPLE_GROUP`].
pub const SAMPLE_VERSIONS: [&str; 2] = ["v1alpha1", "v1beta1"];

const USER: &str = "sample-apiserver";

/// A running sample-apiserver that is registered and available.
#[derive(Debug)]
pub struct SampleApiserver {
    /// The process; the API ends with it.
    pub process: Process,
    /// Where it listens, for requests that pass by the aggregator: use
    /// [`Cluster::front_proxy_client`] and trust [`Registered::ca`].
    pub url: String,
    /// Its registration for `v1beta1`.
    pub registered: Registered,
}

/// Starts sample-apiserver against the etcd of `cluster`, under a prefix of its own, registers
/// [`SAMPLE_GROUP`] in both versions, and waits until they are available.
pub async fn sample_apiserver(cluster: &Cluster) -> Result<SampleApiserver> {
    let binaries = cluster::ensure(vec![Binary::SampleApiserver]).await?;
    let program = binaries
        .get(Binary::SampleApiserver)
        .ok_or_else(|| Error::Spawn {
            name: USER.to_owned(),
            source: std::io::ErrorKind::NotFound.into(),
        })?;
    grant_roles(&cluster.client().await?).await?;
    let identity = cluster.client_ca().client(USER, &[])?;
    let kubeconfig = cluster.write_kubeconfig(
        "sample-apiserver.kubeconfig",
        USER,
        &Credential::Certificate(&identity),
        "default",
    )?;
    let port = cluster.free_port()?;
    let [first, second] = SAMPLE_VERSIONS;
    cluster
        .register_apiservice(SAMPLE_GROUP, first, port)
        .await?;
    let registered = cluster
        .register_apiservice(SAMPLE_GROUP, second, port)
        .await?;

    let mut command = std::process::Command::new(program);
    for flag in [
        "kubeconfig",
        "authentication-kubeconfig",
        "authorization-kubeconfig",
    ] {
        command.arg(format!("--{flag}")).arg(&kubeconfig);
    }
    command
        .arg(format!("--etcd-servers={}", cluster.etcd_url()))
        .arg(format!("--etcd-prefix=/registry/{SAMPLE_GROUP}"))
        .arg("--bind-address=127.0.0.1")
        .arg(format!("--secure-port={port}"))
        .arg("--tls-cert-file")
        .arg(&registered.files.cert)
        .arg("--tls-private-key-file")
        .arg(&registered.files.key);
    let process = cluster.spawn("sample-apiserver", command)?;
    for version in SAMPLE_VERSIONS {
        let available = cluster
            .wait_apiservice_available(SAMPLE_GROUP, version)
            .await;
        process.check_running()?;
        available?;
    }
    Ok(SampleApiserver {
        process,
        url: format!("https://localhost:{port}"),
        registered,
    })
}

/// What every aggregated API server may do (delegate authentication and authorization), and what this
/// one's admission and flow control read.
async fn grant_roles(client: &Client) -> Result<()> {
    let subjects =
        json!([{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER }]);
    let reference = |kind: &str, name: &str| json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name });
    let reads = |group: &str, resources: &[&str]| json!({ "apiGroups": [group], "resources": resources, "verbs": ["get", "list", "watch"] });
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": { "name": USER },
        "rules": [
            reads("", &["namespaces"]),
            reads("admissionregistration.k8s.io", &["*"]),
            reads("flowcontrol.apiserver.k8s.io", &["*"]),
        ],
    });
    let binding = |kind: &str, name: &str, role: serde_json::Value| {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": kind,
            "metadata": { "name": name },
            "subjects": subjects,
            "roleRef": role,
        })
    };
    let delegator = format!("{USER}:auth-delegator");
    let cluster_bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    apply(&Api::<ClusterRole>::all(client.clone()), USER, role).await?;
    apply(
        &cluster_bindings,
        USER,
        binding("ClusterRoleBinding", USER, reference("ClusterRole", USER)),
    )
    .await?;
    let delegation = binding(
        "ClusterRoleBinding",
        &delegator,
        reference("ClusterRole", "system:auth-delegator"),
    );
    apply(&cluster_bindings, &delegator, delegation).await?;
    let reader = binding(
        "RoleBinding",
        USER,
        reference("Role", "extension-apiserver-authentication-reader"),
    );
    apply(
        &Api::<RoleBinding>::namespaced(client.clone(), "kube-system"),
        USER,
        reader,
    )
    .await
}

async fn apply<K>(api: &Api<K>, name: &str, object: serde_json::Value) -> Result<()>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    api.patch(
        name,
        &PatchParams::apply("devcluster").force(),
        &Patch::Apply(object),
    )
    .await
    .map(drop)
    .map_err(Error::api(format!("apply {name}")))
}
