//! Hands out loopback addresses in order, so that an address is not used again soon after it
//! became free, as with a real provider's pool.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Addresses below 127.16.0.0 are left to whatever else uses loopback on the machine; those from
/// 127.255.0.0 on are the exits of proxies that leave from the wrong address.
const FIRST: u32 = 0x7f10_0000;
const LAST: u32 = 0x7fff_0000 - 1;

/// A cursor over the addresses.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Addresses {
    next: Ipv4Addr,
}

impl Addresses {
    pub(crate) fn starting_at(first: Ipv4Addr) -> Self {
        Self { next: first }
    }

    /// The next address that is acceptable; none when a whole round finds none.
    pub(crate) fn next(&mut self, acceptable: impl Fn(Ipv4Addr) -> bool) -> Option<Ipv4Addr> {
        let start = self.next.to_bits().clamp(FIRST, LAST);
        let found = (start..=LAST)
            .chain(FIRST..start)
            .filter(|bits| !matches!(bits & 0xff, 0 | 0xff))
            .map(Ipv4Addr::from_bits)
            .find(|ip| acceptable(*ip))?;
        self.next = Ipv4Addr::from_bits((found.to_bits() + 1).min(LAST));
        if found.to_bits() >= LAST {
            self.next = Ipv4Addr::from_bits(FIRST);
        }
        Some(found)
    }
}

/// Where a cloud with this seed starts: clouds side by side on one machine should not meet.
pub(crate) fn first_address(seed: &[u8]) -> Ipv4Addr {
    let digest = Sha256::digest(seed);
    let [a, b] = [digest.first().copied(), digest.get(1).copied()].map(Option::unwrap_or_default);
    Ipv4Addr::new(127, 16 + a % 224, b, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_in_order_and_skip_what_is_taken_and_the_ends_of_networks() {
        let mut addresses = Addresses::starting_at(Ipv4Addr::new(127, 20, 0, 253));
        let taken = Ipv4Addr::new(127, 20, 0, 254);
        let got: Vec<_> = (0..3)
            .filter_map(|_| addresses.next(|ip| ip != taken))
            .collect();
        assert_eq!(
            got,
            [
                Ipv4Addr::new(127, 20, 0, 253),
                Ipv4Addr::new(127, 20, 1, 1),
                Ipv4Addr::new(127, 20, 1, 2)
            ]
        );
    }

    #[test]
    fn the_last_address_is_followed_by_the_first() {
        let mut addresses = Addresses::starting_at(Ipv4Addr::new(127, 254, 255, 254));
        assert_eq!(
            addresses.next(|_| true),
            Some(Ipv4Addr::new(127, 254, 255, 254))
        );
        assert_eq!(addresses.next(|_| true), Some(Ipv4Addr::new(127, 16, 0, 1)));
    }

    #[test]
    fn a_start_outside_of_the_range_is_moved_into_it() {
        let mut addresses = Addresses::starting_at(Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(addresses.next(|_| true), Some(Ipv4Addr::new(127, 16, 0, 1)));
    }
}
