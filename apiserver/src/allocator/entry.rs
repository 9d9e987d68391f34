//! One proxy in the allocator's memory: its facts, and its grants record including transactions
//! that are on their way.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::GroupId;
use super::facts::{Fate, ProxyFacts};
use super::record::{Grant, GrantsRecord};

/// Targets per proxy whose last release is remembered.
const REMEMBERED_RELEASES: usize = 64;

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) uid: Arc<str>,
    /// The newest state seen; `None`: not seen yet, or the object is gone.
    pub(super) facts: Option<ProxyFacts>,
    /// What happens to the leases.
    pub(super) fate: Fate,
    /// As it will be stored once all transactions on their way have committed.
    pub(super) record: GrantsRecord,
    /// Version of the record's key at that point; 0: not stored.
    pub(super) version: u64,
    /// Transactions on their way.
    pub(super) in_flight: usize,
    /// Targets of releases on their way, or in doubt. The slot can be granted again at once, because the
    /// grant comes after the release in this proxy's chain; the target is behind other proxies of
    /// the exit too, which have chains of their own, so it counts until the release is durable.
    pub(super) releasing: Vec<Option<Arc<str>>>,
    /// A transaction did not commit, so `record` may be wrong: nothing is granted until it was
    /// read again.
    pub(super) broken: bool,
    /// Who shows views looks at this one again by itself: a mere change of numbers need not ring.
    pub(super) followed: bool,
    /// When a holder last reported that traffic went through, in steps of [`REPORT_STEP`].
    ///
    /// [`REPORT_STEP`]: crawl_api::endpoint::REPORT_STEP
    pub(super) worked: Option<Timestamp>,
    /// Slots kept for waiters, by their target.
    pub(super) held: Vec<Option<Arc<str>>>,
    /// Groups it belongs to.
    pub(super) groups: Vec<GroupId>,
    /// What targets see: the exit IP, or the proxy itself while it is unknown.
    pub(super) exit: Arc<str>,
    releases: BTreeMap<Arc<str>, u64>,
    last_release: u64,
}

// === impl Entry ===

impl Entry {
    pub(super) fn new(uid: Arc<str>) -> Self {
        Self {
            exit: own_exit(&uid),
            uid,
            facts: None,
            fate: Fate::Keep,
            record: GrantsRecord::default(),
            version: 0,
            in_flight: 0,
            releasing: Vec::new(),
            broken: false,
            followed: false,
            worked: None,
            held: Vec::new(),
            groups: Vec::new(),
            releases: BTreeMap::new(),
            last_release: 0,
        }
    }

    /// Slots that a newcomer cannot have.
    pub(super) fn taken(&self) -> usize {
        self.record.holders.len() + self.held.len()
    }

    /// Leases that may hold a slot according to the store, now or in a moment.
    pub(super) fn active(&self) -> usize {
        self.record.holders.len() + self.releasing.len()
    }

    /// Targets of all slots that are, or may be, taken.
    pub(super) fn targets(&self) -> impl Iterator<Item = &Arc<str>> {
        let granted = self
            .record
            .holders
            .iter()
            .filter_map(|grant| grant.target.as_ref());
        granted
            .chain(self.held.iter().flatten())
            .chain(self.releasing.iter().flatten())
    }

    pub(super) fn is_free(&self) -> bool {
        !self.broken
            && self
                .facts
                .as_ref()
                .is_some_and(|facts| facts.accepting.is_ok() && self.taken() < facts.max_leases)
    }

    pub(super) fn holder(&self, lease_uid: &str) -> Option<&Grant> {
        self.record
            .holders
            .iter()
            .find(|grant| &*grant.lease_uid == lease_uid)
    }

    /// Writes what the facts say into the record; whether that changed it.
    pub(super) fn sync_limits(&mut self) -> bool {
        let (accepting, max_leases, revision) = match &self.facts {
            Some(facts) => (
                facts.accepting.is_ok(),
                facts.max_leases,
                facts.resource_version,
            ),
            None => (false, 0, self.record.observed_proxy_rv),
        };
        let record = &mut self.record;
        let changed =
            self.version == 0 || (record.accepting, record.max_leases) != (accepting, max_leases);
        if let Some(facts) = &self.facts {
            record.namespace = Arc::clone(&facts.namespace);
            record.name = Arc::clone(&facts.name);
        }
        record.accepting = accepting;
        record.max_leases = max_leases;
        record.observed_proxy_rv = revision;
        changed
    }

    pub(super) fn exit_by_facts(&self) -> Arc<str> {
        let known = self.facts.as_ref().and_then(|facts| facts.exit_ip.clone());
        known.unwrap_or_else(|| own_exit(&self.uid))
    }

    /// Number of the last release that matters to a want: of its target, or of any.
    pub(super) fn released(&self, target: Option<&str>) -> u64 {
        match target {
            Some(target) => self.releases.get(target).copied().unwrap_or(0),
            None => self.last_release,
        }
    }

    pub(super) fn note_release(&mut self, target: Option<&Arc<str>>, number: u64) {
        self.last_release = number;
        let Some(target) = target else { return };
        self.releases.insert(Arc::clone(target), number);
        if self.releases.len() > REMEMBERED_RELEASES {
            let oldest = self.releases.iter().min_by_key(|(_, number)| **number);
            if let Some(oldest) = oldest.map(|(target, _)| Arc::clone(target)) {
                self.releases.remove(&oldest);
            }
        }
    }
}

fn own_exit(uid: &Arc<str>) -> Arc<str> {
    format!("proxy/{uid}").into()
}
