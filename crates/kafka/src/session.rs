//! One Kafka connection's state machine: bytes in, broker calls, bytes out. No socket, no clock.
//!
//! Requests are executed in the order in which they arrive, as soon as they are complete; their
//! answers leave in the same order ([`crate::answers`]). A request whose answer has to wait delays
//! the answers to later requests, but not their execution: the batches of a producer with many
//! requests in flight share group commits. Fetch is the exception: it is executed only once it is
//! the oldest request without an answer.
//!
//! A malformed request closes the connection without an answer, as in Kafka: the protocol has no
//! error answer that fits every request.

use std::ops::Range;
use std::sync::Arc;
use std::task::Context;

use cloverleaf_session::{Input, Meter, Now, Output, Received};
use cloverleaf_telemetry::{Identity, Probe};

use crate::answer::Answer;
use crate::answers::{AnswerHead, AnswerQueue};
use crate::api_versions::{self, Software};
use crate::apis::{self, Api, ApiVersions};
use crate::context::KafkaContext;
use crate::control::{self, ConnectionPeer, ControlCall};
use crate::error_code::ErrorCode;
use crate::fetch::FetchEnv;
use crate::frame::{self, RequestHeader, SIZE_BYTES};
use crate::produce::{
    Acks, CompressionSampler, ExecutedProduce, ParsedProduce, ProduceState, ProducedRecords,
    SingleBatch,
};
use crate::wire::{Malformed, Reader};

/// Once a poll has produced this many bytes of output, further answers wait for the next poll.
const OUTPUT_BYTES_MAX: usize = 1 << 20;

/// End of the API key, which follows the size field: from here on the type of a request is known.
const KEY_END: usize = SIZE_BYTES + 2;

/// A client's name and its version are truncated to this many bytes each.
const SOFTWARE_BYTES_MAX: usize = 128;

/// The environment of a new session.
pub struct SessionParts {
    /// The state that all connections of the principal share.
    pub context: Arc<KafkaContext>,
    /// The other end of the connection.
    pub peer: ConnectionPeer,
    /// This connection's telemetry.
    pub probe: Probe,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionPhase {
    /// Requests are read.
    Open,
    /// No more requests are read; all answers that are owed will be sent.
    Draining,
    /// The client has closed its end: only answers that need not wait are still sent.
    Leaving,
    /// No more answers will come: the driver closes the connection once the output is written.
    Ended,
}

/// One connection.
pub struct Session {
    context: Arc<KafkaContext>,
    peer: ConnectionPeer,
    meter: Meter,
    phase: SessionPhase,
    produce_state: ProduceState,
    answers: AnswerQueue,
    is_identified: bool,
    /// A Produce waits because the broker's budget for unwritten bytes is used up (backpressure).
    waits_for_write_budget: bool,
    sampler: CompressionSampler,
    failure: Option<String>,
}

/// The step after a request.
enum NextStep {
    NextRequest,
    /// The request is a Produce whose single batch is still to be stored.
    StoreBatch(AnswerHead, SingleBatch),
    /// The request was not executed: the driver has to show it again once the budget for unwritten
    /// bytes has free space.
    Retry,
}

impl Session {
    /// A connection that has just been accepted.
    pub fn new(parts: SessionParts, _now: Now) -> Session {
        Session {
            context: parts.context,
            peer: parts.peer,
            meter: Meter::new(parts.probe),
            phase: SessionPhase::Open,
            produce_state: ProduceState::default(),
            answers: AnswerQueue::default(),
            is_identified: false,
            waits_for_write_budget: false,
            sampler: CompressionSampler::default(),
            failure: None,
        }
    }

    /// The telemetry of this connection.
    pub fn probe(&self) -> &Probe {
        &self.meter.probe
    }

