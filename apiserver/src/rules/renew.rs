//! Renew: the lease lasts its ttl again from now, but not past a drain. What the holder counted since
//! the last time comes along.

use std::sync::Arc;
use std::time::Duration;

use aggregated_api::http::status::ApiError;
use aggregated_api::registry::capability::{
    Companion, CreateSubresource, Reservation, SubresourceWrite,
};
use aggregated_api::registry::context::RequestCtx;
use aggregated_api::store::Revision;
use async_trait::async_trait;
use crawl_api::lease::{LeaseRenewal, LeaseRenewalStatus, ProxyLease};
use crawl_api::report::Traffic;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use super::LeaseRules;
use crate::allocator::Allocator;
use crate::allocator::leases::LeaseKey;
use crate::metrics::Metrics;
use crate::status;

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
        self.check_bound(&parent, "renewed")?;
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
            spec: body.spec,
            ..LeaseRenewal::default()
        };
        let renewed = Renewed {
            allocator: Arc::clone(&self.allocator),
            metrics: Arc::clone(&self.metrics),
            lease: Some((key, renewed_at.0, elapsed + ttl)),
            traffic: body.spec,
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
    metrics: Arc<Metrics>,
    lease: Option<(LeaseKey, Timestamp, Duration)>,
    traffic: Option<Traffic>,
}

impl Reservation for Renewed {
    fn committed(mut self: Box<Self>, _: Revision) {
        let Some((key, at, expires)) = self.lease.take() else {
            return;
        };
        self.allocator.renewed(&key.uid, at, expires);
        if let Some(traffic) = self.traffic {
            self.metrics.reported_traffic(traffic);
            if traffic.ok > 0 {
                self.allocator.worked(&key.uid, at);
            }
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
