//! Kafka without a client library, chosen by `?client=raw`. The client costs next to nothing, so
//! the measurement shows the broker's own limits. Each connection has one socket and one thread,
//! and goes to the broker that leads all partitions; a cluster needs librdkafka. Each Produce
//! request has one batch for one partition, round robin. There are no keys.

mod codec;
mod consumer;
mod producer;

use std::net::ToSocketAddrs;

use rdkafka::metadata::Metadata;

use super::{OWN_OPTIONS, TOPIC_OPTION};
use crate::driver::DriverError;
use crate::plan::Plan;
use crate::url::Url;
use crate::wire::Wire;

pub(super) use consumer::RawReceiver;
pub(super) use producer::RawPublisher;

/// Checks that a URL asks for nothing that only librdkafka supports. librdkafka still creates the
/// topic and finds its leader, but no message passes through it.
///
/// # Errors The URL has a user or an option of librdkafka.
pub(super) fn check(url: &Url) -> Result<(), DriverError> {
    let unsupported = |what: String| Err(DriverError::Unsupported { what });
    if url.user.is_some() {
        return unsupported("?client=raw does not log in; librdkafka does".to_owned());
    }
    let mut names = url.option_names();
    let is_known = |name: &str| OWN_OPTIONS.contains(&name) || name.starts_with(TOPIC_OPTION);
    match names.find(|name| !is_known(name)) {
        Some(name) => unsupported(format!(
            "?client=raw does not do what {name}= says; librdkafka does. --acks and --batch-size \
             concern both"
        )),
        None => Ok(()),
    }
}

/// Connects to the broker that leads all partitions.
fn open(url: &Url, plan: &Plan, metadata: &Metadata) -> Result<Wire, DriverError> {
    let mut topics = metadata.topics().iter();
    let topic = topics.find(|topic| topic.name() == plan.topic);
    let topic = topic.ok_or_else(|| url.refused("the topic is not there"))?;
    let mut leaders = topic.partitions().iter().map(|it| it.leader());
    let leader = leaders.next().unwrap_or(-1);
    if leaders.any(|other| other != leader) {
        return Err(DriverError::Unsupported {
            what: "?client=raw is for one broker; a cluster is measured through librdkafka"
                .to_owned(),
        });
    }
    let mut brokers = metadata.brokers().iter();
    let broker = brokers.find(|broker| broker.id() == leader);
    let broker = broker.ok_or_else(|| url.refused("nobody leads the topic"))?;
    let port = u16::try_from(broker.port()).unwrap_or(0);
    let mut addresses = (broker.host(), port)
        .to_socket_addrs()
        .map_err(|error| url.unreachable(error))?;
    let address = addresses.next();
    let address = address.ok_or_else(|| url.unreachable("the leader has no address"))?;
    Wire::connect(address).map_err(|error| url.unreachable(error))
}

/// The text of an error code of Kafka's protocol.
fn words(code: i16) -> String {
    format!("error {code} of Kafka's protocol")
}
