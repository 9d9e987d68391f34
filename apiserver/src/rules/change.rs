//! Update and delete: the spec stays, metadata belong to the holder, a deleted lease gives back.

use std::sync::Arc;

use aggregated_api::http::status::{ApiError, FieldError};
use aggregated_api::registry::capability::{Companion, Delete, Reservation, Update};
use aggregated_api::registry::context::RequestCtx;
use aggregated_api::store::Revision;
use async_trait::async_trait;
use crawl_api::lease::{LeasePhase, ProxyLease, ProxyLeaseSpec};

use super::{LeaseRules, unsettled};
use crate::allocator::leases::LeaseKey;
use crate::allocator::{Allocator, Release};
use crate::ended::Ended;
use crate::status::{self, End};

const IMMUTABLE: &str = "field is immutable";

#[async_trait]
impl Update<ProxyLease> for LeaseRules {
    fn prepare(
        &self,
        _: &RequestCtx,
        new: &mut ProxyLease,
        old: &ProxyLease,
    ) -> Result<(), ApiError> {
        new.status.clone_from(&old.status);
        // Why: the same in other words is no change.
        let namespace = old.metadata.namespace.as_deref().unwrap_or_default();
        if status::is_same_spec(namespace, &new.spec, &old.spec) {
            new.spec.clone_from(&old.spec);
        }
        Ok(())
    }

    fn validate(&self, _: &RequestCtx, new: &ProxyLease, old: &ProxyLease) -> Vec<FieldError> {
        changed_fields(&new.spec, &old.spec)
    }

    async fn plan(
        &self,
        ctx: &RequestCtx,
        _: &ProxyLease,
        old: &ProxyLease,
    ) -> Result<Companion, ApiError> {
        self.check_holder(ctx, old, "change").await?;
        Ok(Companion::default())
    }
}

fn changed_fields(new: &ProxyLeaseSpec, old: &ProxyLeaseSpec) -> Vec<FieldError> {
    let ProxyLeaseSpec {
        pool_ref,
        selector,
        target,
        ttl_seconds,
        schemes,
        wait_seconds,
        request_id,
    } = new;
    let checks = [
        (*pool_ref != old.pool_ref)
            .then(|| FieldError::invalid("spec.poolRef", pool_ref, IMMUTABLE)),
        (*selector != old.selector)
            .then(|| FieldError::invalid("spec.selector", selector, IMMUTABLE)),
        (*target != old.target).then(|| FieldError::invalid("spec.target", target, IMMUTABLE)),
        (*ttl_seconds != old.ttl_seconds)
            .then(|| FieldError::invalid("spec.ttlSeconds", ttl_seconds, IMMUTABLE)),
        (*schemes != old.schemes).then(|| FieldError::invalid("spec.schemes", schemes, IMMUTABLE)),
        (*wait_seconds != old.wait_seconds)
            .then(|| FieldError::invalid("spec.waitSeconds", wait_seconds, IMMUTABLE)),
        (*request_id != old.request_id)
            .then(|| FieldError::invalid("spec.requestID", request_id, IMMUTABLE)),
    ];
    checks.into_iter().flatten().collect()
}

#[async_trait]
impl Delete<ProxyLease> for LeaseRules {
    async fn plan(&self, ctx: &RequestCtx, old: &ProxyLease) -> Result<Companion, ApiError> {
        self.check_holder(ctx, old, "delete").await?;
        if ctx.dry_run || old.metadata.deletion_timestamp.is_some() {
            return Ok(Companion::default());
        }
        let key = status::key(old);
        match status::phase(old) {
            LeasePhase::Bound => {
                match self.allocator.release(&key.uid).await.map_err(unsettled)? {
                    Release::Slot(companion) => Ok(companion),
                    Release::Nothing => Ok(Companion::default()),
                }
            },
            LeasePhase::Pending => {
                let leaves = Leaves {
                    allocator: Arc::clone(&self.allocator),
                    key: Some(key),
                };
                Ok(Companion {
                    reservation: Some(Box::new(leaves)),
                    ..Companion::default()
                })
            },
            LeasePhase::Expired | LeasePhase::Revoked => {
                let cleared = Cleared {
                    ended: Arc::clone(&self.ended),
                    key,
                };
                Ok(Companion {
                    reservation: Some(Box::new(cleared)),
                    ..Companion::default()
                })
            },
        }
    }

    /// What finalizers keep holds nothing any more, and says so.
    fn mark(&self, ctx: &RequestCtx, lease: &mut ProxyLease) {
        if !status::is_over(lease) {
            status::set_over(lease, End::Released, ctx.now);
        }
    }
}

/// A waiting lease on its way out.
struct Leaves {
    allocator: Arc<Allocator>,
    key: Option<LeaseKey>,
}

impl Reservation for Leaves {
    fn committed(mut self: Box<Self>, _: Revision) {
        if let Some(key) = self.key.take() {
            self.allocator.dequeue(&key.uid);
        }
    }
}

impl Drop for Leaves {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.allocator.doubt(key);
        }
    }
}

/// A lease that is over, on its way out.
struct Cleared {
    ended: Arc<Ended>,
    key: LeaseKey,
}

impl Reservation for Cleared {
    fn committed(self: Box<Self>, _: Revision) {
        self.ended.forget(&self.key);
    }
}
