//! The delay of one direction: when bytes arrive that are sent now, and the bytes of a connection
//! that have not arrived.

use std::collections::VecDeque;

use crate::schedule::Random;

/// How a direction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The sender has closed its half. Bytes that it sent before still arrive.
    Finished,
    /// The connection broke. The other side sees it as late as it would see bytes.
    Broken,
}

/// Bytes of one direction of one connection, in order, each with the time at which it arrives.
#[derive(Debug)]
pub(super) struct DelayedBytes {
    bytes: VecDeque<u8>,
    /// The end of each piece, counted from the first byte of the connection, and when it arrives.
    marks: VecDeque<(u64, u64)>,
    /// Number of bytes that were put in so far.
    put: u64,
    /// Number of bytes that were taken out so far.
    taken: u64,
    /// Number of bytes that have arrived so far.
    arrived: u64,
    last_due_ns: u64,
    end: Option<(End, u64)>,
    room_bytes: usize,
}

impl DelayedBytes {
    /// An empty queue that accepts about this many bytes.
    pub(super) fn new(room_bytes: usize) -> DelayedBytes {
        DelayedBytes {
            bytes: VecDeque::new(),
            marks: VecDeque::new(),
            put: 0,
            taken: 0,
            arrived: 0,
            last_due_ns: 0,
            end: None,
            room_bytes,
        }
    }

    /// How many more bytes it accepts.
    pub(super) fn room_bytes(&self) -> usize {
        match self.end {
            Some(_) => 0,
            None => self.room_bytes.saturating_sub(self.bytes.len()),
        }
    }

    /// Adds bytes that arrive at `due_ns`, but not before bytes that were added earlier.
    pub(super) fn put(&mut self, bytes: &[u8], due_ns: u64) {
        if bytes.is_empty() || self.end.is_some() {
            return;
        }
        let due_ns = due_ns.max(self.last_due_ns);
        self.last_due_ns = due_ns;
        self.bytes.extend(bytes);
        self.put += bytes.len() as u64;
        match self.marks.back_mut() {
            Some((end, due)) if *due == due_ns => *end = self.put,
            _ => self.marks.push_back((self.put, due_ns)),
        }
    }

    /// No more bytes follow. Even a broken connection delivers the bytes that were sent before.
    pub(super) fn finish(&mut self, end: End, due_ns: u64) {
        if self.end.is_none() {
            self.end = Some((end, due_ns.max(self.last_due_ns)));
        }
    }

    /// Drops all bytes, because the receiver is gone.
    pub(super) fn abandon(&mut self) {
        self.bytes = VecDeque::new();
        self.marks.clear();
        self.taken = self.put;
        self.end = Some((End::Finished, 0));
    }

    /// The bytes that have arrived and were not taken out.
    pub(super) fn arrived(&mut self, now_ns: u64) -> &[u8] {
        while let Some((end, due_ns)) = self.marks.front().copied()
            && due_ns <= now_ns
        {
            self.arrived = end;
            self.marks.pop_front();
        }
        let bytes = usize::try_from(self.arrived.saturating_sub(self.taken)).unwrap_or(usize::MAX);
        let (first, _) = self.bytes.as_slices();
        &first[..first.len().min(bytes)]
    }

    /// Removes this many of the arrived bytes.
    pub(super) fn take(&mut self, bytes: usize) {
        self.bytes.drain(..bytes);
        self.taken += bytes as u64;
    }

    /// The end, once it has arrived and all bytes before it were taken out.
    pub(super) fn end(&self, now_ns: u64) -> Option<End> {
        let is_empty = self.bytes.is_empty();
        let due = self.end.filter(|(_, due_ns)| is_empty && *due_ns <= now_ns);
        due.map(|(end, _)| end)
    }

    /// Whether nothing more can be put in.
    pub(super) fn is_finished(&self) -> bool {
        self.end.is_some()
    }

    /// When the next byte or the end arrives. Bytes that have arrived already do not count.
    pub(super) fn next_ns(&self) -> Option<u64> {
        let byte = self.marks.front().map(|(_, due_ns)| *due_ns);
        byte.or_else(|| {
            self.end
                .filter(|_| self.bytes.is_empty())
                .map(|(_, due_ns)| due_ns)
        })
    }
}

