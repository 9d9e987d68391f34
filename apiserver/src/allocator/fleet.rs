//! Proxies by who may lease them, kept in the order in which they are given out.
//!
//! Part of the allocator's state, synchronous, no I/O. A *group* is what a lease can name: a pool, a
//! namespace, or a namespace with a selector. Every group keeps its free proxies in order, so a
//! choice looks at the first, and skips those that are busy with the wanted target. When many of a
//! group are ([`MANY`]), it keeps an order of its own for that target, with only those that can be
//! had. So a choice costs O(log n) plus at most [`MANY`] steps. Two cases cost more: the first lease
//! by a selector, and the first by a target that has just become busy, walk through the group once.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crawl_api::pool::LeasePolicy;
use kube::core::{Selector, SelectorExt};

use super::entry::Entry;
use super::facts::{NO_POOL, PoolFacts, PoolKey, ProxyFacts};
use super::ordered::{Ordered, Rank};
use super::record::{Grant, GrantsRecord};
use super::want::{Candidates, Want};
use super::{GroupId, ProxyId};

/// Busy or restricted proxies of a group above which a target gets an order of its own.
const MANY: usize = 64;
/// Orders per group; targets beyond it are served by skipping.
const MAX_VIEWS: usize = 64;
/// Selectors whose groups are kept; the one unused for longest gives way.
const MAX_LABEL_GROUPS: usize = 128;
/// Free proxies among which the least recently released for a target is looked for.
const MAX_PEERS: usize = 256;

#[derive(Debug)]
struct Group {
    policy: LeasePolicy,
    members: BTreeSet<ProxyId>,
    /// Members that exclude some targets.
    restricted: usize,
    /// Leases of members, by target.
    load: HashMap<Arc<str>, usize>,
    free: Ordered,
    views: HashMap<Option<Arc<str>>, Ordered>,
}

#[derive(Debug)]
struct LabelGroup {
    id: GroupId,
    namespace: Arc<str>,
    selector: Option<Selector>,
    candidates: Candidates,
    used: u64,
}

/// Proxies behind one exit, and how many leases each target has there.
#[derive(Debug, Default)]
struct Exit {
    members: BTreeSet<ProxyId>,
    load: HashMap<Arc<str>, usize>,
}

#[derive(Debug, Default)]
pub(super) struct Fleet {
    entries: HashMap<ProxyId, Entry>,
    ids: HashMap<Arc<str>, ProxyId>,
    groups: HashMap<GroupId, Group>,
    group_ids: HashMap<Candidates, GroupId>,
    label_groups: Vec<LabelGroup>,
    exits: HashMap<Arc<str>, Exit>,
    pools: HashMap<PoolKey, PoolFacts>,
    last_id: u32,
    releases: u64,
    wants: u64,
    /// Something became free that was not.
    improved: bool,
}

// === impl Fleet ===

impl Fleet {
    pub(super) fn id(&self, uid: &str) -> Option<ProxyId> {
        self.ids.get(uid).copied()
    }

    pub(super) fn get(&self, id: ProxyId) -> Option<&Entry> {
        self.entries.get(&id)
    }

