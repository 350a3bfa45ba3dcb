//! Reads messages by offset: nothing is consumed, and no consumer is affected.
//!
//! `GET /api/topics/TOPIC/messages?partition=0&from=earliest|latest|OFFSET&count=100&wait_ms=0`
//!
//! With `wait_ms` the answer waits for a first message (long poll), so that a client can follow a
//! topic.

use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::{Path, Query, State};
use cloverleaf_broker::Partition;
use cloverleaf_log::{Batch, Offset, Read, Record};
use serde::Deserialize;
use tokio::sync::oneshot;

use crate::admin::topics::find;
use crate::admin::types::{Bytes, MessagePage, MessageView};
use crate::admin::{Context, QueryResult, Refused};
use crate::context::ServerContext;

/// A compressed batch that would be larger than this after inflation is skipped.
const INFLATED_BYTES_MAX: usize = 64 << 20;

/// Maximum messages in one answer.
const COUNT_MAX: usize = 1000;
/// An answer is ended after this many bytes of JSON, unless its first message alone is larger: an
/// answer is in memory several times over.
const PAGE_BYTES_MAX: usize = 4 << 20;
/// Maximum bytes of JSON around a message, and around each of its headers.
const MESSAGE_OVERHEAD_BYTES: usize = 128;
/// Maximum wait of a long poll; then the client has to ask again.
const WAIT_MS_MAX: u64 = 30_000;
/// How often a long poll checks for messages. People follow topics, and 20 checks per second cost
/// nothing.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The query string of a read.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadQuery {
    #[serde(default)]
    partition: u32,
    from: Option<String>,
    count: Option<usize>,
    #[serde(default)]
    wait_ms: u64,
}

/// `GET /api/topics/TOPIC/messages`
pub(crate) async fn read(
    State(context): Context,
    Path(topic): Path<String>,
    query: QueryResult<ReadQuery>,
) -> Result<Json<MessagePage>, Refused> {
    let Query(query) = query?;
    let topic = find(&context, &topic)?;
    let log = topic.partition(query.partition).ok_or_else(|| {
        Refused::not_found(format!(
            "{} has no partition {}",
            topic.name(),
            query.partition
        ))
    })?;
    let from = match query.from.as_deref() {
        None | Some("earliest") => log.start_offset(),
        Some("latest") => log.written_end(),
        Some(number) => number.parse().map_err(|_| {
            let why = format!("`{number}` is no place to start: say earliest, latest or an offset");
            Refused::bad_request(why)
        })?,
    };
    let count = query.count.unwrap_or(100).clamp(1, COUNT_MAX);
    let until = Instant::now() + Duration::from_millis(query.wait_ms.min(WAIT_MS_MAX));
    wait_for_message(&context, &log, from, until).await;
    page(&log, from, count).await.map(Json)
}

