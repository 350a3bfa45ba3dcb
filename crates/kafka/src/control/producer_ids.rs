//! InitProducerId: ids for idempotent producers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kafka_protocol::messages::InitProducerIdResponse;

use crate::answer::{Answer, body};
use crate::error_code::ErrorCode;
use crate::wire::Malformed;

use super::ControlCall;

/// The low bits of a producer id, which count the ids of one run of the broker. The high bits are
/// the number of the broker's start.
const COUNTER_BITS: u32 = 32;

/// The producer id in a request without one.
const NONE: i64 = -1;

/// Assigns producer ids that are never reused: the number of the broker's start, which is stored on
/// the disk, and a counter.
#[derive(Debug, Default)]
pub struct ProducerIds {
    given: AtomicU64,
}

impl ProducerIds {
    /// The next id in the run with start number `starts`. `None`: the ids of this run are used up.
    pub fn next(&self, starts: u64) -> Option<i64> {
        let count = self.given.fetch_add(1, Ordering::Relaxed);
        let is_free = count < 1 << COUNTER_BITS && starts < 1 << (63 - COUNTER_BITS);
        is_free.then(|| i64::try_from(starts << COUNTER_BITS | count).ok())?
    }
}

pub(super) fn init(mut call: ControlCall<'_>) -> Result<Answer, Malformed> {
    let version = call.version;
    let reader = &mut call.body;
    let transactional_id = reader.nullable_string()?;
    let _timeout_ms = reader.i32()?;
    let (id, epoch) = match version {
        3.. => (reader.i64()?, reader.i16()?),
        _ => (NONE, -1),
    };
    reader.skip_tagged()?;

    let context = call.context;
    let given = match transactional_id {
        Some(_) => {
            log_transactional(&call);
            Err(ErrorCode::TransactionalIdAuthorizationFailed)
        }
        None if (id == NONE) != (epoch == -1) => Err(ErrorCode::InvalidRequest),
        // A producer that asks for a new epoch gets a new id, as in Kafka.
        None => context
            .producer_ids
            .next(context.realm.starts())
            .ok_or(ErrorCode::UnknownServerError),
    };
    let response = match given {
        Ok(id) => InitProducerIdResponse::default().with_producer_id(id.into()),
        Err(code) => InitProducerIdResponse::default()
            .with_error_code(code.code())
            .with_producer_epoch(-1),
    };
    Ok(Answer::Ready(body(&response, version)))
}

/// Logs once per process that a producer asks for transactions, which are not supported yet. Such
/// requests are refused with TRANSACTIONAL_ID_AUTHORIZATION_FAILED: it is fatal at once in
/// librdkafka and in the Java client, which retry other codes until a timeout. The name of the code
/// misleads, so the log explains it.
pub(super) fn log_transactional(call: &ControlCall<'_>) {
    static NOTED: AtomicBool = AtomicBool::new(false);
    if !NOTED.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            client = call.client_id,
            remote = %call.peer.remote,
            "a Kafka producer sets transactional.id: there are no transactions here, it is \
             refused (TRANSACTIONAL_ID_AUTHORIZATION_FAILED); use enable.idempotence without \
             it. This is said once."
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_within_a_start_and_between_starts() {
        let ids = ProducerIds::default();
        assert_eq!(ids.next(1), Some(1 << 32));
        assert_eq!(ids.next(1), Some((1 << 32) + 1));
        assert_eq!(ProducerIds::default().next(2), Some(2 << 32));
        assert_eq!(ProducerIds::default().next(1 << 31), None);
        let used_up = ProducerIds {
            given: AtomicU64::new(1 << 32),
        };
        assert_eq!(used_up.next(1), None);
    }
}
