//! Every change of the allocator's state, synchronous and under one lock.
//!
//! A change that the store must agree with returns the compares and puts of a transaction and
//! counts as in flight until it is settled. Transactions of one proxy form a chain: each compares
//! the version that the one before it will leave, so that they need not wait for one another. When
//! one does not commit, none after it can; the proxy is *broken* until all of them are settled and
//! its record was read again.
//!
//! Why the wait: versions are numbers, and a transaction of the old chain that is still on its way
//! could find its number again in the new one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use aggregated_api::store::{Compare, Op};
use jiff::Timestamp;

use super::ProxyId;
use super::denial::{Denial, Explanation};
use super::facts::{Fate, ProxyFacts};
use super::fleet::Fleet;
use super::leases::{LeaseKey, Leases, RequestKey, Tracked};
use super::record::{self, Grant, GrantsRecord};
use super::view::is_report_news;
use super::waiters::{Waiter, Waiters};
use super::want::Want;

/// What a transaction will have done.
#[derive(Debug)]
pub(super) enum Effect {
    /// A lease took a slot.
    Grant(LeaseKey),
    /// A waiting lease took the slot that was kept for it.
    Bind(Box<Bind>),
    /// A lease, for this target, gave its slot back.
    Release(LeaseKey, Option<Arc<str>>),
    /// The record follows the proxy.
    Limits,
}

/// A waiter on its way out of the queue, and its state before.
#[derive(Debug)]
pub(super) struct Bind {
    turn: u64,
    waiter: Waiter,
    before: Tracked,
}

/// The part of a transaction that concerns the grants record.
#[derive(Debug)]
pub(super) struct Write {
    pub(super) proxy: ProxyId,
    pub(super) effect: Effect,
    pub(super) compare: Compare,
    pub(super) op: Op,
}

/// Work for the tasks around the allocator.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Proxies whose record must be read again.
    pub(super) records: BTreeSet<ProxyId>,
    /// Leases whose object must be read again.
    pub(super) doubts: BTreeSet<LeaseKey>,
    /// Waiters that were given a hold.
    pub(super) bindings: VecDeque<LeaseKey>,
    /// Proxies whose view changed; true: somebody waits for it.
    pub(super) views: BTreeMap<Arc<str>, bool>,
    /// Whether any of them should be looked at now.
    pub(super) ring: bool,
    /// Proxies whose leases must be told.
    pub(super) fates: BTreeSet<ProxyId>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) fleet: Fleet,
    pub(super) leases: Leases,
    pub(super) waiters: Waiters,
    pub(super) outbox: Outbox,
}

/// A lease that asks for a slot.
#[derive(Clone, Debug)]
pub struct NewLease {
    /// Which lease.
    pub key: LeaseKey,
    /// How long it lasts without renewal.
    pub ttl: Duration,
    /// The pod whose end ends it.
    pub pod_uid: Option<Arc<str>>,
    /// The request that makes it.
    pub request: Option<RequestKey>,
}

/// What a lease was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The proxy.
    pub facts: ProxyFacts,
    /// Fencing token.
    pub token: i64,
}

pub(super) enum Outcome {
    Granted(Box<Slot>, Write),
    Denied(Denial),
    Exists,
    Unsettled,
}

pub(super) enum Releasing {
    Slot(Write),
    /// It holds none.
    Nothing,
    Unsettled,
}

// === impl State ===

impl State {
    // --- what the proxies are ---

    /// Takes note of a state of a proxy, unless it is older than what grants already knew.
    pub(super) fn observe(&mut self, facts: ProxyFacts) {
        let id = self.fleet.ensure(&facts.uid);
        let Some(entry) = self.fleet.get(id) else {
            return;
        };
        let known = entry
            .facts
            .as_ref()
            .map_or(0, |facts| facts.resource_version);
        if facts.resource_version < known.max(entry.record.observed_proxy_rv) {
            return;
        }
        let was_accepting = entry
            .facts
            .as_ref()
            .is_some_and(|facts| facts.accepting.is_ok());
        let urgent = was_accepting != facts.accepting.is_ok() || facts.accepting.is_err();
        let new_fate = entry.fate != facts.fate;
        if entry
            .facts
            .as_ref()
            .is_some_and(|known| only_differs_in_revision(known, &facts))
        {
            if let Some(known) = self
                .fleet
                .get_mut(id)
                .and_then(|entry| entry.facts.as_mut())
            {
                known.resource_version = facts.resource_version;
            }
            if facts.accepting.is_err() {
                self.show(id, true);
            }
            return;
        }
        let fate = facts.fate.clone();
        self.fleet.set_facts(id, Some(facts));
        self.set_fate(id, fate, new_fate);
        self.show(id, urgent);
        self.serve_waiters();
    }

