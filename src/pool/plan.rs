//! Decides how many members come or which go. Pure.

use std::cmp::Ordering;

use super::observe::{Member, Observation};

/// How many members one pass creates or deletes at most, so that a typing error in replicas can be
/// corrected while it is carried out.
const BATCH: usize = 50;

/// What one pass does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Nothing.
    Rest,
    /// Create so many members.
    Create(usize),
    /// Delete these members.
    Delete(Vec<Member>),
}

/// Decides what one pass does.
///
/// Members go in this order: never provisioned, failed, not leasable, then the rest; the youngest
/// first among equals.
pub(super) fn plan(observation: &Observation) -> Action {
    let Observation {
        wanted,
        members,
        unseen,
    } = observation;
    let present = members.len() + unseen;
    match present.cmp(wanted) {
        Ordering::Less => Action::Create((wanted - present).min(BATCH)),
        Ordering::Equal => Action::Rest,
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
