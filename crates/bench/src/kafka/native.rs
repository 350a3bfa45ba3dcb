//! The part of librdkafka's API that is used for every message, called directly because the wrapper
//! `rdkafka` costs time for each message: it looks up the topic and allocates its name for a
//! message that is sent, and counts references for a message that is received.
//!
//! All unsafe code of the Kafka client is in this file. librdkafka is thread safe. No object here
//! outlives its client, because each struct destroys its other fields before the client, which is
//! its last field.

use std::ffi::{CStr, CString, c_void};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use rdkafka::bindings::{self as c, rd_kafka_event_t, rd_kafka_message_t, rd_kafka_resp_err_t};
use rdkafka::client::{Client, ClientContext};
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::topic_partition_list::TopicPartitionList;
use rdkafka::types::{RDKafkaErrorCode, RDKafkaType};

use crate::wait::Waiter;

/// Maximum of delivery reports or messages that one call takes.
const AT_A_TIME: usize = 256;
/// "Any partition": the library's partitioner chooses.
const UNASSIGNED: i32 = -1;

/// A context whose callbacks do nothing: errors are read as events.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Quiet;

impl ClientContext for Quiet {
    fn log(&self, _level: RDKafkaLogLevel, _facility: &str, _text: &str) {}

    fn error(&self, _error: KafkaError, _reason: &str) {}
}

/// An error of the client as a whole, as the library reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) code: RDKafkaErrorCode,
    pub(super) text: String,
    /// The client cannot be used any more.
    pub(super) is_fatal: bool,
}

/// A queue of the library.
struct Queue(NonNull<c::rd_kafka_queue_t>);

impl Queue {
    /// The main queue: a producer's delivery reports, and the errors of the client.
    fn main(client: &Client<Quiet>) -> KafkaResult<Queue> {
        // SAFETY: the client lives; the queue returned is owned by us.
        let queue = unsafe { c::rd_kafka_queue_get_main(client.native_ptr()) };
        NonNull::new(queue).map(Queue).ok_or_else(no_queue)
    }

    /// The queue of a consumer's messages.
    fn of_consumer(client: &Client<Quiet>) -> KafkaResult<Queue> {
        // SAFETY: as above.
        let queue = unsafe { c::rd_kafka_queue_get_consumer(client.native_ptr()) };
        NonNull::new(queue).map(Queue).ok_or_else(no_queue)
    }

    /// Takes the next event, if there is one.
    fn next_event(&self) -> Option<Event> {
        // SAFETY: the queue lives; the event is owned by us.
        NonNull::new(unsafe { c::rd_kafka_queue_poll(self.0.as_ptr(), 0) }).map(Event)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: we own it, and its client lives.
        unsafe { c::rd_kafka_queue_destroy(self.0.as_ptr()) };
    }
}

fn no_queue() -> KafkaError {
    KafkaError::ClientCreation("the client has no such queue".to_owned())
}

/// An event of the library.
struct Event(NonNull<rd_kafka_event_t>);

impl Event {
    fn kind(&self) -> i32 {
        // SAFETY: the event lives.
        unsafe { c::rd_kafka_event_type(self.0.as_ptr()) }
    }

    fn trouble(&self) -> Trouble {
        let event = self.0.as_ptr();
        // SAFETY: the event lives, and its text lives as long as the event.
        unsafe {
            let text = CStr::from_ptr(c::rd_kafka_event_error_string(event));
            Trouble {
                code: c::rd_kafka_event_error(event).into(),
                text: text.to_string_lossy().into_owned(),
                is_fatal: c::rd_kafka_event_error_is_fatal(event) != 0,
            }
        }
    }

