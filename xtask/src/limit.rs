//! A time limit for whole steps of a run: a test that hangs must end, and must say where it hung.
//!
//! The limit is for what nobody expected (a deadlock, a program that waits for ever), so it asks
//! nothing of those who hang: at its end everything that this process has started, directly or not,
//! is described and killed.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};

use crate::wait;
use crate::workspace::{on_path, tail};

/// How long this process may take to notice that all it had started is gone.
const GRACE: Duration = Duration::from_secs(60);
/// How long gdb may take for one process.
const STACKS_SECONDS_MAX: &str = "60";
/// Lines of stacks that are shown for one process: some tests have a hundred threads.
const STACKS_LINES_MAX: usize = 400;
/// How many processes are shown with their stacks; the innermost are first.
const STACKS_OF_PROCESSES_MAX: usize = 4;

/// Runs a program with a limit; what `cargo xtask test` does with its steps, for one's own use.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seconds that the program may take.
    #[arg(long)]
    seconds: u64,
    /// The program and its arguments.
    #[arg(required = true, last = true)]
    program: Vec<String>,
}

pub(crate) fn main(args: &Args) -> Result<bool> {
    let mut command = Command::new(&args.program[0]);
    command.args(&args.program[1..]);
    let limit = Duration::from_secs(args.seconds);
    within(&args.program[0], limit, || {
        crate::workspace::run(&mut command)
    })?;
    Ok(true)
}

/// Does `step`. When it takes longer than `limit`, prints which processes are still running with
/// the stacks of their threads, kills them all, and returns an error. A step that does not come to
/// its end even then ends this process.
pub(crate) fn within<T>(
    name: &str,
    limit: Duration,
    step: impl FnOnce() -> Result<T>,
) -> Result<T> {
    // Processes that lose their parent become our children, so that we still find them, even those
    // with a session of their own.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .context("cannot keep track of processes that lose their parent")?;
    let is_up = AtomicBool::new(false);
    let (done, end) = channel::<()>();
    let result = std::thread::scope(|scope| {
        let is_up = &is_up;
        scope.spawn(move || watch(name, limit, is_up, &end));
        let result = step();
        drop(done);
        result
    });
    if is_up.load(Ordering::SeqCst) {
        bail!("{name} took longer than {} s", limit.as_secs());
    }
    result
}

/// Waits for the end of the step, and ends it at the limit.
fn watch(name: &str, limit: Duration, is_up: &AtomicBool, end: &Receiver<()>) {
    if end.recv_timeout(limit) == Err(RecvTimeoutError::Disconnected) {
        return;
    }
    is_up.store(true, Ordering::SeqCst);
    println!("TIME IS UP: {name} has run for {} s", limit.as_secs());
    describe(&descendants());
    if let Err(error) = kill_all() {
        println!("TIME IS UP: {error:#}");
    }
    if end.recv_timeout(GRACE) == Err(RecvTimeoutError::Timeout) {
        println!("TIME IS UP: {name} does not end although all its processes are gone");
        std::process::exit(1);
    }
}

/// A process that is running.
struct Running {
    pid: i32,
    parent: i32,
    command: String,
}

impl Running {
    /// From `/proc/PID`; `None` when it has ended.
    fn read(pid: i32) -> Option<Self> {
        let folder = PathBuf::from(format!("/proc/{pid}"));
        let stat = std::fs::read_to_string(folder.join("stat")).ok()?;
        // The second field of proc(5) is the name in parentheses, which may hold anything.
        let (start, rest) = stat.rsplit_once(')')?;
        let mut fields = rest.split_whitespace();
        if matches!(fields.next()?, "Z" | "X") {
            return None;
        }
        let parent = fields.next()?.parse().ok()?;
        let words = std::fs::read(folder.join("cmdline")).ok()?;
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        let command = match words.trim() {
            "" => start.rsplit_once('(')?.1.to_owned(),
            words => words.to_owned(),
        };
        Some(Self {
            pid,
            parent,
            command,
        })
    }

    /// The names of its threads: in a test binary each has the first letters of its test's name.
    fn threads(&self) -> Vec<String> {
        let Ok(folder) = std::fs::read_dir(format!("/proc/{}/task", self.pid)) else {
            return Vec::new();
        };
        folder
            .flatten()
            .filter_map(|entry| std::fs::read_to_string(entry.path().join("comm")).ok())
            .map(|name| name.trim().to_owned())
            .collect()
    }

    /// The stacks of its threads, when gdb is there and may look.
    fn stacks(&self) -> Option<String> {
        if !on_path("gdb") || !on_path("timeout") {
            return None;
        }
        let mut gdb = Command::new("timeout");
        gdb.args(["-s", "KILL", STACKS_SECONDS_MAX, "gdb", "-nx", "-batch"]);
        gdb.args(["-ex", "set print frame-arguments none"]);
        gdb.args(["-ex", "thread apply all backtrace 40"]);
        gdb.args(["-p", &self.pid.to_string()]);
        // It would ask for symbols in the network.
        gdb.env_remove("DEBUGINFOD_URLS");
        let output = gdb.stdin(Stdio::null()).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.contains("#0").then_some(text)
    }
}

/// Everything that this process has started and that still runs, the innermost first.
fn descendants() -> Vec<Running> {
    let mut all: Vec<Running> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(Running::read)
        .collect();
    let mut found: Vec<Running> = Vec::new();
    let mut parents = vec![rustix::process::getpid().as_raw_nonzero().get()];
    while let Some(parent) = parents.pop() {
        let (children, others) = all.into_iter().partition(|p| p.parent == parent);
        all = others;
        let children: Vec<Running> = children;
        parents.extend(children.iter().map(|child| child.pid));
        found.extend(children);
    }
    found.reverse();
    found
}

fn describe(running: &[Running]) {
    for process in running {
        let threads = process.threads();
        println!("still running: {} {}", process.pid, process.command);
        println!("    its threads: {}", threads.join(", "));
    }
    for process in running.iter().take(STACKS_OF_PROCESSES_MAX) {
        match process.stacks() {
            Some(text) => {
                println!("stacks of {} {}:", process.pid, process.command);
                print!("{}", tail(&text, STACKS_LINES_MAX));
            }
            None => println!("no stacks of {}: gdb is missing, or may not", process.pid),
        }
    }
}

/// Kills until nothing is left: what is killed may have started something meanwhile.
fn kill_all() -> Result<()> {
    let start = Instant::now();
    wait::until("all processes have ended", GRACE / 2, || {
        let running = descendants();
        for process in &running {
            // One that has ended by itself is what was wanted.
            let pid = Pid::from_raw(process.pid);
            let _ = pid.map(|pid| rustix::process::kill_process(pid, Signal::KILL));
        }
        Ok(running.is_empty())
    })?;
    println!("all killed after {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}
