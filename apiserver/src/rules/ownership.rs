//! Whose lease it is: the user, and the pod whose end ends the lease.

use aggregated_api::auth::User;
use aggregated_api::http::status::{ApiError, FieldError};
use crawl_api::lease::{Holder, LEASE_GROUP, ProxyLease};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::CustomResourceExt;

use super::LeaseRules;
use crate::known::AskError;

const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// The pod that a token is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TokenPod {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
}

/// The pod the caller's token is bound to.
pub(super) fn token_pod(user: &User) -> Option<TokenPod> {
    let one = |key| {
        user.extra
            .get(key)
            .and_then(|values| values.first())
            .cloned()
    };
    let namespace = user.name.strip_prefix(SERVICE_ACCOUNT)?.split(':').next()?;
    Some(TokenPod {
        namespace: namespace.to_owned(),
        name: one(POD_NAME)?,
        uid: one(POD_UID)?,
    })
}

/// The first owner that is a Pod, and its place in the list.
pub(super) fn pod_owner(lease: &ProxyLease) -> Option<(usize, &OwnerReference)> {
    let owners = lease.metadata.owner_references.iter().flatten();
    owners
        .enumerate()
        .find(|(_, owner)| owner.kind == "Pod" && owner.api_version == "v1")
}

fn owner_of(pod: &TokenPod) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        controller: None,
        block_owner_deletion: None,
    }
}

/// Makes the pod of the holder an owner in place of the pod it was before.
pub(super) fn change_owner(lease: &mut ProxyLease, new: &ProxyLease) {
    let Some(owner) = pod_owner(new).map(|(_, owner)| owner.clone()) else {
        return;
    };
    let owners = lease.metadata.owner_references.get_or_insert_default();
    owners.retain(|owner| owner.kind != "Pod" || owner.api_version != "v1");
    owners.push(owner);
}

// === impl LeaseRules ===

impl LeaseRules {
    /// Finds the holder of a new lease, and makes its pod an owner where that can be said.
    ///
    /// An owner that the caller set, a pod of the lease's namespace, goes before the caller's own
    /// pod: that is how a dispatcher leases for its workers.
    pub(super) async fn settle_owner(
        &self,
        user: &User,
        lease: &mut ProxyLease,
    ) -> Result<Holder, ApiError> {
        let namespace = lease.metadata.namespace.clone().unwrap_or_default();
        let name = lease.metadata.name.clone().unwrap_or_default();
        let mut holder = Holder {
            username: user.name.clone(),
            pod_name: None,
            pod_uid: None,
        };
        if let Some((at, owner)) = pod_owner(lease) {
            if !self.pod_runs(&namespace, &owner.name, &owner.uid).await? {
                let detail = format!("no such pod runs in namespace {namespace:?}");
                let field = format!("metadata.ownerReferences[{at}]");
                let shown = format!("pod {} with uid {}", owner.name, owner.uid);
                let errors = [FieldError::invalid(field, &shown, &detail)];
                let kind = ProxyLease::api_resource().kind;
                return Err(ApiError::invalid(LEASE_GROUP, &kind, &name, &errors));
            }
            holder.pod_name = Some(owner.name.clone());
            holder.pod_uid = Some(owner.uid.clone());
        } else if let Some(pod) = token_pod(user) {
            if !self.pod_runs(&pod.namespace, &pod.name, &pod.uid).await? {
                let why = format!(
                    "the pod {}/{} that the token is bound to has ended",
                    pod.namespace, pod.name
                );
                return Err(ApiError::forbidden(self.resource(), &name, &why));
            }
            if pod.namespace == namespace {
                lease
                    .metadata
                    .owner_references
                    .get_or_insert_default()
                    .push(owner_of(&pod));
            }
            holder.pod_name = Some(pod.name);
            holder.pod_uid = Some(pod.uid);
        }
        Ok(holder)
    }

    async fn pod_runs(&self, namespace: &str, name: &str, uid: &str) -> Result<bool, ApiError> {
        if self.known.pod_runs(namespace, name, uid) {
            return Ok(true);
        }
        let running = self
            .cluster
            .running_pod(namespace, name)
            .await
            .map_err(|error| unavailable(&error))?;
        Ok(running.as_deref() == Some(uid))
    }
}

/// 503: the API server did not answer.
pub(super) fn unavailable(error: &AskError) -> ApiError {
    tracing::warn!(error = %runtime_kit::chain(error), "a live question failed");
    ApiError::service_unavailable(error.to_string()).retry_after(2)
}
