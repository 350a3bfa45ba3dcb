//! The tests of the workspace and the groups side by side: each in a process of its own, with
//! brokers, ports and a limit of its own. None of them needs a quiet machine.

use std::collections::BTreeMap;
use std::fs::File;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

use super::groups::{GROUPS, Group};
use super::report::{FAILED, PASSED, SKIPPED};
use super::{Context, Original};
use crate::process;
use crate::workspace::Workspace;

/// A job that runs beside others.
enum Job {
    /// The tests of the workspace. They count as one check: `cargo test` prints the others.
    Workspace(Command),
    Group(&'static Group),
}

/// The results of all jobs so far.
#[derive(Default)]
struct Tally {
    passed: usize,
    skipped: usize,
    failed: Vec<String>,
    /// How many groups were skipped, by the program that is missing.
    missing: BTreeMap<&'static str, usize>,
    /// Seconds that each job took, and its name.
    times: Vec<(f64, &'static str)>,
}

/// The jobs that are to be run, and how.
#[derive(Default)]
pub(crate) struct Wanted {
    /// The command that runs the tests of the workspace, if they are to run as well.
    pub(crate) workspace_tests: Option<Command>,
    /// Only groups whose name contains this.
    pub(crate) only: Option<String>,
    pub(crate) original: Original,
    /// How many jobs run at once.
    pub(crate) at_once: usize,
}

/// Runs what is wanted. True when nothing failed.
///
/// # Errors
/// No group is named so, or the broker cannot be built.
pub(crate) fn run(workspace: &Workspace, wanted: Wanted) -> Result<bool> {
    let context = Context::with(workspace, &wanted.original)?;
    let only = wanted.only.as_deref();
    let groups = GROUPS
        .iter()
        .filter(|group| only.is_none_or(|only| group.name.contains(only)))
        .filter(|group| wanted.original.is_none() || group.original == Some(context.kind));
    let tests = wanted.workspace_tests.map(Job::Workspace);
    let jobs: Vec<Job> = tests.into_iter().chain(groups.map(Job::Group)).collect();
    if jobs.is_empty() {
        let names: Vec<&str> = GROUPS.iter().map(|group| group.name).collect();
        bail!("no client test is named so; there are {}", names.join(", "));
    }
    let stage = Stage {
        original: wanted.original.arguments(),
        tally: Mutex::default(),
        context: &context,
    };
    let before = process::machine_time()?;
    each(wanted.at_once, jobs.into_iter(), |job| stage.run(job));
    let (idle, all) = process::machine_time()?;
    let idle = (idle - before.0) / (all - before.1).max(f64::MIN_POSITIVE);
    let tally = locked(&stage.tally);
    tally.print(idle);
    Ok(tally.failed.is_empty())
}

/// Does the work for each of these, on `at_once` threads.
pub(super) fn each<T>(
    at_once: usize,
    all: impl Iterator<Item = T> + Send,
    work: impl Fn(T) + Sync,
) {
    let all = Mutex::new(all);
    std::thread::scope(|scope| {
        for _ in 0..at_once.max(1) {
            scope.spawn(|| {
                loop {
                    let one = locked(&all).next();
                    let Some(one) = one else { break };
                    work(one);
                }
            });
        }
    });
}

/// Locks a mutex, also after a panic: the panic fails the run, and no statement leaves the value
/// incomplete.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The state that all jobs share.
struct Stage<'a> {
    context: &'a Context,
    original: Vec<String>,
    tally: Mutex<Tally>,
}

impl Stage<'_> {
    fn run(&self, job: Job) {
        let start = Instant::now();
        let (name, outcome) = match job {
            Job::Workspace(command) => ("workspace", self.output(command, "workspace")),
            Job::Group(group) => {
                if let Some(program) = group.needs.iter().find_map(|tool| tool.missing()) {
                    return self.leave_out(group, program);
                }
                (group.name, self.group(group))
            }
        };
        let seconds = start.elapsed().as_secs_f64();
        let (text, is_good) =
            outcome.unwrap_or_else(|error| (format!("{FAILED}{name}: start: {error:#}\n"), false));
        let mut tally = locked(&self.tally);
        // In one call, so that the lines of two jobs are not mixed.
        println!("=== {name}: {seconds:.0} s\n{}", text.trim_end());
        tally.times.push((seconds, name));
        tally.count(name, &text, is_good);
    }

    fn leave_out(&self, group: &Group, program: &'static str) {
        let mut tally = locked(&self.tally);
        if self.context.ci {
            let why = format!("{}: {program} is missing, and this is CI", group.name);
            println!("{FAILED}{why}");
            tally.failed.push(why);
        } else {
            println!(
                "{SKIPPED}{}: ****** {program} IS MISSING ******",
                group.name
            );
            *tally.missing.entry(program).or_default() += 1;
        }
    }

    /// Runs a group in a process of its own.
    fn group(&self, group: &Group) -> Result<(String, bool)> {
        let mut command = Command::new(process::MYSELF);
        command.args(["group", group.name]).args(&self.original);
        // The binary is built already.
        command.env("CLOVERLEAF_BIN", &self.context.binary);
        self.output(command, group.name)
    }

    /// Its output, and whether it ended well.
    fn output(&self, mut command: Command, name: &str) -> Result<(String, bool)> {
        println!("begins  {name}");
        let folder = self.context.workspace.temp_folder("output")?;
        let path = folder.path().join("output");
        let file = File::create(&path)?;
        let status = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .status()
            .with_context(|| format!("{name} cannot be started"))?;
        let text = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
        Ok((text, status.success()))
    }
}

impl Tally {
    fn count(&mut self, name: &str, text: &str, is_good: bool) {
        let begin = |start: &'static str| text.lines().filter_map(move |it| it.strip_prefix(start));
        let passed = begin(PASSED).count();
        let skipped = begin(SKIPPED).count();
        let failed: Vec<String> = begin(FAILED).map(str::to_owned).collect();
        if name == "workspace" {
            self.passed += usize::from(is_good);
        } else if failed.is_empty() && passed + skipped == 0 {
            self.failed.push(format!("{name}: it has checked nothing"));
        }
        if failed.is_empty() && !is_good {
            self.failed.push(format!("{name}: it ended badly"));
        }
        self.passed += passed;
        self.skipped += skipped;
        self.failed.extend(failed);
    }

    fn print(&self, idle: f64) {
        let mut times = self.times.clone();
        times.sort_by(|one, other| other.0.total_cmp(&one.0));
        println!("=== times");
        for (seconds, name) in times {
            println!("{seconds:>6.1} s  {name}");
        }
        println!(
            "the machine was idle for {:.0} % of that time",
            idle * 100.0
        );
        for name in &self.failed {
            println!("failed: {name}");
        }
        for (program, groups) in &self.missing {
            println!("{groups} groups skipped because {program} is missing");
        }
        let skipped = match self.skipped {
            0 => String::new(),
            some => format!(", {some} skipped"),
        };
        println!(
            "{} passed, {} failed{skipped}",
            self.passed,
            self.failed.len()
        );
    }
}
