//! A client's process, and the processes that it starts.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use cloverleaf_bench::Stop;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::distance::LabError;

/// How often the process is checked for its end.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How long the process has to end after SIGTERM.
const END_GRACE: Duration = Duration::from_secs(5);

/// A process and its process group. Dropping it kills the whole group.
pub(crate) struct ClientProcess {
    child: Child,
    group: Pid,
}

impl ClientProcess {
    /// Starts the command in a process group of its own, so that signals reach all that it starts.
    pub(crate) fn start(command: &mut Command) -> io::Result<ClientProcess> {
        let child = command.process_group(0).spawn()?;
        Ok(ClientProcess {
            group: Pid::from_child(&child),
            child,
        })
    }

    /// The pipes for which the command was configured.
    pub(crate) fn outputs(&mut self) -> (Option<ChildStdout>, Option<ChildStderr>) {
        (self.child.stdout.take(), self.child.stderr.take())
    }

    /// Waits for the end of the process. When the time is over or `stop` is set, it sends SIGTERM,
    /// after a while SIGKILL, and returns `true` with the status.
    pub(crate) fn wait(
        &mut self,
        time: Option<Duration>,
        stop: &Stop,
    ) -> Result<(ExitStatus, bool), LabError> {
        let begun = Instant::now();
        let is_over = || stop.is_set() || time.is_some_and(|time| begun.elapsed() >= time);
        if let Some(status) = self.ended_before(is_over)? {
            return Ok((status, false));
        }
        self.signal(Signal::TERM);
        let signalled = Instant::now();
        if let Some(status) = self.ended_before(|| signalled.elapsed() >= END_GRACE)? {
            return Ok((status, true));
        }
        self.signal(Signal::KILL);
        let status = self.child.wait();
        let status = status.map_err(|error| LabError::system("the program is lost", error))?;
        Ok((status, true))
    }

    /// Waits for the end of the process; `None` if `is_over` returns true before it.
    pub(crate) fn ended_before(
        &mut self,
        is_over: impl Fn() -> bool,
    ) -> Result<Option<ExitStatus>, LabError> {
        loop {
            let status = self.child.try_wait();
            let status = status.map_err(|error| LabError::system("the program is lost", error))?;
            if status.is_some() || is_over() {
                return Ok(status);
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn signal(&self, signal: Signal) {
        // Fails if no process of the group is left.
        let _ = kill_process_group(self.group, signal);
    }
}

impl Drop for ClientProcess {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        // It has ended, or ends by the signal.
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Read;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Stdio;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn program(script: &str) -> ClientProcess {
        let mut command = Command::new("sh");
        let command = command.args(["-c", script]).stdout(Stdio::piped());
        ClientProcess::start(command).unwrap()
    }

    #[test]
    fn a_program_ends_by_itself_or_by_a_signal() {
        let (status, is_signalled) = program("exit 3").wait(None, &Stop::default()).unwrap();
        assert_eq!((status.code(), is_signalled), (Some(3), false));
        let now = Some(Duration::ZERO);
        let mut endless = program("while :; do sleep 1; done");
        let (status, is_signalled) = endless.wait(now, &Stop::default()).unwrap();
        assert_eq!((status.signal(), is_signalled), (Some(15), true));
        let stop = Stop::default();
        stop.set();
        assert!(program("sleep 100").wait(None, &stop).unwrap().1);
    }

    #[test]
    fn nothing_that_it_started_is_left() {
        let mut parent = program("sleep 1000 & exit 0");
        let mut out = parent.outputs().0.unwrap();
        parent.wait(None, &Stop::default()).unwrap();
        let ended_within = |seconds: i64| {
            let patience = Timespec {
                tv_sec: seconds,
                tv_nsec: 0,
            };
            let mut pipe = [PollFd::new(&out, PollFlags::IN)];
            poll(&mut pipe, Some(&patience)).unwrap() > 0
        };
        // The pipe ends when the last process that has it open ends.
        assert!(!ended_within(0));
        drop(parent);
        assert!(ended_within(10));
        assert_eq!(out.read(&mut [0; 1]).unwrap(), 0);
    }
}
