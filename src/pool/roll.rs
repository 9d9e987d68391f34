//! A roll: how many members are replaced, and whether another may be. Pure.
//!
//! The arithmetic is that of a Deployment's rolling update: never more than `replicas + maxSurge`
//! members, never fewer than `replicas - maxUnavailable` available ones, new members that are not
//! available yet count against both.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::limits::Bound;
use super::member::{Member, Standing};
use super::observe::Observation;
use super::placement::Place;

/// What may be done next about outdated members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// There are none.
    Done,
    /// So many more new members may be created.
    Surge(usize),
    /// So many outdated ones may go.
    Retire(usize),
    /// The next step waits for new members to become available, or for old ones to be gone.
    Waiting,
    /// New members fail.
    Halted,
}

/// A pool's roll.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Roll {
    /// How many members there are to be, as far as limits allow.
    pub wanted: usize,
    /// How many more there may be.
    pub surge: usize,
    /// How many members have to be available.
    pub floor: usize,
    /// Members that are as the template says and not too old.
    pub updated: usize,
    /// Members that are to be replaced.
    pub outdated: usize,
    /// There is no room for a surge: outdated members are deleted first.
    pub deletes_first: bool,
    /// What ails the new members that fail, when they are so many that the roll halts.
    pub halted: Vec<String>,
    /// What may be done next.
    pub stage: Stage,
}

impl Roll {
    /// Judges a roll.
    pub(super) fn of(observation: &Observation) -> Self {
        let Observation {
            replicas,
            members,
            unseen,
            going,
            room,
            strategy,
            ..
        } = observation;
        let machines = members.len() + unseen + going;
        let wanted = (*replicas).min(machines.saturating_add(room.count));
        let (old, new): (Vec<_>, Vec<_>) =
            members.iter().partition(|member| member.outdated.is_some());
        // Why also when none is outdated any more: the machine of the last one has to be gone
        // before another can be had.
        let short = members.len() + unseen < wanted;
        let under_way = !old.is_empty() || (observation.deletes_first && short);
        let deletes_first = under_way && has_no_room(observation, &new, machines, wanted);
        let surge = if deletes_first || old.is_empty() {
            0
        } else {
            resolve(&strategy.max_surge, wanted, Rounding::Up)
        };
        let unavailable = resolve(&strategy.max_unavailable, wanted, Rounding::Down);
        let unavailable = if surge == 0 {
            unavailable.max(1)
        } else {
            unavailable
        };
        let mut roll = Self {
            wanted,
            surge,
            floor: wanted.saturating_sub(unavailable),
            updated: new.len(),
            outdated: old.len(),
            deletes_first,
            halted: halted(&new),
            stage: Stage::Waiting,
        };
        roll.stage = roll.stage(observation, &old, &new);
        roll
    }

    fn stage(&self, observation: &Observation, old: &[&Member], new: &[&Member]) -> Stage {
        if old.is_empty() {
            return Stage::Done;
        }
        if observation.room.bound == Some(Bound::Paused) {
            return Stage::Waiting;
        }
        if !self.halted.is_empty() {
            return Stage::Halted;
        }
        if self.is_bound(observation) {
            return Stage::Waiting;
        }
        // The first new member of a roll is a canary: nothing else happens until it is available,
        // except that what is left of an earlier roll makes room for it.
        let proven = new.iter().any(|member| member.available);
        let begun = new.len() + observation.unseen;
        // Without a machine it proves nothing and waits for one that an old member has.
        let stranded = new.iter().all(|member| member.lacks_capacity) && observation.unseen == 0;
        let alone = begun == 0 || (self.deletes_first && stranded);
        let more = self.headroom(observation).min(observation.room.count);
        let more = more.min(self.wanted.saturating_sub(begun));
        let fewer = self.retirable(observation, old, new);
        let present = observation.members.len() + observation.unseen;
        let (more, fewer) = if proven {
            (more, fewer)
        } else if !alone {
            (0, 0)
        } else if self.surge > 0 {
            (more.min(1), fewer.min(present.saturating_sub(self.wanted)))
        } else if present >= self.wanted {
            (0, fewer.min(1))
        } else {
            (0, 0)
        };
        match (more, fewer) {
            (0, 0) => Stage::Waiting,
            (0, fewer) => Stage::Retire(fewer),
            (more, _) => Stage::Surge(more),
        }
    }

