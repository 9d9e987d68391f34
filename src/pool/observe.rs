//! Reads the members of a pool from the shared store, and what was written but not seen there yet.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crawl_api::pool::{PoolStrategy, ProxyPool};
use crawl_api::proxy::Proxy;
use crawl_api::{conditions as c, names};
use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::Store;
use parking_lot::Mutex;

use super::limits::{self, Machines, Room};
use super::member::{Member, Template};
use super::order::Leases;
use super::placement::{self, Exhausted, Place};

/// How long a write may take until the watch shows it. After that it counts as not made.
const SETTLE: Duration = Duration::from_secs(30);

/// What is known of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Observation {
    /// How many members are asked for.
    pub replicas: usize,
    /// The members that exist and are not being deleted.
    pub members: Vec<Member>,
    /// Members that were created and are not seen yet.
    pub unseen: usize,
    /// Members that are being deleted. Their machines are there yet.
    pub going: usize,
    /// The pool's placements.
    pub places: Vec<Place>,
    /// How many more members limits allow, and where they would go.
    pub room: Room,
    /// Members that no price is known for, when the price is limited.
    pub unpriced: usize,
    /// How members are replaced.
    pub strategy: PoolStrategy,
    /// The present roll found out before that there is no room for a surge.
    pub deletes_first: bool,
    /// The leases of the members.
    pub leases: Leases,
    /// What to tell about placements that had capacity until now.
    pub newly_exhausted: Vec<String>,
    /// When time alone changes any of this, from now.
    pub next: Option<Duration>,
}

/// What is remembered of pools.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known<'a> {
    /// Writes that the store does not show yet.
    pub pending: &'a Pending,
    /// Placements without capacity.
    pub exhausted: &'a Exhausted,
}

/// Reads a pool's members.
pub(super) fn observe(
    pool: &ProxyPool,
    store: &Store<Proxy>,
    known: Known<'_>,
    now: Timestamp,
    elapsed: Duration,
) -> Observation {
    let uid = pool.uid().unwrap_or_default();
    let owned: Vec<_> = store
        .state()
        .into_iter()
        .filter(|proxy| proxy.namespace() == pool.namespace())
        .filter(|proxy| super::controller(proxy).is_some_and(|owner| owner.uid == uid))
        .collect();
    let unsettled = known.pending.settle(pool, &owned, elapsed);
    let (places, newly_exhausted) = known.exhausted.judge(pool, &owned, now, elapsed);
    let template = Template::of(pool);
    let members: Vec<_> = owned
        .iter()
        .filter(|proxy| proxy.metadata.deletion_timestamp.is_none())
        .map(|proxy| Member::of(pool, &template, proxy, now))
        .filter(|member| !unsettled.deleted.contains_key(&member.uid))
        .map(|member| match member.update {
            Some(_) if unsettled.updated.contains_key(&member.uid) => Member {
                update: None,
                ..member
            },
            Some(_) | None => member,
        })
        .collect();
    let unseen = unsettled.created.len();
    let of_machines: Vec<_> = owned
        .iter()
        .map(|proxy| placement::of_member(pool, proxy))
        .collect();
    let machines = Machines {
        places: &of_machines,
        unseen,
    };
    let limits = pool.spec.limits.as_ref();
    let priced = limits.is_some_and(|limits| limits.price_per_hour.is_some());
    Observation {
        replicas: usize::try_from(pool.spec.replicas).unwrap_or_default(),
        going: owned.len() - members.len(),
        unseen,
        room: limits::room(limits, &places, machines),
        unpriced: if priced {
            limits::unpriced(&places, &of_machines)
        } else {
            0
        },
        strategy: pool.spec.strategy.clone(),
        deletes_first: is_deleting_first(pool),
        leases: Leases::NotAsked,
        next: members.iter().filter_map(|member| member.next).min(),
        members,
        places,
        newly_exhausted,
    }
}

/// Why from status: it is what the user was told, and a restarted operator knows it too.
fn is_deleting_first(pool: &ProxyPool) -> bool {
    let status = pool.status.as_ref();
    status
        .and_then(|status| c::find(&status.conditions, c::PROGRESSING))
        .is_some_and(|condition| condition.reason == c::REASON_DELETING_FIRST)
}

