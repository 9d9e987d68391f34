//! Decides how many members come or which go. Pure.

use std::cmp::Ordering;

use crawl_api::pool::PoolPlacement;

use super::observe::{Member, Observation};
use super::placement;

/// How many members one pass creates or deletes at most, so that a typing error in replicas can be
/// corrected while it is carried out.
const BATCH: usize = 50;

/// What one pass does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Nothing.
    Rest,
    /// Create so many members, there; without a placement where the template says.
    Create(usize, Option<PoolPlacement>),
    /// Delete these members.
    Delete(Vec<Member>),
}

/// Decides what one pass does.
///
/// Members go in this order: never provisioned, failed, not leasable, then the rest; the youngest
/// first among equals. One that gets no instance where it is goes too, when another placement has
/// capacity; the next pass creates one there.
pub(super) fn plan(observation: &Observation) -> Action {
    let Observation {
        wanted,
        members,
        unseen,
        places,
        newly_exhausted: _,
    } = observation;
    let present = members.len() + unseen;
    match present.cmp(wanted) {
        Ordering::Less => {
            let count = (wanted - present).min(BATCH);
            match placement::choose(places) {
                None if !places.is_empty() => Action::Rest,
                chosen => Action::Create(count, chosen.cloned()),
            }
        },
        Ordering::Equal => {
            let exhausted = |index: usize| places.get(index).is_some_and(|place| place.exhausted);
            let moving = members
                .iter()
                .filter(|member| member.stranded && member.place.is_some_and(exhausted));
            let moving: Vec<_> = moving.take(BATCH).cloned().collect();
            if moving.is_empty() || !places.iter().any(placement::Place::is_usable) {
                Action::Rest
            } else {
                Action::Delete(moving)
            }
        },
        Ordering::Greater => {
            let mut order: Vec<_> = members.iter().collect();
            order.sort_by(|a, b| {
                let age = b.created.cmp(&a.created);
                a.standing
                    .cmp(&b.standing)
                    .then(age)
                    .then_with(|| a.name.cmp(&b.name))
            });
            let excess = (present - wanted).min(members.len()).min(BATCH);
            match excess {
                0 => Action::Rest,
                _ => Action::Delete(order.into_iter().take(excess).cloned().collect()),
            }
        },
    }
}
