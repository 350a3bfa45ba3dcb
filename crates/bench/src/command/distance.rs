//! Where brokers and clients are: how far from each other, and on which machines.

use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{BenchError, values};
use crate::network::{Network, NetworkError};
use crate::proxy::{Bandwidth, Link};
use crate::url::Url;
use crate::words;

/// A distance, and who makes it.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Distance")]
pub struct LinkArgs {
    /// Put the broker so far away: half of it each way
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub rtt: Option<Duration>,
    /// Up to so much longer each way, at random; nothing overtakes
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub jitter: Option<Duration>,
    /// What goes through each way, all connections together: 100Mbit
    #[arg(long, value_name = "RATE")]
    pub bandwidth: Option<Bandwidth>,
    /// Who makes the distance
    #[arg(long, value_enum, value_name = "WHO", default_value_t)]
    pub rtt_by: RttBy,
}

/// Who makes a distance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum RttBy {
    /// The kernel if it can, a proxy otherwise; the notes say which
    #[default]
    Auto,
    /// The kernel: packets in a network of its own, a real round trip. For embedded brokers, where
    /// the machine lets a program have networks
    Kernel,
    /// A proxy in this program: a delay, for any broker
    Proxy,
}

impl LinkArgs {
    /// The distance; without arguments none.
    pub fn link(&self) -> Link {
        Link {
            rtt: self.rtt.unwrap_or_default(),
            jitter: self.jitter.unwrap_or_default(),
            bandwidth: self.bandwidth,
        }
    }

    /// Whether these brokers may be put at this distance by the kernel.
    pub(super) fn may_be_kernel(&self, link: &Link, urls: &[Url], has_workers: bool) -> bool {
        let is_wanted = self.rtt_by != RttBy::Proxy && !link.is_none();
        is_wanted && why_proxy(urls, has_workers).is_none()
    }
}

/// Why it cannot be the kernel, whatever the machine.
pub(super) fn why_proxy(urls: &[Url], has_workers: bool) -> Option<&'static str> {
    match urls.iter().all(Url::is_embedded) {
        _ if has_workers => Some("the connections are made by other machines"),
        false => Some("that is for embedded brokers"),
        true => None,
    }
}

/// How far away brokers are, and who makes it so.
#[derive(Debug, Default)]
pub(super) struct Distance {
    link: Link,
    network: Option<Arc<Network>>,
    /// Why there is no network, where one might have been.
    why_proxy: Option<String>,
    /// A distance that was asked for, and nobody makes.
    left_out: Option<Link>,
}

impl Distance {
    /// Makes it. `why_proxy`: why it cannot be the kernel, whatever the machine.
    ///
    /// # Errors
    /// The kernel was to make it, and cannot.
    pub(super) fn make(
        link: Link,
        by: RttBy,
        why_proxy: Option<&'static str>,
    ) -> Result<Distance, BenchError> {
        let mut distance = Distance {
            link,
            ..Distance::default()
        };
        if link.is_none() || by == RttBy::Proxy {
            return Ok(distance);
        }
        let network = match why_proxy {
            Some(reason) => Err(reason.to_owned()),
            None => Network::open(&link).map_err(|error: NetworkError| error.to_string()),
        };
        match network {
            Ok(network) => distance.network = Some(Arc::new(network)),
            Err(reason) if by == RttBy::Kernel => {
                return Err(BenchError::Settings(format!(
                    "no --rtt-by kernel: {reason}"
                )));
            }
            Err(reason) => distance.why_proxy = Some(reason),
        }
        Ok(distance)
    }

    /// For clients that connect by themselves, past a proxy: they have a network, or no distance.
    pub(super) fn without_proxy(self) -> Distance {
        match self.network {
            None if !self.link.is_none() => Distance {
                link: Link::default(),
                left_out: Some(self.link),
                ..self
            },
            _ => self,
        }
    }

    /// The distance itself.
    pub(super) fn link(&self) -> &Link {
        &self.link
    }

    /// The network that makes it, if that is what does.
    pub(super) fn network(&self) -> Option<&Arc<Network>> {
        self.network.as_ref()
    }

    /// The note that belongs to the figures: nothing where there is no distance.
    pub(super) fn note(&self) -> Option<String> {
        let because = match &self.why_proxy {
            Some(reason) => format!(" Not by the kernel: {reason}."),
            None => String::new(),
        };
        if let Some(link) = &self.left_out {
            return Some(format!(
                "Without the distance ({link}): these clients connect by themselves, past the \
                 proxy of this program.{because}"
            ));
        }
        if self.link.is_none() {
            return None;
        }
        let link = &self.link;
        Some(match &self.network {
            Some(network) => format!(
                "Over a distance: {link}, made of packets by the kernel in two networks of this \
                 program's, where TCP itself sees a round trip of {}; the CPU time of what carries \
                 the packets is counted apart.",
                words::time(network.rtt().as_nanos() as f64)
            ),
            None => format!(
                "Over a distance: {link}, by a proxy in this program, whose CPU time is counted \
                 apart: a delay, not packets.{because}"
            ),
        })
    }
}

