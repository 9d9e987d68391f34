//! Who gets which proxy: the one place that decides on grants.
//!
//! Selection and reservation are one step under one short lock, in memory; the answer goes out
//! when the transaction that holds both the lease and the proxy's grants record is durable. The
//! rules (`rules/`) ask for grants and releases, `inputs` tells what the proxies are, and the tasks
//! in `tasks/` do what the allocator leaves in its outbox. It does no I/O itself.

mod denial;
mod entry;
pub mod facts;
mod fleet;
pub mod leases;
mod ordered;
pub mod record;
mod state;
pub mod testing;
#[cfg(test)]
mod tests;
mod ticket;
pub mod view;
mod waiters;
pub mod want;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use aggregated_api::registry::capability::Companion;
use jiff::Timestamp;
use parking_lot::Mutex;
use runtime_kit::clock::Clock;
use tokio::sync::Notify;

pub use self::denial::Denial;
use self::denial::Explanation;
use self::facts::{Fate, PoolFacts, PoolKey, ProxyFacts};
use self::leases::{LeaseKey, Request, RequestKey, Tracked};
pub use self::ordered::SchemeSet;
use self::record::{Grant, GrantsRecord};
pub use self::state::{NewLease, Slot};
use self::state::{Outcome, Releasing, State};
pub use self::ticket::{RequestClaim, Ticket};
use self::want::Want;

/// A proxy, for as long as this process lives.
pub type ProxyId = u32;
type GroupId = u32;

/// Longest wait for transactions on their way before a decision is given up.
const PATIENCE: Duration = Duration::from_secs(5);

/// The allocator; shared by all requests and tasks.
#[derive(Debug)]
pub struct Allocator {
    state: Mutex<State>,
    clock: Arc<dyn Clock>,
    bells: Bells,
}

/// Rung when there is work or news.
#[derive(Debug, Default)]
pub struct Bells {
    /// A transaction was settled or a record reloaded.
    pub settled: Notify,
    /// The next due time may have changed.
    pub timers: Notify,
    /// Records must be read again, or leases.
    pub doubts: Notify,
    /// Waiters were given slots.
    pub bindings: Notify,
    /// Views of proxies changed that somebody waits for, or that nobody follows.
    pub views: Notify,
    /// Leases must be told.
    pub fates: Notify,
}

/// Answer to a want.
pub enum Answer {
    /// A slot, and the transaction's part that takes it.
    Granted(Box<Slot>, Companion),
    /// Nothing can be leased now.
    Denied(Denial),
    /// A lease of this name exists: this is a repeat.
    Exists,
}

/// Answer to a release.
pub enum Release {
    /// The transaction's part that gives the slot back.
    Slot(Companion),
    /// There is no slot to give back.
    Nothing,
}

/// Transactions on their way did not settle in time.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("grants of this proxy are being settled; try again")]
pub struct Unsettled;

/// What a stored lease says, when the allocator learns of it from the store.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Which lease.
    pub key: LeaseKey,
    /// Uid of the proxy whose slot it holds, or what it waits for.
    pub stage: Stage,
    /// Registrable domain.
    pub target: Option<Arc<str>>,
    /// How long it lasts without renewal.
    pub ttl: Duration,
    /// `status.renewedAt`.
    pub renewed_at: Option<Timestamp>,
    /// The pod whose end ends it.
    pub pod_uid: Option<Arc<str>>,
    /// The request that made it.
    pub request: Option<RequestKey>,
    /// The fate that its conditions show.
    pub shown: Fate,
}

/// Where a stored lease is in its life.
#[derive(Clone, Debug)]
pub enum Stage {
    /// Holds a slot of the proxy with this uid.
    Bound(Arc<str>),
    /// Waits, at most this long.
    Pending(Want, Duration),
    /// Over, or being deleted.
    Over,
}

/// Numbers for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Leases that hold a slot.
    pub active: usize,
    /// Leases that wait.
    pub waiting: usize,
    /// Proxies known.
    pub proxies: usize,
}

// === impl Allocator ===

