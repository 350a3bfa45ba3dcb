//! A simulated broker for tests: one server that needs the same time for each message.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use cloverleaf_telemetry::Protocol;

use super::opened::Opened;
use crate::driver::{Connect, Consume, DriverError, Produce, Promise, Stop};
use crate::message_source::{Message, MessageSource, Next};
use crate::plan::Plan;
use crate::recorder::Recorder;
use crate::url::Url;
use crate::usage::BrokerPlace;

/// A broker that acknowledges a message each so many nanoseconds at most.
#[derive(Debug, Clone, Default)]
pub(super) struct Fake {
    pub(super) service_ns: u64,
    /// It goes away in the middle of these measurements, 0 the first.
    pub(super) breaks: Vec<u32>,
    /// Measurements so far.
    pub(super) measured: Arc<AtomicU32>,
}

impl Fake {
    /// One that is called so.
    pub(super) fn opened(self, label: &str) -> Opened {
        Opened {
            connect: Box::new(self),
            label: label.to_owned(),
            url: Url::embedded(Protocol::Nsq),
            reached: Url::embedded(Protocol::Nsq),
            place: BrokerPlace::Elsewhere,
            network: None,
            topic: None,
            claimed: None,
        }
    }
}

impl Connect for Fake {
    fn prepare(&self, _plan: &Plan) -> Result<(), DriverError> {
        Ok(())
    }

    fn producer(&self, plan: &Plan, _number: u32) -> Result<Box<dyn Produce>, DriverError> {
        let number = self.measured.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(Server {
            breaks: self.breaks.contains(&number),
            service_ns: self.service_ns,
            in_flight: match plan.in_flight {
                0 => usize::MAX,
                limit => limit as usize,
            },
            waiting: VecDeque::new(),
        }))
    }

    fn consumer(&self, _plan: &Plan, _number: u32) -> Result<Box<dyn Consume>, DriverError> {
        Err(DriverError::Unsupported {
            what: "the fake has nothing to consume".to_owned(),
        })
    }

    fn clean_up(&self, _plan: &Plan) -> Result<(), DriverError> {
        Ok(())
    }

    fn versions(&self) -> Vec<(String, String)> {
        vec![("fake".to_owned(), "1".to_owned())]
    }

    fn promise(&self, _plan: &Plan) -> Promise {
        Promise::Memory
    }
}

struct Server {
    breaks: bool,
    service_ns: u64,
    in_flight: usize,
    /// Messages with the time at which each is done.
    waiting: VecDeque<(Message, u64)>,
}

impl Produce for Server {
    fn run(
        &mut self,
        source: &mut MessageSource,
        recorder: &mut Recorder,
        stop: &Stop,
    ) -> Result<(), DriverError> {
        let clock = source.clock();
        let bytes = source.size_bytes();
        let (mut free_ns, mut is_done) = (0, false);
        if self.breaks {
            return Err(DriverError::Gone {
                url: "fake".to_owned(),
                reason: "connection reset".to_owned(),
            });
        }
        while !(is_done && self.waiting.is_empty()) {
            let now_ns = clock.now_ns();
            while let Some((message, _)) = self.waiting.front().filter(|(_, at)| *at <= now_ns) {
                recorder.acked(message, bytes, now_ns);
                self.waiting.pop_front();
            }
            let mut wake_ns = self.waiting.front().map_or(u64::MAX, |(_, at)| *at);
            if !is_done && self.waiting.len() < self.in_flight {
                match source.next(now_ns) {
                    Next::Send(message) => {
                        recorder.sent(&message, true);
                        free_ns = now_ns.max(free_ns) + self.service_ns;
                        self.waiting.push_back((message, free_ns));
                        continue;
                    }
                    Next::At(ns) => wake_ns = wake_ns.min(ns),
                    Next::Done => is_done = true,
                }
            }
            is_done |= stop.is_set();
            if !is_done || !self.waiting.is_empty() {
                thread::park_timeout(Duration::from_nanos(wake_ns.saturating_sub(now_ns)));
            }
        }
        Ok(())
    }
}
