//! A lane is one row of the timeline: the latest pieces of one connection or consumer, in bounded
//! memory. A piece is one bar of the row: requests with their answer, or a run of leased messages.
//!
//! Memory is bounded three times: a [`RateLimit`] limits the pieces recorded per time slot and
//! counts the messages of those left out, a [`Lane`] keeps only its latest pieces, and all lanes
//! share the budget of one [`LaneMemory`]. When the budget is used up, a lane drops its own oldest
//! pieces, never another's.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::counters::Cell;

/// Whether recording is compiled in (cargo feature `probe`).
pub(crate) const ENABLED: bool = cfg!(feature = "probe");

/// log2 of the length of a time slot in microseconds: 0.13 s, which is a pixel or two of a picture
/// of some minutes.
const SLOT_BITS: u32 = 17;

/// Maximum pieces recorded per time slot: about 180 a second, more than a picture can show of one
/// lane.
const PIECES_PER_SLOT: u64 = 24;

/// Low bits of [`RateLimit::passed`] that count the pieces; the slot's number is above them.
const PASSED_BITS: u32 = 8;

/// Maximum pieces of a lane: about 23 seconds at the maximum rate, more than an hour at one message
/// a second.
pub const LANE_PIECES_MAX: usize = 4096;

/// Pieces that fit a lane's first allocation.
const LANE_PIECES_FIRST: usize = 8;

/// The default budget of all lanes of a broker, in bytes.
pub const LANES_BYTES_MAX: usize = 32 << 20;

/// Maximum pieces recorded in a lane per second.
pub fn pieces_per_second_max() -> f64 {
    PIECES_PER_SLOT as f64 * 1e6 / f64::from(1u32 << SLOT_BITS)
}

/// The memory budget that all lanes share.
#[derive(Debug)]
pub struct LaneMemory {
    used_bytes: AtomicUsize,
    bytes_max: usize,
}

impl LaneMemory {
    /// A budget of this many bytes.
    pub fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self {
            used_bytes: AtomicUsize::new(0),
            bytes_max,
        })
    }

    /// Bytes that lanes have taken.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes.load(Relaxed)
    }

    fn take(&self, bytes: usize) -> bool {
        let fits = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.bytes_max);
        self.used_bytes.fetch_update(Relaxed, Relaxed, fits).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.used_bytes.fetch_sub(bytes, Relaxed);
    }
}

/// A rate limit: a few pieces are recorded per time slot; of the pieces beyond that, only the
/// messages are counted. One thread at a time may call its methods, except [`RateLimit::left_out`],
/// which any thread may call.
#[derive(Debug, Default)]
pub struct RateLimit {
    /// The latest slot's number, and in the low bits how many pieces were recorded in it.
    recorded_in_slot: Cell,
    /// Nothing is recorded before this time, because the slot is full.
    full_until_us: Cell,
    left_out: Cell,
}

impl RateLimit {
    /// Whether another piece may be recorded now. If so, the caller calls [`RateLimit::recorded`],
    /// otherwise [`RateLimit::leave_out`].
    #[inline]
    pub fn may_record(&self, now_us: u64) -> bool {
        ENABLED && now_us >= self.full_until_us.get()
    }

    /// A piece is recorded. Returns how many messages were left out since the piece before it.
    pub fn recorded(&self, now_us: u64) -> u64 {
        let slot = now_us >> SLOT_BITS;
        let before = self.recorded_in_slot.get();
        let passed = if before >> PASSED_BITS == slot {
            before + 1
        } else {
            (slot << PASSED_BITS) + 1
        };
        self.recorded_in_slot.set(passed);
        if passed - (slot << PASSED_BITS) >= PIECES_PER_SLOT {
            self.full_until_us.set((slot + 1) << SLOT_BITS);
        }
        let left_out = self.left_out.get();
        self.left_out.set(0);
        left_out
    }

    /// These messages are not recorded.
    #[inline]
    pub fn leave_out(&self, messages: u64) {
        if ENABLED {
            self.left_out.add(messages);
        }
    }

    /// Messages left out since the last piece.
    pub fn left_out(&self) -> u64 {
        self.left_out.get()
    }
}

/// The latest pieces of one row, oldest first.
#[derive(Debug)]
pub struct Lane<T> {
    pieces: VecDeque<T>,
    memory: Arc<LaneMemory>,
    /// Bytes taken from `memory`.
    bytes: usize,
    forgotten: u64,
}

