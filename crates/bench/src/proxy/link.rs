//! A distance: its round trip, jitter and bandwidth.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::delay::LinkDirection;

/// A distance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// The round trip: half of it each way.
    pub rtt: Duration,
    /// Maximum of the additional delay each way, which is evenly distributed.
    pub jitter: Duration,
    /// The bandwidth each way, of all connections together; `None`: no limit.
    pub bandwidth: Option<Bandwidth>,
}

/// Without a limit, the bytes that are held are bounded as for this bandwidth.
const FASTEST_BITS_PER_S: u64 = 10_000_000_000;
/// A connection holds at least this much, however slow and short the link is: about what the
/// buffers of sockets hold.
const ROOM_BYTES_MIN: u64 = 256 << 10;
/// A connection holds at most this much.
const ROOM_BYTES_MAX: u64 = 64 << 20;
/// The payload of a packet.
const PIECE_BYTES_MIN: u64 = 1_448;
const PIECE_BYTES_MAX: u64 = 64 << 10;

/// Round trips until a first answer at most: to connect, to find a leader, and to ask it.
const QUIET_ROUND_TRIPS: u32 = 20;
/// How many times the transmission of an answer may take.
const QUIET_ANSWERS: u128 = 5;
/// Bytes that a broker may send before a client can use any of them: a partition's part of a Fetch
/// response of Kafka.
const ANSWER_BYTES: usize = 1 << 20;

impl Link {
    /// How long this many consumers, who share the bandwidth, may receive nothing although a
    /// message is on its way to them.
    pub(crate) fn quiet(&self, size_bytes: usize, consumers: u32) -> Duration {
        let round_trips = self.rtt.saturating_add(self.jitter.saturating_mul(2));
        let round_trips = round_trips.saturating_mul(QUIET_ROUND_TRIPS);
        let bytes = size_bytes.max(ANSWER_BYTES) as u128 * u128::from(consumers.max(1));
        let ns = self.bits_per_s().map_or(0, |bits| {
            QUIET_ANSWERS * bytes * 8 * 1_000_000_000 / u128::from(bits)
        });
        round_trips.saturating_add(Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX)))
    }

    /// Whether there is no distance.
    pub fn is_none(&self) -> bool {
        *self == Link::default()
    }

    pub(super) fn rtt_ns(&self) -> u64 {
        nanoseconds(self.rtt)
    }

    fn one_way_ns(&self) -> u64 {
        self.rtt_ns() / 2
    }

    fn jitter_ns(&self) -> u64 {
        nanoseconds(self.jitter)
    }

    fn bits_per_s(&self) -> Option<u64> {
        self.bandwidth.map(|bandwidth| bandwidth.0)
    }

    /// One direction of this link.
    pub(crate) fn direction(&self) -> LinkDirection {
        LinkDirection::new(self.one_way_ns(), self.jitter_ns(), self.bits_per_s())
    }

    /// Maximum of bytes that one connection holds in each direction: twice the product of bandwidth
    /// and delay.
    pub(crate) fn room_bytes(&self) -> usize {
        let bits_per_s = self.bits_per_s().unwrap_or(FASTEST_BITS_PER_S).min(1 << 40);
        let delay_ns = u128::from(self.one_way_ns() + self.jitter_ns());
        let holds = u128::from(bits_per_s) / 8 * delay_ns / 1_000_000_000;
        let room = u64::try_from(2 * holds).unwrap_or(u64::MAX);
        room.clamp(ROOM_BYTES_MIN, ROOM_BYTES_MAX) as usize
    }

    /// Bytes that are delayed together: those of a millisecond, so that a slow link is even.
    pub(super) fn piece_bytes(&self) -> usize {
        let bytes = self
            .bits_per_s()
            .map_or(PIECE_BYTES_MAX, |bits| bits / 8_000);
        bytes.clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX) as usize
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "round trip {:?}", self.rtt)?;
        if !self.jitter.is_zero() {
            write!(f, ", jitter {:?}", self.jitter)?;
        }
        match self.bandwidth {
            Some(bandwidth) => write!(f, ", {bandwidth}"),
            None => Ok(()),
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    // An hour at most, so that sums of times cannot overflow.
    let most = Duration::from_secs(3_600);
    u64::try_from(time.min(most).as_nanos()).unwrap_or(u64::MAX)
}

