//! What a producer may send for one partition: exactly one batch of message format 2.

use bytes::Bytes;
use cloverleaf_broker::Topic;
use cloverleaf_log::{Batch, Codec};

use super::Refusal;
use crate::context::KafkaContext;
use crate::error_code::{ErrorCode, of_batch};

/// Requests before this version come from clients that do not know zstd (KIP-110).
const ZSTD_FROM: i16 = 7;

fn invalid(text: &'static str) -> Refusal {
    Refusal::new(ErrorCode::InvalidRecord, Some(text.into()))
}

/// Copies the one batch out of the request and checks it.
pub(crate) fn check(
    context: &KafkaContext,
    version: i16,
    records: Option<&[u8]>,
    topic: &Topic,
) -> Result<Batch, Refusal> {
    let records = records.filter(|records| !records.is_empty());
    let records = records.ok_or_else(|| invalid("a partition without a record batch"))?;
    // A topic's own limit is checked where the batch is published; a higher one counts here.
    let bytes_max = context.options.batch_bytes_max;
    if records.len() as u64 > bytes_max && topic.options().batch_bytes_max.is_none() {
        let bytes = records.len();
        let text = format!("{bytes} bytes are more than the limit of {bytes_max}");
        return Err(Refusal::new(ErrorCode::MessageTooLarge, Some(text.into())));
    }
    // Byte 16 is the format in all of them.
    if records.get(16).is_some_and(|magic| *magic != 2) {
        return Err(invalid("only record batches of message format 2 are taken"));
    }
    match Batch::peek_len(records) {
        Ok(len) if len < records.len() => {
            return Err(invalid("exactly one record batch per partition is taken"));
        }
        _ => {}
    }
    let batch = Batch::parse(Bytes::copy_from_slice(records))
        .map_err(|error| Refusal::new(of_batch(&error), Some(error.to_string().into())))?;
    if batch.is_control() {
        return Err(invalid("control batches are the broker's own"));
    }
    if version < ZSTD_FROM && batch.codec() == Codec::Zstd {
        return Err(Refusal::new(ErrorCode::UnsupportedCompressionType, None));
    }
    Ok(batch)
}
