//! The broker of the lab. The command line starts it, so that this crate needs no crate of the
//! broker.

use std::any::Any;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use cloverleaf_doctor::{Query, Report};

/// Asks a broker's doctor for its report.
pub type AskDoctor = dyn Fn(&Query) -> Option<Report> + Send + Sync;

/// A broker in this process.
pub struct LabBroker {
    /// The addresses of its listeners.
    pub addresses: Addresses,
    /// Asks the broker's doctor for a report; `None` after the broker has ended.
    pub doctor: Box<AskDoctor>,
    /// Ends the broker when dropped.
    pub guard: Box<dyn Any + Send + Sync>,
}

/// A listener of a broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokerListener {
    /// Kafka.
    Kafka,
    /// Kafka over TLS, if the broker has a certificate.
    KafkaTls,
    /// AMQP.
    Amqp,
    /// AMQP over TLS, if the broker has a certificate.
    AmqpTls,
    /// NSQ's TCP protocol.
    Nsq,
    /// NSQ's HTTP API.
    NsqHttp,
    /// NSQ's lookup API.
    NsqLookup,
    /// The admin interface.
    Admin,
}

impl BrokerListener {
    /// All listeners, in the order of the declaration.
    pub const ALL: [BrokerListener; 8] = {
        use BrokerListener::*;
        [
            Kafka, KafkaTls, Amqp, AmqpTls, Nsq, NsqHttp, NsqLookup, Admin,
        ]
    };

    /// The port that clients expect, and the broker's setting for its address.
    fn port_and_setting(self) -> (u16, &'static str) {
        match self {
            Self::Kafka => (9092, "kafka.address"),
            Self::KafkaTls => (9093, "kafka.tls_address"),
            Self::Amqp => (5672, "amqp.address"),
            Self::AmqpTls => (5671, "amqp.tls_address"),
            Self::Nsq => (4150, "nsq.tcp_address"),
            Self::NsqHttp => (4151, "nsq.http_address"),
            Self::NsqLookup => (4161, "nsq.lookup_http_address"),
            Self::Admin => (8080, "admin_address"),
        }
    }

    /// The broker's setting for its address.
    pub fn setting(self) -> &'static str {
        self.port_and_setting().1
    }

    /// Whether it needs a certificate.
    pub fn is_tls(self) -> bool {
        matches!(self, Self::KafkaTls | Self::AmqpTls)
    }
}

/// The address of each listener: where the broker listens, or where its clients reach it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses([Option<SocketAddr>; 8]);

impl Addresses {
    /// The addresses that `of` returns.
    pub fn new(of: impl FnMut(BrokerListener) -> Option<SocketAddr>) -> Addresses {
        Addresses(BrokerListener::ALL.map(of))
    }

    /// The address of this listener; `None`: there is no such listener.
    pub(crate) fn get(&self, listener: BrokerListener) -> Option<SocketAddr> {
        self.0[listener as usize]
    }

    /// Sets the address of this listener; `None` removes the listener.
    pub(crate) fn set(&mut self, listener: BrokerListener, address: Option<SocketAddr>) {
        self.0[listener as usize] = address;
    }

    /// The address of this listener as text; empty: there is no such listener.
    pub(crate) fn text(&self, listener: BrokerListener) -> String {
        self.get(listener)
            .map_or(String::new(), |it| it.to_string())
    }

    /// The addresses as environment variables of a client program.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        let url = format!("amqp://guest:guest@{}", self.text(BrokerListener::Amqp));
        let all = [
            ("CLOVERLEAF_KAFKA", BrokerListener::Kafka),
            ("CLOVERLEAF_AMQP", BrokerListener::Amqp),
            ("CLOVERLEAF_NSQD", BrokerListener::Nsq),
            ("CLOVERLEAF_NSQD_HTTP", BrokerListener::NsqHttp),
            ("CLOVERLEAF_NSQLOOKUPD", BrokerListener::NsqLookup),
            ("CLOVERLEAF_ADMIN_ADDRESS", BrokerListener::Admin),
        ];
        let all = all
            .into_iter()
            .filter_map(|(name, of)| Some((name, self.get(of)?.to_string())));
        all.chain([("CLOVERLEAF_AMQP_URL", url)]).collect()
    }
}

/// The port of each listener on 127.0.0.1, in the order of [`BrokerListener::ALL`]; 0: any.
pub type Ports = [u16; 8];

/// The ports that clients expect, and any other where `is_taken`.
pub(crate) fn usual_ports(is_taken: impl Fn(u16) -> bool) -> Ports {
    let usual = BrokerListener::ALL.map(|it| it.port_and_setting().0);
    usual.map(|port| if is_taken(port) { 0 } else { port })
}

/// How a broker is started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BrokerOptions {
    /// The ports of its listeners.
    pub ports: Ports,
    /// Options of the broker by their names on the command line, each with its value.
    pub settings: BTreeMap<String, String>,
    /// The broker's certificate. With one, the broker serves Kafka and AMQP over TLS as well.
    pub certificate: Option<Certificate>,
    /// The file for a recording of what the doctor observes.
    pub record: Option<PathBuf>,
}

/// The files of a broker's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// The certificate, PEM.
    pub certificate: PathBuf,
    /// Its key, PEM.
    pub key: PathBuf,
}

/// Starts a broker with a data folder of its own. The error is a text for the user.
pub type StartBroker<'b> = dyn Fn(&BrokerOptions) -> Result<LabBroker, String> + Sync + 'b;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_taken_is_any() {
        let ports = usual_ports(|port| port == 5672);
        assert_eq!(ports, [9092, 9093, 0, 5671, 4150, 4151, 4161, 8080]);
    }

    #[test]
    fn listeners_are_in_the_order_of_their_declaration() {
        let places = BrokerListener::ALL.map(|it| it as usize);
        assert_eq!(places, [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn a_program_finds_what_there_is() {
        let addresses = |without: Option<BrokerListener>| {
            Addresses::new(|it| {
                let address = SocketAddr::from(([127, 0, 0, 1], it as u16));
                (Some(it) != without).then_some(address)
            })
        };
        let of = |addresses: Addresses, name: &str| {
            let all = addresses.variables();
            all.into_iter()
                .find(|(known, _)| *known == name)
                .map(|it| it.1)
        };
        let url = of(addresses(None), "CLOVERLEAF_AMQP_URL");
        assert_eq!(url.as_deref(), Some("amqp://guest:guest@127.0.0.1:2"));
        let lookup = of(addresses(None), "CLOVERLEAF_NSQLOOKUPD");
        assert_eq!(lookup.as_deref(), Some("127.0.0.1:6"));
        let without = addresses(Some(BrokerListener::NsqLookup));
        assert_eq!(of(without, "CLOVERLEAF_NSQLOOKUPD"), None);
    }
}
