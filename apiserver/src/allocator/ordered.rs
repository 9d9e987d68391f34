//! Free proxies in the order in which they are given out.
//!
//! A group keeps one of these for everybody, and one more for each target that many of its proxies
//! are busy with, so that a choice never walks past those that cannot be had.

use std::collections::{BTreeSet, HashMap};

use crawl_api::pool::LeasePolicy;
use crawl_api::scheme::Scheme;

use super::ProxyId;
use super::facts::ProxyFacts;

/// Where a free proxy stands: the smallest is given out first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    /// Those whose health changes too often come last, whatever their load.
    pub(super) flapping: bool,
    /// Leases, counted by the group's policy: fewest or most first.
    pub(super) load: usize,
    /// Latency bucket; unknown comes last.
    pub(super) bucket: u32,
    /// Number of the last release that matters here; 0: never.
    pub(super) released: u64,
    /// Breaks ties.
    pub(super) proxy: ProxyId,
}

/// Schemes a client can speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SchemeSet([bool; 3]);

/// Free proxies by scheme and rank.
#[derive(Debug, Default)]
pub(super) struct Ordered {
    sets: [BTreeSet<Rank>; 3],
    at: HashMap<ProxyId, (Scheme, Rank)>,
}

fn slot(scheme: Scheme) -> usize {
    match scheme {
        Scheme::Http => 0,
        Scheme::Https => 1,
        Scheme::Socks5 => 2,
    }
}

// === impl SchemeSet ===

impl SchemeSet {
    /// Whether a scheme is in the set.
    pub fn has(self, scheme: Scheme) -> bool {
        self.0.get(slot(scheme)).copied().unwrap_or(false)
    }
}

impl<'a> FromIterator<&'a Scheme> for SchemeSet {
    fn from_iter<I: IntoIterator<Item = &'a Scheme>>(schemes: I) -> Self {
        let mut set = [false; 3];
        for scheme in schemes {
            if let Some(flag) = set.get_mut(slot(*scheme)) {
                *flag = true;
            }
        }
        Self(set)
    }
}

// === impl Rank ===

impl Rank {
    pub(super) fn new(
        policy: LeasePolicy,
        taken: usize,
        facts: &ProxyFacts,
        released: u64,
        proxy: ProxyId,
    ) -> Self {
        let load = match policy {
            LeasePolicy::LeastLoaded => taken,
            LeasePolicy::Pack => usize::MAX - taken,
        };
        let bucket = match facts.latency_bucket {
            0 => u32::MAX,
            known => known,
        };
        Self {
            flapping: facts.flapping,
            load,
            bucket,
            released,
            proxy,
        }
    }

    /// Whether only releases tell the two apart.
    pub(super) fn is_peer(&self, other: &Self) -> bool {
        (self.flapping, self.load, self.bucket) == (other.flapping, other.load, other.bucket)
    }
}

// === impl Ordered ===

impl Ordered {
    /// Puts, moves, or (with `None`) takes out a proxy.
    pub(super) fn set(&mut self, proxy: ProxyId, place: Option<(Scheme, Rank)>) {
        if self.at.get(&proxy).copied() == place {
            return;
        }
        if let Some((scheme, rank)) = self.at.remove(&proxy)
            && let Some(set) = self.sets.get_mut(slot(scheme))
        {
            set.remove(&rank);
        }
        if let Some((scheme, rank)) = place
            && let Some(set) = self.sets.get_mut(slot(scheme))
        {
            set.insert(rank);
            self.at.insert(proxy, (scheme, rank));
        }
    }

    /// Free proxies that speak one of `schemes`, best first.
    pub(super) fn iter(&self, schemes: SchemeSet) -> impl Iterator<Item = Rank> + '_ {
        let mut heads: Vec<_> = self
            .sets
            .iter()
            .zip(schemes.0)
            .filter(|(_, wanted)| *wanted)
            .map(|(set, _)| set.iter().copied().peekable())
            .collect();
        std::iter::from_fn(move || {
            heads
                .iter_mut()
                .filter_map(|head| head.peek().copied().map(|rank| (rank, head)))
                .min_by_key(|(rank, _)| *rank)
                .and_then(|(_, head)| head.next())
        })
    }
}