impl Allocator {
    /// Knows nothing yet.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            clock,
            bells: Bells::default(),
        })
    }

    /// Where tasks wait for work.
    pub fn bells(&self) -> &Bells {
        &self.bells
    }

    /// Does something under the lock and rings for what it left to do.
    fn with<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock();
        let due_before = state.leases.next_due();
        let result = change(&mut state);
        let bells = &self.bells;
        if state.leases.next_due() != due_before {
            bells.timers.notify_one();
        }
        if !state.outbox.records.is_empty() || !state.outbox.doubts.is_empty() {
            bells.doubts.notify_one();
        }
        if !state.outbox.bindings.is_empty() {
            bells.bindings.notify_one();
        }
        if state.outbox.ring {
            bells.views.notify_one();
        }
        if !state.outbox.fates.is_empty() {
            bells.fates.notify_one();
        }
        result
    }

    /// Tries until an attempt is decided, waiting for what is being settled.
    async fn decided<R>(&self, mut attempt: impl FnMut() -> Option<R>) -> Result<R, Unsettled> {
        let until = self.clock.elapsed() + PATIENCE;
        loop {
            let settled = self.bells.settled.notified();
            tokio::pin!(settled);
            settled.as_mut().enable();
            if let Some(result) = attempt() {
                return Ok(result);
            }
            let left = until.saturating_sub(self.clock.elapsed());
            if left.is_zero() {
                return Err(Unsettled);
            }
            tokio::select! {
                () = settled => {},
                () = self.clock.sleep(left) => {},
            }
        }
    }

    // --- inputs ---

    /// A grants record as it was read from the store at start.
    pub fn load(&self, uid: &Arc<str>, record: GrantsRecord, version: u64) {
        self.with(|state| {
            let id = state.fleet.ensure(uid);
            state.fleet.replace_record(id, record, version);
        });
    }

    /// A state of a proxy. Older ones than what grants knew are ignored.
    pub fn observe_proxy(&self, facts: ProxyFacts) {
        self.with(|state| state.observe(facts));
    }

    /// A proxy is gone; `reason` goes into the Bound condition of its leases.
    pub fn forget_proxy(&self, uid: &str, reason: &'static str) {
        self.with(|state| state.forget(uid, reason));
    }

    /// What a pool says about leasing; `None`: it is gone.
    pub fn observe_pool(&self, key: &PoolKey, facts: Option<PoolFacts>) {
        self.with(|state| {
            state.fleet.set_pool(key, facts);
            state.serve_waiters();
        });
    }

    /// Whether a pool is known.
    pub fn has_pool(&self, key: &PoolKey) -> bool {
        self.state.lock().fleet.has_pool(key)
    }

    /// The fate decided for a proxy.
    pub fn fate_of(&self, uid: &str) -> Option<Fate> {
        let state = self.state.lock();
        let id = state.fleet.id(uid)?;
        state.fleet.get(id).map(|entry| entry.fate.clone())
    }

    /// Uids of all proxies known, gone ones with leases included.
    pub fn proxy_uids(&self) -> Vec<Arc<str>> {
        let state = self.state.lock();
        state
            .fleet
            .iter()
            .map(|(_, entry)| Arc::clone(&entry.uid))
            .collect()
    }

    /// What the store says about a lease, at start or when a transaction's end is unknown.
    pub fn adopt(&self, stored: Stored) {
        let now = self.clock.elapsed();
        self.with(|state| state.adopt(stored, now));
    }

    /// The store has no such lease.
    pub fn absent(&self, key: &LeaseKey) {
        self.with(|state| state.absent(key));
    }

    /// A holder in a record whose lease does not exist: tracked so that it can be released.
    pub fn adopt_orphan(&self, proxy_uid: &Arc<str>, key: &LeaseKey) {
        let stored = Stored {
            key: key.clone(),
            stage: Stage::Bound(Arc::clone(proxy_uid)),
            target: None,
            ttl: PATIENCE,
            renewed_at: None,
            pod_uid: None,
            request: None,
            shown: Fate::Keep,
        };
        self.adopt(stored);
    }

    // --- decisions ---

    /// A slot for a lease.
    ///
    /// # Errors
    /// What is on its way did not settle in time.
    pub async fn grant(
        self: &Arc<Self>,
        want: &Want,
        lease: &NewLease,
    ) -> Result<Answer, Unsettled> {
        self.decided(|| {
            let now = self.clock.elapsed();
            match self.with(|state| state.grant(want, lease, now)) {
                Outcome::Granted(slot, write) => {
                    Some(Answer::Granted(slot, Ticket::companion(self, write)))
                },
                Outcome::Denied(denial) => Some(Answer::Denied(denial)),
                Outcome::Exists => Some(Answer::Exists),
                Outcome::Unsettled => None,
            }
        })
        .await
    }

    /// What [`Allocator::grant`] would give, taking nothing.
    ///
    /// # Errors
    /// What is on its way did not settle in time.
    pub async fn probe(&self, want: &Want) -> Result<Result<ProxyFacts, Denial>, Unsettled> {
        self.decided(|| {
            let now = self.clock.elapsed();
            match self.with(|state| state.probe(want, now)) {
                Ok(facts) => Some(Ok(facts)),
                Err(Explanation::Denied(denial)) => Some(Err(denial)),
                Err(Explanation::Unsettled) => None,
            }
        })
        .await
    }

    /// The slot of a lease back, with the transaction that ends the lease.
    ///
    /// # Errors
    /// What is on its way did not settle in time.
    pub async fn release(self: &Arc<Self>, lease_uid: &str) -> Result<Release, Unsettled> {
        self.decided(|| match self.with(|state| state.release(lease_uid)) {
            Releasing::Slot(write) => Some(Release::Slot(Ticket::companion(self, write))),
            Releasing::Nothing => Some(Release::Nothing),
            Releasing::Unsettled => None,
        })
        .await
    }

    /// Turns the hold of a waiter into a grant; `None` when it has none any more.
    pub fn bind(self: &Arc<Self>, lease_uid: &str) -> Option<(Slot, Companion)> {
        let now = self.clock.elapsed();
        let (slot, write) = self.with(|state| state.bind(lease_uid, now))?;
        Some((slot, Ticket::companion(self, write)))
    }

    /// The transaction that brings a proxy's record up to its observed state; `None` when it is.
    ///
    /// # Errors
    /// What is on its way did not settle in time.
    pub async fn limits(self: &Arc<Self>, uid: &str) -> Result<Option<Companion>, Unsettled> {
        self.decided(|| {
            self.with(|state| {
                let Some(id) = state.fleet.id(uid) else {
                    return Some(None);
                };
                if state.fleet.get(id).is_some_and(|entry| entry.broken) {
                    return None;
                }
                Some(state.limits(id))
            })
        })
        .await
        .map(|write| write.map(|write| Ticket::companion(self, write)))
    }

    /// A lease was stored as Pending: it waits.
    pub fn enqueue(&self, lease: &NewLease, want: Want, wait: Duration) {
        let now = self.clock.elapsed();
        let tracked = Tracked {
            key: lease.key.clone(),
            proxy: None,
            committed: true,
            target: want.target.clone(),
            expires: now + wait,
            cut: None,
            ttl: lease.ttl,
            renewed_at: None,
            pod_uid: lease.pod_uid.clone(),
            request: lease.request.clone(),
            shown: Fate::Keep,
        };
        self.with(|state| state.enqueue(tracked, want));
    }

    /// A waiting lease is over or gone.
    pub fn dequeue(&self, lease_uid: &str) {
        self.with(|state| state.dequeue(lease_uid));
    }

    /// A renewal is durable: the lease ends at `expires` unless renewed again.
    pub fn renewed(&self, lease_uid: &str, at: Timestamp, expires: Duration) {
        self.with(|state| state.renewed(lease_uid, at, expires));
    }

    /// The holder of a lease reports that traffic went through its proxy.
    pub fn worked(&self, lease_uid: &str, at: Timestamp) {
        self.with(|state| state.worked(lease_uid, at));
    }

    /// A lease now belongs to another pod.
    pub fn moved(&self, lease_uid: &str, pod_uid: Option<Arc<str>>) {
        self.with(|state| {
            state
                .leases
                .update(lease_uid, |lease| lease.pod_uid = pod_uid);
        });
    }

    /// A lease's object shows a fate; a drain cuts it at `cut`.
    pub fn shown(&self, lease_uid: &str, fate: Fate, cut: Option<Duration>) {
        self.with(|state| {
            state.leases.update(lease_uid, |lease| {
                lease.shown = fate;
                lease.cut = cut;
            });
        });
    }

    /// Something about a lease is not known for sure: it will be read again.
    pub fn doubt(&self, key: LeaseKey) {
        self.with(|state| state.outbox.doubts.insert(key));
    }

    // --- requests ---

    /// Claims a request id, or tells the name of the lease it made.
    ///
    /// # Errors
    /// Another create with it is on its way and did not end in time.
    pub async fn claim(
        self: &Arc<Self>,
        key: &RequestKey,
    ) -> Result<Result<RequestClaim, Arc<str>>, Unsettled> {
        self.decided(|| {
            self.with(|state| match state.leases.request(key).cloned() {
                None => {
                    state.leases.claim(key.clone());
                    Some(Ok(()))
                },
                Some(Request::Claimed) => None,
                Some(Request::Made(name)) => Some(Err(name)),
            })
        })
        .await
        .map(|claim| claim.map(|()| RequestClaim::new(self, key.clone())))
    }

    // --- what tasks ask ---

    /// When the next lease is due.
    pub fn next_due(&self) -> Option<Duration> {
        self.state.lock().leases.next_due()
    }

    /// Leases that are due, at most `limit`.
    pub fn due(&self, limit: usize) -> Vec<Tracked> {
        let now = self.clock.elapsed();
        self.state.lock().leases.due(now, limit)
    }

    /// What is known of a lease.
    pub fn lease(&self, uid: &str) -> Option<Tracked> {
        self.state.lock().leases.get(uid).cloned()
    }

    /// Leases bound to a pod.
    pub fn leases_of_pod(&self, pod_uid: &str) -> Vec<LeaseKey> {
        self.state.lock().leases.of_pod(pod_uid)
    }

    /// Pods that leases are bound to.
    pub fn pods(&self) -> Vec<Arc<str>> {
        self.state.lock().leases.pods()
    }

    /// Waiters that were given a slot, oldest first.
    pub fn take_bindings(&self) -> Vec<LeaseKey> {
        self.state.lock().outbox.bindings.drain(..).collect()
    }

    /// Proxies whose record must be read again, and leases.
    pub fn take_doubts(&self) -> (Vec<Arc<str>>, Vec<LeaseKey>) {
        let mut state = self.state.lock();
        let records = std::mem::take(&mut state.outbox.records);
        let uids = records
            .iter()
            .filter_map(|id| state.fleet.get(*id))
            .map(|entry| Arc::clone(&entry.uid))
            .collect();
        (
            uids,
            std::mem::take(&mut state.outbox.doubts)
                .into_iter()
                .collect(),
        )
    }

    /// What the store has for a proxy whose chain of transactions broke. Answers the holders that
    /// nobody tracks.
    pub fn reload(&self, uid: &str, stored: Option<(GrantsRecord, u64)>) -> Vec<Grant> {
        let unknown = self.with(|state| match state.fleet.id(uid) {
            Some(id) => state.reload(id, stored),
            None => Vec::new(),
        });
        self.bells.settled.notify_waiters();
        unknown
    }

    /// Leases whose objects do not show the fate of their proxy, with that fate.
    pub fn take_fates(&self) -> Vec<(Tracked, Fate)> {
        let mut state = self.state.lock();
        let ids: BTreeSet<_> = std::mem::take(&mut state.outbox.fates);
        let mut told = Vec::new();
        for id in ids {
            let Some(entry) = state.fleet.get(id) else {
                continue;
            };
            // Why: a proxy that was not seen since the start has no fate yet.
            if entry.facts.is_none() && entry.fate == Fate::Keep {
                continue;
            }
            for grant in &entry.record.holders {
                let tracked = state
                    .leases
                    .get(&grant.lease_uid)
                    .filter(|lease| lease.committed);
                if let Some(tracked) = tracked.filter(|lease| lease.shown != entry.fate) {
                    told.push((tracked.clone(), entry.fate.clone()));
                }
            }
        }
        told
    }

    /// Asks again for the fates of a proxy's leases.
    pub fn retell(&self, lease_uid: &str) {
        self.with(|state| {
            if let Some(id) = state.leases.get(lease_uid).and_then(|lease| lease.proxy) {
                state.outbox.fates.insert(id);
            }
        });
    }

    /// Numbers for metrics.
    pub fn totals(&self) -> Totals {
        let state = self.state.lock();
        Totals {
            active: state
                .fleet
                .iter()
                .map(|(_, entry)| entry.record.holders.len())
                .sum(),
            waiting: state.waiters.len(),
            proxies: state
                .fleet
                .iter()
                .filter(|(_, entry)| entry.facts.is_some())
                .count(),
        }
    }
}