/// Members that were created, deleted or changed and whose change the store does not show yet.
/// Without it, a pass on a store that is behind would do it once more.
#[derive(Debug, Default)]
pub(super) struct Pending(Mutex<HashMap<String, Unsettled>>);

#[derive(Clone, Debug, Default)]
struct Unsettled {
    /// By name, with the monotonic time at which it is given up.
    created: HashMap<String, Duration>,
    /// By UID.
    deleted: HashMap<String, Duration>,
    /// By UID, with what [`names::ANNOTATION_APPLIED_TEMPLATE`] will say.
    updated: HashMap<String, (String, Duration)>,
}

impl Pending {
    /// A member is about to be created.
    pub(super) fn creating(&self, pool: &ProxyPool, name: &str, elapsed: Duration) {
        self.edit(pool, |unsettled| {
            unsettled.created.insert(name.to_owned(), elapsed + SETTLE);
        });
    }

    /// A member is about to be deleted.
    pub(super) fn deleting(&self, pool: &ProxyPool, uid: &str, elapsed: Duration) {
        self.edit(pool, |unsettled| {
            unsettled.deleted.insert(uid.to_owned(), elapsed + SETTLE);
        });
    }

    /// A member is about to be changed.
    pub(super) fn updating(&self, pool: &ProxyPool, uid: &str, applied: &str, elapsed: Duration) {
        self.edit(pool, |unsettled| {
            let until = (applied.to_owned(), elapsed + SETTLE);
            unsettled.updated.insert(uid.to_owned(), until);
        });
    }

    /// The write was refused: nothing will be seen.
    pub(super) fn refused(&self, pool: &ProxyPool, name: &str, uid: &str) {
        self.edit(pool, |unsettled| {
            unsettled.created.remove(name);
            unsettled.deleted.remove(uid);
            unsettled.updated.remove(uid);
        });
    }

    /// When the first unsettled write is given up.
    pub(super) fn wait(&self, pool: &ProxyPool, elapsed: Duration) -> Option<Duration> {
        let pending = self.0.lock();
        let Unsettled {
            created,
            deleted,
            updated,
        } = pending.get(&pool.uid()?)?;
        let updated = updated.values().map(|(_, until)| until);
        let first = created.values().chain(deleted.values()).chain(updated);
        let first = first.min()?;
        Some(
            first
                .saturating_sub(elapsed)
                .max(Duration::from_millis(100)),
        )
    }

    fn settle(&self, pool: &ProxyPool, owned: &[Arc<Proxy>], elapsed: Duration) -> Unsettled {
        let mut pending = self.0.lock();
        let uid = pool.uid().unwrap_or_default();
        let Some(unsettled) = pending.get_mut(&uid) else {
            return Unsettled::default();
        };
        unsettled.created.retain(|name, until| {
            *until > elapsed && !owned.iter().any(|proxy| proxy.name_any() == *name)
        });
        unsettled.deleted.retain(|deleted, until| {
            let still_there = owned.iter().any(|proxy| {
                proxy.uid().as_ref() == Some(deleted) && proxy.metadata.deletion_timestamp.is_none()
            });
            *until > elapsed && still_there
        });
        let shown: BTreeMap<_, _> = owned
            .iter()
            .filter_map(|proxy| {
                let applied = proxy.annotations().get(names::ANNOTATION_APPLIED_TEMPLATE);
                Some((proxy.uid()?, applied?))
            })
            .collect();
        unsettled.updated.retain(|uid, (applied, until)| {
            *until > elapsed && shown.get(uid).is_none_or(|shown| *shown != applied)
        });
        let unsettled = unsettled.clone();
        if unsettled.created.is_empty()
            && unsettled.deleted.is_empty()
            && unsettled.updated.is_empty()
        {
            pending.remove(&uid);
        }
        unsettled
    }

    fn edit(&self, pool: &ProxyPool, change: impl FnOnce(&mut Unsettled)) {
        change(
            self.0
                .lock()
                .entry(pool.uid().unwrap_or_default())
                .or_default(),
        );
    }
}
