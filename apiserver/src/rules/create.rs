//! Create: the same lease for a repeat, a slot, a place in the queue, or a denial.

use std::sync::Arc;
use std::time::Duration;

use aggregated_api::auth::Attributes;
use aggregated_api::http::status::{ApiError, FieldError};
use aggregated_api::registry::capability::{Companion, Create, CreatePlan, Reservation};
use aggregated_api::registry::collection::Written;
use aggregated_api::registry::context::RequestCtx;
use aggregated_api::store::Revision;
use async_trait::async_trait;
use crawl_api::lease::{
    Holder, LEASE_GROUP, PoolRef, ProxyLease, REASON_NO_PROXY_AVAILABLE, REASON_REQUEST_ID_REUSED,
    VERB_LEASE,
};
use crawl_api::names::{GROUP, VERSION};
use crawl_api::pool::ProxyPool;
use crawl_api::scheme::Scheme;
use http::StatusCode;
use kube::{CustomResourceExt, ResourceExt};

use super::ownership::{change_owner, pod_owner, token_pod, unavailable};
use super::{LeaseRules, MAX_POD_TTL, MAX_TTL, MIN_TTL, target, unsettled};
use crate::allocator::facts::PoolKey;
use crate::allocator::leases::{LeaseKey, RequestKey};
use crate::allocator::want::{Candidates, Want};
use crate::allocator::{Allocator, Answer, Denial, NewLease, RequestClaim};
use crate::known::Watched;
use crate::status;

/// Seconds after which to ask again when the custom resources are not installed.
const RETRY_NOT_INSTALLED: u32 = 10;
/// Looks at a lease that is just ending.
const ENDINGS: usize = 64;
/// Attempts to hand a lease over to a restarted pod.
const HANDOVERS: usize = 16;

#[async_trait]
impl Create<ProxyLease> for LeaseRules {
    fn prepare(&self, _: &RequestCtx, lease: &mut ProxyLease) -> Result<(), ApiError> {
        lease.status = None;
        let Some(given) = &lease.spec.target else {
            return Ok(());
        };
        match target::registrable(given) {
            Ok(_) => Ok(()),
            Err(error) => {
                let field = FieldError::invalid("spec.target", given, &error.to_string());
                Err(invalid(lease, &[field]))
            },
        }
    }

    fn validate(&self, ctx: &RequestCtx, lease: &ProxyLease) -> Vec<FieldError> {
        let spec = &lease.spec;
        let mut errors = Vec::new();
        let bound = token_pod(&ctx.user).is_some();
        let max = if bound { MAX_POD_TTL } else { MAX_TTL }.min(self.max_ttl);
        let ttl = status::ttl(spec);
        if ttl < MIN_TTL || ttl > max {
            let mut detail = format!(
                "must be between {} and {}",
                MIN_TTL.as_secs(),
                max.as_secs()
            );
            if !bound && self.max_ttl > MAX_TTL {
                let more = MAX_POD_TTL.min(self.max_ttl).as_secs();
                detail = format!("{detail}, or up to {more} with a token that is bound to a pod");
            }
            errors.push(FieldError::invalid(
                "spec.ttlSeconds",
                &spec.ttl_seconds,
                &detail,
            ));
        }
        if spec.pool_ref.is_some() && spec.selector.is_some() {
            let detail = "poolRef and selector exclude each other: name a pool or labels";
            errors.push(FieldError::forbidden("spec.selector", detail));
        }
        if let Some(selector) = &spec.selector
            && let Err(error) = Candidates::labels(&ctx.namespace, selector)
        {
            errors.push(FieldError::invalid("spec.selector", selector, &error));
        }
        let mut seen: Vec<Scheme> = Vec::new();
        for (at, scheme) in spec.schemes.iter().enumerate() {
            if seen.contains(scheme) {
                let field = format!("spec.schemes[{at}]");
                errors.push(FieldError::invalid(field, scheme, "is there already"));
            }
            seen.push(*scheme);
        }
        errors
    }

