//! A lane is one row of the timeline: the latest pieces of time of one connection or consumer, in
//! bounded memory.
//!
//! The memory is bounded three times: a [`Pace`] lets so many pieces of a time slot pass and counts
//! the rest, a [`Lane`] keeps its latest pieces, and all lanes together have one [`LaneMemory`]. A
//! lane that finds no memory left there forgets its own oldest pieces, never another's.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::counters::Cell;

/// Whether recording is compiled in (cargo feature `probe`).
pub(crate) const ENABLED: bool = cfg!(feature = "probe");

/// log2 of the length of a time slot in microseconds: 0.13 s, which is a pixel or two of a picture
/// of some minutes.
const SLOT_BITS: u32 = 17;

/// Pieces that pass in a time slot: about 180 a second, more than a picture can show of one lane.
const PIECES_PER_SLOT: u64 = 24;

/// Low bits of [`Pace::passed`] that count the pieces; the slot's number is above them.
const PASSED_BITS: u32 = 8;

/// Pieces of a lane that is full: about 23 seconds at the greatest rate, and an hour of work with
/// one message a second.
pub const LANE_PIECES_MAX: usize = 4096;

/// Pieces for which a lane has room at first.
const LANE_PIECES_FIRST: usize = 8;

/// All lanes of a broker together, in bytes, unless it is told otherwise.
pub const LANES_BYTES_MAX: usize = 32 << 20;

/// At most so many pieces are recorded of a lane in a second.
pub fn pieces_per_second_max() -> f64 {
    PIECES_PER_SLOT as f64 * 1e6 / f64::from(1u32 << SLOT_BITS)
}

/// The memory of all lanes together.
#[derive(Debug)]
pub struct LaneMemory {
    used_bytes: AtomicUsize,
    bytes_max: usize,
}

impl LaneMemory {
    /// Memory of so many bytes.
    pub fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self {
            used_bytes: AtomicUsize::new(0),
            bytes_max,
        })
    }

    /// Bytes that lanes hold now.
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

/// A rate limit: a few pieces pass per time slot, the messages of the others are only counted.
/// One thread at a time uses it; any may read [`Pace::left_out`].
#[derive(Debug, Default)]
pub struct Pace {
    /// A slot's number, and in the last bits how many pieces have passed in it.
    passed: Cell,
    /// Nothing passes before this time: the slot is full.
    full_until_us: Cell,
    left_out: Cell,
}

impl Pace {
    /// Whether another piece may be recorded now. It is counted with [`Pace::pass`] or
    /// [`Pace::leave_out`].
    #[inline]
    pub fn has_room(&self, now_us: u64) -> bool {
        ENABLED && now_us >= self.full_until_us.get()
    }

    /// A piece passes. Returns how many messages were left out since the one before it.
    pub fn pass(&self, now_us: u64) -> u64 {
        let slot = now_us >> SLOT_BITS;
        let before = self.passed.get();
        let passed = if before >> PASSED_BITS == slot {
            before + 1
        } else {
            (slot << PASSED_BITS) + 1
        };
        self.passed.set(passed);
        if passed - (slot << PASSED_BITS) >= PIECES_PER_SLOT {
            self.full_until_us.set((slot + 1) << SLOT_BITS);
        }
        let left_out = self.left_out.get();
        self.left_out.set(0);
        left_out
    }

    /// Messages that no piece tells of.
    #[inline]
    pub fn leave_out(&self, messages: u64) {
        if ENABLED {
            self.left_out.add(messages);
        }
    }

    /// Messages that were left out since the last piece.
    pub fn left_out(&self) -> u64 {
        self.left_out.get()
    }
}

/// The latest pieces, oldest first.
#[derive(Debug)]
pub struct Lane<T> {
    pieces: VecDeque<T>,
    memory: Arc<LaneMemory>,
    /// Bytes that were taken for it.
    bytes: usize,
    forgotten: u64,
}

impl<T> Lane<T> {
    /// An empty lane. Takes nothing yet.
    pub fn new(memory: Arc<LaneMemory>) -> Self {
        Self {
            pieces: VecDeque::new(),
            memory,
            bytes: 0,
            forgotten: 0,
        }
    }

    /// Adds a piece, for which the oldest one may have to go. Returns what went: the piece itself,
    /// if there is room for none.
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

    /// The pieces, to be changed.
    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut T> {
        self.pieces.iter_mut()
    }

    /// The newest piece.
    pub fn last(&self) -> Option<&T> {
        self.pieces.back()
    }

    /// Pieces that went for newer ones.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Gives all its memory back and begins anew, if its newest piece is none that anybody wants.
    pub fn forget_unless(&mut self, is_wanted: impl FnOnce(&T) -> bool) {
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
        // The first ones have what there was, and go on with it.
        assert_eq!(lanes.iter().filter(|lane| !lane.is_empty()).count(), 15);
        assert!(lanes[0].iter().copied().eq(92..100));
        assert!(lanes[99].push(7).is_some() && lanes[99].is_empty());
        lanes[0].forget_unless(|_| false);
        assert!(lanes[99].push(7).is_none());
        assert_eq!(lanes[99].last(), Some(&7));
    }

    #[cfg(feature = "probe")]
    #[test]
    fn above_its_pace_messages_are_counted() {
        let pace = Pace::default();
        let (mut passed, mut left_out) = (0, 0);
        for now_us in (0..1_000_000).step_by(100) {
            if pace.has_room(now_us) {
                left_out += pace.pass(now_us);
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
