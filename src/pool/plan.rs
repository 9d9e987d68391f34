//! The action table of a pool: which members come, go or change, decided from what was observed.
//!
//! Called by `pool::reconcile` between `observe` and `act`. Pure: no client, no clock. The rows are
//! those of the action table of ProxyPool in docs/architecture.md.

use crawl_api::pool::PoolPlacement;

use super::member::{Member, Update};
use super::observe::Observation;
use super::order::{self, Leases};
use super::placement::Place;
use super::roll::{Roll, Stage};

/// How many members one pass creates, deletes or changes at most, so that a typing error in replicas
/// can be corrected while it is carried out.
const BATCH: usize = 50;

/// Why members go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// There are more than are wanted.
    TooMany,
    /// They get no machine where they are.
    NoCapacity,
    /// Newer ones take their place.
    Outdated,
}

/// What one pass does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Nothing.
    Rest,
    /// Create so many members, there; without a placement where the template says.
    Create(usize, Option<PoolPlacement>),
    /// Delete these members.
    Delete(Cause, Vec<Member>),
    /// Write a change of the template into these members.
    Update(Vec<(Member, Update)>),
    /// Ask how many leases members have, and decide again.
    CountLeases,
    /// Wait for the lease API, since leases decide which members go.
    AwaitLeases,
}

/// How many members there are, compared with how many there are to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Balance {
    /// So many are missing and may be created.
    Short(usize),
    /// Enough, or no more may be created now.
    Even,
    /// So many too many.
    Over(usize),
}

/// Decides what one pass does.
#[expect(
    clippy::match_same_arms,
    reason = "each arm is a row of the action table"
)]
pub(super) fn plan(observation: &Observation) -> Action {
    let roll = Roll::of(observation);
    let create = |count: usize| Action::Create(count.min(BATCH), observation.room.place.clone());
    let go = |cause, count: usize, candidates: Vec<&Member>| {
        let count = count.min(BATCH);
        let choice = order::choose(candidates.into_iter(), count, &observation.leases);
        match (choice.contested, &observation.leases) {
            (true, Leases::NotAsked) => Action::CountLeases,
            (true, Leases::Awaited(_)) => Action::AwaitLeases,
            (true, Leases::Known(_) | Leases::Unknown)
            | (false, Leases::NotAsked | Leases::Awaited(_) | Leases::Known(_) | Leases::Unknown) => {
                Action::Delete(cause, choice.members.into_iter().cloned().collect())
            },
        }
    };
    let moving = moving(observation);
    let updates = updates(observation);
    match (
        balance(observation, &roll),
        moving.is_empty(),
        updates.is_empty(),
        roll.stage,
    ) {
        (Balance::Short(count), true | false, true | false, _) => create(count), // row: too few
        (Balance::Over(count), true | false, true | false, _) => {
            go(Cause::TooMany, count, observation.members.iter().collect())
        }, // row: too many
        (Balance::Even, false, true | false, _) => Action::Delete(Cause::NoCapacity, moving), // row: no capacity where they are
        (Balance::Even, true, false, _) => Action::Update(updates), // row: changed in place
        (Balance::Even, true, true, Stage::Done) => Action::Rest,   // row: as it should be
        (Balance::Even, true, true, Stage::Halted) => Action::Rest, // row: roll, halted
        (Balance::Even, true, true, Stage::Waiting) => Action::Rest, // row: roll, waiting
        (Balance::Even, true, true, Stage::Surge(count)) => create(count), // row: roll, surge
        (Balance::Even, true, true, Stage::Retire(count)) => {
            let outdated = observation.members.iter();
            let outdated = outdated.filter(|member| member.outdated.is_some());
            go(Cause::Outdated, count, outdated.collect())
        }, // row: roll, retire
    }
}

fn balance(observation: &Observation, roll: &Roll) -> Balance {
    let present = observation.members.len() + observation.unseen;
    let most = roll.wanted + roll.surge;
    if present > most {
        return match (present - most).min(observation.members.len()) {
            0 => Balance::Even,
            over => Balance::Over(over),
        };
    }
    let missing = roll.wanted.saturating_sub(present);
    let missing = missing.min(observation.room.count);
    let missing = match roll.stage {
        // Why: without a roll, one that is on its way out is made up for at once.
        Stage::Done if !roll.deletes_first => missing,
        Stage::Done | Stage::Surge(_) | Stage::Retire(_) | Stage::Waiting | Stage::Halted => {
            missing.min(roll.headroom(observation))
        },
    };
    match missing {
        0 => Balance::Even,
        missing => Balance::Short(missing),
    }
}

/// Members that get no instance where they are, when another placement has capacity.
fn moving(observation: &Observation) -> Vec<Member> {
    let Observation {
        members, places, ..
    } = observation;
    if !places.iter().any(Place::is_usable) {
        return Vec::new();
    }
    let exhausted = |index: usize| places.get(index).is_some_and(|place| place.exhausted);
    members
        .iter()
        .filter(|member| member.stranded && member.place.is_some_and(exhausted))
        .take(BATCH)
        .cloned()
        .collect()
}

fn updates(observation: &Observation) -> Vec<(Member, Update)> {
    let with_update = |member: &Member| Some((member.clone(), member.update.clone()?));
    let all = observation.members.iter().filter_map(with_update);
    all.take(BATCH).collect()
}
