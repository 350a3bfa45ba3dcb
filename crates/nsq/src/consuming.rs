//! The consuming half of a session: RDY, FIN, REQ and TOUCH to the broker's consumer, deliveries
//! from it straight into the output buffer.

use std::task::{Context, Poll, Waker};

use cloverleaf_broker::{Consumer, Delivery, InFlightCounts, MessageId};
use cloverleaf_log::RecordCursor;
use cloverleaf_session::Now;
use cloverleaf_telemetry::{AckLatencies, Probe};

use crate::codec::decimal;
use crate::error::{Code, ProtocolError};
use crate::frame::push_message;
use crate::message_id::{ID_BYTES, decode_id, encode_id};
use crate::sampling::Sampling;
use crate::stats::clients::ClientHandle;

/// A subscribed session.
pub(crate) struct Consuming {
    consumer: Consumer,
    sampling: Sampling,
    /// Delivered by the broker, not yet encoded; the first may be partly encoded.
    runs: Vec<Delivery>,
    /// How many of `runs` are completely encoded.
    runs_done: usize,
    /// FINs of this read, settled together.
    fins: Vec<MessageId>,
    /// Messages that the sample rate excludes: acknowledged without being sent.
    sampled_out: Vec<MessageId>,
    /// The message acknowledged last, to count acknowledgements in order and out of order.
    last_fin: Option<MessageId>,
    ready: u32,
    /// Messages that were sent and are not settled yet.
    with_client: u32,
    /// The consumer's total of timed-out leases at the last report. The probe gets the increase
    /// since then.
    timed_out: u64,
    last_delivery_us: u64,
    /// Deliveries are held back until [`Consuming::due_us`].
    is_coalescing: bool,
    closing: bool,
    /// Whether the channel had depth (messages ready for a consumer) at the last check.
    has_backlog: bool,
    /// When to check the depth again, in microseconds.
    backlog_check_us: u64,
}

/// How long telemetry reuses the channel's depth, in microseconds: a new check takes the channel's
/// lock and walks its consumers.
const BACKLOG_CHECK_INTERVAL_US: u64 = 10_000;

/// While a client has at least half of its RDY in flight, deliveries to it are coalesced: one write
/// per this interval, lest each FIN cause a packet of its own. NSQ's `output_buffer_timeout` serves
/// the same purpose (nsqd: 250 ms by default, 25 ms at least), but here it only switches
/// coalescing on or off (-1). A client with less in flight gets everything at once.
const COALESCE_US: u64 = 1_000;

/// Below this RDY, deliveries are never coalesced: with this few messages in flight the client
/// would run out of work.
const COALESCE_READY_MIN: u32 = 32;

/// The outcome of one round of deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivered {
    /// The channel still exists: every ready message was encoded, the output is full, or deliveries
    /// are held back.
    Open,
    /// The channel or its topic was deleted: nsqd closes the connection then.
    Ended,
}

impl Consuming {
    pub(crate) fn new(consumer: Consumer, sample_rate: u8, seed: u64) -> Consuming {
        Consuming {
            consumer,
            sampling: Sampling::new(sample_rate, seed),
            runs: Vec::new(),
            runs_done: 0,
            fins: Vec::new(),
            sampled_out: Vec::new(),
            last_fin: None,
            ready: 0,
            with_client: 0,
            timed_out: 0,
            last_delivery_us: 0,
            is_coalescing: false,
            closing: false,
            has_backlog: false,
            backlog_check_us: 0,
        }
    }

    /// When [`Consuming::deliver`] is to be called again at the latest, in microseconds; `None`
    /// while no deliveries are held back.
    pub(crate) fn due_us(&self) -> Option<u64> {
        self.is_coalescing
            .then_some(self.last_delivery_us + COALESCE_US)
    }

    fn settled(&mut self, messages: u64) {
        let messages = u32::try_from(messages).unwrap_or(u32::MAX);
        self.with_client = self.with_client.saturating_sub(messages);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing
    }

    /// RDY.
    pub(crate) fn ready(&mut self, count: u32) {
        if self.ready != count {
            self.ready = count;
            self.consumer.set_window(count);
        }
    }