    /// The object is gone: nothing is granted any more, and its leases are revoked.
    pub(super) fn forget(&mut self, uid: &str, reason: &'static str) {
        let Some(id) = self.fleet.id(uid) else { return };
        self.fleet.set_facts(id, None);
        self.set_fate(id, Fate::Revoke { reason }, true);
        self.show(id, true);
    }

    fn set_fate(&mut self, id: ProxyId, fate: Fate, new: bool) {
        if let Some(entry) = self.fleet.get_mut(id) {
            entry.fate = fate;
            if new && !entry.record.holders.is_empty() {
                self.outbox.fates.insert(id);
            }
        }
    }

    /// The public view of a proxy may have changed.
    pub(super) fn show(&mut self, id: ProxyId, urgent: bool) {
        if let Some(entry) = self.fleet.get(id) {
            let urgent = urgent || entry.facts.as_ref().is_none_or(|f| f.accepting.is_err());
            *self.outbox.views.entry(Arc::clone(&entry.uid)).or_default() |= urgent;
            self.outbox.ring |= urgent || !entry.followed;
        }
    }

    // --- grants and releases ---

    /// Gives a slot, unless `dry_run`; then the slot is only named.
    pub(super) fn grant(&mut self, want: &Want, lease: &NewLease, now: Duration) -> Outcome {
        self.serve_waiters();
        // Why: a repeat must neither take a second slot nor be denied because of the first.
        match self.leases.namesake(&lease.key) {
            Some(first) if first.committed => return Outcome::Exists,
            Some(_) => return Outcome::Unsettled,
            None => {},
        }
        let Some(id) = self.fleet.choose(want) else {
            return match self.explain(want, now) {
                Explanation::Denied(denial) => Outcome::Denied(denial),
                Explanation::Unsettled => Outcome::Unsettled,
            };
        };
        let tracked = Tracked {
            key: lease.key.clone(),
            proxy: Some(id),
            committed: false,
            target: want.target.clone(),
            expires: now + lease.ttl,
            cut: None,
            ttl: lease.ttl,
            renewed_at: None,
            pod_uid: lease.pod_uid.clone(),
            request: None,
            shown: Fate::Keep,
        };
        match self.put_on(id, tracked, Effect::Grant(lease.key.clone())) {
            Some((slot, write)) => Outcome::Granted(Box::new(slot), write),
            None => Outcome::Unsettled,
        }
    }

    /// Turns a waiter's hold into a grant; `None` when it has none (any more).
    pub(super) fn bind(&mut self, uid: &str, now: Duration) -> Option<(Slot, Write)> {
        let id = self.waiters.get(uid)?.hold?;
        let usable = self.fleet.get(id).is_some_and(|entry| {
            let facts = entry.facts.as_ref();
            !entry.broken
                && facts.is_some_and(|facts| {
                    facts.accepting.is_ok() && entry.taken() <= facts.max_leases
                })
        });
        if !usable {
            self.unhold(uid);
            self.serve_waiters();
            return None;
        }
        let before = self.leases.get(uid)?.clone();
        let (turn, waiter) = self.waiters.take(uid)?;
        self.fleet.unhold(id, before.target.as_ref());
        let tracked = Tracked {
            proxy: Some(id),
            committed: false,
            expires: now + before.ttl,
            ..before.clone()
        };
        let effect = Effect::Bind(Box::new(Bind {
            turn,
            waiter,
            before,
        }));
        self.put_on(id, tracked, effect)
    }

