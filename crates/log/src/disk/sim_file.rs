//! The files of a simulated disk: the current bytes, and those that a power loss may leave.

use std::collections::BTreeMap;

/// Bytes that a disk writes atomically.
const SECTOR_BYTES: usize = 512;

/// A file.
#[derive(Default)]
pub(super) struct SimInode {
    pub(super) data: Vec<u8>,
    /// Earlier sizes that a power loss may leave, the synced one first. Empty if the size is
    /// synced.
    sizes: Vec<usize>,
    /// Earlier versions of each unsynced sector, the synced one first, by the sector's number.
    dirty: BTreeMap<usize, Vec<Vec<u8>>>,
}

impl SimInode {
    fn sector(&self, number: usize) -> Vec<u8> {
        let mut bytes = vec![0; SECTOR_BYTES];
        let start = (number * SECTOR_BYTES).min(self.data.len());
        let end = ((number + 1) * SECTOR_BYTES).min(self.data.len());
        bytes[..end - start].copy_from_slice(&self.data[start..end]);
        bytes
    }

    /// Keeps the current version of the sectors in a range, before it changes.
    fn keep_versions(&mut self, from: usize, to: usize) {
        for number in from / SECTOR_BYTES..to.div_ceil(SECTOR_BYTES) {
            let before = self.sector(number);
            let versions = self.dirty.entry(number).or_default();
            if versions.last() != Some(&before) {
                versions.push(before);
            }
        }
    }

    pub(super) fn resize(&mut self, len: usize) {
        if len == self.data.len() {
            return;
        }
        if len < self.data.len() {
            self.keep_versions(len, self.data.len());
        }
        self.sizes.push(self.data.len());
        resize_bytes(&mut self.data, len);
    }

    pub(super) fn write(&mut self, bytes: &[u8], at: usize) {
        if bytes.is_empty() {
            return;
        }
        if at + bytes.len() > self.data.len() {
            self.resize(at + bytes.len());
        }
        self.keep_versions(at, at + bytes.len());
        self.data[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(super) fn sync(&mut self) {
        self.sizes.clear();
        self.dirty.clear();
    }

    /// Replaces the unsynced part with the versions and the size that `choices` chooses.
    pub(super) fn lose_power(&mut self, choices: &mut PowerLossChoices) {
        let mut sizes = std::mem::take(&mut self.sizes);
        sizes.push(self.data.len());
        let size = choices.pick(sizes.len());
        let dirty = std::mem::take(&mut self.dirty);
        let reach = dirty
            .last_key_value()
            .map_or(0, |(number, _)| (number + 1) * SECTOR_BYTES);
        if reach > self.data.len() {
            resize_bytes(&mut self.data, reach);
        }
        for (number, versions) in dirty {
            let chosen = choices.pick(versions.len() + 1);
            if let Some(version) = versions.get(chosen) {
                self.data[number * SECTOR_BYTES..][..SECTOR_BYTES].copy_from_slice(version);
            }
        }
        let current = sizes[sizes.len() - 1];
        self.data.truncate(current.max(sizes[size]));
        resize_bytes(&mut self.data, sizes[size]);
    }
}

/// Truncates, or pads with zeros (faster than `resize` in a debug build).
fn resize_bytes(data: &mut Vec<u8>, len: usize) {
    data.truncate(len);
    let zeros = vec![0; len - data.len()];
    data.extend_from_slice(&zeros);
}

/// Pseudo-random choices of a power loss (SplitMix64).
pub(super) struct PowerLossChoices {
    state: u64,
    /// Chance, out of 256, that the newest version survives.
    survival: u64,
}

impl PowerLossChoices {
    pub(super) fn new(seed: u64) -> PowerLossChoices {
        let mut choices = PowerLossChoices {
            state: seed,
            survival: 0,
        };
        choices.survival = [0, 32, 128, 224, 256][(choices.next() % 5) as usize];
        choices
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.state;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    /// A random index below `count`; the last one (the newest version) with the chance `survival`.
    pub(super) fn pick(&mut self, count: usize) -> usize {
        if count <= 1 || self.next() % 256 < self.survival {
            return count.saturating_sub(1);
        }
        (self.next() % (count as u64 - 1)) as usize
    }
}