    /// CLS: no further message is delivered. Messages in flight can still be settled.
    pub(crate) fn close(&mut self) {
        self.closing = true;
        self.is_coalescing = false;
        self.ready(0);
        // Messages that are leased to this consumer but not encoded yet are requeued at once.
        let mut rest = self.runs.split_off(self.runs_done.min(self.runs.len()));
        self.runs = Vec::new();
        self.runs_done = 0;
        let mut cx = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(())) = self.consumer.poll_deliveries(&mut cx, &mut rest) {}
        for run in rest {
            let mut cursor = RecordCursor::at(&run.batch, run.position);
            for _ in 0..run.count {
                let Ok(Some((offset, _))) = cursor.skip_record() else {
                    break;
                };
                let id = MessageId {
                    partition: run.partition,
                    offset,
                };
                // An error means that the lease has already ended, so the message is requeued
                // anyway.
                let _ = self.consumer.nack(id, 0);
            }
        }
    }

    /// FIN. The message is settled with the next `settle_fins`.
    #[inline]
    pub(crate) fn fin(&mut self, id: &[u8; ID_BYTES]) -> Result<(), ProtocolError> {
        match decode_id(id) {
            Some(id) => {
                self.fins.push(id);
                Ok(())
            }
            None => Err(not_in_flight(Code::FinFailed, "FIN", id)),
        }
    }

    /// Settles the FINs collected so far. Returns an error for each message that is not in flight.
    /// The caller queues these errors, because before the first one it has to publish the open
    /// batch (answers keep their order), and that must not happen under the subscription's lock,
    /// which this method takes.
    pub(crate) fn settle_fins(
        &mut self,
        now: Now,
        client: &ClientHandle,
        probe: &Probe,
    ) -> Vec<ProtocolError> {
        let mut refused = Vec::new();
        if self.fins.is_empty() {
            return refused;
        }
        let (mut in_order, mut out_of_order) = (0, 0);
        let mut last = self.last_fin;
        let mut latencies = AckLatencies::new(probe);
        self.consumer
            .ack_many(&self.fins, |id, settled, overdue_us| match settled {
                Ok(settlement) => {
                    latencies.acked(settlement.held_us);
                    match last {
                        Some(last) if id < last => out_of_order += 1,
                        _ => in_order += 1,
                    }
                    last = Some(id);
                }
                Err(_) => {
                    probe.late_ack();
                    overdue_us.into_iter().for_each(|us| probe.overdue_ack(us));
                    let id = encode_id(id.partition, id.offset);
                    refused.push(not_in_flight(Code::FinFailed, "FIN", &id));
                }
            });
        drop(latencies);
        self.last_fin = last;
        self.fins.clear();
        probe.acks(in_order, out_of_order, now.us);
        client.finish_count.add(in_order + out_of_order);
        self.settled(in_order + out_of_order);
        self.report_in_flight(now, client, probe);
        refused
    }

    /// REQ.
    pub(crate) fn requeue(
        &mut self,
        id: &[u8; ID_BYTES],
        delay_ms: u64,
        now: Now,
        client: &ClientHandle,
        probe: &Probe,
    ) -> Result<(), ProtocolError> {
        decode_id(id)
            .and_then(|id| self.consumer.nack(id, delay_ms).ok())
            .ok_or_else(|| not_in_flight(Code::ReqFailed, "REQ", id))?;
        probe.nacked(1);
        client.requeue_count.add(1);
        self.settled(1);
        self.report_in_flight(now, client, probe);
        Ok(())
    }

    /// TOUCH.
    pub(crate) fn touch(&mut self, id: &[u8; ID_BYTES]) -> Result<(), ProtocolError> {
        decode_id(id)
            .and_then(|id| self.consumer.extend(id).ok())
            .ok_or_else(|| not_in_flight(Code::TouchFailed, "TOUCH", id))
    }

    /// Encodes ready messages into `out` until it has `bytes_max` bytes, or no more are ready.
    #[allow(clippy::too_many_arguments)] // borrowed parts of the session
    pub(crate) fn deliver(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
        bytes_max: usize,
        may_coalesce: bool,
        now: Now,
        client: &ClientHandle,
        probe: &Probe,
    ) -> Delivered {
        if self.closing {
            // Polled only to notice that the channel was deleted.
            let ended = self.consumer.poll_deliveries(cx, &mut Vec::new());
            return match ended {
                Poll::Ready(None) => Delivered::Ended,
                _ => Delivered::Open,
            };
        }
        let has_enough = self.ready >= COALESCE_READY_MIN && self.with_client >= self.ready / 2;
        self.is_coalescing = may_coalesce
            && has_enough
            && self.runs_done == self.runs.len()
            && now.us < self.last_delivery_us + COALESCE_US;
        if self.is_coalescing {
            return Delivered::Open;
        }
        let (mut messages, mut again) = (0, 0);
        let outcome = loop {
            if self.runs_done == self.runs.len() {
                self.runs.clear();
                self.runs_done = 0;
                if out.len() >= bytes_max {
                    break Delivered::Open;
                }
                match self.consumer.poll_deliveries(cx, &mut self.runs) {
                    Poll::Ready(Some(())) => continue,
                    Poll::Ready(None) => break Delivered::Ended,
                    Poll::Pending => {
                        self.shrink();
                        break Delivered::Open;
                    }
                }
            }
            let run = &mut self.runs[self.runs_done];
            let sent = encode_run(
                run,
                out,
                bytes_max,
                &mut self.sampling,
                &mut self.sampled_out,
            );
            messages += sent;
            again += if run.attempts > 1 { sent } else { 0 };
            if run.count > 0 {
                break Delivered::Open;
            }
            self.runs_done += 1;
        };
        if !self.sampled_out.is_empty() {
            self.consumer.ack_many(&self.sampled_out, |_, _, _| {});
            self.sampled_out.clear();
        }
        if messages > 0 {
            client.message_count.add(messages);
            probe.delivered(messages, again);
            let sent = u32::try_from(messages).unwrap_or(u32::MAX);
            self.with_client = self.with_client.saturating_add(sent);
            self.last_delivery_us = now.us;
            self.report_in_flight(now, client, probe);
        }
        outcome
    }

    #[inline(always)]
    fn report_in_flight(&mut self, now: Now, client: &ClientHandle, probe: &Probe) {
        let InFlightCounts {
            in_flight,
            timed_out,
        } = self.consumer.holding();
        probe.timed_out(timed_out.saturating_sub(self.timed_out));
        self.timed_out = timed_out;
        // Messages that timed out are no longer in flight.
        self.with_client = self.with_client.min(in_flight);
        client.in_flight_count.set(in_flight.into());
        probe.credit_used(in_flight.into(), now.us);
        if in_flight < self.ready || self.ready == 0 {
            return probe.no_credit_ends(now.us);
        }
        if now.us >= self.backlog_check_us {
            self.backlog_check_us = now.us + BACKLOG_CHECK_INTERVAL_US;
            self.has_backlog = self.consumer.subscription().counts().depth > 0;
        }
        if self.has_backlog {
            probe.no_credit_begins(now.us)
        } else {
            probe.no_credit_ends(now.us)
        }
    }

    /// Frees the memory of a burst, so that an idle connection keeps none.
    fn shrink(&mut self) {
        if self.runs.capacity() > 16 {
            self.runs = Vec::new();
        }
        if self.fins.capacity() > 64 {
            self.fins = Vec::new();
        }
    }
}

