//! The messages in flight on one connection: sent, and not answered.

use std::collections::{BTreeMap, VecDeque};

use crate::feed::Message;

/// Gaps that answers in another order may leave before old messages are moved out of their way.
const GAPS_MAX: usize = 1_024;

/// As much of a message as its answer needs. One is written and read for each message that is sent:
/// it is half as large as a [`Message`].
#[derive(Debug, Clone, Copy)]
struct Sent {
    intended_ns: u64,
    sent_ns: u64,
    is_measured: bool,
}

impl Sent {
    #[inline]
    fn of(message: &Message) -> Sent {
        Sent {
            intended_ns: message.intended_ns,
            sent_ns: message.sent_ns,
            is_measured: message.is_measured,
        }
    }

    #[inline]
    fn message(self, sequence: u64) -> Message {
        Message {
            sequence,
            intended_ns: self.intended_ns,
            sent_ns: self.sent_ns,
            key: None,
            is_measured: self.is_measured,
        }
    }
}

/// Messages by their sequence, which counts on from one to the next. A few that the broker leaves
/// unanswered, such as those of a partition without a leader, cost no memory for all that were
/// answered after them.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    /// In the order in which they were sent; `None`: it was answered before an earlier one.
    recent: VecDeque<Option<Sent>>,
    /// The sequence of the first of these.
    first: u64,
    /// Messages from before these.
    stragglers: BTreeMap<u64, Sent>,
    count: usize,
}

impl InFlight {
    /// Messages in flight.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Whether everything was answered.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// A message was sent. Those that were not sent are missing in the sequence; keys
    /// are not kept.
    #[inline]
    pub(crate) fn push(&mut self, message: &Message) {
        if self.recent.is_empty() {
            self.first = message.sequence;
        }
        while self.first + (self.recent.len() as u64) < message.sequence {
            self.recent.push_back(None);
        }
        self.recent.push_back(Some(Sent::of(message)));
        self.count += 1;
        while self.recent.len() > 2 * self.count + GAPS_MAX {
            if let Some(sent) = self.recent.pop_front().flatten() {
                self.stragglers.insert(self.first, sent);
            }
            self.first += 1;
        }
    }

    /// The message with this sequence was answered; `None`: it is not in flight.
    #[inline]
    pub(crate) fn take(&mut self, sequence: u64) -> Option<Message> {
        let sent = match sequence.checked_sub(self.first) {
            Some(place) => self.recent.get_mut(usize::try_from(place).ok()?)?.take()?,
            None => self.stragglers.remove(&sequence)?,
        };
        self.count -= 1;
        while let Some(None) = self.recent.front() {
            self.recent.pop_front();
            self.first += 1;
        }
        Some(sent.message(sequence))
    }

    /// Takes the oldest message, if its sequence is not above `last`.
    #[inline]
    pub(crate) fn take_first_to(&mut self, last: u64) -> Option<Message> {
        if let Some(oldest) = self.stragglers.first_entry() {
            let sequence = *oldest.key();
            let sent = (sequence <= last).then(|| oldest.remove())?;
            self.count -= 1;
            return Some(sent.message(sequence));
        }
        while self.first <= last {
            let (sequence, sent) = (self.first, self.recent.pop_front()?);
            self.first += 1;
            if let Some(sent) = sent {
                self.count -= 1;
                return Some(sent.message(sequence));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
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
        std::iter::from_fn(|| in_flight.take_first_to(last))
            .map(|message| message.sequence)
            .collect()
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
        assert_eq!((in_flight.len(), in_flight.first), (2, 3));
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
            in_flight.push(&message(sequence));
            assert_eq!(in_flight.take(sequence), Some(message(sequence)));
        }
        assert!(in_flight.recent.len() <= 2 * 2 + GAPS_MAX);
        assert_eq!(in_flight.len(), 2);
        in_flight.push(&message(100_000));
        assert_eq!(in_flight.take(1), Some(message(1)));
        assert_eq!(take_to(&mut in_flight, 99_999), [0]);
        assert_eq!(take_to(&mut in_flight, u64::MAX), [100_000]);
    }
}
