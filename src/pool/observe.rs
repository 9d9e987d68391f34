//! Reads the members of a pool from the shared store, and what was written but not seen there yet.

use std::collections::HashMap;
use std::time::Duration;

use crawl_api::conditions;
use crawl_api::pool::ProxyPool;
use crawl_api::proxy::{Phase, Proxy};
use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::Store;
use parking_lot::Mutex;

use super::placement::{self, Exhausted, Place};

/// How long a write may take until the watch shows it. After that it counts as not made.
const SETTLE: Duration = Duration::from_secs(30);

/// How far a member is, in the order in which members are given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Standing {
    /// It never had an instance or an address.
    NeverProvisioned,
    /// It failed.
    Failed,
    /// It has, or gets, an instance and cannot be leased.
    Unhealthy,
    /// It can be leased.
    Ready,
}

/// A member that is there to stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// How far it is.
    pub standing: Standing,
    /// When it was created.
    pub created: Timestamp,
    /// Which of the pool's placements it runs in.
    pub place: Option<usize>,
    /// It gets no instance where it is, or has just lost it there.
    pub stranded: bool,
}

/// What is known of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Observation {
    /// How many members are wanted.
    pub wanted: usize,
    /// The members that exist and are not being deleted.
    pub members: Vec<Member>,
    /// Members that were created and are not seen yet.
    pub unseen: usize,
    /// The pool's placements.
    pub places: Vec<Place>,
    /// What to tell about placements that had capacity until now.
    pub newly_exhausted: Vec<String>,
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
    let members = owned
        .iter()
        .filter(|proxy| proxy.metadata.deletion_timestamp.is_none())
        .map(|proxy| member(pool, proxy))
        .filter(|member| !unsettled.deleted.contains_key(&member.uid))
        .collect();
    Observation {
        wanted: usize::try_from(pool.spec.replicas).unwrap_or_default(),
        members,
        unseen: unsettled.created.len(),
        places,
        newly_exhausted,
    }
}

fn member(pool: &ProxyPool, proxy: &Proxy) -> Member {
    let status = proxy.status.as_ref();
    let provisioned =
        status.is_some_and(|status| status.provider_id.is_some() || status.endpoint.is_some());
    let ready =
        status.is_some_and(|status| conditions::is_true(&status.conditions, conditions::READY));
    Member {
        name: proxy.name_any(),
        uid: proxy.uid().unwrap_or_default(),
        standing: if ready {
            Standing::Ready
        } else if !provisioned {
            Standing::NeverProvisioned
        } else if proxy.phase() == Phase::Failed {
            Standing::Failed
        } else {
            Standing::Unhealthy
        },
        created: proxy
            .creation_timestamp()
            .map(|time| time.0)
            .unwrap_or_default(),
        place: placement::of_member(pool, proxy),
        stranded: placement::is_stranded(proxy),
    }
}

/// Members that were created or deleted and whose change the store does not show yet. Without it, a
/// pass on a store that is behind would create or delete once more.
#[derive(Debug, Default)]
pub(super) struct Pending(Mutex<HashMap<String, Unsettled>>);

#[derive(Clone, Debug, Default)]
struct Unsettled {
    /// By name, with the monotonic time at which it is given up.
    created: HashMap<String, Duration>,
    /// By UID.
    deleted: HashMap<String, Duration>,
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

    /// The write was refused: nothing will be seen.
    pub(super) fn refused(&self, pool: &ProxyPool, name: &str, uid: &str) {
        self.edit(pool, |unsettled| {
            unsettled.created.remove(name);
            unsettled.deleted.remove(uid);
        });
    }

    /// When the first unsettled write is given up.
    pub(super) fn wait(&self, pool: &ProxyPool, elapsed: Duration) -> Option<Duration> {
        let pending = self.0.lock();
        let Unsettled { created, deleted } = pending.get(&pool.uid()?)?;
        let first = created.values().chain(deleted.values()).min()?;
        Some(
            first
                .saturating_sub(elapsed)
                .max(Duration::from_millis(100)),
        )
    }

    fn settle(
        &self,
        pool: &ProxyPool,
        owned: &[std::sync::Arc<Proxy>],
        elapsed: Duration,
    ) -> Unsettled {
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
        let unsettled = unsettled.clone();
        if unsettled.created.is_empty() && unsettled.deleted.is_empty() {
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
