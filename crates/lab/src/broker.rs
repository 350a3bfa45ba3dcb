//! The broker of a lab, which the command line starts.

use std::any::Any;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use cloverleaf_doctor::{Query, Report};

/// Asks a broker's doctor for its report.
pub type AskDoctor = dyn Fn(&Query) -> Option<Report> + Send + Sync;

/// A broker in this process.
pub struct LabBroker {
    /// Where it listens.
    pub addresses: Addresses,
    /// Asks its doctor; `None` when it has ended.
    pub doctor: Box<AskDoctor>,
    /// Ends it when dropped.
    pub guard: Box<dyn Any + Send + Sync>,
}

/// Where a broker listens, or where its clients reach it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// Kafka.
    pub kafka: SocketAddr,
    /// Kafka over TLS, if it has a certificate.
    pub kafka_tls: Option<SocketAddr>,
    /// AMQP.
    pub amqp: SocketAddr,
    /// AMQP over TLS, if it has a certificate.
    pub amqp_tls: Option<SocketAddr>,
    /// NSQ's TCP protocol.
    pub nsq: SocketAddr,
    /// NSQ's HTTP API.
    pub nsq_http: SocketAddr,
    /// NSQ's lookup API, if it tells of a broker at the distance.
    pub nsq_lookup: Option<SocketAddr>,
    /// The admin interface.
    pub admin: SocketAddr,
}

impl Addresses {
    /// As a program finds them in its environment.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        let mut all = vec![
            ("CLOVERLEAF_KAFKA", self.kafka.to_string()),
            ("CLOVERLEAF_AMQP", self.amqp.to_string()),
            (
                "CLOVERLEAF_AMQP_URL",
                format!("amqp://guest:guest@{}", self.amqp),
            ),
            ("CLOVERLEAF_NSQD", self.nsq.to_string()),
            ("CLOVERLEAF_NSQD_HTTP", self.nsq_http.to_string()),
            ("CLOVERLEAF_ADMIN_ADDRESS", self.admin.to_string()),
        ];
        let lookup = self.nsq_lookup.map(|it| it.to_string());
        all.extend(lookup.map(|address| ("CLOVERLEAF_NSQLOOKUPD", address)));
        all
    }
}

/// The ports that a broker is to have on 127.0.0.1; 0: any.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ports {
    /// Kafka.
    pub kafka: u16,
    /// Kafka over TLS.
    pub kafka_tls: u16,
    /// AMQP.
    pub amqp: u16,
    /// AMQP over TLS.
    pub amqp_tls: u16,
    /// NSQ's TCP protocol.
    pub nsq: u16,
    /// NSQ's HTTP API.
    pub nsq_http: u16,
    /// NSQ's lookup API.
    pub nsq_lookup: u16,
    /// The admin interface.
    pub admin: u16,
}

impl Ports {
    /// Those that everybody expects.
    pub(crate) const USUAL: Ports = Ports {
        kafka: 9092,
        kafka_tls: 9093,
        amqp: 5672,
        amqp_tls: 5671,
        nsq: 4150,
        nsq_http: 4151,
        nsq_lookup: 4161,
        admin: 8080,
    };

    /// All of them.
    pub(crate) fn all(&self) -> [u16; 8] {
        let Ports {
            kafka,
            kafka_tls,
            amqp,
            amqp_tls,
            nsq,
            nsq_http,
            nsq_lookup,
            admin,
        } = *self;
        [
            kafka, kafka_tls, amqp, amqp_tls, nsq, nsq_http, nsq_lookup, admin,
        ]
    }

    /// The same, with any port where `is_taken`.
    pub(crate) fn without(self, is_taken: impl Fn(u16) -> bool) -> Ports {
        let keep = |port: u16| if is_taken(port) { 0 } else { port };
        Ports {
            kafka: keep(self.kafka),
            kafka_tls: keep(self.kafka_tls),
            amqp: keep(self.amqp),
            amqp_tls: keep(self.amqp_tls),
            nsq: keep(self.nsq),
            nsq_http: keep(self.nsq_http),
            nsq_lookup: keep(self.nsq_lookup),
            admin: keep(self.admin),
        }
    }
}

/// How a broker is started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BrokerOptions {
    /// Where it listens.
    pub ports: Ports,
    /// Options of the broker by their names on the command line, each with its value.
    pub settings: BTreeMap<String, String>,
    /// Its certificate, with which it speaks Kafka and AMQP over TLS, too.
    pub certificate: Option<Certificate>,
    /// The file that gets a recording of what its doctor looks at.
    pub record: Option<PathBuf>,
}

/// Where a broker's certificate lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// The certificate, PEM.
    pub certificate: PathBuf,
    /// Its key, PEM.
    pub key: PathBuf,
}

/// Starts a broker on a folder of its own, or says why it cannot.
pub type StartBroker<'b> = dyn Fn(&BrokerOptions) -> Result<LabBroker, String> + Sync + 'b;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_taken_is_any() {
        let ports = Ports::USUAL.without(|port| port == 5672);
        assert_eq!((ports.kafka, ports.amqp, ports.admin), (9092, 0, 8080));
    }

    #[test]
    fn a_program_finds_what_there_is() {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let mut addresses = Addresses {
            kafka: at(1),
            kafka_tls: None,
            amqp: at(2),
            amqp_tls: None,
            nsq: at(3),
            nsq_http: at(4),
            nsq_lookup: None,
            admin: at(6),
        };
        let of = |addresses: &Addresses, name: &str| {
            let all = addresses.variables();
            all.into_iter()
                .find(|(known, _)| *known == name)
                .map(|it| it.1)
        };
        let url = of(&addresses, "CLOVERLEAF_AMQP_URL");
        assert_eq!(url.as_deref(), Some("amqp://guest:guest@127.0.0.1:2"));
        assert_eq!(of(&addresses, "CLOVERLEAF_NSQLOOKUPD"), None);
        addresses.nsq_lookup = Some(at(5));
        let lookup = of(&addresses, "CLOVERLEAF_NSQLOOKUPD");
        assert_eq!(lookup.as_deref(), Some("127.0.0.1:5"));
    }
}