    /// For changes that concern no order: versions, counters, the fate.
    pub(super) fn get_mut(&mut self, id: ProxyId) -> Option<&mut Entry> {
        self.entries.get_mut(&id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ProxyId, &Entry)> {
        self.entries.iter().map(|(id, entry)| (*id, entry))
    }

    /// The proxy of a uid, made when it is new.
    pub(super) fn ensure(&mut self, uid: &Arc<str>) -> ProxyId {
        if let Some(id) = self.id(uid) {
            return id;
        }
        self.last_id += 1;
        let id = self.last_id;
        let entry = Entry::new(Arc::clone(uid));
        self.exits
            .entry(Arc::clone(&entry.exit))
            .or_default()
            .members
            .insert(id);
        self.entries.insert(id, entry);
        self.ids.insert(Arc::clone(uid), id);
        id
    }

    /// Forgets a proxy of which nothing is left.
    pub(super) fn remove(&mut self, id: ProxyId) {
        self.set_facts(id, None);
        if let Some(entry) = self.entries.remove(&id) {
            self.ids.remove(&entry.uid);
            self.leave_exit(id, &entry);
        }
    }

    pub(super) fn has_pool(&self, key: &PoolKey) -> bool {
        self.pools.contains_key(key)
    }

    /// Takes note of a pool, or with `None` of its end.
    pub(super) fn set_pool(&mut self, key: &PoolKey, facts: Option<PoolFacts>) {
        let before = match facts {
            Some(facts) => self.pools.insert(key.clone(), facts),
            None => self.pools.remove(key),
        };
        if before == facts {
            return;
        }
        let policy = facts.unwrap_or(NO_POOL).policy;
        let group = self.group(&Candidates::Pool(key.clone()));
        if let Some(group) = self.groups.get_mut(&group) {
            group.policy = policy;
            group.views.clear();
            for id in group.members.clone() {
                self.reindex(id);
            }
        }
        self.improved = true;
    }

    /// Takes note of a proxy's state, or with `None` of its end.
    pub(super) fn set_facts(&mut self, id: ProxyId, facts: Option<ProxyFacts>) {
        let Some(mut entry) = self.entries.remove(&id) else {
            return;
        };
        for group in std::mem::take(&mut entry.groups) {
            if let Some(group) = self.groups.get_mut(&group) {
                group.leave(id, &entry);
            }
        }
        self.leave_exit(id, &entry);
        entry.facts = facts;
        entry.exit = entry.exit_by_facts();
        self.join_exit(id, &entry);
        if let Some(facts) = &entry.facts {
            entry
                .groups
                .push(self.group(&Candidates::Namespace(Arc::clone(&facts.namespace))));
            if let Some(pool) = &facts.pool {
                entry
                    .groups
                    .push(self.group(&Candidates::Pool(pool.clone())));
            }
            let labelled = self
                .label_groups
                .iter()
                .filter(|group| group.matches(facts));
            entry.groups.extend(labelled.map(|group| group.id));
        }
        for group in &entry.groups {
            if let Some(group) = self.groups.get_mut(group) {
                group.join(id, &entry);
            }
        }
        let exit = Arc::clone(&entry.exit);
        self.entries.insert(id, entry);
        self.reindex_exit(&exit);
        self.improved = true;
    }

    /// Puts a lease on a proxy.
    pub(super) fn grant(&mut self, id: ProxyId, grant: Grant) {
        let target = grant.target.clone();
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.record.holders.push(grant);
        }
        self.load(id, target.as_ref(), true);
    }

    /// Takes a lease off a proxy; until [`Fleet::released`] it still counts for its target.
    pub(super) fn ungrant(&mut self, id: ProxyId, lease_uid: &str) -> Option<Grant> {
        let entry = self.entries.get_mut(&id)?;
        let at = entry
            .record
            .holders
            .iter()
            .position(|grant| &*grant.lease_uid == lease_uid)?;
        let grant = entry.record.holders.remove(at);
        self.releases += 1;
        entry.note_release(grant.target.as_ref(), self.releases);
        entry.releasing.push(grant.target.clone());
        self.reindex(id);
        self.improved = true;
        Some(grant)
    }