    /// Whether outdated members have to stay because nothing could take their place: there is more
    /// than a limit allows. It deletes nothing, and neither does a roll for it.
    pub(super) fn is_bound(&self, observation: &Observation) -> bool {
        self.outdated > 0 && self.deletes_first && observation.room.exceeded
    }

    /// How many members may be created. Those that are on their way out have machines yet.
    pub(super) fn headroom(&self, observation: &Observation) -> usize {
        let Observation {
            members,
            unseen,
            going,
            ..
        } = observation;
        (self.wanted + self.surge).saturating_sub(members.len() + unseen + going)
    }

    /// How many outdated members may go: those that do not work first, as far as new ones that are
    /// not available yet leave room; of the others as many as are above the floor.
    fn retirable(&self, observation: &Observation, old: &[&Member], new: &[&Member]) -> usize {
        let total = observation.members.len();
        let starting = new.iter().filter(|member| !member.available).count();
        let available = observation
            .members
            .iter()
            .filter(|member| member.available)
            .count();
        let room = total.saturating_sub(self.floor + starting);
        let broken = old
            .iter()
            .filter(|member| member.standing != Standing::Ready)
            .count();
        let working = old.len() - broken;
        let first = broken.min(room);
        let spare = available.saturating_sub(self.floor);
        first + working.min(room - first).min(spare)
    }
}

/// Whether not one member more can be had: it was tried in this roll, or is being tried, or a limit
/// of the pool forbids it.
fn has_no_room(observation: &Observation, new: &[&Member], machines: usize, wanted: usize) -> bool {
    let elsewhere = observation.places.iter().any(Place::is_usable);
    let refused = !elsewhere && new.iter().any(|member| member.lacks_capacity);
    let limited = observation.room.count == 0
        && machines <= wanted
        && observation.room.bound != Some(Bound::Paused);
    observation.deletes_first || refused || limited
}

/// A tenth of the new members may fail without the roll being to blame, which is none of up to nine.
fn halted(new: &[&Member]) -> Vec<String> {
    let failing: Vec<_> = new
        .iter()
        .filter_map(|member| Some(format!("{}: {}", member.name, member.failing.as_ref()?)))
        .collect();
    if failing.len() * 10 > new.len() {
        failing
    } else {
        Vec::new()
    }
}

#[derive(Clone, Copy)]
enum Rounding {
    Up,
    Down,
}

/// A number, or a percentage of `total`.
fn resolve(value: &IntOrString, total: usize, rounding: Rounding) -> usize {
    match value {
        IntOrString::Int(number) => usize::try_from(*number).unwrap_or_default(),
        IntOrString::String(text) => {
            // The schema lets nothing but percentages through.
            let percent = text.strip_suffix('%').and_then(|text| text.parse().ok());
            let share = total.saturating_mul(percent.unwrap_or(0_usize));
            match rounding {
                Rounding::Up => share.div_ceil(100),
                Rounding::Down => share / 100,
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_rounded_as_a_deployment_rounds_them() {
        let percent = |text: &str| IntOrString::String(text.into());
        assert_eq!(resolve(&percent("25%"), 3, Rounding::Up), 1);
        assert_eq!(resolve(&percent("25%"), 3, Rounding::Down), 0);
        assert_eq!(resolve(&percent("25%"), 10, Rounding::Up), 3);
        assert_eq!(resolve(&percent("25%"), 10, Rounding::Down), 2);
        assert_eq!(resolve(&percent("0%"), 10, Rounding::Up), 0);
        assert_eq!(resolve(&IntOrString::Int(7), 3, Rounding::Up), 7);
    }
}
