//! Validation of the records that a producer sends for one partition: exactly one record batch of
//! message format 2.

use bytes::Bytes;
use cloverleaf_broker::Topic;
use cloverleaf_log::{Batch, Codec};

use super::BatchRefusal;
use crate::context::KafkaContext;
use crate::error_code::{ErrorCode, of_batch};

/// The first version that may carry zstd batches (KIP-110).
const ZSTD_FROM: i16 = 7;

fn invalid(text: &'static str) -> BatchRefusal {
    BatchRefusal::new(ErrorCode::InvalidRecord, Some(text.into()))
}

/// The records of one partition in a request.
pub(crate) enum ProducedRecords<'a> {
    /// The field is null.
    None,
    /// Bytes within a read buffer that has other contents or other users.
    Lent(&'a [u8]),
    /// Bytes whose buffer was taken over from the connection.
    Own(Bytes),
}

impl std::ops::Deref for ProducedRecords<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            ProducedRecords::None => &[],
            ProducedRecords::Lent(bytes) => bytes,
            ProducedRecords::Own(bytes) => bytes,
        }
    }
}

impl ProducedRecords<'_> {
    fn into_own(self) -> Bytes {
        match self {
            ProducedRecords::None => Bytes::new(),
            ProducedRecords::Lent(bytes) => Bytes::copy_from_slice(bytes),
            ProducedRecords::Own(bytes) => bytes,
        }
    }
}

/// Validates the batch of a partition. Copies it out of the read buffer unless it is
/// [`ProducedRecords::Own`].
pub(crate) fn check(
    context: &KafkaContext,
    version: i16,
    records: ProducedRecords<'_>,
    topic: &Topic,
) -> Result<Batch, BatchRefusal> {
    if records.is_empty() {
        return Err(invalid("a partition without a record batch"));
    }
    // The limit of a topic that has its own is checked when the batch is published. It may be
    // higher than the default, so such a topic is skipped here.
    let bytes_max = context.options.batch_bytes_max;
    if records.len() as u64 > bytes_max && topic.options().batch_bytes_max.is_none() {
        let bytes = records.len();
        let text = format!("{bytes} bytes are more than the limit of {bytes_max}");
        return Err(BatchRefusal::new(
            ErrorCode::MessageTooLarge,
            Some(text.into()),
        ));
    }
    // Byte 16 is the magic byte in every message format.
    if records.get(16).is_some_and(|magic| *magic != 2) {
        return Err(invalid("only record batches of message format 2 are taken"));
    }
    match Batch::peek_len(&records) {
        Ok(len) if len < records.len() => {
            return Err(invalid("exactly one record batch per partition is taken"));
        }
        _ => {}
    }
    let batch = Batch::parse(records.into_own())
        .map_err(|error| BatchRefusal::new(of_batch(&error), Some(error.to_string().into())))?;
    if batch.is_control() {
        return Err(invalid("control batches are the broker's own"));
    }
    if version < ZSTD_FROM && batch.codec() == Codec::Zstd {
        return Err(BatchRefusal::new(
            ErrorCode::UnsupportedCompressionType,
            None,
        ));
    }
    Ok(batch)
}
