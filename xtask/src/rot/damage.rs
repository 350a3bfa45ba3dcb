//! Damage to one file of a stopped data folder, and the messages that it hits.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::ledger::{Kept, TAGS};
use super::wire::batches;

/// Pseudo-random numbers (SplitMix64): the same seed damages the same.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^= value >> 31;
        (value % limit.max(1) as u64) as usize
    }
}

/// A file of the data folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Victim {
    /// Which topic's it is; empty for those of the folder itself.
    tag: String,
    partition: u32,
    /// Its name, without folders.
    pub(super) name: String,
    path: PathBuf,
}

impl Victim {
    /// Whether it belongs to the state journal.
    pub(super) fn is_state(&self) -> bool {
        self.name.starts_with("state.") || self.name.starts_with("format")
    }

    fn is_log(&self) -> bool {
        self.name.ends_with(".log")
    }
}

/// All files of a folder, in an order that no run changes.
pub(super) fn files(data: &Path) -> Result<Vec<Victim>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(data)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            found.push(Victim {
                tag: String::new(),
                partition: 0,
                name: entry.file_name().to_string_lossy().into_owned(),
                path: entry.path(),
            });
        }
    }
    for topic in fs::read_dir(data.join("topics"))? {
        let topic = topic?.path();
        let mut files = Vec::new();
        for partition in fs::read_dir(&topic)? {
            let partition = partition?.path();
            // The journal may keep a file of its own beside the partitions.
            let inside = match partition.is_dir() {
                true => fs::read_dir(&partition)?.collect::<Result<Vec<_>, _>>()?,
                false => continue,
            };
            let number = partition.file_name().and_then(|name| name.to_str());
            let number = number.and_then(|name| name.parse().ok()).unwrap_or(0);
            files.extend(inside.into_iter().map(|file| (number, file.path())));
        }
        let tag = tag_of(&files)?;
        found.extend(files.into_iter().map(|(partition, path)| Victim {
            tag: tag.clone(),
            partition,
            name: name_of(&path),
            path,
        }));
    }
    found.sort();
    Ok(found)
}

fn name_of(path: &Path) -> String {
    let name = path.file_name().map(|name| name.to_string_lossy());
    name.map_or_else(String::new, |name| name.into_owned())
}

/// Which topic these files are of: its messages say so.
fn tag_of(files: &[(u32, PathBuf)]) -> Result<String> {
    for (_, path) in files {
        let bytes = fs::read(path)?;
        let tag = TAGS.iter().find(|tag| {
            let begins = format!("{tag} message ");
            bytes
                .windows(begins.len())
                .any(|it| it == begins.as_bytes())
        });
        if let Some(tag) = tag {
            return Ok((*tag).to_owned());
        }
    }
    Ok("hidden".to_owned())
}

/// The damage that was done, and the files that it was done to.
pub(super) struct Damage {
    pub(super) text: String,
    /// The file, and the one that it was exchanged with.
    pub(super) victims: Vec<Victim>,
    /// Messages that may be lost.
    pub(super) hit: BTreeSet<Kept>,
}

/// Damages a file. `wants_state`: one of the state journal, else one of the others.
pub(super) fn damage(data: &Path, random: &mut Random, wants_state: bool) -> Result<Damage> {
    let all = files(data)?;
    let eligible: Vec<&Victim> = if wants_state {
        all.iter().filter(|file| file.is_state()).collect()
    } else {
        // Half of all damages hit messages.
        let wants_log = random.below(2) == 0;
        let fits = |file: &&Victim| !file.is_state() && file.is_log() == wants_log;
        all.iter().filter(fits).collect()
    };
    let victim = *eligible
        .get(random.below(eligible.len()))
        .context("no file to damage")?;
    let mut bytes = fs::read(&victim.path)?;
    let before = bytes.clone();
    // Most of a file's bytes are not used: zeros at its end.
    let content = before
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |at| at + 1);
    let at = random.below(content);
    let mut victims = vec![victim.clone()];
    let (what, range) = match random.below(6) {
        0 if content > 0 => {
            let bit = random.below(8);
            bytes[at] ^= 1 << bit;
            (format!("bit {bit} of byte {at} flipped"), at..at + 1)
        }
        1 => {
            bytes.truncate(at);
            (format!("cut to {at} bytes"), at..before.len())
        }
        2 => {
            bytes.clear();
            ("emptied".to_owned(), 0..before.len())
        }
        3 => {
            let end = content.min(at + 512 * (1 + random.below(32)));
            bytes[at..end].fill(0);
            (format!("zeros from {at} to {end}"), at..end)
        }
        4 => {
            // With a file of the same partition: of another topic's, nothing in it says so.
            let same = |it: &&Victim| (&it.tag, it.partition) == (&victim.tag, victim.partition);
            let others = all.iter().filter(same).filter(|it| *it != victim);
            let others: Vec<&Victim> = others.filter(|it| it.is_state() == wants_state).collect();
            match others.get(random.below(others.len())) {
                Some(other) => {
                    fs::write(&victim.path, fs::read(&other.path)?)?;
                    fs::write(&other.path, &before)?;
                    bytes = fs::read(&victim.path)?;
                    victims.push((*other).clone());
                    (format!("exchanged with {}", other.name), 0..before.len())
                }
                None => ("left alone".to_owned(), 0..0),
            }
        }
        _ => {
            fs::remove_file(&victim.path)?;
            ("removed".to_owned(), 0..before.len())
        }
    };
    if victim.path.exists() {
        fs::write(&victim.path, &bytes)?;
    }
    let mut hit = BTreeSet::new();
    hits(victim, &before, range, &mut hit);
    if let Some(other) = victims.get(1) {
        // Its content lies in the first one now.
        hits(other, &bytes, 0..bytes.len(), &mut hit);
    }
    let Victim {
        tag,
        partition,
        name,
        ..
    } = victim;
    Ok(Damage {
        text: format!("{tag}/{partition}/{name}: {what}"),
        victims,
        hit,
    })
}

/// The messages in the batches of a log that lie in a range.
fn hits(victim: &Victim, log: &[u8], range: std::ops::Range<usize>, hit: &mut BTreeSet<Kept>) {
    if !victim.is_log() {
        return;
    }
    for batch in batches(log) {
        if batch.at < range.end && batch.at + batch.bytes > range.start {
            let offsets = batch.base..batch.end;
            hit.extend(offsets.map(|offset| (victim.tag.clone(), victim.partition, offset)));
        }
    }
}
