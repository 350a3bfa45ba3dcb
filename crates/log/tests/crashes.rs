//! Compares the log with a simple model: random appends, commits, seals, drops, journal entries and
//! snapshots, ended repeatedly by `kill -9` or a power loss at any disk operation. Between two
//! runs, sealed segments may be truncated or removed.
//!
//! `CLOVERLEAF_SEEDS=100000 cargo test -p cloverleaf-log crashes` runs more seeds,
//! `CLOVERLEAF_SEED=7` only the one that a failure has named.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use crate::common::{Random, batch_of, cut, manual, read_all, text_at, topic};
use cloverleaf_log::{
    Appended, Batch, Durability, INDEX_ENTRY_BYTES, IndexEntry, IndexItem, Log, LogOptions, Offset,
    OpenMode, PartitionLog, PartitionOptions, Pending, SimDisk, decode_index_item,
};

const PARTITIONS: usize = 3;

/// The expected state of a batch.
#[derive(Clone, Debug)]
struct Fact {
    end: Offset,
    text: String,
    /// Acknowledged as written.
    written: bool,
    /// Acknowledged as synced.
    synced: bool,
    /// Dropped by retention: it may or may not reappear after a power loss.
    dropped: bool,
}

#[derive(Default)]
struct PartitionModel {
    facts: BTreeMap<Offset, Fact>,
    /// Bodies of failed appends, which may or may not be in the log.
    doubtful: BTreeSet<String>,
    /// Batches that were cut off, base offset to end offset. Neither batch nor offset may reappear.
    cut: BTreeMap<Offset, Offset>,
    /// Offsets below this one were assigned to batches that count, and must not be assigned again.
    assigned_end: Offset,
    waiting: Vec<(Offset, Durability, Appended)>,
}

#[derive(Default)]
struct JournalModel {
    content: Vec<Vec<u8>>,
    /// Number of entries of `content` that were acknowledged as synced.
    synced: usize,
    /// The entries of an interrupted snapshot, which may be the content instead.
    instead: Option<Vec<Vec<u8>>>,
    /// The content before a snapshot that a kill has interrupted, and its number of synced entries:
    /// a power loss before the next sync may undo the snapshot.
    before: Option<(Vec<Vec<u8>>, usize)>,
    waiting: Vec<(usize, Pending)>,
}