    /// Calls `report` with the slot of each message of a delivery report.
    fn for_each_report(&self, mut report: impl FnMut(usize, Option<RDKafkaErrorCode>)) {
        let mut messages: [*const rd_kafka_message_t; AT_A_TIME] = [ptr::null(); AT_A_TIME];
        loop {
            // SAFETY: the event lives, and the array has the length that is passed.
            let count = unsafe {
                c::rd_kafka_event_message_array(
                    self.0.as_ptr(),
                    messages.as_mut_ptr(),
                    messages.len(),
                )
            };
            for message in &messages[..count] {
                // SAFETY: the library has filled in `count` messages, which live as long as the
                // event.
                let message = unsafe { &**message };
                report(message._private as usize, code_of(message.err));
            }
            if count < messages.len() {
                return;
            }
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: we own it.
        unsafe { c::rd_kafka_event_destroy(self.0.as_ptr()) };
    }
}

fn code_of(error: rd_kafka_resp_err_t) -> Option<RDKafkaErrorCode> {
    match error {
        rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR => None,
        error => Some(error.into()),
    }
}

fn client(config: &ClientConfig, kind: RDKafkaType, events: i32) -> KafkaResult<Client<Quiet>> {
    let native = config.create_native_config()?;
    // SAFETY: the configuration lives.
    unsafe { c::rd_kafka_conf_set_events(native.ptr(), events) };
    Client::new(config, native, kind, Quiet)
}

/// An event from a producer's queue.
pub(super) enum News {
    /// The delivery report of the message in this slot; `None`: it was acknowledged.
    Report(usize, Option<RDKafkaErrorCode>),
    /// An error of the client.
    Trouble(Trouble),
}

/// A producer for one topic.
pub(super) struct NativeProducer {
    queue: Queue,
    topic: NonNull<c::rd_kafka_topic_t>,
    client: Client<Quiet>,
}

// SAFETY: librdkafka's objects may be used by any thread, and by several at a time.
unsafe impl Send for NativeProducer {}
// SAFETY: as above.
unsafe impl Sync for NativeProducer {}

impl NativeProducer {
    /// Creates a producer.
    ///
    /// # Errors The library rejects the configuration or the topic's name.
    pub(super) fn new(config: &ClientConfig, topic: &str) -> KafkaResult<NativeProducer> {
        let events = c::RD_KAFKA_EVENT_DR | c::RD_KAFKA_EVENT_ERROR;
        let client = client(config, RDKafkaType::RD_KAFKA_PRODUCER, events)?;
        let name = CString::new(topic)?;
        // SAFETY: client and name live; the topic is ours.
        let made =
            unsafe { c::rd_kafka_topic_new(client.native_ptr(), name.as_ptr(), ptr::null_mut()) };
        let topic = NonNull::new(made).ok_or_else(|| {
            KafkaError::ClientCreation(format!("\"{topic}\" cannot be the name of a topic"))
        })?;
        match Queue::main(&client) {
            Ok(queue) => Ok(NativeProducer {
                queue,
                topic,
                client,
            }),
            Err(error) => {
                // SAFETY: the topic is ours, and its client lives.
                unsafe { c::rd_kafka_topic_destroy(topic.as_ptr()) };
                Err(error)
            }
        }
    }

    /// The client, for what is not about single messages.
    pub(super) fn client(&self) -> &Client<Quiet> {
        &self.client
    }

    /// Hands a copy of a message to the library; its report will name `slot`.
    ///
    /// # Errors The library does not accept the message. There will be no report.
    #[inline]
    pub(super) fn send(
        &self,
        value: &[u8],
        key: Option<&[u8]>,
        slot: usize,
    ) -> Result<(), RDKafkaErrorCode> {
        let (key, key_bytes) = key.map_or((ptr::null(), 0), |key| (key.as_ptr(), key.len()));
        // SAFETY: value and key are copied before this returns; the slot is a number.
        let result = unsafe {
            c::rd_kafka_produce(
                self.topic.as_ptr(),
                UNASSIGNED,
                c::RD_KAFKA_MSG_F_COPY,
                value.as_ptr() as *mut c_void,
                value.len(),
                key.cast(),
                key_bytes,
                slot as *mut c_void,
            )
        };
        match result {
            0 => Ok(()),
            // SAFETY: the call reads a variable of this thread.
            _ => Err(unsafe { c::rd_kafka_last_error() }.into()),
        }
    }

    /// Takes all events of the queue. Returns the number of delivery reports.
    #[inline]
    pub(super) fn serve(&self, mut take: impl FnMut(News)) -> usize {
        let mut reports = 0;
        while let Some(event) = self.queue.next_event() {
            match event.kind() {
                c::RD_KAFKA_EVENT_DR => event.for_each_report(|slot, error| {
                    reports += 1;
                    take(News::Report(slot, error));
                }),
                c::RD_KAFKA_EVENT_ERROR => take(News::Trouble(event.trouble())),
                _ => {}
            }
        }
        reports
    }

