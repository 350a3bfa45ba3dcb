//! A child process that never outlives its owner, and what the kernel says about it.

pub(crate) mod tree;

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use rustix::process::{Pid, Signal};

use crate::wait;

/// This program, for another process of it, also when building has put another in its place.
pub(crate) const MYSELF: &str = "/proc/self/exe";

/// A running program with its output in a file. Dropped, it is killed.
pub(crate) struct Process {
    child: Child,
    name: String,
    log: PathBuf,
}

/// Resources that a process has used so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// User and system time in seconds, in steps of the kernel's clock tick (10 ms).
    pub(crate) cpu_s: f64,
    /// Resident memory now, in bytes.
    pub(crate) rss_bytes: u64,
    /// As much of it as is its own: without the pages of its program, which differ from one
    /// profile to the other.
    pub(crate) own_bytes: u64,
    /// The most resident memory so far, in bytes.
    pub(crate) rss_peak_bytes: u64,
}

impl Process {
    /// Starts `command` with stdout and stderr going to the end of `log`.
    pub(crate) fn start(command: &mut Command, log: &Path) -> Result<Self> {
        let name = Path::new(command.get_program())
            .file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let out = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("cannot write {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Self {
            child,
            name,
            log: log.to_path_buf(),
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything that it has printed.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// `None` while it runs.
    pub(crate) fn exit_status(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Asks it to end (SIGTERM) and waits for that.
    pub(crate) fn terminate(&mut self, most: Duration) -> Result<ExitStatus> {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| anyhow!("{} has no process id", self.name))?;
        rustix::process::kill_process(pid, Signal::TERM)?;
        self.wait(most)
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self, most: Duration) -> Result<ExitStatus> {
        let mut status = None;
        wait::until(&format!("{} has ended", self.name), most, || {
            status = self.child.try_wait()?;
            Ok(status.is_some())
        })?;
        Ok(status.unwrap_or_else(|| ExitStatus::from_raw(-1)))
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Bytes that its system calls have read so far, from files or from elsewhere.
    pub(crate) fn bytes_read(&self) -> Result<u64> {
        let counts = std::fs::read_to_string(format!("/proc/{}/io", self.pid()))?;
        let read = counts.lines().find_map(|line| line.strip_prefix("rchar: "));
        Ok(read.context("/proc/PID/io has no rchar")?.parse()?)
    }

    /// CPU and memory from `/proc`.
    pub(crate) fn usage(&self) -> Result<Usage> {
        usage(self.pid())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended by itself; there is nobody left to tell about an error.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Seconds that all cores together have been idle since the machine started, and those that have
/// passed on all of them: the first line of `/proc/stat`, see proc(5).
pub(crate) fn machine_time() -> Result<(f64, f64)> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let first = stat.lines().next().unwrap_or_default();
    // User, nice, system, idle, waiting for a disk, two kinds of interrupts, stolen.
    let words = first.split_whitespace().skip(1).take(8);
    let ticks: Vec<f64> = words.filter_map(|word| word.parse().ok()).collect();
    let idle = ticks.get(3).context("/proc/stat has no idle time")?
        + ticks.get(4).context("/proc/stat has no waiting time")?;
    let per_second = rustix::param::clock_ticks_per_second() as f64;
    let all: f64 = ticks.iter().sum();
    Ok((idle / per_second, all / per_second))
}

/// CPU and memory of any process, from `/proc/PID/stat` and `/proc/PID/status`.
pub(crate) fn usage(pid: u32) -> Result<Usage> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field is the name in parentheses and may hold anything, so count from its end;
    // user and system time are fields 14 and 15 of proc(5).
    let (_, rest) = stat
        .rsplit_once(')')
        .context("/proc/PID/stat has no name")?;
    let ticks: u64 = rest
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|f| f.parse::<u64>().ok())
        .sum();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or(0) * 1024
    };
    Ok(Usage {
        cpu_s: ticks as f64 / rustix::param::clock_ticks_per_second() as f64,
        rss_bytes: field("VmRSS:"),
        own_bytes: field("RssAnon:"),
        rss_peak_bytes: field("VmHWM:"),
    })
}
