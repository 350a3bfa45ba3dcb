//! The pump against a client library with planted faults.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use super::*;
use crate::payload::PayloadKind;
use crate::plan::{Acks, Amount, Plan};
use crate::recorder::{ClientStats, Live};
use crate::schedule::Arrivals as Schedule;

/// A library with the faults that a test wants. It answers a request with each look.
struct Library {
    url: Url,
    limits: Limits,
    /// Messages of each request, and the last message of each that is not answered.
    requests: Vec<usize>,
    unanswered: Vec<u64>,
    open: Vec<u64>,
    /// Its buffer has no room for this message until the next look.
    full_at: Option<u64>,
    refused_at: Option<u64>,
    /// From this message on it answers nothing, or is gone.
    silent_at: Option<u64>,
    gone_at: Option<u64>,
    stops: Option<Stop>,
}

impl PublishPort for Library {
    fn url(&self) -> &Url {
        &self.url
    }

    fn limits(&self, _feed: &MessageSource) -> Limits {
        self.limits
    }

    fn put(&mut self, message: &Message, source: &mut MessageSource) -> Result<(), NotTaken> {
        let mut value = Vec::new();
        source.push(message, &mut value);
        assert_eq!(value.len(), source.size_bytes());
        if self.full_at == Some(message.sequence) {
            self.stops.iter().for_each(Stop::set);
            return Err(NotTaken::Full("full".to_owned()));
        }
        if self.refused_at == Some(message.sequence) {
            return Err(NotTaken::Refused("too large".to_owned()));
        }
        self.open.push(message.sequence);
        Ok(())
    }

    fn end_request(&mut self) {
        self.requests.push(self.open.len());
        self.unanswered.extend(self.open.pop());
        self.open.clear();
    }

    fn exchange(&mut self, _: u64, answers: &mut Answers<'_>) -> Result<(), DriverError> {
        if self.stops.is_none() {
            self.full_at = None;
        }
        let Some(last) = self.unanswered.first().copied() else {
            return Ok(());
        };
        if self.gone_at.is_some_and(|from| last >= from) {
            return Err(self.url.gone("connection reset"));
        }
        if self.silent_at.is_none_or(|from| last < from) {
            self.unanswered.remove(0);
            answers.acked_to(last);
        }
        Ok(())
    }
}

fn library() -> Library {
    Library {
        url: "nsq://there:4150".parse().unwrap(),
        limits: Limits {
            batch_messages: 10,
            ..Limits::new(25)
        },
        requests: Vec::new(),
        unanswered: Vec::new(),
        open: Vec::new(),
        full_at: None,
        refused_at: None,
        silent_at: None,
        gone_at: None,
        stops: None,
    }
}

fn run(library: Library, stop: &Stop) -> (Library, ClientStats, String) {
    let plan = Plan {
        run: 1,
        topic: "t".to_owned(),
        producers: 1,
        consumers: 0,
        size_bytes: 100,
        payload: PayloadKind::Random,
        amount: Amount::Messages(100),
        warm_up_s: 0.0,
        // All of it is due at once: whatever waits, waits for the library.
        arrivals: Schedule::Constant { rate: 1e9 },
        batch_messages: 10,
        in_flight: 25,
        acks: Acks::One,
        partitions: 1,
        keys: 0,
        seed: 1,
    };
    let clock = Clock::new();
    let mut source = MessageSource::new(&plan, 0, clock, 0);
    let mut recorder = Recorder::new(clock, 1, 0, 0, Live::default());
    let mut producer = Producer(library);
    let result = producer.run(&mut source, &mut recorder, stop);
    let words = result.map_or_else(|error| error.to_string(), |()| String::new());
    (producer.0, recorder.finish(), words)
}

#[test]
fn requests_fill_the_window_and_no_more() {
    let (library, stats, words) = run(library(), &Stop::default());
    assert_eq!((stats.sent, stats.messages, stats.errors), (100, 100, 0));
    assert_eq!(library.requests[..4], [10, 10, 5, 10]);
    assert_eq!(library.requests.iter().sum::<usize>(), 100);
    assert_eq!((stats.acked[&0].len(), words), (100, String::new()));
}