    async fn plan(
        &self,
        ctx: &RequestCtx,
        mut lease: ProxyLease,
        existing: Option<ProxyLease>,
    ) -> Result<CreatePlan<ProxyLease>, ApiError> {
        if let Some(existing) = existing {
            return self.meet(ctx, lease, existing).await;
        }
        let key = status::key(&lease);
        let claim = match status::request(&lease, &ctx.user.name) {
            None => None,
            Some(request) => match self.claim(ctx, &request).await? {
                Claim::Ours(claim) => claim,
                Claim::Repeat(name) => {
                    let made = self.leases.get_latest(&ctx.namespace, &name).await?;
                    match made.filter(|made| !status::is_over(made)) {
                        Some(made) if !Self::is_repeat(ctx, &lease, &made) => {
                            return Err(self.reused(&request, &made));
                        },
                        Some(made) => return self.meet(ctx, lease, made).await,
                        None => None,
                    }
                },
            },
        };
        let want = self.check_want(ctx, &lease).await?;
        let holder = self.settle_owner(&ctx.user, &mut lease).await?;
        let new = NewLease {
            key,
            ttl: status::ttl(&lease.spec),
            pod_uid: holder.pod_uid.as_deref().map(Into::into),
            request: status::request(&lease, &ctx.user.name),
        };
        if ctx.dry_run {
            return self.pretend(ctx, lease, &want, holder).await;
        }
        let Some(answer) = self.try_grant(&want, &new).await? else {
            // Why: the cache may lag behind what the allocator knows.
            let made = self
                .leases
                .get_latest(&new.key.namespace, &new.key.name)
                .await?;
            let made = made.ok_or_else(|| {
                let why = "a lease of this name is just ending; try again";
                ApiError::conflict(self.resource(), &new.key.name, why)
            })?;
            return self.meet(ctx, lease, made).await;
        };
        match answer {
            Answer::Granted(slot, mut companion) => {
                status::set_bound(&mut lease, &slot.facts, Some(slot.token), holder, ctx.now);
                companion.reservation = Some(Box::new(Granted {
                    claim,
                    lease_uid: Arc::clone(&new.key.uid),
                    ticket: companion.reservation.take(),
                }));
                Ok(CreatePlan::Write {
                    object: lease,
                    companion,
                })
            },
            Answer::Denied(denial) if lease.spec.wait_seconds <= 0 => {
                Err(self.denied(&lease, &want, &denial, ctx))
            },
            Answer::Denied(_) | Answer::Exists => {
                status::set_pending(&mut lease, holder, ctx.now);
                let wait = status::wait(&lease.spec);
                let allocator = Arc::clone(&self.allocator);
                let queued = Queued {
                    allocator,
                    entry: Some((new, want, wait)),
                    claim,
                };
                let companion = Companion {
                    reservation: Some(Box::new(queued)),
                    ..Companion::default()
                };
                Ok(CreatePlan::Write {
                    object: lease,
                    companion,
                })
            },
        }
    }
}

/// Whose a request id is.
enum Claim {
    /// Ours; `None` in a dry run.
    Ours(Option<RequestClaim>),
    /// It made the lease of this name.
    Repeat(Arc<str>),
}

// === impl LeaseRules ===

impl LeaseRules {
    /// A slot or a denial; `None`: a lease of this name exists.
    async fn try_grant(&self, want: &Want, new: &NewLease) -> Result<Option<Answer>, ApiError> {
        for _ in 0..ENDINGS {
            match self.allocator.grant(want, new).await.map_err(unsettled)? {
                Answer::Exists => {
                    let LeaseKey {
                        namespace, name, ..
                    } = &new.key;
                    if self.leases.get_latest(namespace, name).await?.is_some() {
                        return Ok(None);
                    }
                    // It has just ended, and the allocator is about to be told.
                    tokio::task::yield_now().await;
                },
                answer @ (Answer::Granted(..) | Answer::Denied(_)) => return Ok(Some(answer)),
            }
        }
        Ok(None)
    }

    async fn claim(&self, ctx: &RequestCtx, request: &RequestKey) -> Result<Claim, ApiError> {
        match self.allocator.claim(request).await.map_err(unsettled)? {
            Ok(claim) => Ok(Claim::Ours((!ctx.dry_run).then_some(claim))),
            Err(name) => Ok(Claim::Repeat(name)),
        }
    }

    /// A lease of this name, or made by this request, exists.
    async fn meet(
        &self,
        ctx: &RequestCtx,
        lease: ProxyLease,
        existing: ProxyLease,
    ) -> Result<CreatePlan<ProxyLease>, ApiError> {
        let name = existing.name_any();
        let holder = existing
            .status
            .as_ref()
            .and_then(|status| status.holder.as_ref());
        let ours = holder.is_some_and(|holder| holder.username == ctx.user.name)
            && existing.metadata.deletion_timestamp.is_none();
        if ours && status::is_over(&existing) {
            self.ended.forget(&status::key(&existing));
            return Ok(CreatePlan::Replace {
                old: existing,
                companion: Companion::default(),
            });
        }
        if !ours || !Self::is_repeat(ctx, &lease, &existing) {
            return Err(ApiError::already_exists(self.resource(), &name));
        }
        if ctx.dry_run {
            return Ok(CreatePlan::Existing(existing));
        }
        self.hand_over(ctx, lease, existing)
            .await
            .map(CreatePlan::Existing)
    }

