//! `cargo xtask suites rot`: a stopped data folder is damaged at random, one file at a time, and
//! the broker started on it. Nothing is lost beyond what the damage hit, nothing without a line in
//! the log, `/healthz` tells, and all protocols go on.
//!
//! A seed decides what is damaged; each round prints its own, and `--rounds 1 --seed N` repeats it.

mod damage;
mod ledger;
mod wire;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use crate::broker::{Broker, Options};
use crate::clients::Context;
use crate::http;
use crate::process::Process;
use damage::{Damage, Random, damage};
use ledger::Ledger;

/// Rounds of the suite.
pub(crate) const ROUNDS: u64 = 400;
/// Rounds in `cargo xtask test`.
pub(crate) const ROUNDS_SHORT: u64 = 8;
/// Of so many rounds one damages the state journal.
const STATE_EVERY: u64 = 8;
/// Messages in each partition: five segments of the smallest size, and some of a sixth.
const MESSAGES: u64 = 210;
/// Messages that come behind the last orderly end, before the kill.
const MESSAGES_KILLED: u64 = 25;
const CONSUMED: u64 = 50;

/// A folder as its broker has left it.
struct Folder {
    data: PathBuf,
    ledger: Ledger,
}

/// A fault that a round has found.
pub(crate) struct Finding {
    pub(crate) seed: u64,
    pub(crate) text: String,
}

/// Runs so many rounds. `with_state`: some of them damage the state journal.
pub(crate) fn run(
    context: &Context,
    seed: u64,
    rounds: u64,
    with_state: bool,
) -> Result<Vec<Finding>> {
    let folder = context.workspace.temp_folder("rot")?;
    let folders = prepare(context, folder.path())?;
    let mut findings = Vec::new();
    for seed in seed..seed + rounds {
        let place = folder.path().join(format!("round-{seed}"));
        let mut random = Random(seed);
        let before = &folders[random.below(folders.len())];
        copy(&before.data, &place.join("data"))?;
        let state = with_state && seed.is_multiple_of(STATE_EVERY);
        let damage = damage(&place.join("data"), &mut random, state)?;
        let options = options(context, &place)?;
        match round(&options, &damage, &before.ledger, state) {
            Ok(outcome) => println!("{seed}: {}: {outcome}", damage.text),
            Err(error) => {
                let text = format!("{}: {error:#}", damage.text);
                println!("{seed}: FAILED {text}");
                findings.push(Finding { seed, text });
            }
        }
        fs::remove_dir_all(&place)?;
    }
    Ok(findings)
}

fn options(context: &Context, folder: &Path) -> Result<Options> {
    let mut options = context.options(folder)?;
    options.more.push("--segment-bytes=64KiB".to_owned());
    Ok(options)
}

/// A folder whose broker has ended in order, and one whose was killed after that.
fn prepare(context: &Context, folder: &Path) -> Result<[Folder; 2]> {
    let options = options(context, folder)?;
    let mut ledger = Ledger::default();
    let mut broker = options.start()?;
    ledger.declare(&broker)?;
    ledger.publish(&broker, MESSAGES)?;
    ledger.consume(&broker, CONSUMED)?;
    let status = broker.terminate()?;
    ensure!(status.success(), "the end of an undamaged broker: {status}");
    let ended = Folder {
        data: folder.join("ended"),
        ledger: ledger.clone(),
    };
    copy(&options.data, &ended.data)?;
    let mut broker = options.start()?;
    ledger.publish(&broker, MESSAGES_KILLED)?;
    broker.process().kill()?;
    let killed = Folder {
        data: folder.join("killed"),
        ledger,
    };
    copy(&options.data, &killed.data)?;
    Ok([ended, killed])
}

/// Starts the broker on a damaged folder; says what was lost.
fn round(options: &Options, damage: &Damage, ledger: &Ledger, state: bool) -> Result<String> {
    let mut broker = options.spawn()?;
    if let Err(error) = broker.wait_ready() {
        let log = broker.process().log();
        // A broker that cannot tell what there was has to say so, and to name the remedy.
        if state && broker.process().exit_status()?.is_some() && log.contains("--repair") {
            return Ok("refused, and told".to_owned());
        }
        return Err(error);
    }
    let missing = ledger
        .missing(&broker)
        .with_context(|| lines(broker.process()))?;
    let beyond: BTreeSet<_> = missing.difference(&damage.hit).collect();
    ensure!(
        beyond.is_empty(),
        "{} messages are lost that the damage did not hit: {:?}; {}",
        beyond.len(),
        beyond.first(),
        lines(broker.process())
    );
    if !missing.is_empty() {
        told(&mut broker, damage)?;
    }
    let status = broker.terminate()?;
    ensure!(status.success(), "the end: {status}");
    Ok(match (missing.len(), damage.hit.len()) {
        (0, 0) => "nothing lost".to_owned(),
        (lost, hit) => format!("{lost} of {hit} lost, and told"),
    })
}

/// The log names a damaged file, and `/healthz` says that messages are lost.
fn told(broker: &mut Broker, damage: &Damage) -> Result<()> {
    let log = lines(broker.process());
    let is_named = damage.victims.iter().any(|file| log.contains(&file.name));
    ensure!(
        is_named,
        "messages are lost and no line names the file: {log}"
    );
    let health = http::get(broker.admin(), "/healthz")?;
    let tells = health.text().contains("lost messages");
    // The last batch of a killed broker may be one that was never whole.
    if !tells && !log.contains("torn tail") {
        bail!("messages are lost, and /healthz says {:?}", health.text());
    }
    Ok(())
}

/// The lines of the log that tell of something bad.
fn lines(process: &Process) -> String {
    let log = process.log();
    // A small machine's limit of open files is not ours.
    let is_bad =
        |line: &&str| (line.contains("ERROR") || line.contains("WARN")) && !line.contains("ulimit");
    let bad: Vec<&str> = log.lines().filter(is_bad).take(20).collect();
    bad.join("\n")
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