impl<T> Lane<T> {
    /// An empty lane, which has not taken any memory yet.
    pub fn new(memory: Arc<LaneMemory>) -> Self {
        Self {
            pieces: VecDeque::new(),
            memory,
            bytes: 0,
            forgotten: 0,
        }
    }

    /// Adds a piece, and drops the oldest one if the lane cannot grow. Returns the dropped piece,
    /// which is the new one if the lane has no memory.
    pub fn push(&mut self, piece: T) -> Option<T> {
        let mut gone = None;
        if self.pieces.len() == self.room() && !self.grow() {
            self.forgotten += 1;
            match self.pieces.pop_front() {
                Some(oldest) => gone = Some(oldest),
                None => return Some(piece),
            }
        }
        self.pieces.push_back(piece);
        gone
    }

    /// The pieces, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> + ExactSizeIterator {
        self.pieces.iter()
    }

    /// The pieces, mutable.
    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut T> {
        self.pieces.iter_mut()
    }

    /// The newest piece.
    pub fn last(&self) -> Option<&T> {
        self.pieces.back()
    }

    /// How many pieces were dropped for newer ones.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Whether the lane has no pieces.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Drops all pieces and returns their memory to the budget, unless the newest piece is wanted.
    pub fn clear_unless(&mut self, is_wanted: impl FnOnce(&T) -> bool) {
        if self.pieces.back().is_some_and(|newest| !is_wanted(newest)) {
            self.pieces = VecDeque::new();
            self.forgotten = 0;
            self.memory.give_back(std::mem::take(&mut self.bytes));
        }
    }

    fn room(&self) -> usize {
        self.bytes / size_of::<T>().max(1)
    }

    fn grow(&mut self) -> bool {
        let room = self.room();
        let wanted = (room * 2).clamp(LANE_PIECES_FIRST, LANE_PIECES_MAX);
        let more_bytes = wanted.saturating_sub(room) * size_of::<T>();
        if more_bytes == 0 || !self.memory.take(more_bytes) {
            return false;
        }
        self.bytes += more_bytes;
        self.pieces.reserve_exact(wanted - self.pieces.len());
        true
    }
}

impl<T> Drop for Lane<T> {
    fn drop(&mut self) {
        self.memory.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_keeps_its_latest_pieces() {
        let memory = LaneMemory::new(LANES_BYTES_MAX);
        let mut lane = Lane::new(memory.clone());
        for piece in 0..10_000u64 {
            let gone = lane.push(piece);
            assert_eq!(gone, piece.checked_sub(LANE_PIECES_MAX as u64));
        }
        let first = 10_000 - LANE_PIECES_MAX as u64;
        assert!(lane.iter().copied().eq(first..10_000));
        assert_eq!(lane.forgotten(), first);
        assert_eq!(memory.used_bytes(), LANE_PIECES_MAX * 8);
        drop(lane);
        assert_eq!(memory.used_bytes(), 0);
    }

    #[test]
    fn all_lanes_together_stay_within_their_memory() {
        let memory = LaneMemory::new(1000);
        let mut lanes: Vec<Lane<u64>> = (0..100).map(|_| Lane::new(memory.clone())).collect();
        for piece in 0..100 {
            for lane in &mut lanes {
                lane.push(piece);
            }
            assert!(memory.used_bytes() <= 1000);
        }
        // The first lanes have taken the whole budget, and go on with it.
        assert_eq!(lanes.iter().filter(|lane| !lane.is_empty()).count(), 15);
        assert!(lanes[0].iter().copied().eq(92..100));
        assert!(lanes[99].push(7).is_some() && lanes[99].is_empty());
        lanes[0].clear_unless(|_| false);
        assert!(lanes[99].push(7).is_none());
        assert_eq!(lanes[99].last(), Some(&7));
    }

    #[cfg(feature = "probe")]
    #[test]
    fn above_its_pace_messages_are_counted() {
        let pace = RateLimit::default();
        let (mut passed, mut left_out) = (0, 0);
        for now_us in (0..1_000_000).step_by(100) {
            if pace.may_record(now_us) {
                left_out += pace.recorded(now_us);
                passed += 1;
            } else {
                pace.leave_out(3);
            }
        }
        let slots = (1_000_000u64 >> SLOT_BITS) + 1;
        assert_eq!(passed, slots * PIECES_PER_SLOT);
        assert_eq!(left_out + pace.left_out(), (10_000 - passed) * 3);
        assert!(pieces_per_second_max() > 180.0 && pieces_per_second_max() < 190.0);
    }
}