struct World {
    seed: u64,
    random: Random,
    disk: SimDisk,
    options: LogOptions,
    segment_bytes: u64,
    /// All batches have the same size, so that batches left over from a crash line up with new
    /// ones.
    uniform: bool,
    log: Option<Log>,
    logs: Vec<Arc<PartitionLog>>,
    partitions: Vec<PartitionModel>,
    journal: JournalModel,
    counter: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Kill,
    PowerLoss,
    Close,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let options = LogOptions {
            tail_bytes_max: [0, 3_000, 1 << 20][random.below(3) as usize],
            inline_writes: random.below(4) > 0,
            journal_bytes: 2048,
            ..manual()
        };
        let segment_bytes = [2_000, 9_000, 200_000][random.below(3) as usize];
        World {
            seed,
            random,
            disk: SimDisk::new(),
            options,
            segment_bytes,
            uniform: seed.is_multiple_of(3),
            log: None,
            logs: Vec::new(),
            partitions: (0..PARTITIONS).map(|_| PartitionModel::default()).collect(),
            journal: JournalModel::default(),
            counter: 0,
        }
    }

    fn log(&self) -> &Log {
        self.log.as_ref().unwrap()
    }

    /// Opens the log after `end`, and checks the journal and the reported losses.
    fn open(&mut self, end: End) -> bool {
        let lost = self.lost_by_cuts();
        let Ok((log, recovery)) = Log::open(self.disk.mount(), self.options.clone()) else {
            return false;
        };
        let options = PartitionOptions {
            segment_bytes: self.segment_bytes,
            segment_ms: None,
        };
        self.logs = (0..PARTITIONS)
            .map(|number| {
                let topic = topic(number as u128 / 2);
                log.partition(topic, number as u32, options.clone())
                    .unwrap()
            })
            .collect();
        let reported = log.metrics().lost_messages;
        // After a power loss the index of a dropped segment may reappear.
        let is_right = lost.start <= reported && (reported <= lost.end || end == End::PowerLoss);
        assert!(is_right, "seed {}: {reported} of {lost:?}", self.seed);
        self.log = Some(log);
        self.journal
            .check_recovered(self.seed, recovery.journal, end);
        true
    }

    fn append(&mut self) {
        let number = self.random.below(PARTITIONS as u64) as usize;
        let class = [Durability::None, Durability::Kernel, Durability::Disk];
        let class = class[self.random.below(3) as usize];
        self.counter += 1;
        let size = [10, 300, 5_000][self.random.below(3) as usize];
        let (mut filling, mut more) = (self.random.below(size), self.random.below(4) as usize);
        if self.uniform {
            (filling, more) = (600, 0);
        }
        let text = format!("{:06} {}", self.counter, "x".repeat(filling as usize));
        let more = vec!["more"; more];
        let texts: Vec<&str> = [text.as_str()].into_iter().chain(more).collect();
        let model = &mut self.partitions[number];
        match self.logs[number].append(batch_of(&texts), class) {
            Ok(appended) => {
                let (base, end) = (appended.base, appended.end);
                assert!(
                    base >= model.assigned_end,
                    "seed {}: offset {base} used twice",
                    self.seed
                );
                model.assigned_end = end;
                let fact = Fact {
                    end,
                    text,
                    written: false,
                    synced: false,
                    dropped: false,
                };
                let before = model.facts.insert(base, fact);
                assert!(before.is_none_or(|before| before.dropped && !before.synced));
                if class != Durability::None {
                    model.waiting.push((base, class, appended));
                }
            }
            Err(_) => {
                model.doubtful.insert(text);
            }
        }
    }

    /// Notes which appends are acknowledged.
    fn collect_answers(&mut self) {
        for model in &mut self.partitions {
            for (base, class, appended) in std::mem::take(&mut model.waiting) {
                if !appended.is_ready() {
                    model.waiting.push((base, class, appended));
                } else if appended.wait().is_ok() {
                    let fact = model.facts.get_mut(&base).unwrap();
                    fact.written = true;
                    fact.synced |= class == Durability::Disk;
                }
            }
        }
        let journal = &mut self.journal;
        for (len, pending) in std::mem::take(&mut journal.waiting) {
            if !pending.is_ready() {
                journal.waiting.push((len, pending));
            } else if pending.wait().is_ok() {
                journal.synced = journal.synced.max(len);
                journal.before = None;
            }
        }
    }

    fn act(&mut self) {
        let number = self.random.below(PARTITIONS as u64) as usize;
        let partition = self.logs[number].clone();
        match self.random.below(24) {
            0..=11 => self.append(),
            12..=14 => self.log().step_commit(),
            15 => self.log().step(),
            16 => partition.seal_active(),
            17 => self.drop_some(number),
            18 => {
                let offset = partition.next_offset() + self.random.below(50);
                partition.raise_next_offset(offset);
            }
            19..=21 => self.append_to_journal(),
            22 => self.snapshot(),
            _ => self.check_reads(number),
        }
        self.collect_answers();
    }

    fn drop_some(&mut self, number: usize) {
        let mut bases = Vec::new();
        for segment in self.logs[number].segments() {
            if segment.is_droppable && self.random.below(2) == 0 {
                bases.push(segment.base);
                let facts = self.partitions[number]
                    .facts
                    .range_mut(segment.base..segment.end);
                facts.for_each(|(_, fact)| fact.dropped = true);
            }
        }
        let _ = self.logs[number].drop_segments(&bases);
    }

    fn append_to_journal(&mut self) {
        self.counter += 1;
        let size = self.random.below(60) as usize;
        let entry = format!("{} {}", self.counter, "j".repeat(size)).into_bytes();
        let journal = self.log.as_ref().unwrap().journal();
        // Only the last entry can be in doubt, because the machine has crashed by then.
        match journal.append(&[&entry]) {
            Ok(position) => {
                self.journal.content.push(entry);
                let len = self.journal.content.len();
                if self.random.below(2) == 0 {
                    self.journal
                        .waiting
                        .push((len, journal.wait_synced(position)));
                }
            }
            Err(_) => self.journal.content.push(entry),
        }
    }

    fn snapshot(&mut self) {
        let keep = self.random.below(6) as usize;
        let content = &self.journal.content;
        let fresh: Vec<_> = content[content.len().saturating_sub(keep)..].to_vec();
        let mut entries = fresh.clone().into_iter();
        match self.log.as_ref().unwrap().journal().snapshot(&mut entries) {
            Ok(()) => {
                self.journal.synced = fresh.len();
                self.journal.content = fresh;
                self.journal.waiting.clear();
                self.journal.before = None;
            }
            // Only the first failed snapshot may have had an effect: the machine crashed in it.
            Err(_) => {
                self.journal.instead.get_or_insert(fresh);
            }
        }
    }

    fn check_reads(&mut self, number: usize) {
        let from = self.random.below(self.partitions[number].assigned_end + 2);
        let cloverleaf_log::Read::Batches(batches) = self.logs[number].read(from, 2_000) else {
            return;
        };
        assert!(batches[0].end_offset() > from);
        for batch in batches {
            let fact = &self.partitions[number].facts[&batch.base_offset()];
            assert_eq!(
                text_at(&batch, batch.base_offset()),
                fact.text,
                "seed {}",
                self.seed
            );
        }
    }

    fn crash(&mut self, end: End) {
        if end == End::Close {
            self.log().close();
            self.collect_answers();
            let facts = self
                .partitions
                .iter_mut()
                .flat_map(|model| model.facts.values_mut());
            facts
                .filter(|fact| !fact.dropped)
                .for_each(|fact| fact.synced = true);
        }
        self.logs.clear();
        self.log = None;
        self.collect_answers();
        match end {
            End::Close => {}
            End::Kill => self.disk.kill(),
            End::PowerLoss => self.disk.power_loss(self.random.next()),
        }
    }

    /// Truncates or removes sealed segments while the log is closed.
    fn cut_sealed(&mut self) {
        for number in 0..PARTITIONS {
            for Sealed { base, bytes, .. } in sealed(&self.disk, number) {
                if bytes.is_empty() || self.random.below(3) > 0 {
                    continue;
                }
                let (path, mount) = (path_of(number, base, "log"), self.disk.mount());
                let left = self.random.below(2) * self.random.below(bytes.len() as u64 + 1);
                match left == 0 && self.random.below(2) == 0 {
                    true => mount.remove_file(&path).unwrap(),
                    false => cut(&self.disk, &path, left),
                }
                // Makes the seal durable: without it, the loss could not be detected.
                let index = mount.open(&path_of(number, base, "index"), OpenMode::Existing);
                index.unwrap().sync_data().unwrap();
                mount.sync_dir(&dir_of(number)).unwrap();
                let model = &mut self.partitions[number];
                for (range, batch) in batches(&bytes) {
                    if range.end as u64 > left {
                        let base = batch.base_offset();
                        model.facts.remove(&base);
                        model.cut.insert(base, batch.end_offset());
                    }
                }
            }
        }
    }

    /// The minimum and the maximum number of lost messages that the next start must report. The
    /// maximum also counts offsets without messages and those of batches that are left.
    fn lost_by_cuts(&self) -> Range<u64> {
        let mut lost = 0..0;
        for (number, model) in self.partitions.iter().enumerate() {
            let mut all = sealed(&self.disk, number);
            all.retain(|it| (it.bytes.len() as u64) < it.footer.position);
            for Sealed { base, footer, .. } in all {
                let cut = model.cut.range(base..footer.offset);
                lost.start += cut.map(|(base, end)| end - base).sum::<u64>();
                lost.end += footer.offset - base;
            }
        }
        lost
    }

    /// After recovery, all acknowledged batches must be there, in order, and no others.
    fn check_partition(&mut self, number: usize, end: End) {
        let seed = self.seed;
        let model = &mut self.partitions[number];
        model.waiting.clear();
        let mut last = 0;
        let mut found = BTreeMap::new();
        for batch in read_all(&self.logs[number]) {
            let base = batch.base_offset();
            assert!(base >= last, "seed {seed}: order");
            last = batch.end_offset();
            let text = text_at(&batch, base);
            match model.facts.get(&base) {
                Some(fact) if fact.text == text => {
                    assert_eq!(fact.end, last, "seed {seed}");
                }
                _ => assert!(
                    model.doubtful.contains(&text),
                    "seed {seed}: invented {text} at {base} in partition {number}"
                ),
            }
            // After a kill, a batch in the page cache need not be on the disk.
            let known = model.facts.get(&base).is_some_and(|fact| fact.synced);
            let fact = Fact {
                end: last,
                text,
                written: true,
                synced: known || end != End::Kill,
                dropped: false,
            };
            found.insert(base, fact);
        }
        let next = self.logs[number].next_offset();
        let mut promised_end = model.cut.values().copied().max().unwrap_or(0);
        assert!(next >= promised_end, "seed {seed}: {next} was cut off");
        for (base, fact) in &model.facts {
            let promised = fact.synced || (end == End::Kill && fact.written);
            if promised && !fact.dropped {
                assert!(
                    found.contains_key(base),
                    "seed {seed}: lost {base} of {number}: {fact:?}"
                );
            }
            if promised {
                promised_end = promised_end.max(fact.end);
                assert!(
                    next >= fact.end,
                    "seed {seed}: {next} may be assigned again"
                );
            }
        }
        assert!(next >= last);
        model.assigned_end = last.max(promised_end);
        // A later power loss may undo the removal of a file.
        let dropped = model
            .facts
            .iter()
            .filter(|(base, fact)| fact.dropped && !found.contains_key(base));
        let dropped: Vec<_> = dropped
            .map(|(base, fact)| {
                (
                    *base,
                    Fact {
                        written: false,
                        ..fact.clone()
                    },
                )
            })
            .collect();
        model.facts = found;
        model.facts.extend(dropped);
        model.doubtful.clear();
    }

    fn run(&mut self) {
        assert!(self.open(End::PowerLoss));
        for _ in 0..4 {
            let dies = self.random.below(2) == 0;
            if dies {
                let changes = self.random.below(150);
                self.disk.crash_after(changes);
            }
            for _ in 0..self.random.below(60) {
                self.act();
            }
            let mut end = match self.random.below(4) {
                0 => End::Kill,
                1 if !dies => End::Close,
                _ => End::PowerLoss,
            };
            self.crash(end);
            if self.random.below(3) == 0 {
                self.cut_sealed();
            }
            // The recovery may be interrupted, too.
            if self.random.below(4) == 0 {
                let changes = self.random.below(12);
                self.disk.crash_after(changes);
                if self.open_and_forget() {
                    let loss = self.random.next();
                    if end == End::Kill && self.random.below(2) == 0 {
                        self.disk.kill();
                    } else {
                        self.disk.power_loss(loss);
                        end = End::PowerLoss;
                    }
                }
            }
            assert!(self.open(end), "seed {}: does not open", self.seed);
            for number in 0..PARTITIONS {
                self.check_partition(number, end);
            }
        }
    }

    /// Opens the log without a check.
    fn open_and_forget(&mut self) -> bool {
        if let Ok((log, _)) = Log::open(self.disk.mount(), self.options.clone()) {
            log.step();
        }
        true
    }
}

