//! A producer through librdkafka.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::config::ClientConfig;
use rdkafka::types::RDKafkaErrorCode;

use crate::driver::DriverError;
use crate::message_source::{Message, MessageSource};
use crate::plan::Plan;
use crate::pump::{Answers, Limits, NotTaken, PublishPort};
use crate::url::Url;
use crate::wait::Waiter;

use super::ends::Ends;
use super::native::{Bell, NativeProducer, News};
use super::{ANSWER, HELD_MESSAGES};

/// After this many messages, delivery reports are read.
const LOOK_AFTER: usize = 32;
/// In a closed loop, this many messages share one reading of the clock. Their latency is too large
/// by at most the time that sending eight takes, a few microseconds.
const SAME_TIME: usize = 8;
/// Larger messages get a clock reading each, which costs next to nothing compared with their copy.
const SAME_TIME_BYTES_MAX: usize = 4 << 10;

/// A producer.
pub(super) struct KafkaPublisher {
    bell: Option<Bell>,
    native: Arc<NativeProducer>,
    url: Url,
    window: u32,
    value: Vec<u8>,
    waiter: Arc<Waiter>,
    ends: Ends,
}

impl KafkaPublisher {
    /// Creates a producer, and waits until it knows the topic.
    pub(super) fn new(
        url: &Url,
        config: &ClientConfig,
        plan: &Plan,
    ) -> Result<KafkaPublisher, DriverError> {
        let native =
            NativeProducer::new(config, &plan.topic).map_err(|error| url.refused(error))?;
        let known = native.client().fetch_metadata(Some(&plan.topic), ANSWER);
        known.map_err(|error| url.unreachable(error))?;
        Ok(KafkaPublisher {
            bell: None,
            native: Arc::new(native),
            url: url.clone(),
            window: plan.window(HELD_MESSAGES),
            value: Vec::with_capacity(plan.size_bytes),
            waiter: Waiter::here(),
            ends: Ends::default(),
        })
    }

    /// Takes the delivery reports that have arrived. Returns whether there was any.
    fn serve(&mut self, answers: &mut Answers<'_>) -> Result<bool, DriverError> {
        let ends = &mut self.ends;
        let reports = self.native.serve(|news| match news {
            News::Report(message, None) => answers.acked(message as u64),
            // The library has given up on the message, which the broker did not answer.
            News::Report(message, Some(code @ RDKafkaErrorCode::MessageTimedOut)) => {
                answers.gave_up(message as u64, &code);
            }
            News::Report(message, Some(code)) => answers.failed(message as u64, &code),
            News::Trouble(trouble) => ends.hear(trouble),
        });
        self.ends.check(&self.url)?;
        Ok(reports > 0)
    }
}

impl PublishPort for KafkaPublisher {
    fn url(&self) -> &Url {
        &self.url
    }

    fn limits(&self, source: &MessageSource) -> Limits {
        let shares_time = source.size_bytes() <= SAME_TIME_BYTES_MAX && !source.is_open();
        Limits {
            same_time_messages: if shares_time { SAME_TIME } else { 1 },
            look_after_messages: LOOK_AFTER,
            ..Limits::new(self.window)
        }
    }

    fn start(&mut self) {
        self.waiter = Waiter::here();
        self.bell = Some(self.native.bell(&self.waiter));
    }

    #[inline]
    fn put(&mut self, message: &Message, source: &mut MessageSource) -> Result<(), NotTaken> {
        self.value.clear();
        source.push(message, &mut self.value);
        let key = message.key.map(u64::to_be_bytes);
        let key = key.as_ref().map(|key| &key[..]);
        let sent = self
            .native
            .send(&self.value, key, message.sequence as usize);
        sent.map_err(|code| match code {
            RDKafkaErrorCode::QueueFull => NotTaken::Full(code.to_string()),
            code => NotTaken::Refused(code.to_string()),
        })
    }

    fn exchange(&mut self, most_ns: u64, answers: &mut Answers<'_>) -> Result<(), DriverError> {
        if !self.serve(answers)? && most_ns > 0 {
            self.waiter.wait(Duration::from_nanos(most_ns));
            self.serve(answers)?;
        }
        Ok(())
    }
}
