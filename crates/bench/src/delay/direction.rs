//! One direction of a link: when that arrives which is sent now.

use crate::schedule::Random;

/// Bits per second of one direction, all connections together, as a bucket of tokens: after a
/// silence [`TokenBucket::DEPTH_BYTES`] may be sent at once.
#[derive(Debug)]
struct TokenBucket {
    bits_per_s: u64,
    /// When the bucket is full again.
    full_ns: u64,
}

impl TokenBucket {
    /// About ten packets, as a network card sends them in one piece.
    const DEPTH_BYTES: u64 = 16 << 10;

    /// When the last of these bytes has left, if they are ready now.
    fn left_ns(&mut self, bytes: usize, now_ns: u64) -> u64 {
        self.full_ns = self.full_ns.max(now_ns) + self.time_ns(bytes as u64);
        let depth_ns = self.time_ns(TokenBucket::DEPTH_BYTES);
        now_ns.max(self.full_ns.saturating_sub(depth_ns))
    }

    fn time_ns(&self, bytes: u64) -> u64 {
        let ns = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(self.bits_per_s);
        u64::try_from(ns).unwrap_or(u64::MAX / 4)
    }
}

/// One direction, which all connections share: its delay, jitter and bandwidth.
#[derive(Debug)]
pub(crate) struct LinkDirection {
    one_way_ns: u64,
    jitter_ns: u64,
    bucket: Option<TokenBucket>,
    random: Random,
}

impl LinkDirection {
    pub(super) fn new(one_way_ns: u64, jitter_ns: u64, bits_per_s: Option<u64>) -> LinkDirection {
        LinkDirection {
            one_way_ns,
            jitter_ns,
            bucket: bits_per_s.map(|bits_per_s| TokenBucket {
                bits_per_s: bits_per_s.max(1),
                full_ns: 0,
            }),
            random: Random(one_way_ns ^ 0x5eed),
        }
    }

    /// When bytes that are sent now arrive.
    pub(super) fn due_ns(&mut self, bytes: usize, now_ns: u64) -> u64 {
        let left_ns = match &mut self.bucket {
            Some(bucket) => bucket.left_ns(bytes, now_ns),
            None => now_ns,
        };
        let jitter_ns = match self.jitter_ns {
            0 => 0,
            most => self.random.next() % (most + 1),
        };
        left_ns + self.one_way_ns + jitter_ns
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_more_passes_than_the_bandwidth_allows(
            pieces in prop::collection::vec((1..20_000usize, 0..2_000_000u64), 1..60),
            bits_per_s in 100_000..10_000_000_000u64,
        ) {
            let mut direction = LinkDirection::new(0, 0, Some(bits_per_s));
            let (mut now_ns, mut bytes, mut last_ns) = (0, 0u64, 0);
            for (size, pause_ns) in pieces {
                now_ns += pause_ns;
                bytes += size as u64;
                last_ns = direction.due_ns(size, now_ns).max(last_ns);
                let allowed = last_ns as f64 / 1e9 * bits_per_s as f64 / 8.0;
                prop_assert!(bytes as f64 <= allowed + TokenBucket::DEPTH_BYTES as f64 + 1.0);
            }
        }
    }

    #[test]
    fn jitter_delays_by_all_that_it_may() {
        let mut direction = LinkDirection::new(5_000, 1_000, None);
        let due_ns: Vec<u64> = (0..1_000).map(|_| direction.due_ns(1, 0)).collect();
        let (least, most) = (due_ns.iter().min(), due_ns.iter().max());
        assert!(least.is_some_and(|it| (5_000..5_100).contains(it)));
        assert!(most.is_some_and(|it| (5_900..=6_000).contains(it)));
    }

    #[test]
    fn a_silent_link_sends_a_little_at_once_and_then_at_its_rate() {
        let mut direction = LinkDirection::new(0, 0, Some(8_000_000));
        assert_eq!(direction.due_ns(16 << 10, 0), 0);
        // A megabyte per second: a thousand bytes each millisecond.
        assert_eq!(direction.due_ns(1_000, 0), 1_000_000);
        assert_eq!(direction.due_ns(1_000, 0), 2_000_000);
    }
}
