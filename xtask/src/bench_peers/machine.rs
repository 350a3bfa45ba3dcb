//! What a figure was measured on, and whether the machine is quiet enough to measure.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::wait;
use crate::workspace::output;

/// Busier than this, figures are no good.
const BUSY_PERCENT_MAX: u64 = 8;
/// How long to wait for a quiet second before measuring all the same.
const QUIET_SECONDS_MAX: u32 = 20;

/// A description of the machine.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(super) struct Machine {
    pub(super) cpu: String,
    pub(super) cores: u32,
    pub(super) memory_mb: u64,
    pub(super) kernel: String,
    pub(super) file_system: String,
    pub(super) go: String,
    pub(super) rust: String,
    #[serde(default)]
    pub(super) java: String,
}

pub(super) fn describe(data: &Path) -> Machine {
    let said = |program: &str, arguments: &[&str]| {
        let text = output(Command::new(program).args(arguments)).unwrap_or_default();
        text.trim().lines().last().unwrap_or("unknown").to_owned()
    };
    let file = |path: &str, name: &str| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let line = text
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap_or_default();
        line.split_once(':')
            .map_or_else(String::new, |(_, value)| value.trim().to_owned())
    };
    let memory = file("/proc/meminfo", "MemTotal");
    let kib: u64 = memory
        .split_whitespace()
        .next()
        .and_then(|kib| kib.parse().ok())
        .unwrap_or(0);
    Machine {
        cpu: file("/proc/cpuinfo", "model name"),
        cores: std::thread::available_parallelism().map_or(0, |n| n.get() as u32),
        memory_mb: kib / 1024,
        kernel: said("uname", &["-sr"]),
        file_system: said("df", &["--output=fstype", &data.display().to_string()]),
        go: said("go", &["version"]),
        rust: said("rustc", &["--version"]),
        java: said("java", &["--version"]),
    }
}

/// Waits for a second in which the machine does nothing else.
pub(super) fn wait_quiet() -> Result<()> {
    for _ in 0..QUIET_SECONDS_MAX {
        let (busy, all) = ticks()?;
        wait::pass(Duration::from_secs(1));
        let (busy_now, all_now) = ticks()?;
        if (busy_now - busy) * 100 <= (all_now - all) * BUSY_PERCENT_MAX {
            return Ok(());
        }
    }
    println!("the machine is not quiet; measuring all the same");
    Ok(())
}

/// Seconds that all cores together were busy, since the machine was started.
pub(super) fn busy_s() -> Result<f64> {
    let (busy, _) = ticks()?;
    Ok(busy as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Busy and all ticks of all cores, from the first line of `/proc/stat`.
fn ticks() -> Result<(u64, u64)> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().context("/proc/stat is empty")?;
    let ticks: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .take(8)
        .filter_map(|field| field.parse().ok())
        .collect();
    let all: u64 = ticks.iter().sum();
    // Fields 4 and 5 are idle and waiting for a disk.
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    Ok((all - idle, all))
}
