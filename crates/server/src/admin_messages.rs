//! Reading messages by offset: nothing is consumed, no consumer is disturbed.
//!
//! `GET /api/topics/TOPIC/messages?partition=0&from=earliest|latest|OFFSET&count=100&wait_ms=0`
//!
//! With `wait_ms` the answer waits for a first message (long poll), which is how one follows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::{Path, Query, State};
use cloverleaf_log::{Batch, Offset, PartitionLog, Read};
use serde::Deserialize;
use tokio::sync::oneshot;

use crate::admin::{Context, Refused};
use crate::admin_topics::find;
use crate::admin_types::{Bytes, MessagePage, MessageView};
use crate::context::ServerContext;

/// Most messages in one answer.
const COUNT_MAX: usize = 1000;
/// Bytes after which an answer is closed: it is held in memory several times over.
const PAGE_BYTES_MAX: usize = 4 << 20;
/// Longest long poll; a client asks again.
const WAIT_MS_MAX: u64 = 30_000;
/// How often a long poll looks. Following is for people, and 20 looks per second cost nothing.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// The query string.
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
    Query(query): Query<ReadQuery>,
) -> Result<Json<MessagePage>, Refused> {
    let topic = find(&context, &topic)?;
    let log = topic
        .logs()
        .get(query.partition as usize)
        .cloned()
        .ok_or_else(|| {
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

async fn wait_for_message(
    context: &ServerContext,
    log: &PartitionLog,
    from: Offset,
    until: Instant,
) {
    while log.written_end() <= from && Instant::now() < until && !context.is_draining() {
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

async fn page(log: &Arc<PartitionLog>, from: Offset, count: usize) -> Result<MessagePage, Refused> {
    let mut page = MessagePage {
        messages: Vec::new(),
        next_offset: from,
    };
    let mut bytes = 0;
    while page.messages.len() < count && bytes < PAGE_BYTES_MAX {
        let batches = batches(log, page.next_offset).await?;
        if batches.is_empty() {
            break;
        }
        for batch in batches {
            take(&batch, &mut page, count);
            bytes += batch.bytes().len();
            if page.messages.len() >= count {
                break;
            }
        }
    }
    Ok(page)
}

/// The next batches; none at the end of the log.
async fn batches(log: &Arc<PartitionLog>, from: Offset) -> Result<Vec<Batch>, Refused> {
    match log.read(from, PAGE_BYTES_MAX / 4) {
        Read::End => Ok(Vec::new()),
        Read::Batches(batches) => Ok(batches),
        Read::Cold(cold) => {
            let (sender, receiver) = oneshot::channel();
            cold.on_ready(Box::new(move |read| {
                // Nobody waits any more when the client has gone.
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

fn take(batch: &Batch, page: &mut MessagePage, count: usize) {
    let mut records = batch.records();
    while page.messages.len() < count {
        let (offset, record) = match records.next_record() {
            Ok(Some(next)) => next,
            // Compressed or damaged: the batch is passed over.
            Ok(None) | Err(_) => {
                page.next_offset = page.next_offset.max(batch.end_offset());
                return;
            }
        };
        if offset < page.next_offset {
            continue;
        }
        page.messages.push(MessageView {
            offset,
            timestamp_ms: record.timestamp_ms,
            key: record.key.map(Bytes::new),
            value: record.value.map(Bytes::new),
            headers: record
                .headers
                .map(|(name, value)| {
                    (
                        String::from_utf8_lossy(name).into_owned(),
                        value.map(Bytes::new),
                    )
                })
                .collect(),
        });
        page.next_offset = offset + 1;
    }
}
