//! The lease API as the drain handshake and the health engine need it: one consistent read of a
//! ProxyEndpoint.

use std::time::Duration;

use async_trait::async_trait;
use crawl_api::endpoint::{ProxyEndpoint, ProxyEndpointStatus};
use crawl_api::names;
use crawl_api::proxy::Proxy;
use jiff::Timestamp;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Client, ResourceExt};
use runtime_kit::{Class, Classify};
use tokio::time::timeout;

use super::drain::LeaseView;
use crate::health::Reports;

/// How long one read may take: a lease API that hangs must not hold up deletions.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

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
            Err(_) => LeaseView::Unavailable(format!(
                "it did not answer within {} s",
                READ_TIMEOUT.as_secs()
            )),
        }
    }

    async fn read(&self, proxy: &Proxy) -> LeaseView {
        let services: Api<APIService> = Api::all(self.client.clone());
        match services.get_metadata_opt(names::LEASES_API_SERVICE).await {
            Ok(Some(_)) => {},
            Ok(None) => return LeaseView::NotInstalled,
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

fn unavailable(error: &kube::Error) -> LeaseView {
    LeaseView::Unavailable(runtime_kit::chain(error).to_string())
}
