//! Which consumer gets the next messages.

use crate::attaching::ConsumerState;
use crate::options::Dispatch;
use crate::subscription::State;

/// Whose turn it is where all else is equal.
#[derive(Debug, Default)]
pub(crate) struct Rotation {
    pub(crate) partition: usize,
    /// The consumer that was served last.
    pub(crate) consumer: usize,
}

impl State {
    /// Who gets the next messages, and how many at most so that the load stays even.
    pub(crate) fn choose(&self, single_active: bool) -> Option<(usize, u64)> {
        if single_active {
            let (slot, consumer) = self.active_consumer()?;
            let room = consumer.room();
            return (room > 0).then_some((slot, room));
        }
        match self.policy {
            Dispatch::LeastLoaded => self.choose_least_loaded(),
            Dispatch::FillFirst => self.choose_first_with_room(),
        }
    }

    /// Who gets all messages where only one does.
    pub(crate) fn active_consumer(&self) -> Option<(usize, &ConsumerState)> {
        self.consumers
            .iter()
            .enumerate()
            .filter_map(|(slot, consumer)| consumer.as_ref().map(|c| (slot, c)))
            .filter(|(_, consumer)| consumer.counts())
            .max_by_key(|(_, c)| (c.options.priority, std::cmp::Reverse(c.arrival)))
    }

    /// The one that was served last, or the next one with room.
    fn choose_first_with_room(&self) -> Option<(usize, u64)> {
        let count = self.consumers.len();
        let mut best: Option<(usize, u64, i32)> = None;
        for turn in 0..count {
            let slot = (self.rotation.consumer + turn) % count;
            let Some(consumer) = &self.consumers[slot] else {
                continue;
            };
            let (room, priority) = (consumer.room(), consumer.options.priority);
            if room > 0 && best.is_none_or(|(_, _, leading)| priority > leading) {
                best = Some((slot, room, priority));
            }
        }
        best.map(|(slot, room, _)| (slot, room))
    }

    fn choose_least_loaded(&self) -> Option<(usize, u64)> {
        let count = self.consumers.len();
        let mut best: Option<(usize, &ConsumerState)> = None;
        let (mut rivals, mut in_flight) = (0u64, 0u64);
        for turn in 1..=count {
            let slot = (self.rotation.consumer + turn) % count;
            let Some(consumer) = &self.consumers[slot] else {
                continue;
            };
            if consumer.room() == 0 {
                continue;
            }
            match best {
                Some((_, leader)) if consumer.options.priority < leader.options.priority => {
                    continue;
                }
                Some((_, leader)) if consumer.options.priority == leader.options.priority => {
                    rivals += 1;
                    in_flight += u64::from(consumer.in_flight);
                    if consumer.in_flight < leader.in_flight {
                        best = Some((slot, consumer));
                    }
                }
                _ => {
                    (rivals, in_flight) = (1, u64::from(consumer.in_flight));
                    best = Some((slot, consumer));
                }
            }
        }
        let (slot, consumer) = best?;
        if rivals == 1 {
            return Some((slot, consumer.room()));
        }
        // The level to which all rivals rise if what waits is shared evenly.
        let level = (in_flight + self.about_waiting()) / rivals;
        let share = level.saturating_sub(u64::from(consumer.in_flight)).max(1);
        Some((slot, share.min(consumer.room())))
    }
}
