//! What may be done to leases, and what comes of it: the hooks that the generic API server calls.
//!
//! [`create`] takes slots, [`change`] guards updates and gives slots back on delete, [`renew`] and
//! [`report`] are the subresources, [`ownership`] finds out whose lease it is.

mod change;
mod create;
mod ownership;
mod renew;
mod report;
pub mod target;

use std::sync::Arc;
use std::time::Duration;

use aggregated_api::auth::{Attributes, GROUP_MASTERS, User};
use aggregated_api::http::status::{ApiError, GroupResource};
use aggregated_api::registry::collection::Collection;
use aggregated_api::registry::context::RequestCtx;
use crawl_api::lease::{LEASE_GROUP, LEASE_VERSION, LeasePhase, ProxyLease, VERB_MANAGE};
use http::StatusCode;
use kube::ResourceExt;

pub use self::report::ReportRules;
use crate::allocator::{Allocator, Unsettled};
use crate::ended::Ended;
use crate::known::{Cluster, Known};
use crate::metrics::Metrics;
use crate::status;

/// Longest ttl for a caller whose token is not bound to a pod.
pub const MAX_TTL: Duration = Duration::from_hours(1);
/// Longest ttl for one whose token is.
pub const MAX_POD_TTL: Duration = Duration::from_hours(24);
/// Shortest ttl.
pub const MIN_TTL: Duration = Duration::from_secs(10);

/// Reason of a refusal: the lease waits for a proxy.
const REASON_PENDING: &str = "LeasePending";
/// Reason of a refusal: the lease has expired.
const REASON_EXPIRED: &str = "LeaseExpired";
/// Reason of a refusal: the lease was taken back.
const REASON_REVOKED: &str = "LeaseRevoked";

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

    /// Refuses a lease that holds no proxy: it cannot be `done`.
    fn check_bound(&self, lease: &ProxyLease, done: &str) -> Result<(), ApiError> {
        let (reason, why) = match status::phase(lease) {
            LeasePhase::Bound if lease.metadata.deletion_timestamp.is_some() => {
                (REASON_REVOKED, "it is being deleted")
            },
            LeasePhase::Bound => return Ok(()),
            LeasePhase::Pending => (REASON_PENDING, "it waits for a proxy"),
            LeasePhase::Expired => (REASON_EXPIRED, "it has expired; create another one"),
            LeasePhase::Revoked => (REASON_REVOKED, "it was taken back; create another one"),
        };
        let name = lease.name_any();
        let text = format!("lease {name:?} cannot be {done}: {why}");
        Err(ApiError::refusal(StatusCode::CONFLICT, reason, text).regarding(self.resource(), &name))
    }
}

fn is_system(user: &User) -> bool {
    user.in_group(GROUP_MASTERS) || SYSTEM_CONTROLLERS.contains(&user.name.as_str())
}

/// 503: the decision could not be made in time.
fn unsettled(error: Unsettled) -> ApiError {
    ApiError::service_unavailable(error.to_string()).retry_after(1)
}
