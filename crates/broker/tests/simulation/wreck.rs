//! Damages one file between two lives, and records what the damage hits.

use std::ops::Range;

use cloverleaf_log::{BATCH_HEADER_BYTES, Batch};
use uuid::Uuid;

use super::catalog::{CatalogModel, CatalogState};
use super::machine::message_in;
use super::{LifeEnd, SimulationRun};
use crate::damage::{damage, entries_with, read_file, write_file};

/// The damage of a file.
pub(super) struct FileDamage {
    path: String,
    /// The file's bytes before the damage.
    before: Vec<u8>,
    range: Range<usize>,
}

impl FileDamage {
    pub(super) fn is_state(&self) -> bool {
        self.path.starts_with("state.")
    }

    /// Whether the damage hit an entry of the journal that contains `what`.
    pub(super) fn is_hit(&self, what: &[u8]) -> bool {
        let mut entries = entries_with(&self.before, what).into_iter();
        entries.any(|entry| entry.start < self.range.end && self.range.start < entry.end)
    }

    /// Checks that a start was refused because the journal is lost.
    pub(super) fn check_refusal(&self, reason: &str) {
        assert!(reason.contains("--repair"), "{reason}");
        assert!(self.is_state() && self.range.start <= 1100, "{reason}");
    }

    /// Checks that each difference from the model was caused by the damage.
    pub(super) fn check(&self, catalog: &CatalogModel, found: &CatalogState) {
        let then = catalog.now();
        let is_hit =
            |id: &Uuid| self.is_hit(id.to_string().as_bytes()) || self.is_hit(id.as_bytes());
        for made in then.topics.values() {
            let mut ids = found.topics.values().map(|it| it.id);
            assert!(
                ids.any(|id| id == made.id) || is_hit(&made.id),
                "{made:?} is gone"
            );
        }
        for (name, made) in &found.topics {
            let known = then.topics.get(name);
            assert!(
                known == Some(made) || is_hit(&made.id),
                "{made:?} is {known:?}"
            );
        }
        for (id, name) in then.subscriptions.difference(&found.subscriptions) {
            assert!(is_hit(id), "{name} of {id} is gone");
        }
        for (place, offset) in &then.committed {
            let is_same = found.committed.get(place) == Some(offset);
            assert!(
                is_same || self.is_hit(place.0.as_bytes()),
                "{place:?} is gone"
            );
        }
        for (key, value) in &then.kept {
            let is_same = found.kept.get(key) == Some(value);
            assert!(is_same || self.is_hit(key.as_bytes()), "{key} is gone");
        }
    }
}

impl SimulationRun {
    /// Damages a file. `None`: there is no file to damage.
    pub(super) fn wreck(&mut self, end: LifeEnd) -> Option<FileDamage> {
        self.is_damaged = true;
        self.has_holes = true;
        let disk = self.machine.world.disk.clone();
        let wants_state = self.damages_state && self.random.one_in(5) && self.catalog.is_sure();
        let wants_log = !self.random.one_in(3);
        let mut files = self.files();
        files.retain(|(_, path)| {
            let is_state = path.starts_with("state.");
            is_state == wants_state && (is_state || path.ends_with(".log") == wants_log)
        });
        let count = files.len() as u64;
        let (place, path) = files.get(self.random.below(count.max(1)) as usize)?.clone();
        let before = read_file(&disk, &path);
        let used = before.iter().rposition(|byte| *byte != 0);
        let used = used.map_or(0, |last| last + 1);
        if used == 0 {
            return None;
        }
        let mut range = damage(&disk, &mut self.random, &path, used);
        // Syncs the folder: otherwise a power loss could undo the removal of a file.
        let folder = path.rfind('/').map_or("", |at| &path[..at]);
        disk.mount().sync_dir(folder).unwrap();
        if self.is_undetectable(end, &path, &before) {
            write_file(&disk, &path, &before);
            disk.mount().sync_dir(folder).unwrap();
            disk.corrupt(&path, used as u64 - 1, &[!before[used - 1]]);
            range = used - 1..used;
        }
        if path.starts_with("state.") {
            // After damage, the number of starts is derived from the clock.
            self.machine.world.clock.advance(8_000);
        }
        if let Some((topic, partition)) = place {
            if path.ends_with(".log") {
                for (offset, number) in messages_in(&before, &range) {
                    self.ledger.hits((topic, partition, offset), number);
                }
            }
            // These producers may find gaps, or may be forgotten by the broker.
            self.producers
                .retain(|it| (it.topic, it.partition) != (topic, partition));
        }
        Some(FileDamage {
            path,
            before,
            range,
        })
    }