async fn wait_for_message(context: &ServerContext, log: &Partition, from: Offset, until: Instant) {
    while log.written_end() <= from && Instant::now() < until && !context.is_draining() {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn page(log: &Partition, from: Offset, count: usize) -> Result<MessagePage, Refused> {
    let mut page = PageBuilder::new(from, count, PAGE_BYTES_MAX);
    while !page.is_full {
        let batches = batches(log, page.page.next_offset).await?;
        if batches.is_empty() {
            break;
        }
        for batch in batches {
            page.take(&batch);
        }
    }
    Ok(page.page)
}

/// The next batches; none at the end of the log.
async fn batches(log: &Partition, from: Offset) -> Result<Vec<Batch>, Refused> {
    match log.read(from, PAGE_BYTES_MAX / 4) {
        Read::End => Ok(Vec::new()),
        Read::Batches(batches) => Ok(batches),
        Read::Cold(cold) => {
            let (sender, receiver) = oneshot::channel();
            cold.on_ready(Box::new(move |read| {
                // The receiver is gone when the client has disconnected.
                let _ = sender.send(read);
            }));
            let failed =
                |error: String| Refused(axum::http::StatusCode::INTERNAL_SERVER_ERROR, error);
            match receiver.await {
                Ok(Ok(batches)) => Ok(batches),
                Ok(Err(error)) => Err(failed(error.to_string())),
                Err(_) => Err(failed("the log was closed".to_owned())),
            }
        }
    }
}

/// An answer that is being filled.
struct PageBuilder {
    page: MessagePage,
    count_max: usize,
    bytes_left: usize,
    is_full: bool,
}

impl PageBuilder {
    fn new(from: Offset, count_max: usize, bytes_max: usize) -> Self {
        let page = MessagePage {
            messages: Vec::new(),
            next_offset: from,
        };
        Self {
            page,
            count_max,
            bytes_left: bytes_max,
            is_full: false,
        }
    }

    /// Takes the messages of a batch that fit, and always a first one.
    fn take(&mut self, batch: &Batch) {
        let Ok(batch) = batch.inflate(INFLATED_BYTES_MAX) else {
            self.page.next_offset = self.page.next_offset.max(batch.end_offset());
            return;
        };
        let mut records = batch.records();
        while !self.is_full {
            let (offset, record) = match records.next_record() {
                Ok(Some(next)) => next,
                // The batch is at its end, or damaged: then the rest of it is skipped.
                Ok(None) | Err(_) => {
                    self.page.next_offset = self.page.next_offset.max(batch.end_offset());
                    return;
                }
            };
            if offset < self.page.next_offset {
                continue;
            }
            let bytes = json_bytes(&record);
            if bytes > self.bytes_left && !self.page.messages.is_empty() {
                self.is_full = true;
                return;
            }
            self.page.messages.push(view(offset, &record));
            self.page.next_offset = offset + 1;
            self.bytes_left = self.bytes_left.saturating_sub(bytes);
            self.is_full = self.bytes_left == 0 || self.page.messages.len() >= self.count_max;
        }
    }
}

/// The maximum length of the message as JSON.
fn json_bytes(record: &Record<'_>) -> usize {
    let value = |bytes: Option<&[u8]>| bytes.map_or(0, Bytes::json_bytes);
    let headers = record
        .headers
        .clone()
        .map(|(name, bytes)| MESSAGE_OVERHEAD_BYTES + Bytes::json_bytes(name) + value(bytes));
    MESSAGE_OVERHEAD_BYTES + value(record.key) + value(record.value) + headers.sum::<usize>()
}

fn view(offset: Offset, record: &Record<'_>) -> MessageView {
    let header = |(name, value): (&[u8], Option<&[u8]>)| {
        let name = String::from_utf8_lossy(name).into_owned();
        (name, value.map(Bytes::new))
    };
    MessageView {
        offset,
        timestamp_ms: record.timestamp_ms,
        key: record.key.map(Bytes::new),
        value: record.value.map(Bytes::new),
        headers: record.headers.clone().map(header).collect(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use cloverleaf_log::BatchBuilder;

    use super::*;

    #[test]
    fn a_page_ends_within_a_batch_and_its_length_is_not_underestimated() {
        let mut builder = BatchBuilder::with_capacity(0, 1_763_000_000_000);
        let bodies: [&[u8]; 4] = [
            &[0xff; 2000],
            b"plain text",
            &[7; 500],
            "höö\n\"".as_bytes(),
        ];
        for body in bodies {
            builder.push(Some(b"key"), Some(body), &[(b"name\0", Some(body))]);
        }
        let batch = builder.finish();
        let mut all = PageBuilder::new(0, 100, usize::MAX);
        all.take(&batch);
        assert_eq!((all.page.messages.len(), all.page.next_offset), (4, 4));
        for message in 0..4 {
            let mut one = PageBuilder::new(message, 100, 1);
            one.take(&batch);
            assert_eq!(one.page.next_offset, message + 1, "the first always fits");
            let json = serde_json::to_vec(&one.page.messages[0]).unwrap();
            let mut fits = PageBuilder::new(message, 1, 1 << 20);
            fits.take(&batch);
            let estimate = (1 << 20) - fits.bytes_left;
            assert!(estimate >= json.len(), "{estimate} for {}", json.len());
        }
        let mut two = PageBuilder::new(0, 100, 9000);
        two.take(&batch);
        assert_eq!((two.is_full, two.page.next_offset), (true, 2));
    }
}
