//! Clients that are programs: libraries of other languages, played by what the user has installed.

use std::env;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

use super::ClientContext;

/// Names the interpreter that has the libraries.
const PYTHON: &str = "CLOVERLEAF_LAB_PYTHON";

/// How often it is looked whether it is over.
const LOOK: Duration = Duration::from_millis(20);

/// Characters kept of its last words, which say why it has failed.
const WORDS_CHARS_MAX: usize = 400;

/// Runs a program in Python that needs this module, until it fails or the story is over. For each
/// message that is done it prints a line: `done`, and how many microseconds it took.
pub(super) fn python(
    client: &ClientContext,
    (module, package): (&str, &str),
    script: &str,
    args: &[&str],
) -> Result<(), String> {
    let python = env::var(PYTHON).unwrap_or_else(|_| "python3".to_owned());
    let import = format!("import {module}");
    let quiet = || Stdio::null();
    let has_it = Command::new(&python)
        .args(["-c", &import])
        .stdin(quiet())
        .stdout(quiet())
        .stderr(quiet())
        .status();
    if !has_it.is_ok_and(|status| status.success()) {
        return Err(format!(
            "it needs a Python with {package}: {python} has none ({PYTHON} names another)"
        ));
    }
    let mut command = Command::new(&python);
    command
        .args(["-u", "-c", script])
        .args(args)
        .stdin(quiet())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let child = command.spawn();
    let mut program = Program(child.map_err(|error| format!("{python}: {error}"))?);
    let (lines, words) = (program.0.stdout.take(), program.0.stderr.take());
    let said = Mutex::new(String::new());
    let ended = thread::scope(|scope| {
        scope.spawn(|| lines.map(|lines| count(client, BufReader::new(lines))));
        scope.spawn(|| {
            let words = words.into_iter().flat_map(|it| BufReader::new(it).lines());
            for line in words.map_while(Result::ok).filter(|it| !it.is_empty()) {
                if let Ok(mut said) = said.lock() {
                    *said = line.chars().take(WORDS_CHARS_MAX).collect();
                }
            }
        });
        let ended = loop {
            match program.0.try_wait() {
                Ok(None) if client.goes_on() => thread::sleep(LOOK),
                other => break other,
            }
        };
        // So that nobody reads from it any more.
        drop(program);
        ended
    });
    let said = said.into_inner().unwrap_or_default();
    match ended {
        Ok(None) => Ok(()),
        Ok(Some(status)) => Err(format!("the program has ended, {status}: {said}")),
        Err(error) => Err(error.to_string()),
    }
}

fn count(client: &ClientContext, lines: impl BufRead) {
    for line in lines.lines().map_while(Result::ok) {
        let took = line.strip_prefix("done ").and_then(|us| us.parse().ok());
        if let Some(us) = took {
            client.meter.done(Duration::from_micros(us));
        }
    }
}

/// Dropped, neither it nor what it has started is there any more.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        // No process of the group may be left.
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        let _ = self.0.wait();
    }
}
