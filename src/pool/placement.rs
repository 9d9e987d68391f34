//! Where the members of a pool run: which placements have capacity, as far as is known.
//!
//! A placement is left out for a while when the provider had nothing to give there, or took spot
//! instances back too often. What is remembered may be lost: it costs one more attempt.

use std::collections::HashMap;
use std::time::Duration;

use crawl_api::conditions as c;
use crawl_api::pool::{PoolPlacement, ProxyPool};
use crawl_api::proxy::{Placement, Proxy};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use parking_lot::Mutex;

/// How long a placement without capacity is left out.
const MEMORY: Duration = Duration::from_mins(15);
/// More spot instances than this, taken back within [`CHURN_WINDOW`], are too many.
const CHURN: usize = 3;
const CHURN_WINDOW: SignedDuration = SignedDuration::from_hours(1);

/// A placement of a pool, and whether new members may go there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// As the pool has it.
    pub placement: PoolPlacement,
    /// It has no capacity, as far as is known.
    pub exhausted: bool,
}

/// Until when placements are left out, by pool UID. Monotonic time.
#[derive(Debug, Default)]
pub(super) struct Exhausted(Mutex<HashMap<String, HashMap<PoolPlacement, Duration>>>);

impl Place {
    /// Whether new members may go there.
    pub(super) fn is_usable(&self) -> bool {
        !self.placement.paused && !self.exhausted
    }
}

/// Where new members may go, in order: the placements with capacity, or else the first that is not
/// paused. Empty when all are paused, or when the pool has none and leaves it to its template.
pub(super) fn candidates(places: &[Place]) -> Vec<&Place> {
    let usable: Vec<_> = places.iter().filter(|place| place.is_usable()).collect();
    if usable.is_empty() {
        let open = places.iter().find(|place| !place.placement.paused);
        return open.into_iter().collect();
    }
    usable
}

/// The template's placement with what a pool's placement overrides.
pub(super) fn resolve(template: Option<&Placement>, chosen: &PoolPlacement) -> Placement {
    let PoolPlacement {
        zone,
        spot,
        paused: _,
        price_per_hour: _,
    } = chosen;
    let template = template.cloned().unwrap_or_default();
    Placement {
        zone: zone.clone().or(template.zone),
        spot: *spot,
        ..template
    }
}

/// Which of the pool's placements a member runs in.
pub(super) fn of_member(pool: &ProxyPool, member: &Proxy) -> Option<usize> {
    let own = member.spec.placement.clone().unwrap_or_default();
    pool.spec.placements.iter().position(|placement| {
        let resolved = resolve(pool.spec.template.spec.placement.as_ref(), placement);
        (&resolved.zone, resolved.spot) == (&own.zone, own.spot)
    })
}

/// A member that has no instance and gets none where it is, or whose instance was just taken back.
pub(super) fn is_stranded(member: &Proxy) -> bool {
    let provisioned = member.condition(c::PROVISIONED);
    let taken = provisioned.is_some_and(|condition| condition.reason == c::REASON_PREEMPTED);
    taken || lacks_capacity(member)
}

/// A member that has no instance and gets none, for lack of quota or stock.
pub(super) fn lacks_capacity(member: &Proxy) -> bool {
    let provisioned = member.condition(c::PROVISIONED);
    let status = member.status.as_ref();
    provisioned.is_some_and(|condition| condition.reason == c::REASON_QUOTA_EXCEEDED)
        && status.is_some_and(|status| status.provider_id.is_none())
}

// === impl Exhausted ===

impl Exhausted {
    /// The places of a pool, judged by its members, and a line for each that has just become
    /// exhausted.
    pub(super) fn judge(
        &self,
        pool: &ProxyPool,
        members: &[std::sync::Arc<Proxy>],
        now: Timestamp,
        elapsed: Duration,
    ) -> (Vec<Place>, Vec<String>) {
        let uid = pool.uid().unwrap_or_default();
        let mut memory = self.0.lock();
        if pool.spec.placements.is_empty() {
            memory.remove(&uid);
            return (Vec::new(), Vec::new());
        }
        let until = memory.entry(uid).or_default();
        until.retain(|placement, until| {
            *until > elapsed && pool.spec.placements.contains(placement)
        });
        let mut told = Vec::new();
        for (index, placement) in pool.spec.placements.iter().enumerate() {
            let here = members
                .iter()
                .filter(|member| of_member(pool, member) == Some(index));
            let here: Vec<_> = here.collect();
            let Some(why) = why_exhausted(placement, &here, now) else {
                continue;
            };
            if until.insert(placement.clone(), elapsed + MEMORY).is_none() {
                told.push(format!(
                    "{} {why}; new members go elsewhere for {} min, where there is an alternative",
                    describe(placement),
                    MEMORY.as_secs() / 60
                ));
            }
        }
        let places = pool.spec.placements.iter().map(|placement| Place {
            placement: placement.clone(),
            exhausted: until.contains_key(placement),
        });
        (places.collect(), told)
    }
}

fn why_exhausted(
    placement: &PoolPlacement,
    members: &[&std::sync::Arc<Proxy>],
    now: Timestamp,
) -> Option<&'static str> {
    if members.iter().any(|member| lacks_capacity(member)) {
        return Some("has no capacity");
    }
    let taken = members
        .iter()
        .filter_map(|member| member.status.as_ref())
        .flat_map(|status| &status.setbacks)
        .filter(|setback| setback.reason == c::REASON_PREEMPTED)
        .filter(|setback| now.duration_since(setback.time.0) < CHURN_WINDOW)
        .count();
    (placement.spot && taken > CHURN).then_some("takes its spot instances back too often")
}

fn describe(placement: &PoolPlacement) -> String {
    let PoolPlacement { zone, spot, .. } = placement;
    let kind = if *spot { "spot" } else { "on demand" };
    match zone {
        Some(zone) => format!("placement {zone} ({kind})"),
        None => format!("the template's zone ({kind})"),
    }
}
