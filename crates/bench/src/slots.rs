//! Messages that a client library has, and that are not acknowledged.

use crate::book::Book;
use crate::driver::{DriverError, Stop};
use crate::feed::Message;
use crate::pace::{UNANSWERED, answered};
use crate::url::Url;

/// Messages by slot: a library remembers that number for each, and tells it with the answer.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: Vec<Option<Message>>,
    free: Vec<usize>,
    most: usize,
}

impl Slots {
    /// One with room for `most` messages.
    pub(crate) fn new(most: usize) -> Slots {
        Slots {
            slots: Vec::new(),
            free: Vec::new(),
            most,
        }
    }

    /// Whether there is no room.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty() && self.slots.len() >= self.most
    }

    /// Whether everything was answered.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Takes a message; says its slot.
    #[inline]
    pub(crate) fn put(&mut self, message: Message) -> usize {
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot] = Some(message);
                slot
            }
            None => {
                self.slots.push(Some(message));
                self.slots.len() - 1
            }
        }
    }

    /// Gives the message of a slot back; `None`: there is none.
    #[inline]
    pub(crate) fn take(&mut self, slot: usize) -> Option<Message> {
        let message = self.slots.get_mut(slot)?.take()?;
        self.free.push(slot);
        Some(message)
    }

    /// Gives all back.
    pub(crate) fn take_all(&mut self) -> Vec<Message> {
        self.free.clear();
        self.slots.drain(..).flatten().collect()
    }

    /// The end of a producer that ended with `result`: writes down what was not answered. A broker
    /// that has left something unanswered, though nobody has told it to stop, is told of.
    pub(crate) fn settle(
        &mut self,
        book: &mut Book,
        url: &Url,
        stop: &Stop,
        (result, now_ns): (Result<(), DriverError>, u64),
    ) -> Result<(), DriverError> {
        let unanswered = self.take_all();
        for message in &unanswered {
            match result {
                Ok(()) => book.gave_up(message, &UNANSWERED, now_ns),
                Err(_) => book.failed(message, &UNANSWERED, now_ns),
            }
        }
        result.and_then(|()| answered(unanswered.is_empty(), url, stop))
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

    #[test]
    fn each_message_is_taken_once() {
        let mut slots = Slots::new(2);
        let (one, two) = (slots.put(message(1)), slots.put(message(2)));
        assert!(slots.is_full() && !slots.is_empty());
        assert_eq!(slots.take(one), Some(message(1)));
        assert_eq!((slots.take(one), slots.take(99)), (None, None));
        assert!(!slots.is_full());
        assert_eq!(slots.put(message(3)), one);
        assert_eq!(slots.take(two), Some(message(2)));
        assert_eq!(slots.take_all(), [message(3)]);
        assert!(slots.is_empty());
    }
}
