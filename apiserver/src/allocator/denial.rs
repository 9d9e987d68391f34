//! Why nothing can be leased now, counted, and when to ask again.

use std::collections::BTreeMap;
use std::time::Duration;

use aggregated_api::http::status::{ApiError, GroupResource};
use crawl_api::lease::{REASON_NO_PROXY_AVAILABLE, denial};
use http::StatusCode;

use super::entry::Entry;
use super::leases::Tracked;
use super::state::State;
use super::want::Want;

/// Seconds after which to ask again when nothing tells when a proxy becomes free.
const RETRY_UNKNOWN: u32 = 5;

/// Why a want cannot be served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Denial {
    /// Proxies that were looked at.
    pub candidates: usize,
    /// How many of them by the first reason that excludes each; adds up to `candidates`.
    pub counts: BTreeMap<&'static str, usize>,
    /// Monotonic time at which a slot becomes free if nobody renews.
    pub free_at: Option<Duration>,
}

/// What looking for a reason found.
#[derive(Debug)]
pub(super) enum Explanation {
    /// It is denied.
    Denied(Denial),
    /// It cannot be said before a transaction on its way, or a lease that is due, is settled.
    Unsettled,
}

// === impl Denial ===

impl Denial {
    /// Seconds after which a repeat makes sense, at least 1.
    pub fn retry_after(&self, now: Duration) -> u32 {
        match self.free_at {
            None => RETRY_UNKNOWN,
            Some(at) => {
                let left = at.saturating_sub(now);
                let whole = left.as_secs() + u64::from(left.subsec_nanos() > 0);
                u32::try_from(whole).unwrap_or(u32::MAX).max(1)
            },
        }
    }

    /// The answer to a create.
    pub fn to_error(&self, gr: &GroupResource, name: &str, want: &Want, now: Duration) -> ApiError {
        let (total, proxies) = (self.candidates, plural(self.candidates));
        let message = if total == 0 {
            format!(
                "no proxy can be leased: there are no proxies {}",
                want.candidates
            )
        } else {
            let counts: Vec<_> = self
                .counts
                .iter()
                .map(|(reason, count)| format!("{count} {reason}"))
                .collect();
            format!(
                "no proxy can be leased: of {total} {proxies} {}, {}; try again in {} s",
                want.candidates,
                counts.join(", "),
                self.retry_after(now)
            )
        };
        let refusal = ApiError::refusal(StatusCode::CONFLICT, REASON_NO_PROXY_AVAILABLE, message)
            .regarding(gr, name)
            .retry_after(self.retry_after(now));
        self.counts.iter().fold(refusal, |error, (reason, count)| {
            let text = format!("{count} {}: {}", plural(*count), meaning(reason));
            error.cause(reason, text, "")
        })
    }

    /// The reason that excludes most candidates, for metrics.
    pub fn main_reason(&self) -> &'static str {
        let most = self.counts.iter().max_by_key(|(_, count)| **count);
        most.map_or("NoCandidates", |(reason, _)| reason)
    }
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "proxy" } else { "proxies" }
}

fn meaning(reason: &str) -> &'static str {
    match reason {
        denial::AT_CAPACITY => "every slot is taken",
        denial::AT_TARGET_CAPACITY => "the exit is leased for this target already",
        denial::UNHEALTHY => "the last probes failed, or none has succeeded yet",
        denial::DRAINING => "being drained or deleted",
        denial::CORDONED => "cordoned",
        denial::UNLEASABLE => "maxLeases is 0",
        denial::SCHEME_MISMATCH => "speaks none of the wanted schemes",
        denial::TARGET_NOT_ALLOWED => "may not be used for this target",
        denial::RESERVED_FOR_WAITERS => "the free slots are kept for older requests",
        _ => "not available",
    }
}

// === impl State ===

impl State {
    /// Why `choose` found nothing.
    pub(super) fn explain(&mut self, want: &Want, now: Duration) -> Explanation {
        let mut denial = Denial::default();
        for id in self.fleet.candidates(&want.candidates) {
            let Some(entry) = self.fleet.get(id) else {
                continue;
            };
            if entry.broken {
                return Explanation::Unsettled;
            }
            let (reason, free_at) = self.obstacle(entry, want);
            if free_at.is_some_and(|at| at <= now) {
                return Explanation::Unsettled;
            }
            denial.candidates += 1;
            *denial.counts.entry(reason).or_default() += 1;
            denial.free_at = match (denial.free_at, free_at) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        }
        Explanation::Denied(denial)
    }

    /// The first thing that excludes a candidate, and when it is over.
    fn obstacle(&self, entry: &Entry, want: &Want) -> (&'static str, Option<Duration>) {
        let Some(facts) = &entry.facts else {
            return (denial::DRAINING, None);
        };
        if let Err(why) = facts.accepting {
            return (why.reason(), None);
        }
        if !want.schemes.has(facts.scheme()) {
            return (denial::SCHEME_MISMATCH, None);
        }
        let target = want.target.as_deref();
        if !facts.serves(target) {
            return (denial::TARGET_NOT_ALLOWED, None);
        }
        let slots = Limit {
            taken: entry.taken(),
            max: facts.max_leases,
        };
        let shared = target.map(|target| {
            let (taken, max) = self.fleet.target_load(entry, target);
            (target, Limit { taken, max })
        });
        let granted = entry.record.holders.iter().map(|grant| &*grant.lease_uid);
        let slot_free = self.over_at(slots.excess(), granted);
        let target_free = match shared {
            None => Some(Duration::ZERO),
            Some((target, limit))
                if limit.excess() > 0 && self.fleet.is_releasing(entry, target) =>
            {
                Some(Duration::ZERO)
            },
            Some((target, limit)) => {
                self.over_at(limit.excess(), self.fleet.target_leases(entry, target))
            },
        };
        let free_at = slot_free.zip(target_free).map(|(a, b)| a.max(b));
        let reason = if entry.record.holders.len() >= facts.max_leases {
            denial::AT_CAPACITY
        } else if slots.excess() > 0 {
            denial::RESERVED_FOR_WAITERS
        } else {
            denial::AT_TARGET_CAPACITY
        };
        (reason, free_at)
    }

    /// When `count` of these leases will have ended; `None` when fewer have an end.
    fn over_at<'a>(&self, count: usize, leases: impl Iterator<Item = &'a str>) -> Option<Duration> {
        let Some(last) = count.checked_sub(1) else {
            return Some(Duration::ZERO);
        };
        let mut ends: Vec<_> = leases
            .filter_map(|uid| self.leases.get(uid))
            .map(Tracked::due)
            .collect();
        if last >= ends.len() {
            return None;
        }
        let (_, end, _) = ends.select_nth_unstable(last);
        Some(*end)
    }
}

struct Limit {
    taken: usize,
    max: usize,
}

impl Limit {
    /// How many must end before one more fits.
    fn excess(&self) -> usize {
        (self.taken + 1).saturating_sub(self.max)
    }
}
