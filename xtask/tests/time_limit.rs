//! A program that hangs is named, ended with all that it has started, and has failed.

use std::process::{Command, Output};

use anyhow::{Context as _, Result};

/// Runs a shell script with a limit of `seconds`.
fn within(seconds: u32, script: &str) -> Result<Output> {
    Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["within", "--seconds", &seconds.to_string(), "--"])
        .args(["sh", "-c", script])
        .output()
        .context("xtask does not start")
}

fn is_running(pid: &str) -> bool {
    // One that has ended and was not waited for has no command line.
    std::fs::read(format!("/proc/{}/cmdline", pid.trim())).is_ok_and(|words| !words.is_empty())
}

#[test]
fn what_ends_in_time_passes() -> Result<()> {
    let output = within(60, "echo hello")?;
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hello\n");
    Ok(())
}

#[test]
fn what_fails_in_time_fails_at_once() -> Result<()> {
    let output = within(3600, "exit 3")?;
    assert!(!output.status.success());
    assert!(!String::from_utf8_lossy(&output.stdout).contains("TIME IS UP"));
    Ok(())
}

#[test]
fn what_hangs_is_named_and_ended_with_all_that_it_started() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let pids = folder.path().join("pids");
    // A child, and one that has lost its parent and left the process group.
    let script = format!(
        "setsid sh -c 'tail -f /dev/null & echo $! >> {pids}' & wait
         echo $$ >> {pids}
         exec tail -f /dev/null /dev/zero-hung",
        pids = pids.display()
    );
    let output = within(2, &script)?;
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success());
    assert!(shown.contains("TIME IS UP: sh has run for 2 s"), "{shown}");
    assert!(
        shown.contains("tail -f /dev/null /dev/zero-hung"),
        "{shown}"
    );
    let pids = std::fs::read_to_string(&pids)?;
    assert_eq!(pids.lines().count(), 2, "{pids}");
    for pid in pids.lines() {
        assert!(
            shown.contains(&format!("still running: {pid} tail")),
            "{shown}"
        );
        assert!(!is_running(pid), "{pid} is still there");
    }
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("sh took longer than 2 s"), "{error}");
    // Not every machine has gdb, and not everyone may look into a process.
    assert!(
        shown.contains("#0 ") || shown.contains("no stacks of"),
        "{shown}"
    );
    Ok(())
}