    /// A release is durable.
    pub(super) fn released(&mut self, id: ProxyId, target: Option<&Arc<str>>) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        if let Some(at) = entry
            .releasing
            .iter()
            .position(|given| given.as_ref() == target)
        {
            entry.releasing.swap_remove(at);
            self.load(id, target, false);
        }
    }

    /// Whether a release for a target is on its way behind the exit of a proxy.
    pub(super) fn is_releasing(&self, entry: &Entry, target: &str) -> bool {
        let members = self
            .exits
            .get(&entry.exit)
            .into_iter()
            .flat_map(|exit| &exit.members);
        members.filter_map(|id| self.entries.get(id)).any(|entry| {
            entry
                .releasing
                .iter()
                .flatten()
                .any(|given| &**given == target)
        })
    }

    /// Keeps a slot for a waiter.
    pub(super) fn hold(&mut self, id: ProxyId, target: Option<&Arc<str>>) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.held.push(target.cloned());
        }
        self.load(id, target, true);
    }

    /// Gives a kept slot back.
    pub(super) fn unhold(&mut self, id: ProxyId, target: Option<&Arc<str>>) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        if let Some(at) = entry.held.iter().position(|held| held.as_ref() == target) {
            entry.held.swap_remove(at);
            self.load(id, target, false);
        }
    }

    /// Puts what the store has in the place of what was expected.
    pub(super) fn replace_record(&mut self, id: ProxyId, record: GrantsRecord, version: u64) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        entry.version = version;
        entry.broken = false;
        let old = std::mem::replace(&mut entry.record, record);
        let releasing = std::mem::take(&mut entry.releasing);
        let new: Vec<_> = entry
            .record
            .holders
            .iter()
            .map(|grant| grant.target.clone())
            .collect();
        for target in old
            .holders
            .into_iter()
            .map(|grant| grant.target)
            .chain(releasing)
        {
            self.load(id, target.as_ref(), false);
        }
        for target in new {
            self.load(id, target.as_ref(), true);
        }
        self.reindex(id);
        self.improved = true;
    }

    /// Whether something became free since the last time this was asked.
    pub(super) fn take_improved(&mut self) -> bool {
        std::mem::take(&mut self.improved)
    }

    /// Somebody new waits: look again.
    pub(super) fn note_improved(&mut self) {
        self.improved = true;
    }

    /// The proxy that a want gets.
    pub(super) fn choose(&mut self, want: &Want) -> Option<ProxyId> {
        let id = self.group(&want.candidates);
        self.ensure_view(id, want.target.as_ref());
        let group = self.groups.get(&id)?;
        if let Some(view) = group.views.get(&want.target) {
            return view.iter(want.schemes).next().map(|rank| rank.proxy);
        }
        let mut best: Option<Rank> = None;
        let mut peers = 0;
        for rank in group.free.iter(want.schemes) {
            let Some(entry) = self.entries.get(&rank.proxy) else {
                continue;
            };
            if !self.is_eligible(entry, want.target.as_ref()) {
                continue;
            }
            let rank = Rank {
                released: entry.released(want.target.as_deref()),
                ..rank
            };
            match best {
                Some(found) if !found.is_peer(&rank) => break,
                Some(found) if found <= rank => {},
                Some(_) | None => best = Some(rank),
            }
            peers += 1;
            if rank.released == 0 || want.target.is_none() || peers >= MAX_PEERS {
                break;
            }
        }
        best.map(|rank| rank.proxy)
    }

    /// The proxies among which a want may be served.
    pub(super) fn candidates(&mut self, candidates: &Candidates) -> Vec<ProxyId> {
        let id = self.group(candidates);
        self.groups
            .get(&id)
            .map(|group| group.members.iter().copied().collect())
            .unwrap_or_default()
    }

    /// Leases for a target behind the exit of a proxy, and how many there may be.
    pub(super) fn target_load(&self, entry: &Entry, target: &str) -> (usize, usize) {
        let exit = self.exits.get(&entry.exit);
        let load = exit
            .and_then(|exit| exit.load.get(target))
            .copied()
            .unwrap_or(0);
        (load, self.per_target(entry))
    }

    /// Uids of the leases for a target behind the exit of a proxy.
    pub(super) fn target_leases<'a>(
        &'a self,
        entry: &Entry,
        target: &'a str,
    ) -> impl Iterator<Item = &'a str> {
        let members = self
            .exits
            .get(&entry.exit)
            .into_iter()
            .flat_map(|exit| &exit.members);
        members
            .filter_map(|id| self.entries.get(id))
            .flat_map(|entry| &entry.record.holders)
            .filter(move |grant| grant.target.as_deref() == Some(target))
            .map(|grant| &*grant.lease_uid)
    }

    /// Puts a proxy where it belongs in every order, after a change of [`Entry`] by itself.
    pub(super) fn reindex(&mut self, id: ProxyId) {
        let Some(entry) = self.entries.get(&id) else {
            return;
        };
        let place = |group: &Group, target: Option<&str>| {
            let facts = entry.facts.as_ref()?;
            let released = entry.released(target);
            let rank = Rank::new(group.policy, entry.taken(), facts, released, id);
            Some((facts.scheme(), rank))
        };
        let free = entry.is_free();
        let exit = self.exits.get(&entry.exit);
        let per_target = self.per_target(entry);
        for group in &entry.groups {
            let Some(group) = self.groups.get_mut(group) else {
                continue;
            };
            group
                .free
                .set(id, if free { place(group, None) } else { None });
            let mut views = std::mem::take(&mut group.views);
            views.retain(|target, view| {
                let target = target.as_deref();
                if !group.is_busy(target, MANY / 4) {
                    return false;
                }
                let eligible = free
                    && entry
                        .facts
                        .as_ref()
                        .is_some_and(|facts| facts.serves(target))
                    && is_below(exit, target, per_target);
                view.set(id, if eligible { place(group, target) } else { None });
                true
            });
            group.views = views;
        }
    }

    fn reindex_exit(&mut self, exit: &Arc<str>) {
        let members = self
            .exits
            .get(exit)
            .map(|exit| exit.members.clone())
            .unwrap_or_default();
        for id in members {
            self.reindex(id);
        }
    }

    /// Counts a lease in or out, and puts all that it concerns where it belongs.
    fn load(&mut self, id: ProxyId, target: Option<&Arc<str>>, more: bool) {
        let Some(entry) = self.entries.get(&id) else {
            return;
        };
        self.improved |= !more;
        let Some(target) = target else {
            return self.reindex(id);
        };
        for group in &entry.groups {
            if let Some(group) = self.groups.get_mut(group) {
                count(&mut group.load, target, more);
            }
        }
        let exit = Arc::clone(&entry.exit);
        if let Some(exit) = self.exits.get_mut(&exit) {
            count(&mut exit.load, target, more);
        }
        self.reindex_exit(&exit);
    }

    fn per_target(&self, entry: &Entry) -> usize {
        let pool = entry.facts.as_ref().and_then(|facts| facts.pool.as_ref());
        pool.and_then(|pool| self.pools.get(pool))
            .unwrap_or(&NO_POOL)
            .per_target
    }

    fn is_eligible(&self, entry: &Entry, target: Option<&Arc<str>>) -> bool {
        let target = target.map(|target| &**target);
        entry
            .facts
            .as_ref()
            .is_some_and(|facts| facts.serves(target))
            && is_below(self.exits.get(&entry.exit), target, self.per_target(entry))
    }

    fn group(&mut self, candidates: &Candidates) -> GroupId {
        self.wants += 1;
        if let Some(id) = self.group_ids.get(candidates).copied() {
            if let Candidates::Labels { .. } = candidates
                && let Some(group) = self.label_groups.iter_mut().find(|group| group.id == id)
            {
                group.used = self.wants;
            }
            return id;
        }
        self.last_id += 1;
        let id = self.last_id;
        let policy = match candidates {
            Candidates::Pool(pool) => self.pools.get(pool).unwrap_or(&NO_POOL).policy,
            Candidates::Namespace(_) | Candidates::Labels { .. } => NO_POOL.policy,
        };
        self.groups.insert(id, Group::new(policy));
        self.group_ids.insert(candidates.clone(), id);
        if let Candidates::Labels { namespace, .. } = candidates {
            self.add_label_group(id, namespace, candidates);
        }
        id
    }

    fn add_label_group(&mut self, id: GroupId, namespace: &Arc<str>, candidates: &Candidates) {
        if self.label_groups.len() >= MAX_LABEL_GROUPS
            && let Some(oldest) = (0..self.label_groups.len())
                .min_by_key(|at| self.label_groups.get(*at).map_or(0, |group| group.used))
        {
            let oldest = self.label_groups.swap_remove(oldest);
            self.group_ids.remove(&oldest.candidates);
            for member in self
                .groups
                .remove(&oldest.id)
                .into_iter()
                .flat_map(|g| g.members)
            {
                if let Some(entry) = self.entries.get_mut(&member) {
                    entry.groups.retain(|group| *group != oldest.id);
                }
            }
        }
        let new = LabelGroup {
            id,
            namespace: Arc::clone(namespace),
            selector: candidates.selector(),
            candidates: candidates.clone(),
            used: self.wants,
        };
        let all = self.group(&Candidates::Namespace(Arc::clone(namespace)));
        let members = self
            .groups
            .get(&all)
            .map(|group| group.members.clone())
            .unwrap_or_default();
        let mut joined = Vec::new();
        for member in members {
            let Some(entry) = self.entries.get_mut(&member) else {
                continue;
            };
            if entry.facts.as_ref().is_some_and(|facts| new.matches(facts)) {
                entry.groups.push(id);
                joined.push(member);
                if let Some(group) = self.groups.get_mut(&id) {
                    group.join(member, entry);
                }
            }
        }
        self.label_groups.push(new);
        for member in joined {
            self.reindex(member);
        }
    }

    fn ensure_view(&mut self, id: GroupId, target: Option<&Arc<str>>) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let target = target.cloned();
        if !group.is_busy(target.as_deref(), MANY)
            || group.views.len() >= MAX_VIEWS
            || group.views.contains_key(&target)
        {
            return;
        }
        group.views.insert(target, Ordered::default());
        for member in group.members.clone() {
            self.reindex(member);
        }
    }

    fn join_exit(&mut self, id: ProxyId, entry: &Entry) {
        let exit = self.exits.entry(Arc::clone(&entry.exit)).or_default();
        exit.members.insert(id);
        for target in entry.targets() {
            count(&mut exit.load, target, true);
        }
    }

    fn leave_exit(&mut self, id: ProxyId, entry: &Entry) {
        let Some(exit) = self.exits.get_mut(&entry.exit) else {
            return;
        };
        exit.members.remove(&id);
        for target in entry.targets() {
            count(&mut exit.load, target, false);
        }
        if exit.members.is_empty() {
            self.exits.remove(&entry.exit);
        }
    }
}

