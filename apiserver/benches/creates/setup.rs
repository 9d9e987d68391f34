//! What has to exist on the control plane before anything is measured: the caller and its rights, the
//! definition that stands for "a CRD", and a fleet.
//!
//! The fleet consists of External proxies whose status is written here, as the operator would write it after
//! successful probes. Nothing ever connects to them.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use crawl_api::lease::ProxyLease;
use crawl_api::pool::ProxyPool;
use crawl_api::proxy::Proxy;
use devcluster::{Cluster, wait_for};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, CustomResourceExt as _, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Namespace of everything that is measured.
pub(crate) const NAMESPACE: &str = "bench";
/// The ServiceAccount all clients use.
pub(crate) const ACCOUNT: &str = "crawler";
/// A group with the same rights, for the run with many identities.
pub(crate) const CRAWLERS: &str = "bench:crawlers";
/// Pool that leases are taken from.
pub(crate) const POOL: &str = "eu";
/// Group of the CRD that stands for "an object of a CRD".
pub(crate) const CRD_GROUP: &str = "crd.bench.example.com";

const TIMEOUT: Duration = Duration::from_mins(1);
/// Proxies written at once.
const WRITERS: usize = 16;

/// Namespace, caller and rights.
pub(crate) async fn create_caller(client: &Client, groups: &[&str]) -> Result<()> {
    let namespaces = Api::<Namespace>::all(client.clone());
    apply(
        &namespaces,
        NAMESPACE,
        json!({ "apiVersion": "v1", "kind": "Namespace" }),
    )
    .await?;
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), NAMESPACE);
    apply(
        &accounts,
        ACCOUNT,
        json!({ "apiVersion": "v1", "kind": "ServiceAccount" }),
    )
    .await?;
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "rules": [{ "apiGroups": groups, "resources": ["*"], "verbs": ["create", "get", "delete"] }],
    });
    apply(&Api::<ClusterRole>::all(client.clone()), CRAWLERS, role).await?;
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": CRAWLERS },
        "subjects": [
            { "kind": "ServiceAccount", "namespace": NAMESPACE, "name": ACCOUNT },
            { "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": CRAWLERS },
        ],
    });
    apply(
        &Api::<ClusterRoleBinding>::all(client.clone()),
        CRAWLERS,
        binding,
    )
    .await
}

/// The definitions of Proxy and ProxyPool, and one with the schema of a lease, in another group.
pub(crate) async fn install_definitions(client: &Client) -> Result<()> {
    let mut peer = ProxyLease::crd();
    CRD_GROUP.clone_into(&mut peer.spec.group);
    peer.metadata.name = Some(format!("{}.{CRD_GROUP}", peer.spec.names.plural));
    // Why: short names and categories are the leases'.
    peer.spec.names.short_names = None;
    peer.spec.names.categories = None;
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    let mut all = crawl_api::crds::crds();
    all.push(peer);
    for definition in &all {
        let name = definition.name_any();
        apply(&definitions, &name, serde_json::to_value(definition)?).await?;
        wait_for(&format!("CRD {name} to be served"), TIMEOUT, async || {
            let found = definitions
                .get(&name)
                .await
                .map_err(api_error("read a CRD"))?;
            let conditions = found
                .status
                .and_then(|status| status.conditions)
                .unwrap_or_default();
            let served = |condition: &_| is_established(condition);
            Ok(conditions.iter().any(served).then_some(()))
        })
        .await?;
    }
    Ok(())
}

fn is_established(
    condition: &k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinitionCondition,
) -> bool {
    condition.type_ == "Established" && condition.status == "True"
}

/// A pool and its members, ready to be leased.
pub(crate) async fn create_fleet(client: &Client, proxies: usize, max_leases: u16) -> Result<()> {
    let pools = Api::<ProxyPool>::namespaced(client.clone(), NAMESPACE);
    let spec = |host: &str| {
        json!({
            "mode": "External",
            "endpoint": { "scheme": "http", "host": host, "port": 9 },
            "maxLeases": max_leases,
            // An operator that runs beside has nothing to find out within the time of the benchmark.
            "healthCheck": {
                "probeUrl": "http://127.0.0.1:9/",
                "intervalSeconds": 86_400,
                "failureThreshold": 100,
            },
        })
    };
    let pool = json!({
        "apiVersion": "crawl.example.com/v1alpha1",
        "kind": "ProxyPool",
        "metadata": { "name": POOL },
        "spec": {
            "replicas": proxies,
            "template": { "spec": spec("127.0.0.1") },
            "maxLeasesPerTarget": max_leases,
        },
    });
    let pool: ProxyPool = pools
        .create(&PostParams::default(), &serde_json::from_value(pool)?)
        .await
        .context("cannot create the pool")?;
    let owner = pool
        .controller_owner_ref(&())
        .context("the pool has no uid")?;
    let api = Api::<Proxy>::namespaced(client.clone(), NAMESPACE);
    stream::iter(0..proxies)
        .map(|number| {
            let object = json!({
                "apiVersion": "crawl.example.com/v1alpha1",
                "kind": "Proxy",
                "metadata": {
                    "name": format!("{POOL}-{number:05}"),
                    "labels": { "crawl.example.com/pool": POOL, "geo": "eu" },
                    "ownerReferences": [&owner],
                },
                "spec": spec("127.0.0.1"),
            });
            create_proxy(api.clone(), object, number)
        })
        .buffer_unordered(WRITERS)
        .try_collect()
        .await
}

