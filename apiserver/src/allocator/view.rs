//! What may be known of a proxy without access to it, and what the store must agree with first.

use std::sync::Arc;
use std::time::Duration;

use crawl_api::endpoint::REPORT_STEP;
use jiff::Timestamp;

use super::facts::{Fate, ProxyFacts};
use super::leases::{LeaseKey, Tracked};
use super::state::State;
use super::{Allocator, Stage, Stored};

/// A proxy as lease-apiserver sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyView {
    /// Uid of the proxy.
    pub uid: Arc<str>,
    /// Namespace of the proxy.
    pub namespace: Arc<str>,
    /// Name of the proxy.
    pub name: Arc<str>,
    /// The newest state seen; `None`: the object is gone.
    pub facts: Option<ProxyFacts>,
    /// Leases that may hold a slot, those whose release is not durable yet included.
    pub active: usize,
    /// When a holder last reported that traffic went through, since this process decides.
    pub worked: Option<Timestamp>,
}

/// What a view changed for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Viewed {
    /// It can be shown.
    View(Box<ProxyView>),
    /// Its record is behind what it would show, or uncertain: write the limits first.
    Behind,
    /// Nothing is known of it.
    Unknown,
}

/// Whether a report moves the time of the last one that is shown. A clock that was set back moves it
/// back.
pub fn is_report_news(shown: Option<Timestamp>, at: Timestamp) -> bool {
    shown.is_none_or(|shown| at.duration_since(shown).unsigned_abs() >= REPORT_STEP)
}

// === impl Allocator ===

impl Allocator {
    /// Proxies whose view changed, and whether somebody waits for it. The caller follows them from
    /// now on: further changes ring only when somebody waits, until [`Allocator::unfollow`].
    pub fn take_views(&self) -> Vec<(Arc<str>, bool)> {
        let mut state = self.state.lock();
        state.outbox.ring = false;
        let views: Vec<_> = std::mem::take(&mut state.outbox.views)
            .into_iter()
            .collect();
        for (uid, _) in &views {
            state.set_followed(uid, true);
        }
        views
    }

    /// The next change of these views rings again.
    pub fn unfollow(&self, uids: &[Arc<str>]) {
        let mut state = self.state.lock();
        for uid in uids {
            state.set_followed(uid, false);
        }
    }

    /// Asks for a view to be shown again.
    pub fn show(&self, uid: &str, urgent: bool) {
        self.with(|state| {
            if let Some(id) = state.fleet.id(uid) {
                state.show(id, urgent);
            }
        });
    }

    /// A proxy as it may be shown now.
    pub fn view(&self, uid: &str) -> Viewed {
        let state = self.state.lock();
        let Some(entry) = state.fleet.id(uid).and_then(|id| state.fleet.get(id)) else {
            return Viewed::Unknown;
        };
        let accepting = entry
            .facts
            .as_ref()
            .is_some_and(|facts| facts.accepting.is_ok());
        // Why: in a drain, what is shown must be durable, and what is on its way is not yet.
        let uncertain = entry.broken || (!accepting && entry.in_flight > 0);
        if uncertain || (entry.version > 0 && entry.record.accepting && !accepting) {
            return Viewed::Behind;
        }
        let (namespace, name) = match &entry.facts {
            Some(facts) => (&facts.namespace, &facts.name),
            None => (&entry.record.namespace, &entry.record.name),
        };
        Viewed::View(Box::new(ProxyView {
            uid: Arc::clone(&entry.uid),
            namespace: Arc::clone(namespace),
            name: Arc::clone(name),
            facts: entry.facts.clone(),
            active: entry.active(),
            worked: entry.worked,
        }))
    }

    /// Whether nothing is left of a proxy: no object, no lease, nothing on its way. Then the
    /// version of its record, for the transaction that removes it.
    pub fn leftover(&self, uid: &str) -> Option<u64> {
        let state = self.state.lock();
        let entry = state.fleet.id(uid).and_then(|id| state.fleet.get(id))?;
        let empty =
            entry.facts.is_none() && entry.active() == 0 && entry.in_flight == 0 && !entry.broken;
        empty.then_some(entry.version)
    }

    /// The record is removed: forgets the proxy, unless it came back.
    pub fn erase(&self, uid: &str) {
        self.with(|state| {
            let Some(id) = state.fleet.id(uid) else {
                return;
            };
            let Some(entry) = state.fleet.get_mut(id) else {
                return;
            };
            entry.version = 0;
            if entry.facts.is_none() && entry.in_flight == 0 && entry.active() == 0 {
                state.fleet.remove(id);
            }
        });
    }
}

// === impl State ===

impl State {
    fn set_followed(&mut self, uid: &str, followed: bool) {
        if let Some(id) = self.fleet.id(uid)
            && let Some(entry) = self.fleet.get_mut(id)
        {
            entry.followed = followed;
        }
    }

    /// See [`Allocator::adopt`].
    pub(super) fn adopt(&mut self, stored: Stored, now: Duration) {
        let Stored {
            key,
            stage,
            target,
            ttl,
            renewed_at,
            pod_uid,
            request,
            shown,
        } = stored;
        let uid = Arc::clone(&key.uid);
        let known = self.leases.get(&uid);
        if known.is_some_and(|lease| !lease.committed) {
            return;
        }
        match stage {
            Stage::Over => self.absent(&key),
            Stage::Pending(want, wait) => {
                if known.is_none() {
                    let tracked = Tracked {
                        key,
                        proxy: None,
                        committed: true,
                        target,
                        expires: now + wait,
                        cut: None,
                        ttl,
                        renewed_at,
                        pod_uid,
                        request,
                        shown: Fate::Keep,
                    };
                    self.enqueue(tracked, want);
                }
            },
            Stage::Bound(proxy) => {
                let proxy = self.fleet.ensure(&proxy);
                let same = known.filter(|lease| lease.proxy == Some(proxy));
                let expires = match same {
                    Some(lease) if lease.renewed_at == renewed_at => lease.expires,
                    Some(_) | None => now + ttl,
                };
                let cut = same.and_then(|lease| lease.cut);
                self.unhold(&uid);
                self.waiters.remove(&uid);
                self.leases.put(Tracked {
                    key,
                    proxy: Some(proxy),
                    committed: true,
                    target,
                    expires,
                    cut,
                    ttl,
                    renewed_at,
                    pod_uid,
                    request,
                    shown,
                });
                self.outbox.fates.insert(proxy);
            },
        }
    }

    /// See [`Allocator::absent`].
    pub(super) fn absent(&mut self, key: &LeaseKey) {
        if self
            .leases
            .get(&key.uid)
            .is_some_and(|lease| lease.committed)
        {
            self.unhold(&key.uid);
            self.waiters.remove(&key.uid);
            self.leases.remove(&key.uid);
            self.serve_waiters();
        }
    }
}
