//! A broker at a distance from its clients: a network of the kernel's, or proxies that delay.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use cloverleaf_bench::command::{LinkArgs, RttBy};
use cloverleaf_bench::{Carries, Link, Network, Proxy, words};
use cloverleaf_doctor::{Query, Report};

use crate::broker::{
    Addresses, BrokerListener, BrokerOptions, LabBroker, Ports, StartBroker, usual_ports,
};

/// Why a command of the lab fails.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// `--rtt-by kernel` is set, but the kernel cannot make the distance.
    #[error("no --rtt-by kernel: {0}")]
    NoKernel(String),
    /// The broker does not start.
    #[error("the broker does not start: {0}")]
    Broker(String),
    /// The broker has ended.
    #[error("the broker has ended")]
    Gone,
    /// The system refuses it.
    #[error("{what}: {error}")]
    System {
        /// The attempt that failed.
        what: String,
        /// The system's error.
        error: io::Error,
    },
    /// There is no such story.
    #[error("no story {0}: there are {1}")]
    Scenario(String, String),
    /// An option of the broker is not written as `NAME=VALUE`.
    #[error("--set {0}: write NAME=VALUE, such as quick-ack=false")]
    Setting(String),
}

impl LabError {
    pub(crate) fn system(what: &str, error: io::Error) -> LabError {
        LabError::System {
            what: what.to_owned(),
            error,
        }
    }
}

/// A broker, and the distance between it and its clients.
pub(crate) struct DistantBroker {
    // Fields are dropped in this order: the broker ends before the network that it is in.
    broker: LabBroker,
    reached: Addresses,
    distance: Distance,
}

enum Distance {
    None,
    Kernel(Network),
    Proxy {
        link: Link,
        because: Option<String>,
        _proxies: Vec<Proxy>,
    },
}

impl DistantBroker {
    /// Starts a broker at this distance, on its usual ports where they are free.
    pub(crate) fn open(
        link: &LinkArgs,
        wanted: &BrokerOptions,
        start: &StartBroker<'_>,
    ) -> Result<DistantBroker, LabError> {
        let (far, by) = (link.link(), link.rtt_by);
        let options = |ports: Ports| BrokerOptions {
            ports,
            ..wanted.clone()
        };
        let begin = |ports: Ports| start(&options(ports)).map_err(LabError::Broker);
        if far.is_none() {
            // Another program may take a port after the check.
            let broker = begin(usual_ports(is_taken));
            let broker = broker.or_else(|_| begin(Ports::default()))?;
            return Ok(DistantBroker {
                reached: broker.addresses,
                broker,
                distance: Distance::None,
            });
        }
        let network = match by {
            RttBy::Proxy => Err(None),
            RttBy::Auto | RttBy::Kernel => {
                // The program may use other ports of 127.0.0.1 for itself.
                let mut ports = usual_ports(|_| false).to_vec();
                ports.extend(more_ports(&wanted.settings));
                let network = Network::open_with_loopback(&far, &ports);
                network.map_err(|error| Some(error.to_string()))
            }
        };
        match network {
            Ok(network) => {
                // No other program is in the network: the usual ports are free.
                let broker = network.at_broker(|| begin(usual_ports(|_| false)));
                let broker = broker
                    .map_err(|error| LabError::system("the network cannot be entered", error))??;
                Ok(DistantBroker {
                    reached: broker.addresses,
                    broker,
                    distance: Distance::Kernel(network),
                })
            }
            Err(Some(because)) if by == RttBy::Kernel => Err(LabError::NoKernel(because)),
            Err(because) => DistantBroker::behind_proxies(begin(Ports::default())?, far, because),
        }
    }

    fn behind_proxies(
        broker: LabBroker,
        link: Link,
        because: Option<String>,
    ) -> Result<DistantBroker, LabError> {
        let mut proxies = Vec::new();
        let mut reached = broker.addresses;
        for (listener, port) in BrokerListener::ALL.into_iter().zip(usual_ports(is_taken)) {
            let Some(upstream) = broker.addresses.get(listener) else {
                continue;
            };
            let carries = match listener {
                BrokerListener::Admin => continue,
                // Both send clients to the broker's own address. The proxy cannot replace it: it
                // does not see into TLS, and does not know the lookup API.
                BrokerListener::KafkaTls | BrokerListener::NsqLookup => {
                    reached.set(listener, None);
                    continue;
                }
                BrokerListener::Kafka => Carries::Kafka,
                _ => Carries::Bytes,
            };
            let proxy = Proxy::start(link, carries, at(port), upstream)
                .map_err(|error| LabError::system("the proxy does not start", error))?;
            reached.set(listener, Some(proxy.address()));
            proxies.push(proxy);
        }
        Ok(DistantBroker {
            broker,
            reached,
            distance: Distance::Proxy {
                link,
                because,
                _proxies: proxies,
            },
        })
    }

    /// The addresses at which clients reach the broker.
    pub(crate) fn reached(&self) -> &Addresses {
        &self.reached
    }

    /// The report of the broker's doctor.
    pub(crate) fn report(&self, query: &Query) -> Result<Report, LabError> {
        (self.broker.doctor)(query).ok_or(LabError::Gone)
    }

    /// Runs `work` in the clients' network. Threads and processes that it starts are there, too.
    pub(crate) fn at_client<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        match &self.distance {
            Distance::Kernel(network) => network.at_client(work),
            Distance::None | Distance::Proxy { .. } => Ok(work()),
        }
    }

    /// The round trip as TCP sees it; `None` where the kernel does not make the distance.
    pub(crate) fn rtt(&self) -> Option<Duration> {
        match &self.distance {
            Distance::Kernel(network) => Some(network.rtt()),
            Distance::None | Distance::Proxy { .. } => None,
        }
    }

    /// The distance in words, and what makes it.
    pub(crate) fn note(&self) -> String {
        match &self.distance {
            Distance::None => "on this machine, without a distance".to_owned(),
            Distance::Kernel(network) => format!(
                "a round trip away that the kernel makes of packets, {} by TCP itself",
                words::time(network.rtt().as_nanos() as f64)
            ),
            Distance::Proxy { link, because, .. } => {
                let because = match because {
                    Some(reason) => format!(" Not by the kernel: {reason}."),
                    None => String::new(),
                };
                format!(
                    "behind a proxy that delays ({link}). TCP does not see that delay, so the \
                     doctor cannot tell waiting from thinking, and finds less.{because}"
                )
            }
        }
    }
}

fn at(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// Ports of the listeners that `--set` adds or moves, such as those for TLS.
fn more_ports(settings: &BTreeMap<String, String>) -> impl Iterator<Item = u16> {
    let addresses = settings
        .iter()
        .filter(|(name, _)| name.ends_with("-address"));
    let addresses = addresses.filter_map(|(_, address)| address.parse::<SocketAddr>().ok());
    addresses
        .map(|address| address.port())
        .filter(|port| *port > 0)
}

/// Whether another program has this port, in the network of this thread.
fn is_taken(port: u16) -> bool {
    TcpListener::bind(at(port)).is_err()
}