    /// Finds the first request in `input`. `Ok(Ok(size))`: it is complete; `size` does not include
    /// the size field. `Ok(Err(bytes))`: it is incomplete, and at least `bytes` bytes are needed to
    /// decide.
    fn find_request(&self, input: &[u8]) -> Result<Result<usize, usize>, String> {
        let options = &self.context.options;
        let size = frame::peek_size(input, options.request_bytes_max);
        let explained = |reason: String| match frame::foreign(input) {
            Some(what) => format!("{reason}; it looks like {what}"),
            None => reason,
        };
        let Some(size) = size.map_err(|error| explained(error.to_string()))? else {
            return Ok(Err(KEY_END));
        };
        let Some(key) = input.get(SIZE_BYTES..KEY_END) else {
            return Ok(Err(KEY_END));
        };
        let is_produce = key == (Api::Produce as i16).to_be_bytes();
        let bytes_max = options.control_request_bytes_max;
        if !is_produce && size > bytes_max {
            return Err(explained(format!(
                "a request of {size} bytes, at most {bytes_max} are allowed"
            )));
        }
        if input.len() >= SIZE_BYTES + size {
            Ok(Ok(size))
        } else {
            Ok(Err(SIZE_BYTES + size))
        }
    }

    fn execute(&mut self, request: &[u8], now: Now) -> Result<NextStep, String> {
        let start = frame::read_start(request).map_err(|error| error.to_string())?;
        let Some(versions) = apis::find(start.api_key) else {
            return Err(format!("a request with the unknown key {}", start.api_key));
        };
        if !versions.serves(start.version) {
            return self.refuse_version(versions, start);
        }
        if versions.api == Api::Produce && !self.context.realm.write_budget().is_free() {
            self.waits_for_write_budget = true;
            return Ok(NextStep::Retry);
        }
        self.dispatch(request, versions, now)
            .map_err(|error| format!("{:?} version {}: {error}", versions.api, start.version))
    }

    /// Refuses an unsupported version: the connection ends. Only an ApiVersions is answered, in
    /// version 0, so that a newer client learns the versions that are served.
    fn refuse_version(
        &mut self,
        versions: &ApiVersions,
        start: RequestHeader<'_>,
    ) -> Result<NextStep, String> {
        if versions.api != Api::ApiVersions {
            let (api, version) = (versions.api, start.version);
            return Err(format!("{api:?} in version {version}, which is not served"));
        }
        let head = AnswerHead {
            correlation_id: start.correlation_id,
            flexible: false,
        };
        let body = api_versions::body(0, ErrorCode::UnsupportedVersion);
        self.meter.others += 1;
        self.answers.push_control(head, Answer::Ready(body), 0);
        Ok(NextStep::NextRequest)
    }

    fn dispatch(
        &mut self,
        request: &[u8],
        versions: &ApiVersions,
        now: Now,
    ) -> Result<NextStep, Malformed> {
        let (header, body) = frame::read_header(request, versions)?;
        let head = AnswerHead {
            correlation_id: header.correlation_id,
            flexible: versions.answer_header_is_flexible(header.version),
        };
        if !self.is_identified {
            self.report_client_id(header.client_id);
        }
        match versions.api {
            Api::Produce => return self.produce(head, header.version, request, body),
            Api::Fetch => {
                let mut fetch = self.answers.take_spare_fetch();
                fetch.read(body, header.version, &self.context.realm)?;
                self.answers.push_fetch(head, fetch);
            }
            Api::ApiVersions => self.api_versions(head, header, body)?,
            api => {
                let call = ControlCall {
                    context: &self.context,
                    peer: &self.peer,
                    probe: &self.meter.probe,
                    version: header.version,
                    client_id: header.client_id,
                    body,
                    now,
                };
                let answer = control::handle(api, call)?;
                self.answers.push_control(head, answer, request.len());
            }
        }
        self.meter.others += 1;
        self.meter.called(1);
        Ok(NextStep::NextRequest)
    }

    fn produce(
        &mut self,
        head: AnswerHead,
        version: i16,
        request: &[u8],
        body: Reader<'_>,
    ) -> Result<NextStep, Malformed> {
        let (context, meter) = (&self.context, &mut self.meter);
        let parsed = self
            .produce_state
            .execute(context, meter, version, request, body)?;
        match parsed {
            ParsedProduce::SingleBatch(single_batch) => {
                Ok(NextStep::StoreBatch(head, single_batch))
            }
            ParsedProduce::Executed(executed) => {
                self.finish_produce(head, executed);
                Ok(NextStep::NextRequest)
            }
        }
    }

