//! The cost of a measurement: CPU time and memory of this program, and of a broker on this machine.

use std::fs;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::cpu_clock;
use crate::listeners::{self, numbers_in};
use crate::proxy::PROXY_THREADS;

/// CPU time and memory of a measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Seconds from the beginning to the end.
    pub wall_s: f64,
    /// CPU seconds of the generator: this program, without a broker or a proxy in it.
    pub client_cpu_s: f64,
    /// CPU seconds of the delay proxy.
    #[serde(default)]
    pub proxy_cpu_s: f64,
    /// CPU seconds of the broker; `None`: it cannot be seen from here.
    pub broker_cpu_s: Option<f64>,
    /// The share of the time of all cores of the generator's machine that was not idle, for any
    /// process. With several machines, that of the busiest. `None`: it is unknown, or the
    /// measurement was too short.
    #[serde(default)]
    pub cores_busy: Option<f64>,
    /// Maximum of the broker's resident memory, in bytes, among the samples.
    pub broker_rss_bytes: Option<u64>,
}

/// Minimum of ticks of all cores for a value of [`Usage::cores_busy`].
const CORES_TICKS_MIN: u64 = 50;

/// Where the broker runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BrokerPlace {
    /// In these processes of this machine.
    Processes(Vec<u32>),
    /// In threads of this process, beside the generator's, whose names have this prefix.
    Threads(String),
    /// On another machine, or in processes that this one may not read.
    Elsewhere,
}

/// Prefix of the names of the generator's threads, which tells them from an embedded broker's.
pub const GENERATOR_THREADS: &str = "bench-";

/// Prefixes of the names of threads that client libraries start: librdkafka's and lapin's.
const LIBRARY_THREADS: [&str; 2] = ["rdk:", "lapin-"];

impl BrokerPlace {
    /// The processes that listen on these addresses of this machine.
    pub fn of(addresses: &[SocketAddr]) -> BrokerPlace {
        let processes = listeners::of(addresses);
        if processes.is_empty() {
            BrokerPlace::Elsewhere
        } else {
            BrokerPlace::Processes(processes)
        }
    }

    /// The processes whose costs count as the broker's, by name and number; `None`: there are none.
    pub fn names(&self) -> Option<String> {
        let BrokerPlace::Processes(processes) = self else {
            return None;
        };
        let named = |process: &u32| format!("{} {process}", listeners::name(*process));
        let names: Vec<String> = processes.iter().take(NAMES_MAX).map(named).collect();
        let more = processes.len().saturating_sub(NAMES_MAX);
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        Some(format!("{}{more}", names.join(", ")))
    }
}

/// Maximum of processes that are named.
const NAMES_MAX: usize = 4;

/// Measures CPU time and memory.
#[derive(Debug)]
pub struct Meter {
    place: BrokerPlace,
    begun: std::time::Instant,
    client_s: f64,
    proxy_s: f64,
    broker_s: Option<f64>,
    rss_bytes: Option<u64>,
    cores: Option<(u64, u64)>,
}

impl Meter {
    /// Starts to measure.
    pub fn begin(place: &BrokerPlace) -> Meter {
        let (client_s, proxy_s, broker_s) = cpu_s(place);
        let mut meter = Meter {
            place: place.clone(),
            begun: std::time::Instant::now(),
            client_s,
            proxy_s,
            broker_s,
            rss_bytes: None,
            cores: cores(),
        };
        meter.look();
        meter
    }

    /// Samples the broker's memory. To be called now and then.
    pub fn look(&mut self) {
        if let BrokerPlace::Processes(processes) = &self.place {
            let bytes: u64 = processes.iter().filter_map(|it| rss_bytes(*it)).sum();
            self.rss_bytes = self.rss_bytes.max(Some(bytes)).filter(|bytes| *bytes > 0);
        }
    }

    fn cores_busy(&self) -> Option<f64> {
        let ((busy, all), (busy_before, all_before)) = (cores()?, self.cores?);
        let all = all.saturating_sub(all_before);
        let share = busy.saturating_sub(busy_before) as f64 / all as f64;
        (all >= CORES_TICKS_MIN).then_some(share)
    }

