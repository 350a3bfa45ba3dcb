//! Messages that were sent and are not answered, where answers come in the order of requests.

use std::collections::VecDeque;

use crate::book::Book;
use crate::feed::Message;
use crate::pace::UNANSWERED;

/// Consecutive messages of one request with the same times.
#[derive(Debug, Clone, Copy)]
struct Flight {
    first: Message,
    count: u32,
}

/// The messages in flight on one connection.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    flights: VecDeque<Flight>,
    /// How many flights each request has; the last one's are still counted.
    requests: VecDeque<u32>,
    begun: u32,
    messages: u32,
}

impl Flights {
    /// Messages in flight.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.messages
    }

    /// Whether nothing is.
    pub(crate) fn is_empty(&self) -> bool {
        self.messages == 0
    }

    /// A message of the request that is being made.
    #[inline]
    pub(crate) fn push(&mut self, message: &Message) {
        self.messages += 1;
        if self.begun > 0
            && let Some(last) = self.flights.back_mut()
            && last.first.intended_ns == message.intended_ns
            && last.first.sent_ns == message.sent_ns
            && last.first.is_measured == message.is_measured
            && last.first.sequence + u64::from(last.count) == message.sequence
        {
            last.count += 1;
            return;
        }
        self.begun += 1;
        self.flights.push_back(Flight {
            first: *message,
            count: 1,
        });
    }

    /// The request is made.
    pub(crate) fn end_request(&mut self) {
        self.requests.push_back(std::mem::take(&mut self.begun));
    }

    /// The oldest request was acknowledged.
    pub(crate) fn acked(&mut self, book: &mut Book, bytes: usize, now_ns: u64) {
        self.next_request(|flight| {
            book.acked_many(&flight.first, flight.count, bytes, now_ns);
        });
    }

    /// The oldest request was refused.
    pub(crate) fn failed(&mut self, book: &mut Book, error: &str, now_ns: u64) {
        self.next_request(|flight| flight.each(|it| book.failed(it, &error, now_ns)));
    }

    /// No answers come any more; `is_silent`: though they could. Returns how many messages got
    /// none.
    pub(crate) fn give_up(&mut self, book: &mut Book, is_silent: bool, now_ns: u64) -> u32 {
        let messages = self.messages;
        for flight in self.flights.drain(..) {
            flight.each(|message| {
                if is_silent {
                    book.gave_up(message, &UNANSWERED, now_ns)
                } else {
                    book.failed(message, &UNANSWERED, now_ns)
                }
            });
        }
        self.requests.clear();
        (self.messages, self.begun) = (0, 0);
        messages
    }

    fn next_request(&mut self, mut each: impl FnMut(Flight)) {
        let flights = self.requests.pop_front().unwrap_or(0) as usize;
        for flight in self.flights.drain(..flights.min(self.flights.len())) {
            self.messages -= flight.count;
            each(flight);
        }
    }
}

impl Flight {
    fn each(&self, mut each: impl FnMut(&Message)) {
        for number in 0..u64::from(self.count) {
            each(&Message {
                sequence: self.first.sequence + number,
                ..self.first
            });
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::book::Live;
    use crate::clock::Clock;

    #[test]
    fn answers_belong_to_requests_in_their_order() {
        let mut book = Book::new(Clock::new(), 1, 0, 0, Live::default());
        let mut flights = Flights::default();
        let message = |sequence, intended_ns| Message {
            sequence,
            intended_ns,
            sent_ns: 5_000_000,
            key: None,
            is_measured: true,
        };
        for (sequence, intended_ns) in [(0, 1), (1, 1), (2, 1_000_000)] {
            flights.push(&message(sequence, intended_ns));
        }
        flights.end_request();
        flights.push(&message(3, 1_000_000));
        flights.end_request();
        flights.push(&message(4, 1_000_000));
        flights.end_request();
        assert_eq!((flights.len(), flights.flights.len()), (5, 4));
        flights.acked(&mut book, 10, 6_000_000);
        flights.failed(&mut book, "no", 6_000_000);
        assert_eq!(flights.give_up(&mut book, true, 7_000_000), 1);
        // An answer to nothing changes nothing.
        flights.acked(&mut book, 10, 8_000_000);
        assert!(flights.is_empty());
        let tally = book.finish();
        assert_eq!((tally.messages, tally.bytes, tally.errors), (3, 30, 2));
        // And the one that was given up.
        assert_eq!((tally.response.len(), tally.service.len()), (4, 4));
        assert_eq!(tally.unanswered, 1);
        assert_eq!(tally.response.quantile_ns(0.25) / 100_000, 50);
        assert_eq!(tally.acked[&0].len(), 3);
        assert_eq!(tally.error_texts, ["no", UNANSWERED]);
    }
}
