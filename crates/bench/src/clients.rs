//! The clients of the protocols that can be measured, a row for each.

use cloverleaf_telemetry::Protocol;

use crate::amqp::Amqp;
use crate::driver::{Connect, DriverError};
use crate::kafka::Kafka;
use crate::nsq::Nsq;
use crate::proxy::Carries;
use crate::url::Url;

/// The client of one protocol, and its properties.
pub(crate) struct Client {
    pub(crate) protocol: Protocol,
    /// Makes a client for the broker at this URL.
    pub(crate) new: fn(&Url) -> Result<Box<dyn Connect>, DriverError>,
    /// Whether the proxy of a distance has to rewrite addresses.
    pub(crate) carries: Carries,
    /// Whether the client also uses an HTTP interface. Its address is the option `http`, by default
    /// the port after the broker's.
    pub(crate) has_http: bool,
}

/// All clients, one for each protocol of an embedded broker. The first is the default.
pub(crate) static CLIENTS: [Client; 3] = [
    Client {
        protocol: Protocol::Nsq,
        new: |url| Ok(Box::new(Nsq::new(url)?)),
        carries: Carries::Bytes,
        has_http: true,
    },
    Client {
        protocol: Protocol::Kafka,
        new: |url| Ok(Box::new(Kafka::new(url)?)),
        carries: Carries::Kafka,
        has_http: false,
    },
    Client {
        protocol: Protocol::Amqp,
        new: |url| Ok(Box::new(Amqp::new(url)?)),
        carries: Carries::Bytes,
        has_http: false,
    },
];

/// The client of a protocol.
///
/// # Errors
/// The protocol has no client yet.
pub(crate) fn client_of(protocol: Protocol) -> Result<&'static Client, DriverError> {
    let found = CLIENTS.iter().find(|client| client.protocol == protocol);
    found.ok_or_else(|| DriverError::Unsupported {
        what: format!(
            "{name} cannot be measured yet: its client comes together with Cloverleaf's own \
             {name} front end",
            name = protocol.traits().title
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_protocol_has_one_client_or_none() {
        for protocol in Protocol::ALL {
            let mut url = Url::embedded(protocol);
            url.hosts = vec![("127.0.0.1".to_owned(), 1)];
            let has_row = CLIENTS.iter().any(|client| client.protocol == protocol);
            let made = crate::url::connect(&url);
            let is_unknown = matches!(made, Err(DriverError::Unsupported { .. }));
            assert_eq!(is_unknown, !has_row, "{protocol:?}");
            assert!(client_of(protocol).is_ok_and(|it| it.protocol == protocol) || !has_row);
        }
    }
}