/// Bits per second, at least one: `100Mbit`, `1.5Gbit`, `64kbit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bandwidth(u64);

/// It is not a bandwidth.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no bandwidth: write 100Mbit, 1.5Gbit or 64kbit")]
pub struct BandwidthError(String);

const UNITS: [(&str, u64); 4] = [
    ("Gbit", 1_000_000_000),
    ("Mbit", 1_000_000),
    ("kbit", 1_000),
    ("bit", 1),
];

impl Bandwidth {
    /// `None` for 0.
    pub fn from_bits_per_s(bits: u64) -> Option<Bandwidth> {
        (bits > 0).then_some(Bandwidth(bits))
    }

    /// Bits per second.
    pub fn bits_per_s(&self) -> u64 {
        self.0
    }
}

impl FromStr for Bandwidth {
    type Err = BandwidthError;

    fn from_str(text: &str) -> Result<Bandwidth, BandwidthError> {
        let error = || BandwidthError(text.to_owned());
        let split = text
            .find(|c: char| c.is_ascii_alphabetic())
            .ok_or_else(error)?;
        let (number, unit) = text.split_at(split);
        let unit = unit.trim_end_matches("/s");
        let known = UNITS
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(unit));
        let (_, factor) = known.ok_or_else(error)?;
        let number: f64 = number.trim().parse().map_err(|_| error())?;
        // The cast makes 0 of negative numbers and of fractions of 1, which is refused.
        let bits = (number * *factor as f64) as u64;
        Bandwidth::from_bits_per_s(bits).ok_or_else(error)
    }
}

impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |unit: &&(&str, u64)| self.0 >= unit.1;
        let (name, factor) = UNITS.iter().find(fits).unwrap_or(&UNITS[3]);
        write!(f, "{}{name}", self.0 as f64 / *factor as f64)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn bandwidths_are_written_as_users_write_them() {
        let bits = |text: &str| text.parse::<Bandwidth>().map(|it| it.bits_per_s());
        assert_eq!(bits("100Mbit"), Ok(100_000_000));
        assert_eq!(bits("1.5gbit/s"), Ok(1_500_000_000));
        assert_eq!(bits("64 kbit"), Ok(64_000));
        for wrong in [
            "", "100", "Mbit", "-1Mbit", "0bit", "NaNbit", "10MB", "1 Mbitt", "é",
        ] {
            assert_eq!(bits(wrong), Err(BandwidthError(wrong.to_owned())));
        }
        for text in ["1.5Gbit", "100Mbit", "64kbit", "7bit"] {
            assert_eq!(text.parse::<Bandwidth>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn who_is_far_away_may_be_quiet_for_longer() {
        let far = Link {
            rtt: Duration::from_secs(2),
            ..Link::default()
        };
        assert_eq!(far.quiet(100, 1), Duration::from_secs(40));
        let thin = Link {
            bandwidth: Bandwidth::from_bits_per_s(1 << 20),
            ..Link::default()
        };
        assert_eq!(thin.quiet(1 << 20, 1), Duration::from_secs(40));
        assert_eq!(thin.quiet(1 << 22, 3), Duration::from_secs(3 * 160));
        assert_eq!(Link::default().quiet(1 << 30, 9), Duration::ZERO);
    }

    #[test]
    fn a_connection_holds_what_the_distance_holds() {
        let link = |ms, bandwidth: Option<&str>| Link {
            rtt: Duration::from_millis(ms),
            jitter: Duration::ZERO,
            bandwidth: bandwidth.map(|text| text.parse().unwrap()),
        };
        assert_eq!(link(0, None).room_bytes(), 256 << 10);
        // A gigabit for 50 ms, twice.
        assert_eq!(link(100, Some("1Gbit")).room_bytes(), 12_500_000);
        assert_eq!(link(10_000, None).room_bytes(), 64 << 20);
        assert_eq!(link(0, Some("1kbit")).piece_bytes(), 1_448);
        assert_eq!(link(0, Some("100Mbit")).piece_bytes(), 12_500);
        assert!(Link::default().is_none());
        let shown = link(10, Some("1Gbit")).to_string();
        assert_eq!(shown, "round trip 10ms, 1Gbit");
    }
}
