//! Leases in memory: when each ends, whose pod it is bound to, which request made it.
//!
//! Part of the allocator's state, under its lock. Deadlines are readings of the monotonic clock.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::ProxyId;
use super::facts::Fate;

/// What identifies a lease object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseKey {
    /// Namespace of the lease.
    pub namespace: Arc<str>,
    /// Name of the lease.
    pub name: Arc<str>,
    /// Uid of the lease.
    pub uid: Arc<str>,
}

/// The idempotency key of a create with generateName.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RequestKey {
    /// Namespace of the lease.
    pub namespace: Arc<str>,
    /// Name of the user who asked.
    pub user: Arc<str>,
    /// `spec.requestID`.
    pub id: Arc<str>,
}

/// What a request id stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A create with it is on its way.
    Claimed,
    /// The name of the lease it made.
    Made(Arc<str>),
}

/// A lease that is neither over nor deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracked {
    /// Which lease.
    pub key: LeaseKey,
    /// The proxy whose slot it holds; `None`: it waits for one.
    pub proxy: Option<ProxyId>,
    /// Whether the store has it. Nothing ends a lease that may not exist.
    pub committed: bool,
    /// Registrable domain.
    pub target: Option<Arc<str>>,
    /// When it ends unless renewed, or when the wait does.
    pub expires: Duration,
    /// When it is cut because its proxy is drained.
    pub cut: Option<Duration>,
    /// How long a renewal lasts.
    pub ttl: Duration,
    /// `status.renewedAt` of the state that `expires` was counted from.
    pub renewed_at: Option<Timestamp>,
    /// The pod whose end ends the lease.
    pub pod_uid: Option<Arc<str>>,
    /// The request that made it.
    pub request: Option<RequestKey>,
    /// The fate that its object shows.
    pub shown: Fate,
}

/// All of them, by what they are looked up by.
#[derive(Debug, Default)]
pub(super) struct Leases {
    by_uid: HashMap<Arc<str>, Tracked>,
    timers: BTreeSet<(Duration, Arc<str>)>,
    by_pod: HashMap<Arc<str>, BTreeSet<Arc<str>>>,
    requests: HashMap<RequestKey, Request>,
    /// Uids by namespace and name.
    names: HashMap<(Arc<str>, Arc<str>), Arc<str>>,
}

// === impl Tracked ===

impl Tracked {
    /// The next time at which something happens to it by itself.
    pub fn due(&self) -> Duration {
        self.cut.map_or(self.expires, |cut| cut.min(self.expires))
    }
}

fn name_of(key: &LeaseKey) -> (Arc<str>, Arc<str>) {
    (Arc::clone(&key.namespace), Arc::clone(&key.name))
}

// === impl Leases ===

impl Leases {
    pub(super) fn get(&self, uid: &str) -> Option<&Tracked> {
        self.by_uid.get(uid)
    }

    /// Puts or replaces a lease.
    pub(super) fn put(&mut self, tracked: Tracked) {
        self.remove(&tracked.key.uid.clone());
        let uid = Arc::clone(&tracked.key.uid);
        self.timers.insert((tracked.due(), Arc::clone(&uid)));
        if let Some(pod) = &tracked.pod_uid {
            self.by_pod
                .entry(Arc::clone(pod))
                .or_default()
                .insert(Arc::clone(&uid));
        }
        if let Some(request) = &tracked.request {
            let made = Request::Made(Arc::clone(&tracked.key.name));
            self.requests.insert(request.clone(), made);
        }
        self.names.insert(name_of(&tracked.key), Arc::clone(&uid));
        self.by_uid.insert(uid, tracked);
    }

    /// Another lease of this name.
    pub(super) fn namesake(&self, key: &LeaseKey) -> Option<&Tracked> {
        let uid = self
            .names
            .get(&name_of(key))
            .filter(|uid| **uid != key.uid)?;
        self.by_uid.get(uid)
    }

    pub(super) fn remove(&mut self, uid: &str) -> Option<Tracked> {
        let tracked = self.by_uid.remove(uid)?;
        self.timers
            .remove(&(tracked.due(), Arc::clone(&tracked.key.uid)));
        let name = name_of(&tracked.key);
        if self.names.get(&name) == Some(&tracked.key.uid) {
            self.names.remove(&name);
        }
        if let Some(pod) = &tracked.pod_uid
            && let Some(uids) = self.by_pod.get_mut(pod)
        {
            uids.remove(uid);
            if uids.is_empty() {
                self.by_pod.remove(pod);
            }
        }
        if let Some(request) = &tracked.request
            && self.requests.get(request) == Some(&Request::Made(Arc::clone(&tracked.key.name)))
        {
            self.requests.remove(request);
        }
        Some(tracked)
    }

    /// Changes a lease in place; the indexes follow.
    pub(super) fn update(&mut self, uid: &str, change: impl FnOnce(&mut Tracked)) {
        if let Some(mut tracked) = self.remove(uid) {
            change(&mut tracked);
            self.put(tracked);
        }
    }

    /// When the next lease is due.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.timers.first().map(|(due, _)| *due)
    }

    /// Leases that are due and exist, at most `limit`.
    pub(super) fn due(&self, now: Duration, limit: usize) -> Vec<Tracked> {
        self.timers
            .iter()
            .take_while(|(due, _)| *due <= now)
            .filter_map(|(_, uid)| self.by_uid.get(uid))
            .filter(|tracked| tracked.committed)
            .take(limit)
            .cloned()
            .collect()
    }

    /// Leases bound to a pod.
    pub(super) fn of_pod(&self, pod: &str) -> Vec<LeaseKey> {
        let uids = self.by_pod.get(pod).into_iter().flatten();
        uids.filter_map(|uid| self.by_uid.get(uid))
            .map(|tracked| tracked.key.clone())
            .collect()
    }

    /// Uids of all pods that leases are bound to.
    pub(super) fn pods(&self) -> Vec<Arc<str>> {
        self.by_pod.keys().cloned().collect()
    }

    pub(super) fn request(&self, key: &RequestKey) -> Option<&Request> {
        self.requests.get(key)
    }

    pub(super) fn claim(&mut self, key: RequestKey) {
        self.requests.insert(key, Request::Claimed);
    }

    /// Takes a claim back that led to nothing.
    pub(super) fn unclaim(&mut self, key: &RequestKey) {
        if self.requests.get(key) == Some(&Request::Claimed) {
            self.requests.remove(key);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Tracked> {
        self.by_uid.values()
    }
}