    /// Whether a lease is what another create asked for already.
    fn is_repeat(ctx: &RequestCtx, lease: &ProxyLease, made: &ProxyLease) -> bool {
        status::is_same_spec(&ctx.namespace, &lease.spec, &made.spec)
    }

    /// Why not AlreadyExists: the name is a generated one, and clients answer that with another
    /// try, for ever.
    fn reused(&self, request: &RequestKey, made: &ProxyLease) -> ApiError {
        let name = made.name_any();
        let text = format!(
            "requestID {:?} was used with another spec, for lease {name:?}: choose another requestID, or repeat the spec",
            request.id
        );
        ApiError::refusal(StatusCode::CONFLICT, REASON_REQUEST_ID_REUSED, text)
            .regarding(self.resource(), &name)
            .cause(
                "FieldValueDuplicate",
                "was used with another spec",
                "spec.requestID",
            )
    }

    /// Moves a lease to the pod that asks for it now, if that is another one.
    async fn hand_over(
        &self,
        ctx: &RequestCtx,
        mut lease: ProxyLease,
        mut existing: ProxyLease,
    ) -> Result<ProxyLease, ApiError> {
        let key = status::key(&existing);
        let pod = pod_owner(&lease).map(|(_, owner)| owner.uid.clone());
        let pod = pod.or_else(|| token_pod(&ctx.user).map(|pod| pod.uid));
        for _ in 0..HANDOVERS {
            let held_by = existing
                .status
                .as_ref()
                .and_then(|status| status.holder.as_ref()?.pod_uid.clone());
            if pod.is_none() || pod == held_by {
                return Ok(existing);
            }
            let holder = self.settle_owner(&ctx.user, &mut lease).await?;
            let moved_to = holder.pod_uid.as_deref().map(Into::into);
            let mut moved = existing;
            change_owner(&mut moved, &lease);
            if let Some(status) = &mut moved.status {
                status.holder = Some(holder);
            }
            if let Written::Committed(moved) =
                self.leases.replace(moved, Companion::default()).await?
            {
                self.allocator.moved(&key.uid, moved_to);
                // Why: the answer is read from the cache, which must have seen the change.
                drop(self.leases.get_latest(&key.namespace, &key.name).await?);
                return Ok(moved);
            }
            let read = self.leases.get_latest(&key.namespace, &key.name).await?;
            let same = read.filter(|read| {
                read.metadata.uid.as_deref() == Some(&*key.uid) && !status::is_over(read)
            });
            existing = same.ok_or_else(|| {
                let why = "the lease ended while it was asked for; try again";
                ApiError::conflict(self.resource(), &key.name, why)
            })?;
        }
        Err(ApiError::modified(self.resource(), &key.name))
    }

    /// What a dry run answers: the lease as it would be, or the denial.
    async fn pretend(
        &self,
        ctx: &RequestCtx,
        mut lease: ProxyLease,
        want: &Want,
        holder: Holder,
    ) -> Result<CreatePlan<ProxyLease>, ApiError> {
        match self.allocator.probe(want).await.map_err(unsettled)? {
            Ok(proxy) => status::set_bound(&mut lease, &proxy, None, holder, ctx.now),
            Err(_) if lease.spec.wait_seconds > 0 => {
                status::set_pending(&mut lease, holder, ctx.now);
            },
            Err(denial) => return Err(self.denied(&lease, want, &denial, ctx)),
        }
        Ok(CreatePlan::Write {
            object: lease,
            companion: Companion::default(),
        })
    }

    fn denied(
        &self,
        lease: &ProxyLease,
        want: &Want,
        denial: &Denial,
        ctx: &RequestCtx,
    ) -> ApiError {
        self.metrics.denied(denial.main_reason());
        denial.to_error(
            self.resource(),
            &lease.name_any(),
            want,
            ctx.clock.elapsed(),
        )
    }

    /// What the lease asks for, if the caller may ask for it.
    async fn check_want(&self, ctx: &RequestCtx, lease: &ProxyLease) -> Result<Want, ApiError> {
        match self.known.fleet() {
            Watched::Synced => {},
            Watched::NotInstalled => {
                self.metrics.denied("NotInstalled");
                let text = format!(
                    "the CustomResourceDefinitions proxies.{GROUP} and proxypools.{GROUP} are not installed in this cluster"
                );
                let refusal = ApiError::refusal(
                    StatusCode::CONFLICT,
                    REASON_NO_PROXY_AVAILABLE,
                    format!("no proxy can be leased: {text}"),
                );
                return Err(refusal
                    .regarding(self.resource(), &lease.name_any())
                    .retry_after(RETRY_NOT_INSTALLED)
                    .cause("CRDsNotInstalled", text, ""));
            },
            Watched::Starting => {
                let text = "the proxies have not been read yet; try again";
                return Err(ApiError::service_unavailable(text).retry_after(1));
            },
        }
        if let Some(pool) = &lease.spec.pool_ref {
            self.check_pool(ctx, lease, pool).await?;
        }
        status::want(&ctx.namespace, &lease.spec).map_err(|error| {
            invalid(
                lease,
                &[FieldError::invalid(
                    "spec.selector",
                    &lease.spec.selector,
                    &error,
                )],
            )
        })
    }