/// Machines that generate the load.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Machines")]
pub struct FleetArgs {
    /// Let these machines make the connections, on each of which `cloverleaf bench worker` runs:
    /// one,two:4191 (without a port 4190). Connections are shared out among them; this one
    /// coordinates
    #[arg(long, value_name = "ADDRESSES", value_delimiter = ',')]
    pub workers: Vec<String>,
    /// What the workers want to know
    #[arg(
        long,
        value_name = "SECRET",
        env = "CLOVERLEAF_BENCH_TOKEN",
        hide_env_values = true
    )]
    pub token: Option<String>,
}

/// A time on the command line: `10`, `10s`, `500ms`, `2m`.
///
/// # Errors
/// It is none.
pub fn duration(text: &str) -> Result<Duration, String> {
    let seconds = values::seconds(text)?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        link: LinkArgs,
        #[command(flatten)]
        fleet: FleetArgs,
    }

    fn far() -> Link {
        Link {
            rtt: Duration::from_millis(10),
            ..Link::default()
        }
    }

    #[test]
    fn a_distance_is_written_as_users_write_it() {
        let link = |args: &[&str]| {
            let all = [&["x"], args].concat();
            Line::try_parse_from(all).map(|line| line.link.link())
        };
        assert!(link(&[]).unwrap().is_none());
        let far = link(&["--rtt", "10ms", "--jitter=500us", "--bandwidth", "100Mbit"]).unwrap();
        assert_eq!(far.rtt, Duration::from_millis(10));
        assert_eq!(far.to_string(), "round trip 10ms, jitter 500µs, 100Mbit");
        let error = link(&["--bandwidth", "fast"]).unwrap_err().to_string();
        assert!(error.contains("write 100Mbit"), "{error}");
        assert!(link(&["--rtt", "-1s"]).is_err());
    }

    #[test]
    fn machines_are_named_with_commas() {
        let line = Line::try_parse_from(["x", "--workers", "a:1,b:2", "--token=t"]).unwrap();
        assert_eq!(line.fleet.workers, ["a:1", "b:2"]);
        assert_eq!(line.fleet.token.as_deref(), Some("t"));
    }

    #[test]
    fn the_kernel_is_for_embedded_brokers_and_connections_of_this_process() {
        let urls = |texts: &[&str]| -> Vec<Url> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let embedded = urls(&["embedded:nsq", "embedded:kafka"]);
        let mixed = urls(&["embedded:nsq", "nsq://127.0.0.1:1"]);
        let args = |by| LinkArgs {
            rtt_by: by,
            ..LinkArgs::default()
        };
        let may = |by, link: &Link, urls: &[Url], has_workers| {
            args(by).may_be_kernel(link, urls, has_workers)
        };
        assert!(may(RttBy::Auto, &far(), &embedded, false));
        assert!(may(RttBy::Kernel, &far(), &embedded, false));
        assert!(!may(RttBy::Proxy, &far(), &embedded, false));
        assert!(!may(RttBy::Kernel, &Link::default(), &embedded, false));
        assert!(!may(RttBy::Kernel, &far(), &mixed, false));
        assert!(!may(RttBy::Kernel, &far(), &embedded, true));
    }

    #[test]
    fn who_makes_the_distance_is_said() {
        let note = |by, why| Distance::make(far(), by, why).unwrap().note().unwrap();
        let text = note(RttBy::Proxy, None);
        assert!(text.ends_with("a delay, not packets."), "{text}");
        let text = note(RttBy::Auto, Some("so it is"));
        assert!(
            text.ends_with("not packets. Not by the kernel: so it is."),
            "{text}"
        );
        let error = Distance::make(far(), RttBy::Kernel, Some("so it is")).unwrap_err();
        assert_eq!(error.to_string(), "no --rtt-by kernel: so it is");
        let none = Distance::make(Link::default(), RttBy::Kernel, None).unwrap();
        assert_eq!((none.note(), none.network().is_some()), (None, false));
    }

    #[test]
    fn who_passes_the_proxy_has_no_distance_without_a_network() {
        let far = Distance::make(far(), RttBy::Auto, Some("so it is")).unwrap();
        let near = far.without_proxy();
        assert!(near.link().is_none());
        let text = near.note().unwrap();
        assert!(
            text.starts_with("Without the distance (round trip 10ms)")
                && text.ends_with("Not by the kernel: so it is."),
            "{text}"
        );
        assert!(Distance::default().without_proxy().note().is_none());
    }
}
