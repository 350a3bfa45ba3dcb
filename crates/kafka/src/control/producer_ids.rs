//! InitProducerId: numbers for idempotent producers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kafka_protocol::messages::InitProducerIdResponse;

use crate::answer::{Answer, body};
use crate::error_code::ErrorCode;
use crate::wire::Malformed;

use super::Call;

/// Bits of a producer id that count within one start of the broker.
const COUNTER_BITS: u32 = 32;

/// Neither id nor epoch.
const NONE: i64 = -1;

/// Gives every producer a number that no other ever had: the number of the broker's start, which is
/// kept on the disk, and a counter.
#[derive(Debug, Default)]
pub struct ProducerIds {
    given: AtomicU64,
}

impl ProducerIds {
    /// The next id of the broker's start number `starts`. `None`: all of this start are used up.
    pub fn next(&self, starts: u64) -> Option<i64> {
        let count = self.given.fetch_add(1, Ordering::Relaxed);
        let is_free = count < 1 << COUNTER_BITS && starts < 1 << (63 - COUNTER_BITS);
        is_free.then(|| i64::try_from(starts << COUNTER_BITS | count).ok())?
    }
}

pub(super) fn init(mut call: Call<'_>) -> Result<Answer, Malformed> {
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
            note_transactional(&call);
            Err(ErrorCode::TransactionalIdAuthorizationFailed)
        }
        None if (id == NONE) != (epoch == -1) => Err(ErrorCode::InvalidRequest),
        // One that asks for a new epoch gets a new id, as in Kafka.
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

/// Transactions come later. Of all codes this one ends the attempt at once in librdkafka as in the
/// Java client; others are tried again until a timeout. Its name misleads, so the log says more.
pub(super) fn note_transactional(call: &Call<'_>) {
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
