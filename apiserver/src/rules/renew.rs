//! Renew: the lease lasts its ttl again from now, but not past a drain.

use std::sync::Arc;
use std::time::Duration;

use aggregated_api::http::status::ApiError;
use aggregated_api::registry::capability::{
    Companion, CreateSubresource, Reservation, SubresourceWrite,
};
use aggregated_api::registry::context::RequestCtx;
use aggregated_api::store::Revision;
use async_trait::async_trait;
use crawl_api::lease::{LeasePhase, LeaseRenewal, LeaseRenewalStatus, ProxyLease};
use http::StatusCode;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use super::LeaseRules;
use crate::allocator::Allocator;
use crate::allocator::leases::LeaseKey;
use crate::status;

/// Reason of a refused renewal: the lease waits for a proxy.
const REASON_PENDING: &str = "LeasePending";
/// Reason of a refused renewal: the lease has expired.
const REASON_EXPIRED: &str = "LeaseExpired";
/// Reason of a refused renewal: the lease was taken back.
const REASON_REVOKED: &str = "LeaseRevoked";

#[async_trait]
impl CreateSubresource<ProxyLease> for LeaseRules {
    type Body = LeaseRenewal;
    const NAME: &'static str = "renew";
    const KIND: &'static str = "LeaseRenewal";

    async fn plan(
        &self,
        ctx: &RequestCtx,
        mut parent: ProxyLease,
        body: &LeaseRenewal,
    ) -> Result<SubresourceWrite<ProxyLease, LeaseRenewal>, ApiError> {
        let name = parent.name_any();
        if body
            .metadata
            .name
            .as_deref()
            .is_some_and(|given| !given.is_empty() && given != name)
        {
            let given = body.metadata.name.as_deref().unwrap_or_default();
            return Err(ApiError::bad_request(format!(
                "the name of the object ({given}) does not match the name on the URL ({name})"
            )));
        }
        self.check_holder(ctx, &parent, "renew").await?;
        let refuse = |reason: &str, why: &str| {
            let text = format!("lease {name:?} cannot be renewed: {why}");
            Err(ApiError::refusal(StatusCode::CONFLICT, reason, text)
                .regarding(self.resource(), &name))
        };
        match status::phase(&parent) {
            LeasePhase::Bound if parent.metadata.deletion_timestamp.is_some() => {
                return refuse(REASON_REVOKED, "it is being deleted");
            },
            LeasePhase::Bound => {},
            LeasePhase::Pending => return refuse(REASON_PENDING, "it waits for a proxy"),
            LeasePhase::Expired => {
                return refuse(REASON_EXPIRED, "it has expired; create another one");
            },
            LeasePhase::Revoked => {
                return refuse(REASON_REVOKED, "it was taken back; create another one");
            },
        }
        let key = status::key(&parent);
        let (now, elapsed) = (ctx.now, ctx.clock.elapsed());
        let ttl = status::ttl(&parent.spec);
        let cut = self.allocator.lease(&key.uid).and_then(|lease| lease.cut);
        let left = cut.map_or(ttl, |cut| cut.saturating_sub(elapsed).min(ttl));
        let ends = status::seconds(status::later(now, left));
        let renewed_at = status::seconds(now);
        let status = parent.status.get_or_insert_default();
        status.expires_at = Some(ends.clone());
        status.renewed_at = Some(renewed_at.clone());
        let answer = LeaseRenewal {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: parent.namespace(),
                uid: parent.uid(),
                ..ObjectMeta::default()
            },
            status: Some(LeaseRenewalStatus {
                expires_at: ends,
                remaining_seconds: i32::try_from(left.as_secs()).unwrap_or(i32::MAX),
                drain_deadline: cut
                    .map(|cut| status::seconds(status::later(now, cut.saturating_sub(elapsed)))),
            }),
            ..LeaseRenewal::default()
        };
        let renewed = Renewed {
            allocator: Arc::clone(&self.allocator),
            lease: Some((key, renewed_at.0, elapsed + ttl)),
        };
        let reservation: Option<Box<dyn Reservation>> = if ctx.dry_run {
            None
        } else {
            Some(Box::new(renewed))
        };
        let companion = Companion {
            reservation,
            ..Companion::default()
        };
        Ok(SubresourceWrite {
            parent: Some(parent),
            companion,
            body: answer,
        })
    }
}

/// A renewal on its way.
struct Renewed {
    allocator: Arc<Allocator>,
    lease: Option<(LeaseKey, Timestamp, Duration)>,
}

impl Reservation for Renewed {
    fn committed(mut self: Box<Self>, _: Revision) {
        if let Some((key, at, expires)) = self.lease.take() {
            self.allocator.renewed(&key.uid, at, expires);
        }
    }
}

impl Drop for Renewed {
    fn drop(&mut self) {
        // Why: it may be durable although nobody waited for it; it must not end early then.
        if let Some((key, ..)) = self.lease.take() {
            self.allocator.doubt(key);
        }
    }
}
