//! The lease API as the drain handshake needs it: one consistent read of a ProxyEndpoint.

use std::time::Duration;

use crawl_api::endpoint::ProxyEndpoint;
use crawl_api::names;
use crawl_api::proxy::Proxy;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::{Api, Client, ResourceExt};
use runtime_kit::{Class, Classify};

use super::drain::LeaseView;

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
        match tokio::time::timeout(READ_TIMEOUT, self.read(proxy)).await {
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
        let endpoints: Api<ProxyEndpoint> =
            Api::namespaced(self.client.clone(), &proxy.namespace().unwrap_or_default());
        match endpoints.get(&proxy.name_any()).await {
            Ok(endpoint) if Some(&endpoint.spec.proxy_uid) == proxy.metadata.uid.as_ref() => {
                endpoint
                    .status
                    .map_or(LeaseView::Absent, |status| LeaseView::Seen {
                        observed: status.observed_proxy_resource_version,
                        accepting: status.accepting,
                        active: status.active,
                    })
            },
            Ok(_) => LeaseView::Absent,
            Err(error) if error.class() == Class::NotFound => LeaseView::Absent,
            Err(error) => unavailable(&error),
        }
    }
}

fn unavailable(error: &kube::Error) -> LeaseView {
    LeaseView::Unavailable(runtime_kit::chain(error).to_string())
}