    fn put_on(&mut self, id: ProxyId, tracked: Tracked, effect: Effect) -> Option<(Slot, Write)> {
        let entry = self.fleet.get_mut(id)?;
        let facts = entry.facts.clone()?;
        entry.record.last_token += 1;
        let token = entry.record.last_token;
        let grant = Grant {
            lease_uid: Arc::clone(&tracked.key.uid),
            target: tracked.target.clone(),
            namespace: Arc::clone(&tracked.key.namespace),
            name: Arc::clone(&tracked.key.name),
        };
        self.fleet.grant(id, grant);
        self.leases.put(tracked);
        let write = self.write(id, effect)?;
        Some((Slot { facts, token }, write))
    }

    /// The proxy that a want would get, taking nothing.
    pub(super) fn probe(&mut self, want: &Want, now: Duration) -> Result<ProxyFacts, Explanation> {
        let chosen = self.fleet.choose(want);
        match chosen.and_then(|id| self.fleet.get(id)?.facts.clone()) {
            Some(facts) => Ok(facts),
            None => Err(self.explain(want, now)),
        }
    }

    /// Takes the slot of a lease back.
    pub(super) fn release(&mut self, uid: &str) -> Releasing {
        let Some(tracked) = self.leases.get(uid) else {
            return Releasing::Nothing;
        };
        let key = tracked.key.clone();
        let Some(id) = tracked.proxy else {
            return Releasing::Nothing;
        };
        let Some(entry) = self.fleet.get(id) else {
            return Releasing::Nothing;
        };
        // Why: a lease that is tracked and not in the record is being released by somebody else.
        if entry.broken || entry.holder(uid).is_none() {
            return Releasing::Unsettled;
        }
        let Some(grant) = self.fleet.ungrant(id, uid) else {
            return Releasing::Nothing;
        };
        match self.write(id, Effect::Release(key, grant.target)) {
            Some(write) => Releasing::Slot(write),
            None => Releasing::Nothing,
        }
    }

    /// Brings the stored limits up to what was observed.
    pub(super) fn limits(&mut self, id: ProxyId) -> Option<Write> {
        let entry = self.fleet.get_mut(id)?;
        if entry.sync_limits() {
            self.write(id, Effect::Limits)
        } else {
            None
        }
    }

    fn write(&mut self, id: ProxyId, effect: Effect) -> Option<Write> {
        let entry = self.fleet.get_mut(id)?;
        entry.sync_limits();
        let key = record::key(&entry.uid);
        let compare = Compare::Version(Arc::clone(&key), entry.version);
        let op = Op::Put(key, entry.record.encode());
        entry.version += 1;
        entry.in_flight += 1;
        Some(Write {
            proxy: id,
            effect,
            compare,
            op,
        })
    }

    /// A transaction has committed, or it is known or feared that it has not.
    pub(super) fn settle(&mut self, id: ProxyId, effect: Effect, committed: bool) {
        if let Some(entry) = self.fleet.get_mut(id) {
            entry.in_flight = entry.in_flight.saturating_sub(1);
            entry.broken |= !committed;
            if entry.broken && entry.in_flight == 0 {
                self.outbox.records.insert(id);
            }
        }
        // Why: one that did not commit, or may not have, still holds until its record was read again.
        if committed && let Effect::Release(_, target) = &effect {
            self.fleet.released(id, target.as_ref());
        }
        match (effect, committed) {
            (Effect::Grant(key), true) => self.confirm(id, &key),
            (Effect::Bind(bind), true) => self.confirm(id, &bind.before.key),
            (Effect::Release(key, _), true) => {
                self.leases.remove(&key.uid);
            },
            (Effect::Limits, _) => {},
            (Effect::Grant(key) | Effect::Release(key, _), false) => {
                self.fleet.reindex(id);
                self.outbox.doubts.insert(key);
            },
            (Effect::Bind(bind), false) => {
                let Bind {
                    turn,
                    waiter,
                    before,
                } = *bind;
                self.fleet.reindex(id);
                self.outbox.doubts.insert(before.key.clone());
                self.waiters.restore(turn, waiter);
                self.leases.put(before);
            },
        }
        self.show(id, false);
        self.serve_waiters();
    }

