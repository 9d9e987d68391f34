//! The controller of ProxyPool: as many members as the pool asks for, as its template says.
//!
//! The same four steps as for a Proxy: [`observe`] reads, [`plan`] decides, [`act`] writes members,
//! [`status`] says what is. A member is a Proxy whose controller ownerReference is the pool; the
//! label only mirrors it.

mod act;
mod applied;
mod leases;
mod limits;
mod member;
mod observe;
mod order;
mod placement;
mod plan;
mod revision;
mod roll;
#[cfg(test)]
mod roll_tests;
mod status;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crawl_api::pool::ProxyPool;
use crawl_api::proxy::Proxy;
use crawl_api::{conditions as c, names};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::runtime::controller::Action as Next;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client, Resource, ResourceExt};
use parking_lot::Mutex;
use runtime_kit::backoff::{Backoff, BackoffPolicy};
use runtime_kit::{Class, Classify, Clock};
use tracing::Instrument;

use self::leases::LeaseCounts;
use self::observe::Pending;
use self::order::Leases;
use self::placement::Exhausted;
use self::plan::Action;
use crate::events::Events;
use crate::post_params;
use crate::proxy::LeaseApi;

/// How many failing pools are remembered for backoff.
const BACKOFF_CAPACITY: usize = 10_000;

/// What a pass needs.
pub struct Ctx {
    client: Client,
    proxies: Store<Proxy>,
    events: Events,
    clock: Arc<dyn Clock>,
    pending: Pending,
    exhausted: Exhausted,
    leases: LeaseCounts,
    written: Written,
    backoff: Backoff<String>,
}

/// The resourceVersion of our last status write, by pool UID. Why: a pass over an older state would
/// not know what the status remembers of the roll.
#[derive(Debug, Default)]
struct Written(Mutex<HashMap<String, u64>>);

/// How long to wait for the watch to show our last write, which wakes the controller by itself.
const CATCH_UP: Duration = Duration::from_secs(1);

// === impl Ctx ===

impl Ctx {
    /// Puts a context together.
    pub fn new(
        client: Client,
        proxies: Store<Proxy>,
        leases: LeaseApi,
        events: Events,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let backoff = Backoff::new(BackoffPolicy::default(), BACKOFF_CAPACITY);
        Self {
            client,
            proxies,
            events,
            clock,
            pending: Pending::default(),
            exhausted: Exhausted::default(),
            leases: LeaseCounts::new(leases),
            written: Written::default(),
            backoff,
        }
    }
}

// === impl Written ===

impl Written {
    fn note(&self, pool: &ProxyPool) {
        if let (Some(uid), Some(version)) = (pool.uid(), version(pool)) {
            self.0.lock().insert(uid, version);
        }
    }

    fn is_behind(&self, pool: &ProxyPool) -> bool {
        let written = self.0.lock().get(&pool.uid().unwrap_or_default()).copied();
        matches!((version(pool), written), (Some(version), Some(written)) if version < written)
    }

    fn forget(&self, pool: &ProxyPool) {
        self.0.lock().remove(&pool.uid().unwrap_or_default());
    }
}

fn version(pool: &ProxyPool) -> Option<u64> {
    pool.metadata.resource_version.as_ref()?.parse().ok()
}

/// A failed pass.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A member could not be created.
    #[error("cannot create member {name}")]
    Create {
        /// Its name.
        name: String,
        /// What the API server said.
        #[source]
        source: kube::Error,
    },
    /// A member could not be deleted.
    #[error("cannot delete member {name}")]
    Delete {
        /// Its name.
        name: String,
        /// What the API server said.
        #[source]
        source: kube::Error,
    },
    /// A change of the template could not be written into a member.
    #[error("cannot change member {name}")]
    Update {
        /// Its name.
        name: String,
        /// What the API server said.
        #[source]
        source: kube::Error,
    },
    /// The status could not be written.
    #[error("cannot write the status of the pool")]
    Status(#[source] kube::Error),
}

impl Error {
    fn class(&self) -> Class {
        match self {
            Self::Create { source, .. }
            | Self::Delete { source, .. }
            | Self::Update { source, .. }
            | Self::Status(source) => source.class(),
        }
    }

    /// The cache was behind: a conflict, or an object that is gone. No fault; the next pass knows better.
    fn is_of_the_cache(&self) -> bool {
        matches!(self.class(), Class::Conflict | Class::NotFound)
    }

