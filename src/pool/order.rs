//! In which order members go. Pure.

use std::collections::BTreeMap;

use super::member::{Member, Standing};

/// What is known of the leases of members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Leases {
    /// Nobody had a reason to ask.
    NotAsked,
    /// How many each has, by UID.
    Known(BTreeMap<String, i32>),
    /// The lease API cannot be asked; the choice waits for it.
    Awaited(String),
    /// The lease API could not be asked for too long; the choice is made without it.
    Unknown,
}

/// The members that go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice<'a> {
    pub members: Vec<&'a Member>,
    /// Which of those that can be leased go depends on their leases.
    pub contested: bool,
}

/// Chooses members to go: never provisioned, failed, not leasable, then idle, then those with the
/// fewest leases; outdated ones first among equals, then the oldest.
pub(super) fn choose<'a>(
    candidates: impl Iterator<Item = &'a Member>,
    count: usize,
    leases: &Leases,
) -> Choice<'a> {
    let of = |member: &Member| match leases {
        Leases::Known(counts) => counts.get(&member.uid).copied().unwrap_or_default(),
        Leases::NotAsked | Leases::Awaited(_) | Leases::Unknown => 0,
    };
    let mut order: Vec<_> = candidates.collect();
    order.sort_by_cached_key(|member| {
        let Member {
            standing,
            outdated,
            created,
            name,
            ..
        } = *member;
        (*standing, of(member), outdated.is_none(), *created, name)
    });
    let left = order.split_off(count.min(order.len()));
    let last_is_ready = order
        .last()
        .is_some_and(|last| last.standing == Standing::Ready);
    Choice {
        contested: last_is_ready && !left.is_empty(),
        members: order,
    }
}
