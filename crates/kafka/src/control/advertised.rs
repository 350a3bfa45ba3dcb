//! The address that clients are told to connect to.

use crate::context::KafkaContext;

use super::Peer;

/// Host and port of the one broker that there is, as one client should see them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Advertised {
    /// A name or an address; an IPv6 address without brackets, as Kafka has it.
    pub(crate) host: String,
    pub(crate) port: i32,
}

impl Advertised {
    /// The configured address; else the one that this client has connected to, which it can
    /// evidently reach.
    pub(crate) fn to(context: &KafkaContext, peer: &Peer) -> Self {
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
        // A listener for both families sees IPv4 clients as ::ffff:a.b.c.d.
        let host = peer.local.ip().to_canonical().to_string();
        Self {
            host,
            port: i32::from(peer.local.port()),
        }
    }
}