    /// All files of the journal and of topics, in a fixed order.
    fn files(&self) -> Vec<(Option<(Uuid, u32)>, String)> {
        let mount = self.machine.world.disk.mount();
        let names = |dir: &str| {
            let mut entries = mount.list(dir).unwrap_or_default();
            entries.sort_by(|one, other| one.name.cmp(&other.name));
            entries.into_iter().map(|entry| entry.name)
        };
        let state = names("").filter(|name| name.len() == 7 && name.starts_with("state."));
        let mut files: Vec<_> = state.map(|name| (None, name)).collect();
        for made in self.catalog.now().topics.values() {
            for partition in 0..made.partitions {
                let dir = format!("topics/{}/{partition}", made.id);
                let place = Some((made.id, partition));
                files.extend(names(&dir).map(|name| (place, format!("{dir}/{name}"))));
            }
        }
        files
    }

    /// Whether no start can detect this damage of a log. After a kill: the file is gone before its
    /// index was written, or zeros reach to the end of the newest file. At any time: another base
    /// offset of its last batch, which no checksum covers, or a misplaced sector of whole batches,
    /// which hides the batches after it.
    fn is_undetectable(&self, end: LifeEnd, path: &str, before: &[u8]) -> bool {
        let Some(stem) = path.strip_suffix(".log") else {
            return false;
        };
        let disk = &self.machine.world.disk;
        let after = read_file(disk, path);
        let all = 0..usize::MAX;
        let (was, is) = (messages_in(before, &all), messages_in(&after, &all));
        let rises = is.is_sorted_by(|one, other| one.0 < other.0);
        if !rises || is.last().is_some_and(|last| !was.contains(last)) {
            return true;
        }
        if end == LifeEnd::Close {
            return false;
        }
        if after.is_empty() {
            return read_file(disk, &format!("{stem}.index")).is_empty();
        }
        let mut logs = self.files().into_iter().map(|(_, file)| file);
        let dir = &stem[..stem.len() - 20];
        let is_newest = !logs.any(|it| it.starts_with(dir) && it.ends_with(".log") && *it > *path);
        let content = |bytes: &[u8]| bytes.iter().rposition(|byte| *byte != 0);
        is_newest && after.len() == before.len() && content(&after) < content(before)
    }
}

/// Offset and number of the messages in a log's batches that lie in a range of bytes.
fn messages_in(log: &[u8], range: &Range<usize>) -> Vec<(u64, u64)> {
    let mut messages = Vec::new();
    let mut at = 0;
    while let Some(header) = log.get(at..at + BATCH_HEADER_BYTES) {
        let len = Batch::peek_len(header).ok();
        let bytes = len.and_then(|len| log.get(at..at + len));
        let batch = bytes.and_then(|bytes| Batch::parse_stored(bytes.to_vec().into()).ok());
        let Some(batch) = batch else {
            // Earlier damage: skip it.
            at += 1;
            continue;
        };
        let end = at + batch.bytes().len();
        if at < range.end && end > range.start {
            let mut records = batch.records();
            while let Some((offset, record)) = records.next_record().unwrap() {
                messages.push((offset, message_in(offset, &record).content.number));
            }
        }
        at = end;
    }
    messages
}
