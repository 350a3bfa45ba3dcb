//! Kafka without a library: what a broker does when the client costs next to nothing. Chosen by
//! `?client=raw`. One socket and one thread per connection, to the broker that leads all
//! partitions; a cluster needs librdkafka. Each request has one batch; there are no keys, and
//! partitions take turns.

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

/// Looks whether a URL asks for something that only librdkafka does. The library is still asked for
/// the topic and its leader, but no message goes through it.
///
/// # Errors
/// It does.
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

/// A connection to the broker that leads all partitions.
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

/// An error of Kafka's protocol, in words.
fn words(code: i16) -> String {
    format!("error {code} of Kafka's protocol")
}
