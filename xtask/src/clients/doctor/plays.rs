//! `cargo xtask plays`: plays scenarios with live clients several times, and counts the results.
//!
//! The result of a play depends on the load of the machine, so plays are no part of the gate, which
//! replays recordings. They are run by hand before a change of the doctor is closed. Each run
//! counts.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Result, bail};
use serde::Serialize;

use super::runner::{self, PlayMeasurements};
use super::table::{Scenario, scenarios};
use super::{Context, Programs};
use crate::clients::side_by_side::{each, locked};
use crate::workspace::Workspace;

/// Play real clients that make mistakes, and healthy ones, and count what the doctor finds.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only plays whose name has one of these in it: GROUP/SCENARIO.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// How often each is played.
    #[arg(long, default_value_t = 1)]
    runs: usize,
    /// How many are played at once, each with a broker and a network of its own.
    #[arg(long, default_value_t = 4)]
    at_once: usize,
    /// For how many seconds programs run: as long as a rule may take, and a Java machine to start.
    #[arg(long, default_value_t = 15)]
    seconds: u64,
    /// How many threads keep the machine busy meanwhile.
    #[arg(long, default_value_t = 0)]
    load: usize,
    /// Write a recording of each play into this folder, for `doctor/tests/recorded.rs`.
    #[arg(long, value_name = "FOLDER")]
    record: Option<PathBuf>,
    /// Write what came of each run into this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The result of one run.
#[derive(Serialize)]
struct PlayRun {
    play: String,
    /// What is not as expected; `None`: the run was as expected.
    problem: Option<String>,
    #[serde(flatten)]
    measured: PlayMeasurements,
}

/// Plays the scenarios. True if each run was as expected.
pub(crate) fn main(workspace: &Workspace, args: &Args) -> Result<bool> {
    let plays: Vec<Scenario> = scenarios().filter(|it| args.has_chosen(it)).collect();
    if plays.is_empty() {
        let names: Vec<String> = scenarios().map(|it| it.full_name()).collect();
        bail!("no play is named so; there are {}", names.join(", "));
    }
    let context = Context::ours(workspace)?;
    let programs = Programs::build(&context, &plays)?;
    if let Some(folder) = &args.record {
        std::fs::create_dir_all(folder)?;
    }
    let runs = under_load(args.load, || play_all(&context, &programs, args, &plays));
    if let Some(file) = &args.json {
        std::fs::write(file, serde_json::to_vec_pretty(&runs)?)?;
    }
    print!("{}", table(&plays, &runs));
    let failed = runs.iter().filter(|run| run.problem.is_some()).count();
    println!("{} passed, {failed} failed", runs.len() - failed);
    Ok(failed == 0)
}

impl Args {
    fn has_chosen(&self, scenario: &Scenario) -> bool {
        let own = scenario.full_name();
        self.names.is_empty() || self.names.iter().any(|name| own.contains(name.as_str()))
    }

    fn run(&self, context: &Context, programs: &Programs, scenario: &Scenario) -> PlayRun {
        let play = scenario.full_name();
        let record = self.record.as_ref().map(|folder| {
            let name = play.replace('/', "-");
            let load = if self.load > 0 { "-under-load" } else { "" };
            folder.join(format!("{name}{load}.recording"))
        });
        let (record, mut measured) = (record.as_deref(), PlayMeasurements::default());
        let seconds = self.seconds;
        let result = runner::run(context, programs, scenario, seconds, record, &mut measured);
        PlayRun {
            play,
            problem: result.err().map(|error| format!("{error:#}")),
            measured,
        }
    }
}

/// Runs all plays, several at once. The results are in the order of the plays.
fn play_all(
    context: &Context,
    programs: &Programs,
    args: &Args,
    plays: &[Scenario],
) -> Vec<PlayRun> {
    // Each play once before any is repeated, so that a busy moment of the machine does not hit all
    // runs of the same play.
    let rounds = (0..args.runs).flat_map(|_| plays);
    let done = Mutex::new(Vec::new());
    each(args.at_once, rounds.enumerate(), |(at, play)| {
        let run = args.run(context, programs, play);
        match &run.problem {
            None => println!("ok      {}", run.play),
            Some(problem) => println!("FAILED  {}: {problem}", run.play),
        }
        locked(&done).push((at, run));
    });
    let mut done = done.into_inner().unwrap_or_else(|it| it.into_inner());
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, run)| run).collect()
}

/// Does the work while this many threads keep the processors busy.
fn under_load<T>(threads: usize, work: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let result = work();
        is_over.store(true, Ordering::Relaxed);
        result
    })
}

/// A line for each play: how many of its runs were as expected, and minimum, median and maximum of
/// each measurement.
fn table(plays: &[Scenario], runs: &[PlayRun]) -> String {
    let mut lines = format!(
        "{:<60} {:>7}  {:<22} {:<22} {:<22}\n",
        "play", "as told", "gain predicted", "measured/predicted", "found after s"
    );
    for play in plays {
        let name = play.full_name();
        let own: Vec<&PlayRun> = runs.iter().filter(|run| run.play == name).collect();
        let good = own.iter().filter(|run| run.problem.is_none()).count();
        let spread = |of: fn(&PlayMeasurements) -> Option<f64>| {
            let mut values: Vec<f64> = own.iter().filter_map(|run| of(&run.measured)).collect();
            values.sort_by(f64::total_cmp);
            match values.as_slice() {
                [] => "–".to_owned(),
                [one] => format!("{one:.2}"),
                all => {
                    let middle = all[all.len() / 2];
                    format!("{:.2} {middle:.2} {:.2}", all[0], all[all.len() - 1])
                }
            }
        };
        lines.push_str(&format!(
            "{name:<60} {:>7}  {:<22} {:<22} {:<22}\n",
            format!("{good}/{}", own.len()),
            spread(|it| it.gain),
            spread(|it| it.of_predicted),
            spread(|it| it.found_s)
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_runs_count() {
        let run = |problem: Option<&str>, gain| PlayRun {
            play: "seed-001/the-blog-post-s-loop".to_owned(),
            problem: problem.map(str::to_owned),
            measured: PlayMeasurements {
                gain: Some(gain),
                ..PlayMeasurements::default()
            },
        };
        let plays: Vec<Scenario> = scenarios().filter(|it| it.group == "seed-001").collect();
        let runs = [run(None, 37.0), run(Some("nothing"), 30.0), run(None, 41.0)];
        let table = table(&plays, &runs);
        assert!(table.contains("2/3"), "{table}");
        assert!(table.contains("30.00 37.00 41.00"), "{table}");
    }
}
