//! What a pool may not exceed: how many more members may be created, and where. Pure.

use crawl_api::pool::{PoolLimits, PoolPlacement};

use super::placement::{self, Place};

/// What stands in the way of more members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    /// Every placement is paused.
    Paused,
    /// `limits.replicas`.
    Replicas(u32),
    /// `limits.pricePerHour`.
    Price(String),
}

/// How many members may be created, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Room {
    /// So many; `usize::MAX` without a limit.
    pub count: usize,
    /// Where they go; without a placement as the template says.
    pub place: Option<PoolPlacement>,
    /// What keeps `count` from being larger.
    pub bound: Option<Bound>,
    /// There is more than a limit allows already: what goes makes no room for another.
    pub exceeded: bool,
}

/// What the pool has: the place of each member that has, or may have, a machine, and how many
/// members were created that are not seen yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machines<'a> {
    pub places: &'a [Option<usize>],
    pub unseen: usize,
}

/// Judges the limits.
pub(super) fn room(limits: Option<&PoolLimits>, places: &[Place], machines: Machines<'_>) -> Room {
    let limits = limits.cloned().unwrap_or_default();
    let PoolLimits {
        creates_per_hour: _, // a budget of the machines: see proxy::budget
        replicas,
        price_per_hour,
    } = limits;
    let candidates = placement::candidates(places);
    if candidates.is_empty() && !places.is_empty() {
        return Room {
            count: 0,
            place: None,
            bound: Some(Bound::Paused),
            exceeded: false,
        };
    }
    let mut room = Room {
        count: usize::MAX,
        place: candidates.first().map(|place| place.placement.clone()),
        bound: None,
        exceeded: false,
    };
    if let Some(limit) = &price_per_hour {
        let spent = spent(places, machines);
        let left = micros(limit).saturating_sub(spent);
        room.exceeded = spent > micros(limit);
        let affordable = candidates.iter().find(|place| price(place) <= left);
        room.bound = Some(Bound::Price(limit.clone()));
        room.count = match affordable {
            Some(place) => left.checked_div(price(place)).map_or(usize::MAX, |count| {
                usize::try_from(count).unwrap_or(usize::MAX)
            }),
            None if places.is_empty() => usize::MAX, // there are no prices
            None => 0,
        };
        if let Some(place) = affordable {
            room.place = Some(place.placement.clone());
        }
    }
    if let Some(limit) = replicas {
        let most = usize::try_from(limit).unwrap_or(usize::MAX);
        let there = machines.places.len() + machines.unseen;
        let left = most.saturating_sub(there);
        room.exceeded |= there > most;
        if left < room.count {
            room.count = left;
            room.bound = Some(Bound::Replicas(limit));
        }
    }
    room
}

/// How many members have no price: they count as 0.
pub(super) fn unpriced(places: &[Place], members: &[Option<usize>]) -> usize {
    let priced = |place: &Option<usize>| {
        let place = place.and_then(|index| places.get(index));
        place.is_some_and(|place| place.placement.price_per_hour.is_some())
    };
    members.iter().filter(|place| !priced(place)).count()
}

/// In millionths. Why at the highest price for those that are not seen: where they went is not
/// remembered, and a limit on money errs to the cheaper side.
fn spent(places: &[Place], machines: Machines<'_>) -> u64 {
    let Machines {
        places: running,
        unseen,
    } = machines;
    let of = |index: &Option<usize>| index.and_then(|index| places.get(index)).map_or(0, price);
    let seen = running.iter().map(of).fold(0, u64::saturating_add);
    let highest = places.iter().map(price).max().unwrap_or_default();
    let unseen = u64::try_from(unseen).unwrap_or(u64::MAX);
    seen.saturating_add(highest.saturating_mul(unseen))
}

fn price(place: &Place) -> u64 {
    place.placement.price_per_hour.as_deref().map_or(0, micros)
}

/// A decimal number of at most six digits after the point, in millionths. The schema lets no other
/// text through, which would count as 0.
fn micros(text: &str) -> u64 {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let part = format!("{part:0<6}");
    format!("{whole}{part}").parse().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(price: Option<&str>, exhausted: bool) -> Place {
        Place {
            placement: PoolPlacement {
                price_per_hour: price.map(str::to_owned),
                ..PoolPlacement::default()
            },
            exhausted,
        }
    }

    fn judged(limits: &PoolLimits, places: &[Place], running: &[Option<usize>]) -> Room {
        let machines = Machines {
            places: running,
            unseen: 0,
        };
        room(Some(limits), places, machines)
    }

    fn priced(limit: &str) -> PoolLimits {
        PoolLimits {
            price_per_hour: Some(limit.into()),
            ..PoolLimits::default()
        }
    }

    #[test]
    fn prices_are_exact() {
        assert_eq!(micros("0.1"), 100_000);
        assert_eq!(micros("12"), 12_000_000);
        assert_eq!(micros("0.000001"), 1);
        assert_eq!(micros("999999999.999999"), 999_999_999_999_999);
    }

    #[test]
    fn a_limit_on_members_counts_those_that_are_on_their_way_out() {
        let limits = PoolLimits {
            replicas: Some(3),
            ..PoolLimits::default()
        };
        let two = judged(&limits, &[], &[None, None]);
        assert_eq!((two.count, two.bound), (1, Some(Bound::Replicas(3))));
        assert!(!judged(&limits, &[], &[None; 3]).exceeded);
        let above = judged(&limits, &[], &[None; 5]);
        assert_eq!((above.count, above.exceeded), (0, true));
        let machines = Machines {
            places: &[],
            unseen: 0,
        };
        assert_eq!(room(None, &[], machines).count, usize::MAX);
    }

    #[test]
    fn a_limit_on_the_price_takes_the_first_placement_that_it_allows() {
        let places = [place(Some("0.3"), false), place(Some("0.1"), false)];
        // Three tenths are ten times three hundredths, exactly.
        let full = judged(&priced("0.9"), &places, &[Some(0), Some(0)]);
        assert_eq!(full.count, 1);
        assert_eq!(full.place, Some(places[0].placement.clone()));
        let cheaper = judged(&priced("0.8"), &places, &[Some(0), Some(0)]);
        assert_eq!(cheaper.count, 2);
        assert_eq!(cheaper.place, Some(places[1].placement.clone()));
        let none = judged(&priced("0.6"), &places, &[Some(0), Some(0)]);
        assert_eq!(
            (none.count, none.bound),
            (0, Some(Bound::Price("0.6".into())))
        );
        assert!(!none.exceeded);
        assert!(judged(&priced("0.5"), &places, &[Some(0), Some(0)]).exceeded);
    }

    #[test]
    fn members_without_a_price_count_as_nothing() {
        let places = [place(None, false), place(Some("0.5"), false)];
        let room = judged(&priced("0.5"), &places, &[Some(0), None]);
        assert_eq!(room.count, usize::MAX, "the first place has no price");
        assert_eq!(unpriced(&places, &[Some(0), None, Some(1)]), 2);
        assert_eq!(judged(&priced("0.5"), &[], &[None]).count, usize::MAX);
    }
}
