//! The lease API as the operator needs it: a consistent read of one ProxyEndpoint for the drain
//! handshake and the health engine, and how many leases the members of a pool have.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use crawl_api::endpoint::{ProxyEndpoint, ProxyEndpointStatus};
use crawl_api::names;
use crawl_api::proxy::Proxy;
use jiff::Timestamp;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::ListParams;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Client, ResourceExt};
use runtime_kit::{Class, Classify};
use tokio::time::timeout;

use super::drain::LeaseView;
use crate::health::Reports;

/// How long one read may take: a lease API that hangs must not hold up deletions.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// How many leases proxies have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Counts {
    /// By the UID of the proxy; one that is not in it has none.
    Known(BTreeMap<String, i32>),
    /// The lease API could not be asked.
    Unavailable(String),
}

/// A client of the lease API.
#[derive(Clone)]
pub struct LeaseApi {
    client: Client,
}

impl LeaseApi {
    /// A client of the lease API that this cluster may have.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// What the lease API says of a proxy.
    pub(super) async fn view(&self, proxy: &Proxy) -> LeaseView {
        match timeout(READ_TIMEOUT, self.read(proxy)).await {
            Ok(view) => view,
            Err(_) => LeaseView::Unavailable(no_answer()),
        }
    }

    /// How many leases the proxies with this label have.
    pub(crate) async fn counts(&self, namespace: &str, label: &str) -> Counts {
        let counted = timeout(READ_TIMEOUT, self.count(namespace, label)).await;
        match counted {
            Ok(Ok(counts)) => Counts::Known(counts),
            Ok(Err(error)) => Counts::Unavailable(runtime_kit::chain(&error).to_string()),
            Err(_) => Counts::Unavailable(no_answer()),
        }
    }

    async fn count(
        &self,
        namespace: &str,
        label: &str,
    ) -> Result<BTreeMap<String, i32>, kube::Error> {
        if !self.is_installed().await? {
            return Ok(BTreeMap::new());
        }
        let endpoints: Api<ProxyEndpoint> = Api::namespaced(self.client.clone(), namespace);
        let list = endpoints.list(&ListParams::default().labels(label)).await?;
        let active = |endpoint: ProxyEndpoint| {
            let active = endpoint.status.map_or(0, |status| status.active);
            (endpoint.spec.proxy_uid, active)
        };
        Ok(list.into_iter().map(active).collect())
    }

    async fn is_installed(&self) -> Result<bool, kube::Error> {
        let services: Api<APIService> = Api::all(self.client.clone());
        let service = services.get_metadata_opt(names::LEASES_API_SERVICE).await?;
        Ok(service.is_some())
    }

    async fn read(&self, proxy: &Proxy) -> LeaseView {
        match self.is_installed().await {
            Ok(true) => {},
            Ok(false) => return LeaseView::NotInstalled,
            Err(error) => return unavailable(&error),
        }
        let uid = proxy.uid().unwrap_or_default();
        match self.status(&ObjectRef::from_obj(proxy), &uid).await {
            Ok(Some(status)) => LeaseView::Seen {
                observed: status.observed_proxy_resource_version,
                accepting: status.accepting,
                active: status.active,
            },
            Ok(None) => LeaseView::Absent,
            Err(error) => unavailable(&error),
        }
    }

    /// The status of the ProxyEndpoint of the proxy with this UID, if there is one.
    async fn status(
        &self,
        proxy: &ObjectRef<Proxy>,
        uid: &str,
    ) -> Result<Option<ProxyEndpointStatus>, kube::Error> {
        let namespace = proxy.namespace.as_deref().unwrap_or_default();
        let endpoints: Api<ProxyEndpoint> = Api::namespaced(self.client.clone(), namespace);
        match endpoints.get(&proxy.name).await {
            Ok(endpoint) if endpoint.spec.proxy_uid == uid => Ok(endpoint.status),
            Ok(_) => Ok(None),
            Err(error) if error.class() == Class::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[async_trait]
impl Reports for LeaseApi {
    async fn last_success(&self, proxy: &ObjectRef<Proxy>, uid: &str) -> Option<Timestamp> {
        let status = match timeout(READ_TIMEOUT, self.status(proxy, uid)).await {
            Ok(Ok(status)) => status?,
            Ok(Err(error)) => {
                let error = runtime_kit::chain(&error).to_string();
                tracing::debug!(%proxy, error, "the lease API cannot be asked for reports");
                return None;
            },
            Err(_) => {
                tracing::debug!(%proxy, "the lease API does not answer");
                return None;
            },
        };
        status.last_success_report_time.map(|time| time.0)
    }
}

fn no_answer() -> String {
    format!("it did not answer within {} s", READ_TIMEOUT.as_secs())
}

fn unavailable(error: &kube::Error) -> LeaseView {
    LeaseView::Unavailable(runtime_kit::chain(error).to_string())
}