    /// Makes the library wake the waiter when an event enters the empty queue, until the bell is
    /// dropped.
    pub(super) fn bell(self: &Arc<Self>, waiter: &Arc<Waiter>) -> Bell {
        let waiter = waiter.clone();
        // SAFETY: the bell owns the waiter, and disables the callback when it is dropped.
        unsafe {
            c::rd_kafka_queue_cb_event_enable(
                self.queue.0.as_ptr(),
                Some(ring),
                Arc::as_ptr(&waiter) as *mut c_void,
            );
        }
        Bell {
            producer: Arc::clone(self),
            _waiter: waiter,
        }
    }
}

impl Drop for NativeProducer {
    fn drop(&mut self) {
        // SAFETY: the topic is ours, and the field `client` is dropped after it.
        unsafe { c::rd_kafka_topic_destroy(self.topic.as_ptr()) };
    }
}

/// While this exists, the library wakes the waiter at new events.
pub(super) struct Bell {
    producer: Arc<NativeProducer>,
    _waiter: Arc<Waiter>,
}

impl Drop for Bell {
    fn drop(&mut self) {
        let queue = self.producer.queue.0.as_ptr();
        // SAFETY: the queue lives. This call waits for a callback that is running.
        unsafe { c::rd_kafka_queue_cb_event_enable(queue, None, ptr::null_mut()) };
    }
}

/// Called by the library's threads, under the queue's lock.
unsafe extern "C" fn ring(_client: *mut c::rd_kafka_t, waiter: *mut c_void) {
    // SAFETY: it is the waiter of a bell that was not dropped yet.
    unsafe { &*waiter.cast_const().cast::<Waiter>() }.ring();
}

/// An event for a consumer.
pub(super) enum Came<'m> {
    /// The partition and the value of a message.
    Message(u32, &'m [u8]),
    /// An error, and the partition that cannot be read; `None`: the error does not concern a
    /// partition.
    Trouble(Option<u32>, Trouble),
}

/// A consumer of given partitions.
pub(super) struct NativeConsumer {
    messages: Queue,
    others: Queue,
    client: Client<Quiet>,
}

// SAFETY: librdkafka's objects may be used by any thread.
unsafe impl Send for NativeConsumer {}

impl NativeConsumer {
    /// Creates a consumer without partitions.
    ///
    /// # Errors The library rejects the configuration.
    pub(super) fn new(config: &ClientConfig) -> KafkaResult<NativeConsumer> {
        let client = client(
            config,
            RDKafkaType::RD_KAFKA_CONSUMER,
            c::RD_KAFKA_EVENT_ERROR,
        )?;
        Ok(NativeConsumer {
            messages: Queue::of_consumer(&client)?,
            others: Queue::main(&client)?,
            client,
        })
    }

    /// Assigns partitions, each with its start offset.
    ///
    /// # Errors The library refuses the assignment.
    pub(super) fn assign(&self, partitions: &TopicPartitionList) -> KafkaResult<()> {
        // SAFETY: client and list live; the list is copied.
        let result = unsafe { c::rd_kafka_assign(self.client.native_ptr(), partitions.ptr()) };
        match code_of(result) {
            None => Ok(()),
            Some(code) => Err(KafkaError::Global(code)),
        }
    }

    /// Takes the messages that have arrived. If there are none, it waits up to `wait_ms` for the
    /// first one. Returns the number of messages and errors.
    #[inline]
    pub(super) fn take(&self, wait_ms: i32, mut take: impl FnMut(Came<'_>)) -> usize {
        let mut messages: [*mut rd_kafka_message_t; AT_A_TIME] = [ptr::null_mut(); AT_A_TIME];
        let queue = self.messages.0.as_ptr();
        // SAFETY: the queue lives, and the array has the length that is passed.
        let mut count = unsafe {
            c::rd_kafka_consume_batch_queue(queue, 0, messages.as_mut_ptr(), messages.len())
        };
        if count == 0 && wait_ms > 0 {
            // With a timeout, the batch call would wait until the array is full. SAFETY: the queue
            // lives.
            messages[0] = unsafe { c::rd_kafka_consume_queue(queue, wait_ms) };
            count = isize::from(!messages[0].is_null());
        }
        let count = usize::try_from(count).unwrap_or(0);
        for message in &messages[..count] {
            let message = Taken(*message);
            take(message.look());
        }
        count
    }

    /// Takes the errors of the client.
    pub(super) fn troubles(&self, mut take: impl FnMut(Trouble)) {
        while let Some(event) = self.others.next_event() {
            if event.kind() == c::RD_KAFKA_EVENT_ERROR {
                take(event.trouble());
            }
        }
    }

    /// The client, for what is not about single messages.
    pub(super) fn client(&self) -> &Client<Quiet> {
        &self.client
    }
}

/// A message or error that the library has returned.
struct Taken(*mut rd_kafka_message_t);

impl Taken {
    fn look(&self) -> Came<'_> {
        // SAFETY: the library has returned the message, which lives until `self` is dropped.
        let message = unsafe { &*self.0 };
        let bytes = if message.payload.is_null() {
            &[][..]
        } else {
            // SAFETY: the payload has `len` bytes, and lives as long as the message.

            unsafe { slice::from_raw_parts(message.payload.cast(), message.len) }
        };
        let partition = u32::try_from(message.partition).ok();
        match code_of(message.err) {
            None => Came::Message(partition.unwrap_or(0), bytes),
            Some(code) => Came::Trouble(
                partition,
                Trouble {
                    code,
                    text: String::from_utf8_lossy(bytes).into_owned(),
                    is_fatal: false,
                },
            ),
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // SAFETY: the message is ours.
        unsafe { c::rd_kafka_message_destroy(self.0) };
    }
}