#[test]
fn a_message_that_a_full_library_does_not_take_is_sent_later() {
    let full = Library {
        full_at: Some(12),
        ..library()
    };
    let (library, stats, words) = run(full, &Stop::default());
    assert_eq!((stats.sent, stats.messages, stats.errors), (100, 100, 0));
    assert_eq!(library.requests[..2], [10, 2]);
    assert_eq!((stats.acked[&0].len(), words), (100, String::new()));
    assert!(stats.lag.len() < 100, "it has waited for the library");
}

#[test]
fn a_message_that_is_held_at_the_end_was_not_sent() {
    let stop = Stop::default();
    let full = Library {
        full_at: Some(12),
        stops: Some(stop.clone()),
        ..library()
    };
    let (_, stats, words) = run(full, &stop);
    assert_eq!((stats.sent, stats.messages, stats.errors), (13, 12, 1));
    assert_eq!(
        (stats.error_texts, words),
        (vec!["full".to_owned()], String::new())
    );
}

#[test]
fn a_message_that_is_refused_is_told_and_the_others_go_on() {
    let refusing = Library {
        refused_at: Some(3),
        ..library()
    };
    let (_, stats, words) = run(refusing, &Stop::default());
    assert_eq!((stats.sent, stats.messages, stats.errors), (100, 99, 1));
    assert_eq!(
        (stats.error_texts, words),
        (vec!["too large".to_owned()], String::new())
    );
}

#[test]
fn a_broker_that_falls_silent_is_given_up() {
    let silent = Library {
        silent_at: Some(60),
        ..library()
    };
    let stop = Stop::default();
    stop.give_up_after(Duration::from_millis(20));
    let (_, stats, words) = run(silent, &stop);
    assert!(
        words.ends_with("it has answered nothing for 30 seconds"),
        "{words}"
    );
    assert_eq!(stats.errors, stats.unanswered);
    assert_eq!(stats.sent, stats.messages + stats.unanswered);
    assert_eq!(stats.error_texts, [UNANSWERED]);
}

#[test]
fn messages_that_are_lost_with_the_connection_were_not_given_up() {
    let gone = Library {
        gone_at: Some(60),
        ..library()
    };
    let (_, stats, words) = run(gone, &Stop::default());
    assert!(words.ends_with("went away: connection reset"), "{words}");
    assert_eq!(
        (stats.errors, stats.unanswered),
        (stats.sent - stats.messages, 0)
    );
    assert!(stats.errors > 0);
}

#[test]
fn answers_belong_to_requests_in_their_order() {
    let clock = Clock::new();
    let mut recorder = Recorder::new(clock, 1, 0, 0, Live::default());
    let mut in_flight = InFlight::default();
    for (sequence, intended_ns) in [(0, 1), (1, 1), (2, 1_000_000), (3, 1_000_000)] {
        in_flight.push(&Message {
            sequence,
            intended_ns,
            sent_ns: 5_000_000,
            key: None,
            is_measured: true,
        });
    }
    let mut answers = Answers {
        in_flight: &mut in_flight,
        recorder: &mut recorder,
        clock,
        size_bytes: 10,
        now_ns: Some(6_000_000),
        is_alive: false,
    };
    answers.acked_to(2);
    answers.failed_to(3, &"no");
    // An answer to nothing changes nothing.
    answers.acked_to(3);
    answers.acked(2);
    assert!(answers.is_alive && answers.has_all());
    let stats = recorder.finish();
    assert_eq!((stats.messages, stats.bytes, stats.errors), (3, 30, 1));
    assert_eq!((stats.response.len(), stats.service.len()), (3, 3));
    // The time of each from its own time, though two of them were counted at once.
    assert_eq!(stats.response.quantile_ns(0.3) / 100_000, 50);
    assert!(stats.response.max_ns() > 5_500_000);
    assert_eq!(stats.acked[&0].len(), 3);
    assert_eq!(stats.error_texts, ["no"]);
}
