//! What the server writes into a lease, and how it reads one back.
//!
//! Pure; used by the rules and the tasks, so that a state looks the same whoever wrote it.

use std::sync::Arc;
use std::time::Duration;

use crawl_api::conditions::{self, Statement};
use crawl_api::lease::{
    Holder, LeasePhase, LeasedEndpoint, LeasedProxy, ProxyLease, ProxyLeaseSpec, ProxyLeaseStatus,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use crate::allocator::facts::{Fate, PoolKey, ProxyFacts};
use crate::allocator::leases::{LeaseKey, RequestKey};
use crate::allocator::want::{Candidates, Want};
use crate::allocator::{Slot, Stage, Stored};
use crate::rules::target::registrable;

/// Condition: the lease holds a slot.
pub const BOUND: &str = "Bound";
/// Condition: the lease should be given up; present while it should.
pub const DRAINING: &str = "Draining";

/// Reason of Bound=True.
pub const REASON_GRANTED: &str = "Granted";
/// Reason of Bound=False: nothing was free yet.
pub const REASON_WAITING: &str = "Waiting";
/// Reason of Bound=False: `waitSeconds` passed.
pub const REASON_WAIT_TIMED_OUT: &str = "WaitTimedOut";
/// Reason of Bound=False: the ttl passed without a renewal.
pub const REASON_EXPIRED: &str = "NotRenewed";
/// Reason of Bound=False: the proxy was drained, and the deadline passed.
pub const REASON_DRAIN_TIMED_OUT: &str = "DrainTimedOut";
/// Reason of Bound=False: the Proxy object is gone.
pub const REASON_PROXY_GONE: &str = "ProxyGone";

/// Reason of Bound=False: it was given back, and finalizers keep the object.
pub const REASON_RELEASED: &str = "Released";

/// How a lease ends other than by being removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Its time was up.
    Expired,
    /// Its wait was.
    WaitTimedOut,
    /// It was taken back.
    Revoked(&'static str),
    /// It was deleted, and finalizers keep the object.
    Released,
}

/// A point in time as objects carry it.
pub fn seconds(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}

/// `time` plus a duration, at the end of time at most.
pub fn later(time: Timestamp, by: Duration) -> Timestamp {
    time.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// The ttl of a lease.
pub fn ttl(spec: &ProxyLeaseSpec) -> Duration {
    Duration::from_secs(u64::try_from(spec.ttl_seconds).unwrap_or(0))
}

/// How long a lease waits.
pub fn wait(spec: &ProxyLeaseSpec) -> Duration {
    Duration::from_secs(u64::try_from(spec.wait_seconds).unwrap_or(0))
}

/// Which lease this is; parts that a stored object always has are empty when missing.
pub fn key(lease: &ProxyLease) -> LeaseKey {
    let metadata = &lease.metadata;
    let part = |text: &Option<String>| Arc::from(text.as_deref().unwrap_or_default());
    LeaseKey {
        namespace: part(&metadata.namespace),
        name: part(&metadata.name),
        uid: part(&metadata.uid),
    }
}

/// The phase; Pending when there is no status.
pub fn phase(lease: &ProxyLease) -> LeasePhase {
    lease
        .status
        .as_ref()
        .map(|status| status.phase)
        .unwrap_or_default()
}

/// Whether the lease is over.
pub fn is_over(lease: &ProxyLease) -> bool {
    match phase(lease) {
        LeasePhase::Pending | LeasePhase::Bound => false,
        LeasePhase::Expired | LeasePhase::Revoked => true,
    }
}

/// The site that a spec is for, as sites are counted.
pub fn target(spec: &ProxyLeaseSpec) -> Option<String> {
    let given = spec.target.as_ref()?;
    // Why: a stored target is valid, but was already reduced by earlier versions.
    Some(registrable(given).unwrap_or_else(|_| given.clone()))
}

/// Whether two specs of this namespace ask for the same, in whatever words.
pub fn is_same_spec(namespace: &str, one: &ProxyLeaseSpec, other: &ProxyLeaseSpec) -> bool {
    let reduced = |spec: &ProxyLeaseSpec| {
        let mut spec = spec.clone();
        spec.target = target(&spec);
        if let Some(pool) = &mut spec.pool_ref {
            pool.namespace = pool.namespace.take().filter(|named| named != namespace);
        }
        spec
    };
    one == other || reduced(one) == reduced(other)
}

/// Whether the lease was deleted, is kept by finalizers, and does not say yet that it is over.
pub fn is_kept(lease: &ProxyLease) -> bool {
    lease.metadata.deletion_timestamp.is_some() && !is_over(lease)
}

/// What a spec asks for.
///
/// # Errors
/// The selector is not one.
pub fn want(namespace: &str, spec: &ProxyLeaseSpec) -> Result<Want, String> {
    let candidates = match (&spec.pool_ref, &spec.selector) {
        (Some(pool), _) => Candidates::Pool(PoolKey {
            namespace: pool.namespace.as_deref().unwrap_or(namespace).into(),
            name: pool.name.as_str().into(),
        }),
        (None, Some(selector)) => Candidates::labels(namespace, selector)?,
        (None, None) => Candidates::Namespace(namespace.into()),
    };
    Ok(Want {
        candidates,
        target: target(spec).map(Into::into),
        schemes: spec.schemes.iter().collect(),
    })
}

/// The idempotency key of a create, when it has one beside its name.
pub fn request(lease: &ProxyLease, user: &str) -> Option<RequestKey> {
    let generated = lease
        .metadata
        .generate_name
        .as_deref()
        .is_some_and(|name| !name.is_empty());
    let id = lease.spec.request_id.as_deref().filter(|_| generated)?;
    Some(RequestKey {
        namespace: lease.namespace().unwrap_or_default().into(),
        user: user.into(),
        id: id.into(),
    })
}

/// The lease begins to wait.
pub fn set_pending(lease: &mut ProxyLease, holder: Holder, now: Timestamp) {
    let mut status = ProxyLeaseStatus {
        holder: Some(holder),
        target: target(&lease.spec),
        ..ProxyLeaseStatus::default()
    };
    let text = "waiting for a proxy to become free";
    state(
        &mut status,
        Statement::new(BOUND, false, REASON_WAITING, text),
        now,
    );
    lease.status = Some(status);
}

/// The lease holds a slot.
pub fn set_bound(
    lease: &mut ProxyLease,
    proxy: &ProxyFacts,
    token: Option<i64>,
    holder: Holder,
    now: Timestamp,
) {
    let ends = later(now, ttl(&lease.spec));
    let mut status = lease.status.take().unwrap_or_default();
    status.phase = LeasePhase::Bound;
    status.target = target(&lease.spec);
    status.proxy = Some(LeasedProxy {
        namespace: proxy.namespace.to_string(),
        name: proxy.name.to_string(),
        uid: proxy.uid.to_string(),
    });
    status.endpoint = endpoint(proxy);
    status.proxy_url = proxy.endpoint.as_ref().map(ToString::to_string);
    status.exit_ip = proxy.exit_ip.as_ref().map(ToString::to_string);
    status.acquired_at = Some(seconds(now));
    status.renewed_at = None;
    status.expires_at = Some(seconds(ends));
    status.last_token = token;
    status.holder = Some(holder);
    let text = format!("holds a slot of proxy {}/{}", proxy.namespace, proxy.name);
    state(
        &mut status,
        Statement::new(BOUND, true, REASON_GRANTED, text),
        now,
    );
    lease.status = Some(status);
}

/// The same for a waiting lease, whose holder is known.
pub fn set_bound_after_wait(lease: &mut ProxyLease, slot: &Slot, now: Timestamp) {
    let holder = lease
        .status
        .as_ref()
        .and_then(|status| status.holder.clone());
    set_bound(
        lease,
        &slot.facts,
        Some(slot.token),
        holder.unwrap_or_default(),
        now,
    );
}

/// Where to connect to.
pub fn endpoint(proxy: &ProxyFacts) -> Option<LeasedEndpoint> {
    proxy.endpoint.as_ref().map(|endpoint| LeasedEndpoint {
        scheme: endpoint.scheme,
        host: endpoint.host.clone(),
        port: endpoint.port,
    })
}

/// The lease is over.
pub fn set_over(lease: &mut ProxyLease, end: End, now: Timestamp) {
    let mut status = lease.status.take().unwrap_or_default();
    let (phase, reason, text) = match end {
        End::Expired => (
            LeasePhase::Expired,
            REASON_EXPIRED,
            "ended without a renewal",
        ),
        End::WaitTimedOut => (
            LeasePhase::Expired,
            REASON_WAIT_TIMED_OUT,
            "no proxy became free within waitSeconds",
        ),
        End::Revoked(reason) => (
            LeasePhase::Revoked,
            reason,
            "taken back before its time; create another lease",
        ),
        End::Released => (
            LeasePhase::Revoked,
            REASON_RELEASED,
            "given back; finalizers keep the object",
        ),
    };
    status.phase = phase;
    status.expires_at = status.expires_at.map(|ends| ends.min(seconds(now)));
    conditions::remove(&mut status.conditions, DRAINING);
    state(&mut status, Statement::new(BOUND, false, reason, text), now);
    lease.status = Some(status);
}

/// The lease shows a later end. `false`: it shows this one already, but for less than a second.
pub fn set_later_end(lease: &mut ProxyLease, ends: Timestamp) -> bool {
    let shown = lease
        .status
        .as_mut()
        .and_then(|status| status.expires_at.as_mut());
    let moved = shown
        .filter(|shown| later(shown.0, Duration::from_secs(1)) < ends)
        .map(|shown| *shown = seconds(ends));
    moved.is_some()
}

/// Whether the lease says that its proxy is failing or goes away.
pub fn is_warned(lease: &ProxyLease) -> bool {
    let status = lease.status.as_ref();
    status.is_some_and(|status| conditions::find(&status.conditions, DRAINING).is_some())
}

/// The lease shows what will happen to it because of its proxy.
pub fn set_fate(lease: &mut ProxyLease, fate: &Fate, now: Timestamp) {
    let mut status = lease.status.take().unwrap_or_default();
    match fate {
        Fate::Keep | Fate::Revoke { .. } => conditions::remove(&mut status.conditions, DRAINING),
        Fate::Warn { reason } => {
            let text = "the proxy does not work at present; take another lease";
            state(
                &mut status,
                Statement::new(DRAINING, true, reason, text),
                now,
            );
        },
        Fate::Drain { deadline } => {
            let end = seconds(*deadline);
            let text = format!(
                "the proxy goes away; the lease ends at {} at the latest",
                end.0
            );
            status.expires_at = status.expires_at.map(|ends| ends.min(end.clone()));
            state(
                &mut status,
                Statement::new(DRAINING, true, DRAINING, text),
                now,
            );
        },
    }
    lease.status = Some(status);
}

fn state(status: &mut ProxyLeaseStatus, statement: Statement, now: Timestamp) {
    conditions::set(&mut status.conditions, statement, None, seconds(now).0);
}

/// When the lease was last renewed.
pub fn renewed_at(lease: &ProxyLease) -> Option<Timestamp> {
    let renewed = lease.status.as_ref()?.renewed_at.as_ref()?;
    Some(renewed.0)
}

/// What a stored lease says to the allocator.
pub fn stored(lease: &ProxyLease) -> Stored {
    let namespace = lease.metadata.namespace.as_deref().unwrap_or_default();
    let status = lease.status.as_ref();
    let deleted = lease.metadata.deletion_timestamp.is_some();
    let proxy = status.and_then(|status| status.proxy.as_ref());
    let stage = match (phase(lease), proxy, want(namespace, &lease.spec)) {
        _ if deleted => Stage::Over,
        (LeasePhase::Bound, Some(proxy), _) => Stage::Bound(proxy.uid.as_str().into()),
        (LeasePhase::Pending, _, Ok(want)) => Stage::Pending(want, wait(&lease.spec)),
        (
            LeasePhase::Bound | LeasePhase::Pending | LeasePhase::Expired | LeasePhase::Revoked,
            ..,
        ) => Stage::Over,
    };
    let holder = status.and_then(|status| status.holder.as_ref());
    Stored {
        key: key(lease),
        stage,
        target: status
            .and_then(|status| status.target.clone())
            .or_else(|| target(&lease.spec))
            .map(Into::into),
        ttl: ttl(&lease.spec),
        renewed_at: renewed_at(lease),
        pod_uid: holder
            .and_then(|holder| holder.pod_uid.as_deref())
            .map(Into::into),
        request: request(lease, holder.map_or("", |holder| &holder.username)),
        shown: shown(status),
    }
}

/// The fate that the conditions show, exactly enough to see that another one must be shown.
fn shown(status: Option<&ProxyLeaseStatus>) -> Fate {
    let draining = status.and_then(|status| conditions::find(&status.conditions, DRAINING));
    match draining {
        None => Fate::Keep,
        // Why: the deadline is in the message only; no real one is this, so it is shown again.
        Some(_) => Fate::Drain {
            deadline: Timestamp::MIN,
        },
    }
}
