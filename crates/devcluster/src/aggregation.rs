//! Registering an aggregated API that listens on a local port.
//!
//! Without kubelets and kube-proxy there is no Service network, so the Service is of type ExternalName and
//! points to `localhost`; the aggregator connects to the port named in the APIService.

use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Namespace, Service};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::access::client_for;
use crate::cluster::{CA, Cluster, KUBECONFIG, PKI_FOLDER};
use crate::error::{Error, Result};
use crate::pki::{Authority, CertFiles, CertPair};
use crate::wait::wait_for;

/// Namespace of the Services that stand for local ports.
const NAMESPACE: &str = "aggregated-apis";
const AVAILABLE_TIMEOUT: Duration = Duration::from_mins(1);

/// What an aggregated API server needs for being reached through the aggregator.
#[derive(Debug, Clone)]
pub struct Registered {
    /// Name of the APIService: `<version>.<group>`.
    pub name: String,
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service: the group with dashes for dots.
    pub service: String,
    /// The serving certificate and key to listen with, PEM.
    pub serving: CertPair,
    /// The same as files.
    pub files: CertFiles,
    /// The certificate of the authority that signed it, PEM; the APIService has it as `caBundle`.
    pub ca: String,
    /// The same as a file.
    pub ca_file: PathBuf,
}

/// Makes the kube-apiserver of the cluster in `dir` forward `/apis/<group>/<version>` to
/// `https://localhost:<port>`, where a server has to listen with the returned certificate. Several versions
/// of a group may have the same port; registering again replaces.
pub async fn register_apiservice(
    dir: &Path,
    group: &str,
    version: &str,
    port: u16,
) -> Result<Registered> {
    let client = client_for(&dir.join(KUBECONFIG)).await?;
    let pki = dir.join(PKI_FOLDER);
    let authority = Authority::load_or_create(&pki, CA)?;
    let apply = PatchParams::apply("devcluster").force();
    let service = group.replace('.', "-");
    let name = format!("{version}.{group}");

    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE },
    });
    Api::<Namespace>::all(client.clone())
        .patch(NAMESPACE, &apply, &Patch::Apply(namespace))
        .await
        .map_err(Error::api(format!("create namespace {NAMESPACE}")))?;
    let external = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": service },
        "spec": {
            "type": "ExternalName",
            "externalName": "localhost",
            "ports": [{ "name": "https", "port": port }],
        },
    });
    Api::<Service>::namespaced(client.clone(), NAMESPACE)
        .patch(&service, &apply, &Patch::Apply(external))
        .await
        .map_err(Error::api(format!("create Service {NAMESPACE}/{service}")))?;
    let registration = json!({
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": { "name": name },
        "spec": {
            "group": group,
            "version": version,
            "groupPriorityMinimum": 1000,
            "versionPriority": 15,
            "service": { "namespace": NAMESPACE, "name": service, "port": port },
            "caBundle": ByteString(authority.pem().as_bytes().to_vec()),
        },
    });
    Api::<APIService>::all(client)
        .patch(&name, &apply, &Patch::Apply(registration))
        .await
        .map_err(Error::api(format!("create APIService {name}")))?;

    let serving = authority.serving_cert_for(&service, NAMESPACE)?;
    let files = serving.write(&pki, &name)?;
    Ok(Registered {
        name,
        namespace: NAMESPACE.to_owned(),
        service,
        serving,
        files,
        ca: authority.pem().to_owned(),
        ca_file: pki.join(format!("{CA}.crt")),
    })
}

impl Cluster {
    /// [`register_apiservice`] on this cluster.
    pub async fn register_apiservice(
        &self,
        group: &str,
        version: &str,
        port: u16,
    ) -> Result<Registered> {
        register_apiservice(self.dir(), group, version, port).await
    }

    /// Waits, for a minute at most, until the aggregator says that `<version>.<group>` is available; the
    /// error of a timeout tells the aggregator's reason.
    pub async fn wait_apiservice_available(&self, group: &str, version: &str) -> Result<()> {
        self.wait_apiservice_available_within(group, version, AVAILABLE_TIMEOUT)
            .await
    }

    /// [`Self::wait_apiservice_available`] with another timeout.
    pub async fn wait_apiservice_available_within(
        &self,
        group: &str,
        version: &str,
        timeout: Duration,
    ) -> Result<()> {
        let name = format!("{version}.{group}");
        let services: Api<APIService> = Api::all(self.client().await?);
        let mut last = String::new();
        let waited = wait_for(
            &format!("APIService {name} to be available"),
            timeout,
            async || {
                self.check_running()?;
                let service = services
                    .get(&name)
                    .await
                    .map_err(Error::api(format!("read APIService {name}")))?;
                let conditions = service
                    .status
                    .and_then(|status| status.conditions)
                    .unwrap_or_default();
                let available = conditions
                    .into_iter()
                    .find(|condition| condition.type_ == "Available");
                let Some(available) = available else {
                    return Ok(None);
                };
                if available.status == "True" {
                    return Ok(self.aggregator_routes(group, version).await?.then_some(()));
                }
                last = available.message.unwrap_or_default();
                Ok(None)
            },
        )
        .await;
        match waited {
            Err(Error::Timeout { what, waited, .. }) => Err(Error::Timeout {
                what,
                waited,
                detail: format!(": {last}"),
            }),
            outcome => outcome,
        }
    }

    /// Whether kube-apiserver passes requests on. Its aggregator reads the condition `Available` from a
    /// watch of its own, and answers 503 in plain text until it has seen it turn true
    /// (kube-aggregator, `pkg/apiserver/handler_proxy.go`, `updateAPIService`).
    async fn aggregator_routes(&self, group: &str, version: &str) -> Result<bool> {
        let client = self.client().await?;
        let answer = client
            .list_api_group_resources(&format!("{group}/{version}"))
            .await;
        Ok(!matches!(answer, Err(kube::Error::Api(status)) if status.code == 503))
    }
}