/// The bandwidth of one direction, all connections together, as a token bucket: after a pause,
/// [`TokenBucket::DEPTH_BYTES`] may be sent at once.
#[derive(Debug)]
pub(super) struct TokenBucket {
    bits_per_s: u64,
    /// When the bucket is full again.
    full_ns: u64,
}

impl TokenBucket {
    /// About ten packets, which a network card sends in one burst.
    pub(super) const DEPTH_BYTES: u64 = 16 << 10;

    pub(super) fn new(bits_per_s: u64) -> TokenBucket {
        TokenBucket {
            bits_per_s: bits_per_s.max(1),
            full_ns: 0,
        }
    }

    /// When the last of these bytes leaves the sender, if all of them are ready now.
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

/// Delay, jitter and bandwidth of one direction, which all connections share.
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
            bucket: bits_per_s.map(TokenBucket::new),
            random: Random(one_way_ns ^ 0x5eed),
        }
    }

    /// When bytes that are sent now arrive.
    pub(crate) fn due_ns(&mut self, bytes: usize, now_ns: u64) -> u64 {
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
        fn bytes_and_order_survive_any_pieces(
            steps in prop::collection::vec((0..4u8, 0..5_000usize, 0..3_000_000u64), 1..120),
            jitter_ns in 0..2_000_000u64,
            bits_per_s in prop::option::of(1_000_000..1_000_000_000u64),
        ) {
            let mut direction = LinkDirection::new(1_000_000, jitter_ns, bits_per_s);
            let mut line = DelayedBytes::new(20_000);
            let (mut sent, mut got, mut now_ns) = (Vec::new(), Vec::new(), 0);
            // When each byte was sent.
            let mut sent_ns = Vec::new();
            for (what, size, pause_ns) in steps {
                now_ns += pause_ns;
                if what > 0 {
                    let bytes: Vec<u8> = (0..size.min(line.room_bytes()))
                        .map(|at| (sent.len() + at) as u8 ^ 0x5a)
                        .collect();
                    line.put(&bytes, direction.due_ns(bytes.len(), now_ns));
                    sent_ns.resize(sent.len() + bytes.len(), now_ns);
                    sent.extend(bytes);
                } else {
                    let arrived = line.arrived(now_ns);
                    let some = arrived.len().min(size + 1);
                    got.extend_from_slice(&arrived[..some]);
                    line.take(some);
                    if let Some(last) = got.len().checked_sub(1) {
                        prop_assert!(sent_ns[last] + 1_000_000 <= now_ns, "not before its time");
                    }
                }
            }
            line.finish(End::Finished, direction.due_ns(0, now_ns));
            prop_assert_eq!(line.room_bytes(), 0);
            while line.end(now_ns).is_none() {
                let arrived = line.arrived(now_ns);
                let some = arrived.len();
                got.extend_from_slice(arrived);
                line.take(some);
                let next_ns = line.next_ns();
                prop_assert!(some > 0 || line.end(now_ns).is_some() || next_ns.is_some());
                now_ns = now_ns.max(next_ns.unwrap_or(0));
            }
            prop_assert_eq!(line.end(now_ns), Some(End::Finished));
            prop_assert_eq!(got, sent);
        }

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
    fn a_silent_line_sends_a_little_at_once_and_then_at_its_rate() {
        let mut direction = LinkDirection::new(0, 0, Some(8_000_000));
        assert_eq!(direction.due_ns(16 << 10, 0), 0);
        // A megabyte per second: a thousand bytes each millisecond.
        assert_eq!(direction.due_ns(1_000, 0), 1_000_000);
        assert_eq!(direction.due_ns(1_000, 0), 2_000_000);
    }

    #[test]
    fn what_is_abandoned_has_ended() {
        let mut line = DelayedBytes::new(10);
        line.put(b"abc", 5);
        line.abandon();
        assert_eq!((line.room_bytes(), line.end(0)), (0, Some(End::Finished)));
        assert!(line.arrived(9).is_empty());
    }
}
