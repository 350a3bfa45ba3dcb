//! Arguments about where brokers and clients are: how far from each other, and on which machines.

use std::time::Duration;

use clap::Args;

use super::values;
use crate::proxy::{Bandwidth, Link};

/// A distance that a proxy in this program makes.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Distance")]
pub struct LinkArgs {
    /// Put the broker so far away: each message takes half of it each way, through a proxy in this
    /// program
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub rtt: Option<Duration>,
    /// Up to so much longer each way, at random; nothing overtakes
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub jitter: Option<Duration>,
    /// What goes through each way, all connections together: 100Mbit
    #[arg(long, value_name = "RATE")]
    pub bandwidth: Option<Bandwidth>,
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
}

/// Machines that generate the load.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Machines")]
pub struct FleetArgs {
    /// Let these machines make the connections, on each of which `cloverleaf bench worker` runs:
    /// one,two:4191 (without a port 4190). Connections are shared out among them; this one coordinates
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

fn time(text: &str) -> Result<Duration, String> {
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
}