/// A segment that has a footer on the disk.
struct Sealed {
    base: Offset,
    footer: IndexEntry,
    /// The bytes of its file.
    bytes: Vec<u8>,
}

fn sealed(disk: &SimDisk, number: usize) -> Vec<Sealed> {
    let mount = disk.mount();
    let read = |path: &str| -> Option<Vec<u8>> {
        let file = mount.open(path, OpenMode::Existing).ok()?;
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_at(&mut bytes, 0).unwrap();
        Some(bytes)
    };
    let names = mount.list(&dir_of(number)).unwrap_or_default();
    let sealed = |name: &str| -> Option<Sealed> {
        let base = name.strip_suffix(".index")?.parse().ok()?;
        let index = read(&path_of(number, base, "index"))?;
        let last = index.last_chunk::<INDEX_ENTRY_BYTES>()?;
        let (IndexItem::Footer(footer), _) = decode_index_item(base, last)? else {
            return None;
        };
        let bytes = read(&path_of(number, base, "log")).unwrap_or_default();
        Some(Sealed {
            base,
            footer,
            bytes,
        })
    };
    let names = names.iter().map(|entry| entry.name.as_str());
    names.filter_map(sealed).collect()
}

/// The valid batches in a file. A power loss may have left other bytes between them.
fn batches(file: &[u8]) -> Vec<(Range<usize>, Batch)> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(rest) = file.get(at..) {
        let bytes = Batch::peek_len(rest).ok().and_then(|len| rest.get(..len));
        let batch = bytes.map(|bytes| Batch::parse_stored(bytes.to_vec().into()));
        match batch {
            Some(Ok(batch)) => {
                let end = at + batch.bytes().len();
                found.push((at..end, batch));
                at = end;
            }
            _ => at += 1,
        }
    }
    found
}