    fn confirm(&mut self, id: ProxyId, key: &LeaseKey) {
        self.leases
            .update(&key.uid, |tracked| tracked.committed = true);
        let fate = self
            .fleet
            .get(id)
            .map(|entry| entry.fate.clone())
            .unwrap_or_default();
        if fate != Fate::Keep {
            self.outbox.fates.insert(id);
        }
    }

    /// What the store has for a broken proxy. Answers the holders that nobody tracks.
    pub(super) fn reload(
        &mut self,
        id: ProxyId,
        stored: Option<(GrantsRecord, u64)>,
    ) -> Vec<Grant> {
        let Some(entry) = self.fleet.get(id) else {
            return Vec::new();
        };
        if !entry.broken || entry.in_flight > 0 {
            return Vec::new();
        }
        let (record, version) = stored.unwrap_or_default();
        let unknown: Vec<_> = record
            .holders
            .iter()
            .filter(|grant| {
                self.leases
                    .get(&grant.lease_uid)
                    .is_none_or(|lease| lease.proxy != Some(id))
            })
            .cloned()
            .collect();
        let (mut confirmed, mut lost) = (Vec::new(), Vec::new());
        for tracked in self
            .leases
            .iter()
            .filter(|tracked| tracked.proxy == Some(id))
        {
            let uid = &tracked.key.uid;
            let holds = record.holders.iter().any(|grant| grant.lease_uid == *uid);
            if holds { &mut confirmed } else { &mut lost }.push(Arc::clone(uid));
        }
        self.fleet.replace_record(id, record, version);
        for uid in lost {
            self.leases.remove(&uid);
        }
        for uid in confirmed {
            self.leases.update(&uid, |tracked| tracked.committed = true);
        }
        self.show(id, true);
        self.serve_waiters();
        unknown
    }

    // --- waiting ---

    /// Gives free slots to those who wait, oldest first.
    pub(super) fn serve_waiters(&mut self) {
        if !self.fleet.take_improved() || !self.waiters.has_line() {
            return;
        }
        let mut heads = self.waiters.heads();
        while let Some((turn, want)) = heads.pop_first() {
            let Some(id) = self.fleet.choose(&want) else {
                continue;
            };
            self.fleet.hold(id, want.target.as_ref());
            if let Some(lease) = self.waiters.hold(turn, id) {
                self.outbox.bindings.push_back(lease);
            }
            if let Some(next) = self.waiters.head(&want) {
                heads.insert(next, want);
            }
        }
    }

    /// A lease begins to wait.
    pub(super) fn enqueue(&mut self, tracked: Tracked, want: Want) {
        self.waiters.push(tracked.key.clone(), want);
        self.leases.put(tracked);
        self.fleet.note_improved();
        self.serve_waiters();
    }

    /// A waiting lease is over or gone.
    pub(super) fn dequeue(&mut self, uid: &str) {
        self.unhold(uid);
        if self.waiters.remove(uid).is_some() {
            self.leases.remove(uid);
        }
        self.serve_waiters();
    }

    pub(super) fn unhold(&mut self, uid: &str) {
        if let Some((id, want)) = self.waiters.unhold(uid) {
            self.fleet.unhold(id, want.target.as_ref());
        }
    }

    // --- time ---

    /// A renewal is durable.
    pub(super) fn renewed(&mut self, uid: &str, at: Timestamp, expires: Duration) {
        let mut proxy = None;
        self.leases.update(uid, |tracked| {
            tracked.renewed_at = Some(at);
            tracked.expires = expires;
            proxy = tracked.proxy;
        });
    }

    /// A holder reports that traffic went through. Most reports change nothing that is shown.
    pub(super) fn worked(&mut self, uid: &str, at: Timestamp) {
        let Some(id) = self.leases.get(uid).and_then(|lease| lease.proxy) else {
            return;
        };
        let Some(entry) = self.fleet.get_mut(id) else {
            return;
        };
        if is_report_news(entry.worked, at) {
            entry.worked = Some(at);
            self.show(id, false);
        }
    }
}

fn only_differs_in_revision(known: &ProxyFacts, new: &ProxyFacts) -> bool {
    let mut new = new.clone();
    new.resource_version = known.resource_version;
    *known == new
}
