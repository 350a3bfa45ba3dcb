//! The messages in flight on one connection: those that were sent and not answered.

use std::collections::VecDeque;

use crate::message_source::Message;

/// Bursts without a message in flight that may lie between other bursts before they are removed.
const EMPTY_BURSTS_MAX: usize = 1_024;

/// Up to 64 messages with the same times, so that the messages of a request share one record.
#[derive(Debug, Clone, Copy)]
struct Burst {
    /// The first message, without its key. The other messages differ only in their sequence.
    first: Message,
    /// A bit for each message that is in flight. Bit 0 is that of the first message.
    in_flight: u64,
}

impl Burst {
    #[inline]
    fn of(message: &Message) -> Burst {
        Burst {
            first: Message {
                key: None,
                ..*message
            },
            in_flight: 1,
        }
    }

    /// The bit of a sequence, which is not below that of the first message; 0: it belongs to a
    /// later burst.
    #[inline]
    fn bit(&self, sequence: u64) -> u64 {
        match sequence - self.first.sequence {
            place @ 0..64 => 1 << place,
            _ => 0,
        }
    }

    /// Adds a message that was sent after those of this burst; `false`: its times differ, or it has
    /// no bit.
    #[inline]
    fn push(&mut self, message: &Message) -> bool {
        let bit = self.bit(message.sequence);
        let fits = bit != 0
            && self.first.intended_ns == message.intended_ns
            && self.first.sent_ns == message.sent_ns
            && self.first.is_measured == message.is_measured;
        if fits {
            self.in_flight |= bit;
        }
        fits
    }

    fn is_empty(&self) -> bool {
        self.in_flight == 0
    }

    #[inline]
    fn message(&self, sequence: u64) -> Message {
        Message {
            sequence,
            ..self.first
        }
    }
}

/// Messages by their sequence. A few that the broker leaves unanswered, such as those of a
/// partition without a leader, cost no memory for all that were answered after them.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    /// In the order in which they were sent. The first burst has a message in flight.
    bursts: VecDeque<Burst>,
    count: usize,
}

impl InFlight {
    /// Number of messages in flight.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Whether all messages were answered.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a message, whose sequence is above those of all messages before it. Its key is not
    /// kept.
    #[inline]
    pub(crate) fn push(&mut self, message: &Message) {
        self.count += 1;
        let last = self.bursts.back_mut();
        if last.is_some_and(|burst| burst.push(message)) {
            return;
        }
        self.bursts.push_back(Burst::of(message));
        if self.bursts.len() > 2 * self.count + EMPTY_BURSTS_MAX {
            self.bursts.retain(|burst| !burst.is_empty());
        }
    }

    /// Removes the message with this sequence; `None`: it is not in flight.
    #[inline]
    pub(crate) fn take(&mut self, sequence: u64) -> Option<Message> {
        let begins = |burst: &Burst| burst.first.sequence <= sequence;
        let index = match self.bursts.get(1) {
            Some(second) if begins(second) => self.bursts.partition_point(begins) - 1,
            // Most answers come in order.
            _ => 0,
        };
        let burst = self.bursts.get_mut(index)?;
        if !begins(burst) || burst.in_flight & burst.bit(sequence) == 0 {
            return None;
        }
        burst.in_flight &= !burst.bit(sequence);
        let message = burst.message(sequence);
        self.taken(1);
        Some(message)
    }

    /// Removes the oldest messages that follow each other, have the same times and are not above
    /// `last`. Returns the first of them and their number.
    #[inline]
    pub(crate) fn take_oldest_to(&mut self, last: u64) -> Option<(Message, u32)> {
        let burst = self.bursts.front_mut()?;
        let skipped = burst.in_flight.trailing_zeros();
        let sequence = burst.first.sequence + u64::from(skipped);
        let due = (last.checked_sub(sequence)?).saturating_add(1);
        let consecutive = (burst.in_flight >> skipped).trailing_ones();
        let count = consecutive.min(u32::try_from(due).unwrap_or(u32::MAX));
        let taken = u64::MAX >> (64 - count) << skipped;
        burst.in_flight &= !taken;
        let message = burst.message(sequence);
        self.taken(count as usize);
        Some((message, count))
    }

    /// Removes messages one by one, from the oldest to the one with the sequence `last`.
    pub(crate) fn drain_to(&mut self, last: u64) -> impl Iterator<Item = Message> {
        let bursts = std::iter::from_fn(move || self.take_oldest_to(last));
        bursts.flat_map(|(first, count)| {
            let end = first.sequence + u64::from(count);
            (first.sequence..end).map(move |sequence| Message { sequence, ..first })
        })
    }