fn dir_of(number: usize) -> String {
    format!("topics/{}/{number}", topic(number as u128 / 2))
}

fn path_of(number: usize, base: Offset, ending: &str) -> String {
    format!("{}/{base:020}.{ending}", dir_of(number))
}

impl JournalModel {
    /// The entries must be a prefix of the appended ones that includes all synced ones, or those of
    /// the interrupted snapshot.
    fn check_recovered(&mut self, seed: u64, entries: Vec<Vec<u8>>, end: End) {
        let begins = |(content, synced): &(Vec<Vec<u8>>, usize)| {
            content.starts_with(&entries) && entries.len() >= *synced
        };
        let model = std::mem::take(self);
        let old = (model.content, model.synced);
        let is_old = begins(&old) || model.before.as_ref().is_some_and(begins);
        let is_new = model.instead.as_ref() == Some(&entries);
        assert!(
            is_old || is_new,
            "seed {seed}: journal has {} entries, {} of {} were synced",
            entries.len(),
            old.1,
            old.0.len()
        );
        if end == End::PowerLoss {
            self.synced = entries.len();
        } else if is_old {
            self.synced = old.1.min(entries.len());
            self.before = model.before;
        } else {
            self.before = Some(old);
        }
        self.content = entries;
    }
}

/// Runs every second seed, so that two tests share the work.
fn run_seeds(first: u64) {
    let number = |name| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
    };
    if let Some(seed) = number("CLOVERLEAF_SEED") {
        return World::new(seed).run();
    }
    let seeds = number("CLOVERLEAF_SEEDS").unwrap_or(1_500);
    for seed in (first..seeds).step_by(2) {
        World::new(seed).run();
    }
}

#[test]
fn acknowledged_data_survives_crashes_with_even_seeds() {
    run_seeds(0);
}

#[test]
fn acknowledged_data_survives_crashes_with_odd_seeds() {
    run_seeds(1);
}