    /// Ends. Returns the costs since the beginning.
    pub fn end(mut self) -> Usage {
        self.look();
        let (client_s, proxy_s, broker_s) = cpu_s(&self.place);
        Usage {
            wall_s: self.begun.elapsed().as_secs_f64(),
            client_cpu_s: (client_s - self.client_s).max(0.0),
            proxy_cpu_s: (proxy_s - self.proxy_s).max(0.0),
            broker_cpu_s: broker_s
                .zip(self.broker_s)
                .map(|(end, begin)| (end - begin).max(0.0)),
            cores_busy: self.cores_busy(),
            broker_rss_bytes: self.rss_bytes,
        }
    }
}

/// CPU seconds of the generator, of the proxy and of the broker so far.
fn cpu_s(place: &BrokerPlace) -> (f64, f64, Option<f64>) {
    let process_s = cpu_clock::of_process(std::process::id()).unwrap_or(0.0);
    let proxy_s = cpu_of_threads(|name| name == PROXY_THREADS);
    let (broker_s, within_s) = match place {
        BrokerPlace::Elsewhere => (None, 0.0),
        BrokerPlace::Processes(processes) => {
            let each = processes.iter().map(|it| cpu_clock::of_process(*it));
            (each.sum::<Option<f64>>(), 0.0)
        }
        BrokerPlace::Threads(ours) => {
            let is_ours = |name: &str| {
                let is_library = LIBRARY_THREADS.iter().any(|it| name.starts_with(it));
                is_library || name.starts_with(ours.as_str())
            };
            let broker_s = cpu_of_threads(|name| !is_ours(name));
            (Some(broker_s), broker_s)
        }
    };
    ((process_s - proxy_s - within_s).max(0.0), proxy_s, broker_s)
}

/// CPU seconds of the threads of this process whose names `is_it` accepts.
fn cpu_of_threads(is_it: impl Fn(&str) -> bool) -> f64 {
    let threads = numbers_in("/proc/self/task").filter(|thread| {
        let name = fs::read_to_string(format!("/proc/self/task/{thread}/comm"));
        name.is_ok_and(|name| is_it(name.trim_end()))
    });
    threads.filter_map(cpu_clock::of_thread).sum()
}

/// The ticks of all cores so far, from the first line of `/proc/stat`: those that were not idle,
/// and all. `None`: the line cannot be read.
fn cores() -> Option<(u64, u64)> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let fields = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Option<Vec<u64>> = fields
        .split_whitespace()
        .map(|it| it.parse().ok())
        .collect();
    // user, nice, system, idle, iowait, irq, softirq, steal. Guest ticks follow, which are included
    // in the first two.
    let ticks = ticks.filter(|ticks| ticks.len() >= 8)?;
    let all: u64 = ticks[..8].iter().sum();
    Some((all.saturating_sub(ticks[3] + ticks[4]), all))
}

fn rss_bytes(process: u32) -> Option<u64> {
    let statm = fs::read_to_string(format!("/proc/{process}/statm")).ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn work_of_this_process_is_seen() {
        let meter = Meter::begin(&BrokerPlace::Elsewhere);
        let before = cpu_clock::of_this_thread();
        while cpu_clock::of_this_thread() < before + 0.05 {}
        let usage = meter.end();
        assert!(usage.client_cpu_s >= 0.05, "{usage:?}");
        let busy = usage.cores_busy.unwrap_or_default();
        assert!((0.0..=1.0).contains(&busy), "{usage:?}");
        assert_eq!((usage.broker_cpu_s, usage.broker_rss_bytes), (None, None));
    }

    #[test]
    fn a_child_is_measured() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .unwrap();
        let place = BrokerPlace::Processes(vec![child.id()]);
        let meter = Meter::begin(&place);
        while cpu_clock::of_process(child.id()).unwrap() < 0.1 {}
        let usage = meter.end();
        let names = place.names();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(names, Some(format!("sh {}", child.id())));
        assert!(usage.broker_cpu_s.unwrap() > 0.05, "{usage:?}");
        assert!(usage.broker_rss_bytes.unwrap() > 100_000, "{usage:?}");
    }
}
