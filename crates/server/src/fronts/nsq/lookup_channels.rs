//! Gives new topics the channels that the nsqlookupd processes know.
//!
//! In a cluster the same topic exists on several brokers. When this broker gets it, its channels
//! may exist elsewhere already, and each of them must get the messages from the first one on,
//! although its consumers find this broker only when they next ask an nsqlookupd. nsqd therefore
//! asks before it accepts the first message. We do not make the publisher wait: the channels are
//! made once the answers are here, and start at the topic's first message, which the log still has.
//! Without this, only the first channel of a topic would get the backlog.
//!
//! A topic is not new if it exists when the broker starts, or is made while no nsqlookupd is
//! configured.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cloverleaf_broker::{StartAt, SubscriptionOptions, Topic};
use cloverleaf_nsq::http::query::escape;
use cloverleaf_nsq::lookup::protocol::LookupdInfo;
use cloverleaf_nsq::names::{is_ephemeral, valid_name};
use serde::Deserialize;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use uuid::Uuid;

use super::NsqFront;
use super::http_client::{ExchangeError, exchange, request};
use super::lookup_peer::Lookupds;
use crate::context::ServerContext;

/// Maximum topics that are looked up at the same time.
const LOOKUPS_MAX: usize = 16;

/// Why there is no list of channels.
#[derive(Debug, Error)]
enum ChannelsError {
    #[error("no answer in time")]
    Timeout,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("not an answer of nsqlookupd")]
    Malformed,
}

impl From<ExchangeError> for ChannelsError {
    fn from(error: ExchangeError) -> ChannelsError {
        match error {
            ExchangeError::Io(error) => ChannelsError::Io(error),
            ExchangeError::TooLong | ExchangeError::Malformed => ChannelsError::Malformed,
        }
    }
}

#[derive(Deserialize)]
struct ChannelsAnswer {
    channels: Vec<String>,
}

/// Finds topics that are new since the last call.
pub(crate) struct NewTopics {
    front: Arc<NsqFront>,
    context: Arc<ServerContext>,
    lookupds: Lookupds,
    known: HashSet<Uuid>,
    lookups: JoinSet<()>,
    permits: Arc<Semaphore>,
}

impl NewTopics {
    /// Knows no topic yet: call [`NewTopics::skip`] before the first [`NewTopics::ask`].
    pub(crate) fn new(
        front: Arc<NsqFront>,
        context: Arc<ServerContext>,
        lookupds: Lookupds,
    ) -> NewTopics {
        NewTopics {
            front,
            context,
            lookupds,
            known: HashSet::new(),
            lookups: JoinSet::new(),
            permits: Arc::new(Semaphore::new(LOOKUPS_MAX)),
        }
    }

    /// Takes all existing topics as known.
    pub(crate) fn skip(&mut self) {
        self.known = self
            .context
            .broker
            .topics()
            .iter()
            .map(|topic| topic.id())
            .collect();
    }

    /// Asks about every topic that did not exist at the last call.
    pub(crate) fn ask(&mut self) {
        while self.lookups.try_join_next().is_some() {}
        let topics = self.context.broker.topics();
        for topic in &topics {
            if self.known.contains(&topic.id()) || valid_name(topic.name().as_bytes()).is_none() {
                continue;
            }
            let lookupds: Vec<LookupdInfo> = self.lookupds.lock().values().cloned().collect();
            let permits = Arc::clone(&self.permits);
            let (front, context) = (Arc::clone(&self.front), Arc::clone(&self.context));
            let topic = Arc::clone(topic);
            self.lookups.spawn(async move {
                // It cannot fail: the semaphore is never closed.
                let _permit = permits.acquire_owned().await;
                create_known_channels(&front, &context, &topic, &lookupds).await;
            });
        }
        self.known = topics.iter().map(|topic| topic.id()).collect();
    }
}

/// Makes the channels of `topic` that any of the nsqlookupd processes knows.
async fn create_known_channels(
    front: &NsqFront,
    context: &ServerContext,
    topic: &Arc<Topic>,
    lookupds: &[LookupdInfo],
) {
    let name = topic.name();
    let reachable = lookupds
        .iter()
        .filter(|info| !info.broadcast_address.is_empty());
    let mut asked = 0;
    for info in reachable {
        asked += 1;
        let channels = match ask(context, name, info).await {
            Ok(channels) => channels,
            Err(reason) => {
                let lookupd = format!("{}:{}", info.broadcast_address, info.http_port);
                tracing::warn!(topic = name, %lookupd, %reason, "cannot ask for known channels");
                continue;
            }
        };
        for channel in channels {
            // An ephemeral channel without a consumer would be deleted at once.
            if valid_name(channel.as_bytes()).is_none() || is_ephemeral(&channel) {
                continue;
            }
            let options = || SubscriptionOptions {
                start: StartAt::Earliest,
                ..(front.channel_policy)(name, &channel)
            };
            if let Err(error) = topic.subscription_or_create(&channel, options) {
                tracing::warn!(topic = name, channel, %error, "cannot make a known channel");
            }
        }
    }
    if asked == 0 {
        tracing::warn!(
            topic = name,
            "no nsqlookupd can be asked for known channels"
        );
    }
}

async fn ask(
    context: &ServerContext,
    topic: &str,
    info: &LookupdInfo,
) -> Result<Vec<String>, ChannelsError> {
    let nsq = &context.config.nsq;
    let asking = get_channels(topic, info, nsq.http_client_connect_timeout);
    let answer = timeout(nsq.http_client_request_timeout, asking).await;
    let (status, body) = answer.map_err(|_| ChannelsError::Timeout)??;
    parse_answer(status, &body)
}

async fn get_channels(
    topic: &str,
    info: &LookupdInfo,
    connect_timeout: Duration,
) -> Result<(u16, Bytes), ChannelsError> {
    let (host, port) = (info.broadcast_address.as_str(), info.http_port);
    let target = format!("/channels?topic={}", escape(topic));
    let request = request(host, port).uri(target).body(String::new());
    let request = request.map_err(|_| ChannelsError::Malformed)?;
    let connecting = timeout(connect_timeout, TcpStream::connect((host, port))).await;
    let stream = connecting.map_err(|_| ChannelsError::Timeout)??;
    Ok(exchange(stream, request).await?)
}

fn parse_answer(status: u16, body: &[u8]) -> Result<Vec<String>, ChannelsError> {
    if status != 200 {
        return Err(ChannelsError::Malformed);
    }
    let channels: ChannelsAnswer =
        serde_json::from_slice(body).map_err(|_| ChannelsError::Malformed)?;
    Ok(channels.channels)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn an_answer_is_a_list_of_names() {
        let answer = parse_answer(200, b"{\"channels\":[\"a\",\"b\"]}");
        assert_eq!(answer.unwrap(), ["a", "b"]);
    }

    #[test]
    fn anything_else_is_malformed() {
        for (status, body) in [
            (200, &b""[..]),
            (404, b"{\"channels\":[]}"),
            (200, b"{\"channels\":null}"),
            (200, b"[]"),
        ] {
            let error = parse_answer(status, body);
            assert!(matches!(error, Err(ChannelsError::Malformed)), "{body:?}");
        }
    }
}