    /// Stores the batch of a Produce with a single batch. `place` is the range of the request in
    /// `input`.
    fn store(
        &mut self,
        input: &mut Input<'_>,
        place: Range<usize>,
        head: AnswerHead,
        single_batch: SingleBatch,
    ) {
        let records = single_batch.range().map(|range| {
            let range = place.start + range.start..place.start + range.end;
            // The buffer can be taken over only if no other request follows in it.
            let is_last = place.end == input.len();
            match is_last.then(|| input.take(range.clone())).flatten() {
                Some(own) => ProducedRecords::Own(own),
                None => ProducedRecords::Lent(&input[range]),
            }
        });
        let records = records.unwrap_or(ProducedRecords::None);
        let (context, meter) = (&self.context, &mut self.meter);
        let executed = self
            .produce_state
            .store_single_batch(context, meter, single_batch, records);
        self.finish_produce(head, executed);
    }

    /// Counts an executed Produce, and queues its answer unless `acks=0`.
    fn finish_produce(&mut self, head: AnswerHead, executed: ExecutedProduce) {
        self.meter.published.requests += 1;
        if executed.acks != Acks::None {
            self.answers.push_produce(head, executed.answer);
            return;
        }
        self.meter.published.silent += 1;
        // With acks=0 a client learns of an error only by the end of the connection, as in Kafka.
        // It then refreshes its metadata.
        let refusal = executed.answer.first_error().map(|(topic, refusal)| {
            let text = refusal.text.as_deref().unwrap_or_default();
            let error = refusal.error;
            format!("Produce with acks=0 to {topic:?}: {error:?} {text}")
        });
        self.produce_state.recycle(executed.answer);
        if let Some(refusal) = refusal {
            self.end_with_error(refusal);
        }
    }

    fn api_versions(
        &mut self,
        head: AnswerHead,
        header: RequestHeader<'_>,
        body: Reader<'_>,
    ) -> Result<(), Malformed> {
        let software = api_versions::read(body, header.version)?;
        let error = match software {
            Some(software) if !software.is_valid() => ErrorCode::InvalidRequest,
            Some(software) => {
                self.record_software(software, header.client_id);
                ErrorCode::None
            }
            None => ErrorCode::None,
        };
        let body = api_versions::body(header.version, error);
        self.answers.push_control(head, Answer::Ready(body), 0);
        Ok(())
    }

    /// Records the name and version of the client's software.
    fn record_software(&mut self, software: Software<'_>, client_id: Option<&str>) {
        // Slicing is safe: valid names and versions are ASCII.
        let short = |text: &str| text[..text.len().min(SOFTWARE_BYTES_MAX)].to_owned();
        let (name, version) = (short(software.name), short(software.version));
        self.meter.probe.identify(Identity {
            library: name.clone(),
            version: version.clone(),
            client_id: client_id.unwrap_or_default().to_owned(),
            ..Identity::default()
        });
        self.peer.software = Some((name, version));
    }

    /// Reports the client id of the first request to the probe, in case no ApiVersions follows.
    fn report_client_id(&mut self, client_id: Option<&str>) {
        self.is_identified = true;
        if let Some(client_id) = client_id {
            self.meter.probe.identify(Identity {
                client_id: client_id.to_owned(),
                ..Identity::default()
            });
        }
    }

    /// Ends the connection for this reason, once the answers that are owed are sent.
    fn end_with_error(&mut self, reason: String) {
        self.meter.probe.error();
        self.failure.get_or_insert(reason);
        self.begin_drain();
    }

    fn begin_drain(&mut self) {
        if self.phase == SessionPhase::Open {
            self.phase = SessionPhase::Draining;
        }
    }