    fn taken(&mut self, count: usize) {
        self.count -= count;
        while self.bursts.front().is_some_and(Burst::is_empty) {
            self.bursts.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn message(sequence: u64) -> Message {
        Message {
            sequence,
            intended_ns: 0,
            sent_ns: 0,
            key: None,
            is_measured: true,
        }
    }

    fn sent(sequences: impl IntoIterator<Item = u64>) -> InFlight {
        let mut in_flight = InFlight::default();
        sequences
            .into_iter()
            .for_each(|sequence| in_flight.push(&message(sequence)));
        in_flight
    }

    fn take_to(in_flight: &mut InFlight, last: u64) -> Vec<u64> {
        let taken = in_flight.drain_to(last);
        taken.map(|message| message.sequence).collect()
    }

    #[test]
    fn each_message_is_taken_once() {
        let mut in_flight = sent(1..3);
        assert_eq!((in_flight.len(), in_flight.is_empty()), (2, false));
        assert_eq!(in_flight.take(1), Some(message(1)));
        assert_eq!((in_flight.take(1), in_flight.take(99)), (None, None));
        in_flight.push(&message(3));
        assert_eq!(in_flight.take(3), Some(message(3)));
        assert_eq!(take_to(&mut in_flight, u64::MAX), [2]);
        assert!(in_flight.is_empty());
    }

    #[test]
    fn answers_come_in_any_order() {
        let mut in_flight = sent(0..6);
        assert_eq!(in_flight.take(2), Some(message(2)));
        assert_eq!(take_to(&mut in_flight, 1), [0, 1]);
        assert_eq!((in_flight.take(2), in_flight.take(8)), (None, None));
        assert_eq!(in_flight.take(4), Some(message(4)));
        assert_eq!(in_flight.len(), 2);
        assert_eq!(take_to(&mut in_flight, u64::MAX), [3, 5]);
        assert!(in_flight.is_empty());
        assert_eq!(in_flight.take(5), None, "it was answered");
    }

    #[test]
    fn a_message_that_was_not_sent_is_not_in_flight() {
        let mut in_flight = sent([0, 3]);
        assert_eq!((in_flight.len(), in_flight.take(1)), (2, None));
        assert_eq!(in_flight.take(3), Some(message(3)));
        assert_eq!(in_flight.take(0), Some(message(0)));
        assert!(in_flight.is_empty());
    }

    #[test]
    fn a_message_without_an_answer_holds_no_memory_for_later_ones() {
        let mut in_flight = sent([0, 1]);
        for sequence in 2..100_000 {
            let message = Message {
                sent_ns: sequence,
                ..message(sequence)
            };
            in_flight.push(&message);
            assert_eq!(in_flight.take(sequence), Some(message));
        }
        assert!(in_flight.bursts.len() <= 2 * 2 + EMPTY_BURSTS_MAX);
        assert_eq!(in_flight.len(), 2);
        in_flight.push(&message(100_000));
        assert_eq!(in_flight.take(1), Some(message(1)));
        assert_eq!(take_to(&mut in_flight, 99_999), [0]);
        assert_eq!(take_to(&mut in_flight, u64::MAX), [100_000]);
    }

    proptest! {
        #[test]
        fn messages_are_taken_with_their_times(
            steps in prop::collection::vec((0..4u8, 0..200u64), 1..60),
        ) {
            let (mut in_flight, mut model) = (InFlight::default(), BTreeMap::new());
            let (mut next, mut now_ns) = (0, 0);
            for (step, amount) in steps {
                match step {
                    0 | 1 => {
                        now_ns += u64::from(step);
                        for _ in 0..amount {
                            next += 1 + u64::from(next % 7 == 0);
                            let message = Message { sent_ns: now_ns, ..message(next) };
                            in_flight.push(&message);
                            model.insert(next, message);
                        }
                    }
                    2 => {
                        let sequence = next.saturating_sub(amount);
                        prop_assert_eq!(in_flight.take(sequence), model.remove(&sequence));
                    }
                    _ => {
                        let last = next.saturating_sub(amount);
                        for message in in_flight.drain_to(last) {
                            let oldest = model.pop_first();
                            prop_assert_eq!(oldest, Some((message.sequence, message)));
                        }
                        prop_assert!(model.keys().next().is_none_or(|first| *first > last));
                    }
                }
                prop_assert_eq!(in_flight.len(), model.len());
            }
        }
    }
}
