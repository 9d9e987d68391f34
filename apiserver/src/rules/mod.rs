//! What may be done to leases, and what comes of it: the hooks that the generic API server calls.
//!
//! [`create`] takes slots, [`change`] guards updates and gives slots back on delete, [`renew`] is
//! the subresource, [`ownership`] finds out whose lease it is.

mod change;
mod create;
mod ownership;
mod renew;
pub mod target;

use std::sync::Arc;
use std::time::Duration;

use aggregated_api::auth::{Attributes, GROUP_MASTERS, User};
use aggregated_api::http::status::{ApiError, GroupResource};
use aggregated_api::registry::collection::Collection;
use aggregated_api::registry::context::RequestCtx;
use crawl_api::lease::{LEASE_GROUP, LEASE_VERSION, ProxyLease, VERB_MANAGE};

use crate::allocator::{Allocator, Unsettled};
use crate::ended::Ended;
use crate::known::{Cluster, Known};
use crate::metrics::Metrics;

/// Longest ttl for a caller whose token is not bound to a pod.
pub const MAX_TTL: Duration = Duration::from_hours(1);
/// Longest ttl for one whose token is.
pub const MAX_POD_TTL: Duration = Duration::from_hours(24);
/// Shortest ttl.
pub const MIN_TTL: Duration = Duration::from_secs(10);

/// Controllers of the cluster, which change and delete what they do not hold.
const SYSTEM_CONTROLLERS: [&str; 5] = [
    "system:kube-controller-manager",
    "system:serviceaccount:kube-system:generic-garbage-collector",
    "system:serviceaccount:kube-system:namespace-controller",
    "system:serviceaccount:kube-system:pod-garbage-collector",
    "system:serviceaccount:kube-system:ttl-after-finished-controller",
];

/// The rules of `proxyleases`.
pub struct LeaseRules {
    /// Who gets which proxy.
    pub allocator: Arc<Allocator>,
    /// The leases.
    pub leases: Collection<ProxyLease>,
    /// Pools and pods, as watched.
    pub known: Arc<Known>,
    /// Live questions.
    pub cluster: Arc<dyn Cluster>,
    /// Leases that are over.
    pub ended: Arc<Ended>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Longest ttl whatever the caller, at most [`MAX_POD_TTL`].
    pub max_ttl: Duration,
}

// === impl LeaseRules ===

impl LeaseRules {
    fn resource(&self) -> &GroupResource {
        self.leases.resource()
    }

    /// Refuses callers that neither hold the lease nor may `manage` it.
    async fn check_holder(
        &self,
        ctx: &RequestCtx,
        lease: &ProxyLease,
        what: &str,
    ) -> Result<(), ApiError> {
        let holder = lease
            .status
            .as_ref()
            .and_then(|status| status.holder.as_ref());
        if holder.is_some_and(|holder| holder.username == ctx.user.name) || is_system(&ctx.user) {
            return Ok(());
        }
        let name = lease.metadata.name.as_deref().unwrap_or_default();
        let manage = Attributes::Resource {
            verb: VERB_MANAGE.to_owned(),
            group: LEASE_GROUP.to_owned(),
            version: LEASE_VERSION.to_owned(),
            resource: self.resource().resource.clone(),
            subresource: String::new(),
            namespace: ctx.namespace.clone(),
            name: name.to_owned(),
        };
        if ctx.may(&manage).await? {
            return Ok(());
        }
        let why = format!(
            "User {:?} cannot {what} a lease held by {:?}: that needs the verb {VERB_MANAGE:?} on {}",
            ctx.user.name,
            holder.map_or("nobody", |holder| &holder.username),
            self.resource(),
        );
        Err(ApiError::forbidden(self.resource(), name, &why))
    }
}

fn is_system(user: &User) -> bool {
    user.in_group(GROUP_MASTERS) || SYSTEM_CONTROLLERS.contains(&user.name.as_str())
}

/// 503: the decision could not be made in time.
fn unsettled(error: Unsettled) -> ApiError {
    ApiError::service_unavailable(error.to_string()).retry_after(1)
}
