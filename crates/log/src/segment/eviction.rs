//! Bounds the open files and the indexes in memory of all segments.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::segment::Segment;

/// Maximum number of segments that are asked to release the resource for each new one. So a bound
/// that cannot be kept, because all segments have unsynced bytes, costs little time.
const EVICTION_ATTEMPTS_MAX: usize = 16;

/// The segments that hold a resource (an open file or an index), each with its weight, oldest
/// first.
pub(crate) struct EvictionQueue {
    weight_max: u64,
    state: Mutex<EvictionState>,
}

#[derive(Default)]
struct EvictionState {
    list: VecDeque<(Weak<Segment>, u64)>,
    weight: u64,
}

impl EvictionQueue {
    pub(crate) fn new(weight_max: u64) -> EvictionQueue {
        EvictionQueue {
            weight_max,
            state: Mutex::default(),
        }
    }

    /// Notes that a segment now holds the resource. While the total weight is above the limit,
    /// calls `evict` for the oldest holders. `evict` releases the resource and returns `true`, or
    /// keeps it and returns `false`.
    pub(crate) fn admit(
        &self,
        segment: &Arc<Segment>,
        weight: u64,
        evict: impl Fn(&Segment) -> bool,
    ) {
        let mut state = self.state.lock();
        let mut attempts = state.list.len().min(EVICTION_ATTEMPTS_MAX);
        while state.weight + weight > self.weight_max && attempts > 0 {
            attempts -= 1;
            let Some((oldest, old_weight)) = state.list.pop_front() else {
                break;
            };
            match oldest.upgrade() {
                Some(other) if !evict(&other) => state.list.push_back((oldest, old_weight)),
                _ => state.weight -= old_weight,
            }
        }
        state.weight += weight;
        state.list.push_back((Arc::downgrade(segment), weight));
    }
}