    /// Samples how well the data of a request compresses, if a sample is due. Called only for a
    /// request that arrived in several reads.
    fn sample(&mut self, input: &[u8], now: Now) {
        if let Some(sample) = self.sampler.sample(input, now.us) {
            self.meter.probe.sampled(sample.bytes, sample.compressed);
        }
    }

    /// Reports a socket read to the telemetry.
    fn end_read(&mut self, consumed: usize, shown: usize, needed: usize, now: Now) -> Received {
        let has_published = self.meter.published.requests > 0;
        let received = self.meter.end(consumed, shown, needed, now);
        if has_published {
            self.produce_state.report(&self.meter.probe, now);
        }
        received
    }
}

impl cloverleaf_session::Session for Session {
    fn wants_input(&self) -> bool {
        self.phase == SessionPhase::Open
            && !self.waits_for_write_budget
            && !self.answers.is_full(self.context.options.answers_max)
    }

    fn is_ended(&self) -> bool {
        self.phase == SessionPhase::Ended
    }

    fn take_failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    fn receive(&mut self, mut input: Input<'_>, now: Now) -> Received {
        self.meter.begin();
        let shown = input.len();
        let (mut consumed, mut needed) = (0, 0);
        while self.wants_input() && !self.meter.is_spent() && consumed < shown {
            let rest = &input[consumed..];
            let size = match self.find_request(rest) {
                Ok(Ok(size)) => size,
                Ok(Err(bytes)) => {
                    needed = bytes;
                    break;
                }
                Err(reason) => {
                    self.end_with_error(reason);
                    break;
                }
            };
            let end = consumed + SIZE_BYTES + size;
            let place = consumed + SIZE_BYTES..end;
            let next_step = match self.execute(&input[place.clone()], now) {
                Ok(NextStep::Retry) => break,
                Ok(next_step) => next_step,
                Err(reason) => {
                    self.end_with_error(reason);
                    continue;
                }
            };
            if consumed == 0 && self.meter.began_earlier() {
                self.sample(&input[..end], now);
            }
            if let NextStep::StoreBatch(head, single_batch) = next_step {
                self.store(&mut input, place, head, single_batch);
            }
            consumed = end;
        }
        if self.phase != SessionPhase::Open {
            consumed = shown;
        }
        self.end_read(consumed, shown, needed, now)
    }

    fn end_of_input(&mut self, _rest: &[u8], _now: Now) {
        // Kafka also closes the connection without waiting for pending answers: the client is gone.
        if self.phase != SessionPhase::Ended {
            self.phase = SessionPhase::Leaving;
        }
    }

    fn drain(&mut self) {
        self.begin_drain();
    }

    fn poll(&mut self, cx: &mut Context<'_>, now: Now, out: &mut Output) {
        if self.waits_for_write_budget && self.context.realm.write_budget().poll_free(cx).is_ready()
        {
            self.waits_for_write_budget = false;
        }
        let env = FetchEnv {
            context: &self.context,
            now,
            connection: self.meter.probe.id(),
            is_ending: self.phase != SessionPhase::Open,
            probe: &self.meter.probe,
        };
        let (mut answers, mut is_waiting) = (0, false);
        while out.len() < OUTPUT_BYTES_MAX {
            match self.answers.poll(cx, &env, &mut self.produce_state, out) {
                std::task::Poll::Ready(Some(answered)) => {
                    answers += 1;
                    self.meter.probe.fetched(answered.messages);
                    (0..answered.errors).for_each(|_| self.meter.probe.error());
                }
                std::task::Poll::Ready(None) => break,
                std::task::Poll::Pending => {
                    is_waiting = true;
                    break;
                }
            }
        }
        self.meter.answered(answers);
        match self.phase {
            SessionPhase::Draining if self.answers.is_empty() => self.phase = SessionPhase::Ended,
            SessionPhase::Leaving if is_waiting || self.answers.is_empty() => {
                self.phase = SessionPhase::Ended
            }
            _ => {}
        }
    }

    fn next_due_us(&self) -> u64 {
        self.answers.due_us()
    }

    fn meter(&mut self) -> &mut Meter {
        &mut self.meter
    }
}