    /// What status and events say. Why without the name of a member that was not created: each attempt
    /// has another, and a status that differs is written, and wakes the controller for the next one.
    fn told(&self) -> String {
        let text = runtime_kit::chain(self).to_string();
        match self {
            Self::Create { name, .. } => match name.rsplit_once('-') {
                Some((pool, _)) => text.replace(name.as_str(), &format!("{pool}-*")),
                None => text,
            },
            Self::Delete { .. } | Self::Update { .. } | Self::Status(_) => text,
        }
    }
}

/// The pool that a Proxy is a member of.
pub fn owner(proxy: &Proxy) -> Option<ObjectRef<ProxyPool>> {
    let owner = controller(proxy)?;
    let reference = ObjectRef::new(&owner.name);
    Some(match proxy.namespace() {
        Some(namespace) => reference.within(&namespace),
        None => reference,
    })
}

pub(crate) fn controller(proxy: &Proxy) -> Option<&OwnerReference> {
    let ours = |owner: &&OwnerReference| {
        owner.controller == Some(true)
            && owner.kind == ProxyPool::kind(&())
            && owner.api_version.split('/').next() == Some(names::GROUP)
    };
    proxy.owner_references().iter().find(ours)
}

/// One pass over a pool.
///
/// # Errors
/// A member or the status could not be written; the pass is repeated.
pub async fn reconcile(pool: Arc<ProxyPool>, ctx: Arc<Ctx>) -> Result<Next, Error> {
    let span = tracing::info_span!(
        "pool",
        namespace = pool.namespace(),
        name = pool.name_any(),
        uid = pool.uid(),
        generation = pool.metadata.generation,
    );
    Box::pin(pass(&ctx, &pool).instrument(span)).await
}

/// When a failed pass is repeated.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the signature that the controller asks for"
)]
pub fn error_policy(pool: Arc<ProxyPool>, error: &Error, ctx: Arc<Ctx>) -> Next {
    let uid = pool.uid().unwrap_or_default();
    let delay = ctx.backoff.next(&uid);
    let (namespace, name) = (pool.namespace(), pool.name_any());
    let text = runtime_kit::chain(error).to_string();
    if error.is_of_the_cache() {
        tracing::debug!(namespace, name, error = text, "pass repeated");
    } else {
        tracing::warn!(namespace, name, error = text, "pass failed");
    }
    Next::requeue(delay)
}

async fn pass(ctx: &Ctx, pool: &ProxyPool) -> Result<Next, Error> {
    // Why: the garbage collector deletes the members of a pool that goes.
    if pool.metadata.deletion_timestamp.is_some() {
        ctx.written.forget(pool);
        return Ok(Next::await_change());
    }
    if ctx.written.is_behind(pool) {
        return Ok(Next::requeue(CATCH_UP));
    }
    let now = ctx.clock.now();
    let known = observe::Known {
        pending: &ctx.pending,
        exhausted: &ctx.exhausted,
    };
    let mut observation = observe::observe(pool, &ctx.proxies, known, now, ctx.clock.elapsed());
    for note in &observation.newly_exhausted {
        tracing::info!(note, "a placement is left out for a while");
        ctx.events
            .warn(pool, "Place", c::REASON_PLACEMENT_EXHAUSTED, note.clone())
            .await;
    }
    let mut action = plan::plan(&observation);
    if action == Action::CountLeases {
        observation.leases = ctx.leases.count(pool, &*ctx.clock).await;
        action = plan::plan(&observation);
    }
    tracing::debug!(?action, "decided");
    let failure = Box::pin(act::act(ctx, pool, action)).await.err();

    let fault = failure.as_ref().filter(|error| !error.is_of_the_cache());
    let status = status::compute(pool, &observation, fault, now);
    if pool.status.as_ref() != Some(&status) {
        let mut changed = pool.clone();
        changed.metadata.managed_fields = None;
        changed.status = Some(status.clone());
        let api: Api<ProxyPool> =
            Api::namespaced(ctx.client.clone(), &pool.namespace().unwrap_or_default());
        let written = api
            .replace_status(&pool.name_any(), &post_params(), &changed)
            .await;
        ctx.written.note(&written.map_err(Error::Status)?);
        let before = pool
            .status
            .as_ref()
            .map(|status| status.conditions.as_slice());
        ctx.events
            .of_pool(pool, before.unwrap_or_default(), &status.conditions)
            .await;
    }
    if let Some(failure) = failure {
        return Err(failure);
    }
    ctx.backoff.reset(&pool.uid().unwrap_or_default());
    let settled = ctx.pending.wait(pool, ctx.clock.elapsed());
    let asked = matches!(observation.leases, Leases::Awaited(_)).then_some(leases::RETRY);
    let waits = [settled, asked, observation.next];
    Ok(match waits.into_iter().flatten().min() {
        Some(wait) => Next::requeue(wait),
        None => Next::await_change(),
    })
}
