//! The address that clients are told to connect to.

use crate::context::KafkaContext;

use super::ConnectionPeer;

/// Host and port of the only broker, as one client should see them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Advertised {
    /// A name or an address; an IPv6 address without brackets, as Kafka has it.
    pub(crate) host: String,
    pub(crate) port: i32,
}

impl Advertised {
    /// The configured address. If there is none, the address that this client has connected to,
    /// which it can evidently reach.
    pub(crate) fn to(context: &KafkaContext, peer: &ConnectionPeer) -> Self {
        let configured = if peer.tls {
            &context.options.advertised_tls
        } else {
            &context.options.advertised
        };
        if let Some((host, port)) = configured {
            return Self {
                host: host.clone(),
                port: i32::from(*port),
            };
        }
        // A dual-stack listener sees IPv4 addresses as ::ffff:a.b.c.d.
        let host = peer.local.ip().to_canonical().to_string();
        Self {
            host,
            port: i32::from(peer.local.port()),
        }
    }
}