/// Encodes messages of a run until all are encoded or `out` is full; the rest stays in `run`.
/// Returns how many were encoded, without those that the sample rate excludes.
#[inline(never)]
fn encode_run(
    run: &mut Delivery,
    out: &mut Vec<u8>,
    bytes_max: usize,
    sampling: &mut Sampling,
    sampled_out: &mut Vec<MessageId>,
) -> u64 {
    let mut cursor = RecordCursor::at(&run.batch, run.position);
    let (mut sent, mut left) = (0, run.count);
    while left > 0 && out.len() < bytes_max {
        let (offset, record) = match cursor.next_record() {
            Ok(Some(record)) => record,
            Ok(None) => {
                left = 0;
                break;
            }
            Err(error) => {
                // The log has validated this batch. Should it be malformed nevertheless, its
                // messages stay in flight and time out.
                tracing::error!(%error, offset = run.first, "a delivered batch is malformed");
                left = 0;
                break;
            }
        };
        left -= 1;
        if !sampling.takes() {
            sampled_out.push(MessageId {
                partition: run.partition,
                offset,
            });
            continue;
        }
        let id = encode_id(run.partition, offset);
        let timestamp_ns = record.timestamp_ms.saturating_mul(1_000_000);
        let body = record.value.unwrap_or_default();
        push_message(out, timestamp_ns, run.attempts, &id, body);
        sent += 1;
    }
    let position = cursor.position();
    run.position = position;
    run.count = left;
    sent
}

fn not_in_flight(code: Code, command: &str, id: &[u8; ID_BYTES]) -> ProtocolError {
    let mut text = Vec::with_capacity(64);
    text.extend_from_slice(command.as_bytes());
    text.push(b' ');
    text.extend_from_slice(id);
    text.extend_from_slice(b" failed ID not in flight");
    ProtocolError::new(code, text)
}

/// The count of an RDY as nsqd reads it: 1 if the command has none. The error for a count out of
/// range shows it as a signed 64-bit integer, as Go does.
pub(crate) fn rdy_count(word: Option<&[u8]>, rdy_count_max: u32) -> Result<u32, ProtocolError> {
    let Some(word) = word else { return Ok(1) };
    let Some(count) = decimal(word) else {
        return Err(crate::codec::invalid_with(
            "RDY could not parse count ",
            word,
        ));
    };
    let count = count as i64;
    match u32::try_from(count) {
        Ok(count) if count <= rdy_count_max => Ok(count),
        _ => {
            let text = format!("RDY count {count} out of range 0-{rdy_count_max}");
            Err(ProtocolError::new(Code::Invalid, text))
        }
    }
}
