//! Bounds what sealed and idle segments keep in memory: open files and indexes.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::segment::Segment;

/// Most holders that are asked for one that comes, so that a bound that cannot be kept (all have
/// unsynced data) costs little.
const CHANCES_MAX: usize = 16;

/// Segments that hold some resource, with its weight, oldest first.
pub(crate) struct Residents {
    weight_max: u64,
    state: Mutex<ResidentList>,
}

#[derive(Default)]
struct ResidentList {
    list: VecDeque<(Weak<Segment>, u64)>,
    weight: u64,
}

impl Residents {
    pub(crate) fn new(weight_max: u64) -> Residents {
        Residents {
            weight_max,
            state: Mutex::default(),
        }
    }

    /// Notes that a segment holds the resource now. While there is too much of it, `evict` is asked
    /// about the oldest holders; it gives the resource up and says `true`, or keeps it.
    pub(crate) fn admit(
        &self,
        segment: &Arc<Segment>,
        weight: u64,
        evict: impl Fn(&Segment) -> bool,
    ) {
        let mut state = self.state.lock();
        let mut chances = state.list.len().min(CHANCES_MAX);
        while state.weight + weight > self.weight_max && chances > 0 {
            chances -= 1;
            let Some((oldest, its_weight)) = state.list.pop_front() else {
                break;
            };
            match oldest.upgrade() {
                Some(other) if !evict(&other) => state.list.push_back((oldest, its_weight)),
                _ => state.weight -= its_weight,
            }
        }
        state.weight += weight;
        state.list.push_back((Arc::downgrade(segment), weight));
    }
}
