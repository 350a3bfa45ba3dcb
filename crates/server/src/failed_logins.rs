//! The delay before the answer to a wrong password: it grows with each one from the same address.
//!
//! Only that answer is delayed. A right password is answered at once, whatever its address: there
//! may be many clients behind one address, and only one of them has a wrong password.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

use parking_lot::Mutex;

/// The delay of the first answer: too short to notice for a person who mistypes.
const FIRST_DELAY_US: u64 = 100_000;

/// The longest delay: the one that RabbitMQ has for every wrong password.
const DELAY_US_MAX: u64 = 3_000_000;

/// After this long without a wrong password, an address starts again with the first delay.
const FORGET_AFTER_US: u64 = 60_000_000;

/// Maximum addresses that are remembered; beyond it, the one that failed longest ago is dropped.
const ADDRESSES_MAX: usize = 4096;

/// The addresses that wrong passwords came from.
#[derive(Default)]
pub(crate) struct FailedLogins {
    addresses: Mutex<HashMap<IpAddr, AddressFailures>>,
}

#[derive(Clone, Copy)]
struct AddressFailures {
    count: u32,
    last_us: u64,
}

impl FailedLogins {
    /// Counts a wrong password, and returns the delay of its answer, in microseconds.
    pub(crate) fn count(&self, address: IpAddr, now_us: u64) -> u64 {
        let address = network(address);
        let mut addresses = self.addresses.lock();
        if addresses.len() >= ADDRESSES_MAX && !addresses.contains_key(&address) {
            let longest = addresses
                .iter()
                .min_by_key(|(_, failures)| failures.last_us);
            if let Some((longest, _)) = longest.map(|(address, last)| (*address, *last)) {
                addresses.remove(&longest);
            }
        }
        let none = AddressFailures {
            count: 0,
            last_us: now_us,
        };
        let failures = addresses.entry(address).or_insert(none);
        if now_us.saturating_sub(failures.last_us) >= FORGET_AFTER_US {
            *failures = none;
        }
        let wait_us = FIRST_DELAY_US << failures.count.min(16);
        failures.count = failures.count.saturating_add(1);
        failures.last_us = now_us;
        wait_us.min(DELAY_US_MAX)
    }
}

/// The addresses that are counted as one: a client with one IPv6 address has all of its /64
/// network.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from(network))
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> IpAddr {
        IpAddr::from(number.to_be_bytes())
    }

    #[test]
    fn each_failure_waits_longer_until_a_pause() {
        let failed = FailedLogins::default();
        let waits = |now_us: u64, count: usize| -> Vec<u64> {
            let wait = |_| failed.count(address(1), now_us) / 1000;
            (0..count).map(wait).collect()
        };
        assert_eq!(waits(0, 7), [100, 200, 400, 800, 1600, 3000, 3000]);
        assert_eq!(waits(FORGET_AFTER_US - 1, 100), [3000; 100]);
        assert_eq!(failed.count(address(2), FORGET_AFTER_US), FIRST_DELAY_US);
        assert_eq!(waits(2 * FORGET_AFTER_US - 1, 2), [100, 200]);
    }

    #[test]
    fn one_address_has_many_forms() {
        let failed = FailedLogins::default();
        let waits = [
            "10.0.0.1",
            "::ffff:10.0.0.1",
            "fd00::1",
            "fd00::2:3",
            "fd00:0:0:1::1",
        ]
        .map(|it| it.parse().map(|address| failed.count(address, 0) / 1000));
        assert_eq!(waits, [Ok(100), Ok(200), Ok(100), Ok(200), Ok(100)]);
    }

    #[test]
    fn a_bounded_number_of_addresses_is_remembered() {
        let failed = FailedLogins::default();
        for number in 0..3 * ADDRESSES_MAX as u32 {
            failed.count(address(number), u64::from(number));
        }
        assert_eq!(failed.addresses.lock().len(), ADDRESSES_MAX);
        let last = address(3 * ADDRESSES_MAX as u32 - 1);
        assert_eq!(failed.count(last, 0), 2 * FIRST_DELAY_US);
        assert_eq!(failed.count(address(0), 0), FIRST_DELAY_US);
    }
}
