//! The results of a group's checks, a line each: `ok`, `FAILED` or `SKIPPED`.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

use crate::workspace::tail;

/// How lines begin; the process that started the group counts them.
pub(super) const PASSED: &str = "ok      ";
pub(super) const FAILED: &str = "FAILED  ";
pub(super) const SKIPPED: &str = "SKIPPED ";

/// Checks, each with its group, that may be skipped in CI. `python-snappy` is compiled code that
/// does not exist for each version of Python, and checks of other libraries cover Snappy. Many
/// containers may not make a network.
const SKIPS_IN_CI: &[(&str, &str)] = &[
    ("nsq/python", "snappy"),
    ("nsq/python", "tls_and_snappy"),
    ("kafka/namespace", "network namespace"),
];

/// The results of a group's checks.
#[derive(Default)]
pub(crate) struct Report {
    group: &'static str,
    /// Whether a skipped check counts as failed.
    skips_fail: bool,
    failed: usize,
}

impl Report {
    /// The report of this group.
    pub(super) fn new(group: &'static str, skips_fail: bool) -> Self {
        Self {
            group,
            skips_fail,
            failed: 0,
        }
    }

    /// Whether nothing has failed.
    pub(super) fn is_good(&self) -> bool {
        self.failed == 0
    }

    /// Runs one check and prints its result.
    pub(crate) fn check(&mut self, name: &str, check: impl FnOnce() -> Result<()>) {
        let start = Instant::now();
        let result = check();
        let seconds = start.elapsed().as_secs_f64();
        match result {
            Ok(()) => println!("{PASSED}{}: {name} ({seconds:.1} s)", self.group),
            Err(error) => self.fail(name, &format!("{error:#}")),
        }
    }

    /// Records a check of another program that has passed.
    pub(super) fn pass(&mut self, name: &str) {
        println!("{PASSED}{}: {name}", self.group);
    }

    /// Records a failure.
    pub(crate) fn fail(&mut self, name: &str, why: &str) {
        println!("{FAILED}{}: {name}: {why}", self.group);
        self.failed += 1;
    }

    /// Records a skipped check. Where skips count as failed, so does this one, unless it may be
    /// skipped.
    pub(super) fn skip(&mut self, name: &str, why: &str) {
        if self.skips_fail && !SKIPS_IN_CI.contains(&(self.group, name)) {
            self.fail(name, &format!("{why}, and this is CI"));
        } else {
            println!("{SKIPPED}{}: ****** {name}: {why} ******", self.group);
        }
    }

    /// Runs a program that prints `ok NAME`, `not ok NAME: WHY` or `skip NAME: WHY` for each of
    /// its checks.
    ///
    /// # Errors
    /// It cannot be started, or has checked nothing.
    pub(super) fn program(&mut self, command: &mut Command) -> Result<()> {
        let output = command
            .stdin(Stdio::null())
            .output()
            .context("cannot start the program")?;
        let stdout = String::from_utf8_lossy(&output.stdout);
        let stderr = String::from_utf8_lossy(&output.stderr);
        let mut checks = 0;
        for line in stdout.lines() {
            let with_reason = |rest: &str| {
                let (name, why) = rest.split_once(": ").unwrap_or((rest, "no reason given"));
                (name.to_owned(), why.to_owned())
            };
            if let Some(name) = line.strip_prefix("ok ") {
                self.pass(name);
            } else if let Some(rest) = line.strip_prefix("not ok ") {
                let (name, why) = with_reason(rest);
                self.fail(&name, &why);
            } else if let Some(rest) = line.strip_prefix("skip ") {
                let (name, why) = with_reason(rest);
                self.skip(&name, &why);
                // A skipped check shows nothing.
                continue;
            } else {
                continue;
            }
            checks += 1;
        }
        if checks == 0 {
            bail!(
                "it printed no result\n{}{}",
                tail(&stdout, 30),
                tail(&stderr, 30)
            );
        }
        // The exit status is 1 when a check has failed. Any other fault is on standard error.
        if !output.status.success() {
            self.fail("exit", &format!("{}\n{}", output.status, tail(&stderr, 30)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How much has failed in a program of the group `nsq/python` that prints these lines.
    fn failed(lines: &str, skips_fail: bool) -> usize {
        let mut report = Report::new("nsq/python", skips_fail);
        let printed = report.program(Command::new("printf").args(["%s", lines]));
        assert!(printed.is_ok(), "{printed:?}");
        report.failed
    }

    #[test]
    fn in_ci_a_check_that_leaves_itself_out_has_failed() {
        let lines = "ok one\nskip snappy: not installed\nskip two: no TLS address\n";
        assert_eq!(failed(lines, true), 1);
        assert_eq!(failed(lines, false), 0);
    }

    #[test]
    fn a_program_that_checks_nothing_has_failed() {
        let mut report = Report::new("nsq/python", false);
        let printed = report.program(Command::new("printf").arg("skip all: no reason\n"));
        assert!(printed.is_err());
    }
}
