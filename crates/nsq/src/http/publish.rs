//! `/pub` and `/mpub`: messages into the log.
//!
//! The answer is sent once the messages have the topic's durability, like the answer to a PUB on a
//! TCP connection.

use std::future::poll_fn;

use bytes::Bytes;
use cloverleaf_access::Operation;
use cloverleaf_broker::PublishError;
use cloverleaf_log::{AppendError, BatchBuilder};

use crate::http::mpub::{self, MpubLimits};
use crate::http::nsqd::NsqdHttp;
use crate::http::query::Query;
use crate::http::{HttpError, Published, Response};
use crate::options::BATCH_BYTES_MAX;
use crate::publishing::{DURABILITY, RECORD_OVERHEAD_BYTES};

impl NsqdHttp {
    /// `POST /pub?topic=...&defer=...`, the body is the message.
    pub(crate) async fn publish(&self, query: &str, body: Bytes) -> Result<Response, HttpError> {
        if body.is_empty() {
            return Err(HttpError::MsgEmpty);
        }
        let query = Query::parse(query)?;
        let topic = self.topic_to_write(Operation::Publish, &query)?;
        let delay_ms = self.delay_ms(&query)?;
        self.may_publish().await?;
        let capacity = body.len() + RECORD_OVERHEAD_BYTES;
        let done = Published {
            topic: topic.number(),
            messages: 1,
            bytes: body.len() as u64,
        };
        let mut builder = BatchBuilder::with_capacity(capacity, self.now_ms());
        builder.push(None, Some(&body), &[]);
        let batch = builder.finish();
        let published = match delay_ms {
            0 => topic.publish(batch, DURABILITY),
            delay_ms => topic.publish_delayed(&batch, delay_ms, DURABILITY),
        };
        published
            .map_err(publish_error)?
            .await
            .map_err(publish_error)?;
        Ok(Response::published(done))
    }

    /// `POST /mpub?topic=...&binary=...`.
    pub(crate) async fn publish_many(
        &self,
        query: &str,
        body: Bytes,
    ) -> Result<Response, HttpError> {
        let query = Query::parse(query)?;
        let topic = self.topic_to_write(Operation::Publish, &query)?;
        let limits = MpubLimits {
            msg_bytes_max: self.options.msg_bytes_max as usize,
            body_bytes_max: self.options.body_bytes_max as usize,
        };
        // As in nsqd, any value that is not a known boolean counts as true.
        let binary = query.get("binary").is_some() && query.get_bool("binary") != Some(false);
        let messages = if binary {
            mpub::decode_binary(&body, limits)?
        } else {
            mpub::decode_text(&body, limits)?
        };
        self.may_publish().await?;
        let mut published = Vec::new();
        let mut rest = messages.as_slice();
        while !rest.is_empty() {
            let (now, later) = rest.split_at(batch_count(rest));
            let capacity = now.iter().map(|m| m.len() + RECORD_OVERHEAD_BYTES).sum();
            let mut builder = BatchBuilder::with_capacity(capacity, self.now_ms());
            for message in now {
                builder.push(None, Some(message), &[]);
            }
            let batch = builder.finish();
            published.push(topic.publish(batch, DURABILITY).map_err(publish_error)?);
            rest = later;
        }
        for published in published {
            published.await.map_err(publish_error)?;
        }
        Ok(Response::published(Published {
            topic: topic.number(),
            messages: messages.len() as u64,
            bytes: body.len() as u64,
        }))
    }

    /// Backpressure: waits until the broker's budget of unwritten bytes has space. Fails when the
    /// broker is shutting down.
    async fn may_publish(&self) -> Result<(), HttpError> {
        poll_fn(|context| self.realm.write_budget().poll_free(context)).await;
        if self.services.is_exiting() {
            Err(HttpError::Exiting)
        } else {
            Ok(())
        }
    }

    fn now_ms(&self) -> i64 {
        (self.services.now_ns() / 1_000_000) as i64
    }

    /// `defer=` in milliseconds; 0 if there is none.
    fn delay_ms(&self, query: &Query) -> Result<u64, HttpError> {
        let Some(defer) = query.get("defer") else {
            return Ok(0);
        };
        let delay_ms: i64 = defer.parse().map_err(|_| HttpError::InvalidDefer)?;
        u64::try_from(delay_ms)
            .ok()
            .filter(|delay_ms| *delay_ms <= self.options.req_timeout_ms_max)
            .ok_or(HttpError::InvalidDefer)
    }
}

/// The HTTP error for a publish that failed.
fn publish_error(error: PublishError) -> HttpError {
    tracing::warn!(%error, "messages published over HTTP were not stored");
    match error {
        PublishError::Log(AppendError::StorageFull { .. }) => HttpError::StorageFull,
        PublishError::Log(AppendError::TooLarge { .. }) | PublishError::TooLarge { .. } => {
            HttpError::MsgTooBig
        }
        PublishError::Log(AppendError::Closed) | PublishError::TopicDeleted { .. } => {
            HttpError::Exiting
        }
        PublishError::QueueFull { .. } | PublishError::ScheduleFull { .. } => {
            HttpError::LimitReached
        }
        PublishError::Log(
            AppendError::Failed(_)
            | AppendError::OutOfOrderSequence { .. }
            | AppendError::ProducerFenced { .. }
            | AppendError::DuplicateSequence { .. },
        )
        | PublishError::NoSuchPartition { .. }
        | PublishError::ForeignAppendTime
        | PublishError::Inflate(_)
        | PublishError::NotOneMessage
        | PublishError::Timestamp { .. }
        | PublishError::NoKey { .. }
        | PublishError::Batch(_)
        | PublishError::NoSchedule { .. } => HttpError::PubFailed,
    }
}

/// How many of these messages go into one batch: as many as stay below [`BATCH_BYTES_MAX`], and at
/// least one.
fn batch_count(messages: &[&[u8]]) -> usize {
    let mut bytes = 0;
    let fit = |message: &&&[u8]| {
        bytes += message.len() + RECORD_OVERHEAD_BYTES;
        bytes <= BATCH_BYTES_MAX
    };
    messages.iter().take_while(fit).count().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_bounded_by_bytes() {
        let large = vec![0; BATCH_BYTES_MAX * 2];
        let half = vec![0; BATCH_BYTES_MAX / 2 - RECORD_OVERHEAD_BYTES];
        assert_eq!(batch_count(&[&large, &large]), 1);
        assert_eq!(batch_count(&[&half, &half, &half]), 2);
        assert_eq!(batch_count(&[&half, &large]), 1);
    }
}