async fn create_proxy(api: Api<Proxy>, object: Value, number: usize) -> Result<()> {
    let created = api
        .create(&PostParams::default(), &serde_json::from_value(object)?)
        .await
        .context("cannot create a Proxy")?;
    let name = created.name_any();
    let mut object = serde_json::to_value(&created)?;
    let generation = created.metadata.generation;
    let condition = |kind: &str, reason: &str| {
        json!({
            "type": kind, "status": "True", "reason": reason, "message": "",
            "observedGeneration": generation, "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    // Documentation addresses would not suffice: each proxy comes out at one of its own.
    let exit = format!(
        "10.{}.{}.{}",
        number >> 16 & 255,
        number >> 8 & 255,
        number & 255
    );
    let status = json!({
        "phase": "Ready",
        "endpoint": created.spec.endpoint,
        "exitIP": exit,
        "latencyMilliseconds": 40,
        "observedGeneration": generation,
        "conditions": [
            condition("Provisioned", "ExternalEndpoint"),
            condition("Healthy", "ProbeSucceeded"),
            condition("Ready", "Ready"),
        ],
    });
    let fields = object.as_object_mut().context("a Proxy is an object")?;
    fields.insert("status".to_owned(), status);
    api.replace_status(
        &name,
        &PostParams::default(),
        &serde_json::from_value(object)?,
    )
    .await
    .with_context(|| format!("cannot write the status of {name}"))?;
    Ok(())
}

/// Headers with which kube-apiserver would forward a request of the ServiceAccount.
pub(crate) async fn account_headers(client: &Client) -> Result<Vec<(&'static str, String)>> {
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), NAMESPACE);
    let account = accounts
        .get(ACCOUNT)
        .await
        .context("cannot read the ServiceAccount")?;
    Ok(vec![
        (
            "x-remote-user",
            format!("system:serviceaccount:{NAMESPACE}:{ACCOUNT}"),
        ),
        ("x-remote-uid", account.uid().unwrap_or_default()),
        ("x-remote-group", "system:serviceaccounts".to_owned()),
        (
            "x-remote-group",
            format!("system:serviceaccounts:{NAMESPACE}"),
        ),
        ("x-remote-group", "system:authenticated".to_owned()),
        (
            "x-remote-extra-authentication.kubernetes.io%2fcredential-id",
            "JTI=00000000-0000-4000-8000-000000000000".to_owned(),
        ),
    ])
}

/// Waits until lease-apiserver shows every member of the fleet as accepting.
pub(crate) async fn wait_for_endpoints(cluster: &Cluster, proxies: usize) -> Result<()> {
    let api =
        Api::<crawl_api::endpoint::ProxyEndpoint>::namespaced(cluster.client().await?, NAMESPACE);
    let mut seen = BTreeMap::new();
    let waited = wait_for("lease-apiserver to know the fleet", TIMEOUT, async || {
        cluster.check_running()?;
        let listed = api.list(&kube::api::ListParams::default()).await;
        let listed = listed.map_err(api_error("list proxyendpoints"))?;
        seen.clear();
        for endpoint in listed {
            let accepting = endpoint.status.is_some_and(|status| status.accepting);
            *seen.entry(accepting).or_insert(0_usize) += 1;
        }
        Ok((seen.get(&true) == Some(&proxies)).then_some(()))
    });
    waited
        .await
        .with_context(|| format!("of {proxies}: {seen:?}"))
}

fn api_error(action: &'static str) -> impl FnOnce(kube::Error) -> devcluster::Error {
    move |source| devcluster::Error::Api {
        action: action.to_owned(),
        source: Box::new(source),
    }
}

async fn apply<K>(api: &Api<K>, name: &str, mut object: Value) -> Result<()>
where
    K: Resource + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    let fields = object.as_object_mut().context("not an object")?;
    fields.insert("metadata".to_owned(), json!({ "name": name }));
    api.patch(
        name,
        &PatchParams::apply("bench").force(),
        &Patch::Apply(object),
    )
    .await
    .with_context(|| format!("cannot apply {name}"))
    .map(drop)
}
