//! Leases that wait for a proxy, oldest first.
//!
//! Part of the allocator's state. A waiter that can be served is given a *hold* on a slot, which
//! counts against newcomers at once; the `binding` task then turns it into a grant. Waiters that
//! want the same thing stand in one line: when the first cannot be served, none behind it can.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::ProxyId;
use super::leases::LeaseKey;
use super::want::Want;

/// Order of arrival.
pub(super) type Turn = u64;

#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) lease: LeaseKey,
    pub(super) want: Arc<Want>,
    /// The proxy on which it has a hold.
    pub(super) hold: Option<ProxyId>,
}

#[derive(Debug, Default)]
pub(super) struct Waiters {
    queue: BTreeMap<Turn, Waiter>,
    lines: HashMap<Arc<Want>, BTreeSet<Turn>>,
    turns: HashMap<Arc<str>, Turn>,
    last: Turn,
}

impl Waiters {
    /// Stands last in line; a lease that stands already keeps its turn.
    pub(super) fn push(&mut self, lease: LeaseKey, want: Want) {
        if self.turns.contains_key(&lease.uid) {
            return;
        }
        self.last += 1;
        let want = Arc::new(want);
        self.turns.insert(Arc::clone(&lease.uid), self.last);
        self.lines
            .entry(Arc::clone(&want))
            .or_default()
            .insert(self.last);
        self.queue.insert(
            self.last,
            Waiter {
                lease,
                want,
                hold: None,
            },
        );
    }

    /// Leaves the line.
    pub(super) fn remove(&mut self, uid: &str) -> Option<Waiter> {
        let turn = self.turns.remove(uid)?;
        let waiter = self.queue.remove(&turn)?;
        self.leave_line(&waiter.want, turn);
        Some(waiter)
    }

    /// Takes a waiter out, to be put back by [`Waiters::restore`] if its binding fails.
    pub(super) fn take(&mut self, uid: &str) -> Option<(Turn, Waiter)> {
        let turn = *self.turns.get(uid)?;
        self.remove(uid).map(|waiter| (turn, waiter))
    }

    /// Puts a waiter back to where it stood.
    pub(super) fn restore(&mut self, turn: Turn, waiter: Waiter) {
        self.turns.insert(Arc::clone(&waiter.lease.uid), turn);
        self.lines
            .entry(Arc::clone(&waiter.want))
            .or_default()
            .insert(turn);
        self.queue.insert(
            turn,
            Waiter {
                hold: None,
                ..waiter
            },
        );
    }

    pub(super) fn get(&self, uid: &str) -> Option<&Waiter> {
        self.queue.get(self.turns.get(uid)?)
    }

    /// Whether anybody stands without a hold.
    pub(super) fn has_line(&self) -> bool {
        !self.lines.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// The first of every line.
    pub(super) fn heads(&self) -> BTreeMap<Turn, Arc<Want>> {
        let heads = self.lines.iter();
        heads
            .filter_map(|(want, line)| line.first().map(|turn| (*turn, Arc::clone(want))))
            .collect()
    }

    /// The first of one line.
    pub(super) fn head(&self, want: &Want) -> Option<Turn> {
        self.lines.get(want)?.first().copied()
    }

    /// Gives a hold; answers whose turn it was.
    pub(super) fn hold(&mut self, turn: Turn, proxy: ProxyId) -> Option<LeaseKey> {
        let waiter = self.queue.get_mut(&turn)?;
        waiter.hold = Some(proxy);
        let (lease, want) = (waiter.lease.clone(), Arc::clone(&waiter.want));
        self.leave_line(&want, turn);
        Some(lease)
    }

    /// Takes the hold away; the waiter stands at its old place again.
    pub(super) fn unhold(&mut self, uid: &str) -> Option<(ProxyId, Arc<Want>)> {
        let turn = *self.turns.get(uid)?;
        let waiter = self.queue.get_mut(&turn)?;
        let proxy = waiter.hold.take()?;
        let want = Arc::clone(&waiter.want);
        self.lines
            .entry(Arc::clone(&want))
            .or_default()
            .insert(turn);
        Some((proxy, want))
    }

    fn leave_line(&mut self, want: &Arc<Want>, turn: Turn) {
        if let Some(line) = self.lines.get_mut(want) {
            line.remove(&turn);
            if line.is_empty() {
                self.lines.remove(want);
            }
        }
    }
}