fn is_below(exit: Option<&Exit>, target: Option<&str>, limit: usize) -> bool {
    let load = target.and_then(|target| exit?.load.get(target));
    load.copied().unwrap_or(0) < limit
}

fn count(load: &mut HashMap<Arc<str>, usize>, target: &Arc<str>, more: bool) {
    let now = load.get(target).copied().unwrap_or(0);
    match if more { now + 1 } else { now.saturating_sub(1) } {
        0 => load.remove(target),
        number => load.insert(Arc::clone(target), number),
    };
}

// === impl Group ===

impl Group {
    fn new(policy: LeasePolicy) -> Self {
        Self {
            policy,
            members: BTreeSet::new(),
            restricted: 0,
            load: HashMap::new(),
            free: Ordered::default(),
            views: HashMap::new(),
        }
    }

    /// Whether so many members may have to be skipped for a target.
    fn is_busy(&self, target: Option<&str>, many: usize) -> bool {
        let load = target
            .and_then(|target| self.load.get(target))
            .copied()
            .unwrap_or(0);
        load + self.restricted >= many
    }

    fn join(&mut self, id: ProxyId, entry: &Entry) {
        self.members.insert(id);
        self.tally(entry, true);
    }

    fn leave(&mut self, id: ProxyId, entry: &Entry) {
        self.members.remove(&id);
        self.tally(entry, false);
        self.free.set(id, None);
        for view in self.views.values_mut() {
            view.set(id, None);
        }
    }

    fn tally(&mut self, entry: &Entry, more: bool) {
        if entry.facts.as_ref().is_some_and(ProxyFacts::is_restricted) {
            self.restricted = if more {
                self.restricted + 1
            } else {
                self.restricted.saturating_sub(1)
            };
        }
        for target in entry.targets() {
            count(&mut self.load, target, more);
        }
    }
}

// === impl LabelGroup ===

impl LabelGroup {
    fn matches(&self, facts: &ProxyFacts) -> bool {
        facts.namespace == self.namespace
            && self
                .selector
                .as_ref()
                .is_some_and(|selector| selector.matches(&facts.labels))
    }
}