    async fn check_pool(
        &self,
        ctx: &RequestCtx,
        lease: &ProxyLease,
        reference: &PoolRef,
    ) -> Result<(), ApiError> {
        let namespace = reference.namespace.as_deref().unwrap_or(&ctx.namespace);
        let key = PoolKey {
            namespace: namespace.into(),
            name: reference.name.as_str().into(),
        };
        let pool = match self.known.pool(&key) {
            Some(pool) => Some(pool),
            None => self
                .cluster
                .pool(&key)
                .await
                .map_err(|error| unavailable(&error))?
                .map(Arc::new),
        };
        let foreign = namespace != ctx.namespace;
        let open = match &pool {
            Some(pool) => !foreign || self.is_open(pool, &ctx.namespace).await?,
            None => !foreign,
        };
        if !open && !ctx.may(&lease_from(&key)).await? {
            let why = format!(
                "pool {namespace}/{} is not open to namespace {:?}, and user {:?} may not {VERB_LEASE:?} from it",
                key.name, ctx.namespace, ctx.user.name
            );
            return Err(ApiError::forbidden(
                self.resource(),
                &lease.name_any(),
                &why,
            ));
        }
        if pool.is_none() {
            let detail = format!("there is no ProxyPool of this name in namespace {namespace:?}");
            let error = FieldError::invalid("spec.poolRef.name", &reference.name, &detail);
            return Err(invalid(lease, &[error]));
        }
        Ok(())
    }

    async fn is_open(&self, pool: &ProxyPool, namespace: &str) -> Result<bool, ApiError> {
        let by_label = pool
            .spec
            .allowed_namespaces
            .as_ref()
            .and_then(|a| a.selector.as_ref());
        let labels = match by_label {
            Some(_) => self
                .cluster
                .namespace_labels(namespace)
                .await
                .map_err(|error| unavailable(&error))?,
            None => std::collections::BTreeMap::default(),
        };
        Ok(pool.allows_namespace(namespace, &labels).unwrap_or_else(|error| {
            tracing::warn!(pool = %pool.name_any(), %error, "allowedNamespaces matches nothing");
            false
        }))
    }
}

fn lease_from(pool: &PoolKey) -> Attributes {
    Attributes::Resource {
        verb: VERB_LEASE.to_owned(),
        group: GROUP.to_owned(),
        version: VERSION.to_owned(),
        resource: "proxypools".to_owned(),
        subresource: String::new(),
        namespace: pool.namespace.to_string(),
        name: pool.name.to_string(),
    }
}

fn invalid(lease: &ProxyLease, errors: &[FieldError]) -> ApiError {
    let name = lease.metadata.name.as_deref().unwrap_or_default();
    ApiError::invalid(LEASE_GROUP, &ProxyLease::api_resource().kind, name, errors)
}

/// A slot and a request id on their way.
struct Granted {
    claim: Option<RequestClaim>,
    lease_uid: Arc<str>,
    ticket: Option<Box<dyn Reservation>>,
}

impl Reservation for Granted {
    fn committed(self: Box<Self>, revision: Revision) {
        let Self {
            claim,
            lease_uid,
            ticket,
        } = *self;
        if let Some(ticket) = ticket {
            ticket.committed(revision);
        }
        if let Some(claim) = claim {
            claim.made(&lease_uid);
        }
    }
}

/// A place in the queue on its way.
struct Queued {
    allocator: Arc<Allocator>,
    entry: Option<(NewLease, Want, Duration)>,
    claim: Option<RequestClaim>,
}

impl Reservation for Queued {
    fn committed(mut self: Box<Self>, _: Revision) {
        if let Some((lease, want, wait)) = self.entry.take() {
            self.allocator.enqueue(&lease, want, wait);
            if let Some(claim) = self.claim.take() {
                claim.made(&lease.key.uid);
            }
        }
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        // Why: a cancelled request may have committed; then somebody waits whom nobody knows.
        if let Some((NewLease { key, .. }, ..)) = self.entry.take() {
            let _: &LeaseKey = &key;
            self.allocator.doubt(key);
        }
    }
}
