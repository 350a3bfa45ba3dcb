//! A simulated disk in memory that can lose power.
//!
//! In addition to the current state, which a running program sees, it keeps the states that a power
//! loss may leave: all versions of each sector (512 bytes) written since the last sync, all sizes
//! of each file, and for each name whether its creation or removal is durable.
//! [`SimDisk::power_loss`] chooses among these states by a seed: any subset of the unsynced changes
//! is lost, and writes are torn between sectors. [`SimDisk::kill`] is a `kill -9` of the program:
//! no change is lost, and unsynced changes stay unsynced.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind, IoSlice};
use std::sync::Arc;

use parking_lot::Mutex;

use super::sim_file::{PowerLossChoices, SimInode};
use super::{DirEntry, Disk, DiskFile, DiskLock, LockFailure, OpenMode};

/// A simulated disk. Clones share the content. The log gets a [`SimDisk::mount`].
#[derive(Clone, Default)]
pub struct SimDisk {
    state: Arc<Mutex<SimState>>,
}

#[derive(Default)]
struct SimState {
    /// Number of crashes: handles from before a crash fail.
    epoch: u64,
    power_losses: u64,
    next_inode: u64,
    inodes: BTreeMap<u64, SimInode>,
    /// Names as the running program sees them, with the file's inode; `None` for a folder.
    names: BTreeMap<String, Option<u64>>,
    /// Names that are durable.
    durable: BTreeMap<String, Option<u64>>,
    locked: bool,
    lock_text: String,
    syncs: u64,
    /// Number of changes that succeed before the machine crashes during the next one; `None`: no
    /// crash.
    changes_left: Option<u64>,
}

impl SimState {
    /// Counts a change. Returns whether the machine survives it. If not, the caller decides whether
    /// the change still happens.
    fn count_change(&mut self) -> bool {
        match &mut self.changes_left {
            None => true,
            Some(0) => {
                self.changes_left = None;
                self.epoch += 1;
                false
            }
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }
}

fn crashed() -> io::Error {
    io::Error::other("the simulated machine has crashed")
}

impl SimDisk {
    /// An empty disk.
    pub fn new() -> SimDisk {
        SimDisk::default()
    }

    /// The disk as a program sees it until the next crash, after which all operations fail.
    pub fn mount(&self) -> Arc<dyn Disk> {
        let epoch = self.state.lock().epoch;
        Arc::new(SimMount {
            state: self.state.clone(),
            epoch,
        })
    }

    /// Kills the program but not the machine: no change is lost.
    pub fn kill(&self) {
        let mut state = self.state.lock();
        state.changes_left = None;
        state.epoch += 1;
        state.locked = false;
    }

    /// Cuts the machine's power. The seed decides which unsynced changes are left.
    pub fn power_loss(&self, seed: u64) {
        let mut state = self.state.lock();
        state.changes_left = None;
        state.power_losses += 1;
        state.epoch += 1;
        state.locked = false;
        let mut choices = PowerLossChoices::new(seed);
        let mut names = state.durable.clone();
        let candidates: BTreeSet<String> = state
            .names
            .keys()
            .chain(state.durable.keys())
            .cloned()
            .collect();
        for name in candidates {
            let (old, new) = (
                state.durable.get(&name).copied(),
                state.names.get(&name).copied(),
            );
            if old != new && choices.pick(2) == 1 {
                match new {
                    Some(node) => names.insert(name, node),
                    None => names.remove(&name),
                };
            }
        }
        let reachable = names.clone();
        names.retain(|name, _| ancestors(name).all(|folder| reachable.get(folder) == Some(&None)));
        for inode in state.inodes.values_mut() {
            inode.lose_power(&mut choices);
        }
        let used: BTreeSet<u64> = names.values().flatten().copied().collect();
        state.inodes.retain(|number, _| used.contains(number));
        state.durable.clone_from(&names);
        state.names = names;
    }

    /// Lets the machine crash after this many more changes (of bytes, sizes and names, and syncs),
    /// during the next one. From then on all operations fail. Call [`SimDisk::power_loss`] or
    /// [`SimDisk::kill`] afterwards to decide which changes are left.
    pub fn crash_after(&self, changes: u64) {
        self.state.lock().changes_left = Some(changes);
    }

    /// Number of syncs so far, of files, folders and the file system.
    pub fn syncs(&self) -> u64 {
        self.state.lock().syncs
    }

    /// Changes bytes of a file without the log's knowledge (bit rot).
    pub fn corrupt(&self, path: &str, at: u64, bytes: &[u8]) {
        let mut state = self.state.lock();
        if let Some(Some(number)) = state.names.get(path).copied()
            && let Some(inode) = state.inodes.get_mut(&number)
            && let Some(target) = inode.data.get_mut(at as usize..at as usize + bytes.len())
        {
            target.copy_from_slice(bytes);
        }
    }
}

/// The folders above a name, without the root.
fn ancestors(name: &str) -> impl Iterator<Item = &str> {
    name.match_indices('/').map(|(at, _)| &name[..at])
}

fn parent(name: &str) -> &str {
    name.rfind('/').map_or("", |at| &name[..at])
}

struct SimMount {
    state: Arc<Mutex<SimState>>,
    epoch: u64,
}

impl SimMount {
    fn with<T>(&self, work: impl FnOnce(&mut SimState) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.state.lock();
        if state.epoch != self.epoch {
            return Err(crashed());
        }
        work(&mut state)
    }

    /// Makes a change. If the machine crashes during it, the change may or may not have happened.
    fn change<T>(&self, work: impl FnOnce(&mut SimState) -> io::Result<T>) -> io::Result<T> {
        self.with(|state| {
            let survives = state.count_change();
            if survives || state.epoch.is_multiple_of(2) {
                let outcome = work(state);
                return if survives { outcome } else { Err(crashed()) };
            }
            Err(crashed())
        })
    }
}

impl Disk for SimMount {
    fn folder(&self) -> String {
        "(simulated)".to_owned()
    }

    fn boot_id(&self) -> String {
        format!("boot {}", self.state.lock().power_losses)
    }

    fn open(&self, path: &str, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let inode = self.with(|state| match (state.names.get(path), mode) {
            (Some(None), _) => Err(ErrorKind::IsADirectory.into()),
            (Some(Some(_)), OpenMode::CreateNew) => Err(ErrorKind::AlreadyExists.into()),
            (Some(Some(inode)), _) => Ok(*inode),
            (None, OpenMode::Existing) => Err(ErrorKind::NotFound.into()),
            (None, _) => {
                if !state.count_change() {
                    return Err(crashed());
                }
                if !parent(path).is_empty() && state.names.get(parent(path)) != Some(&None) {
                    return Err(ErrorKind::NotFound.into());
                }
                let inode = state.next_inode;
                state.next_inode += 1;
                state.inodes.insert(inode, SimInode::default());
                state.names.insert(path.to_owned(), Some(inode));
                Ok(inode)
            }
        })?;
        Ok(Arc::new(SimFile {
            state: self.state.clone(),
            epoch: self.epoch,
            inode,
        }))
    }

    fn create_dir_all(&self, path: &str) -> io::Result<()> {
        self.change(|state| {
            for folder in ancestors(path).chain([path]) {
                if let Some(Some(_)) = state.names.insert(folder.to_owned(), None) {
                    return Err(ErrorKind::NotADirectory.into());
                }
            }
            Ok(())
        })
    }

    fn list(&self, path: &str) -> io::Result<Vec<DirEntry>> {
        self.with(|state| {
            if !path.is_empty() && state.names.get(path) != Some(&None) {
                return Err(ErrorKind::NotFound.into());
            }
            let inside = state.names.iter().filter(|(name, _)| parent(name) == path);
            Ok(inside
                .map(|(name, node)| DirEntry {
                    name: name[name.rfind('/').map_or(0, |at| at + 1)..].to_owned(),
                    is_dir: node.is_none(),
                })
                .collect())
        })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.change(|state| {
            let node = state.names.remove(from).ok_or(ErrorKind::NotFound)?;
            state.names.insert(to.to_owned(), node);
            Ok(())
        })
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        self.change(|state| match state.names.get(path) {
            Some(Some(_)) => {
                state.names.remove(path);
                Ok(())
            }
            _ => Err(ErrorKind::NotFound.into()),
        })
    }

    fn remove_dir_all(&self, path: &str) -> io::Result<()> {
        self.change(|state| {
            if state.names.get(path) != Some(&None) {
                return Err(ErrorKind::NotFound.into());
            }
            let inside = format!("{path}/");
            state
                .names
                .retain(|name, _| name != path && !name.starts_with(&inside));
            Ok(())
        })
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        self.change(|state| {
            state.syncs += 1;
            if !path.is_empty() && state.names.get(path) != Some(&None) {
                return Err(ErrorKind::NotFound.into());
            }
            state.durable.retain(|name, _| parent(name) != path);
            let inside = state.names.iter().filter(|(name, _)| parent(name) == path);
            let inside: Vec<_> = inside.map(|(name, node)| (name.clone(), *node)).collect();
            state.durable.extend(inside);
            Ok(())
        })
    }

    fn sync_fs(&self) -> io::Result<()> {
        self.change(|state| {
            state.syncs += 1;
            state.durable = state.names.clone();
            state.inodes.values_mut().for_each(SimInode::sync);
            Ok(())
        })
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(1 << 40)
    }

    fn total_bytes(&self) -> io::Result<u64> {
        Ok(1 << 41)
    }

    fn lock(&self, _path: &str) -> Result<Box<dyn DiskLock>, LockFailure> {
        let mut state = self.state.lock();
        if state.locked {
            return Err(LockFailure::Held(state.lock_text.clone()));
        }
        state.locked = true;
        let previous = state.lock_text.clone();
        Ok(Box::new(SimLock {
            state: self.state.clone(),
            epoch: self.epoch,
            previous,
        }))
    }
}

struct SimLock {
    state: Arc<Mutex<SimState>>,
    epoch: u64,
    previous: String,
}

impl DiskLock for SimLock {
    fn set_text(&self, text: &str) -> io::Result<()> {
        let mut state = self.state.lock();
        if state.epoch != self.epoch {
            return Err(crashed());
        }
        state.lock_text = text.to_owned();
        Ok(())
    }

    fn previous_text(&self) -> &str {
        &self.previous
    }
}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        if state.epoch == self.epoch {
            state.locked = false;
        }
    }
}

struct SimFile {
    state: Arc<Mutex<SimState>>,
    epoch: u64,
    inode: u64,
}

impl SimFile {
    fn with<T>(&self, work: impl FnOnce(&mut SimInode) -> T) -> io::Result<T> {
        let mut state = self.state.lock();
        if state.epoch != self.epoch {
            return Err(crashed());
        }
        let inode = state
            .inodes
            .get_mut(&self.inode)
            .ok_or(ErrorKind::NotFound)?;
        Ok(work(inode))
    }

    /// Makes a change. If the machine crashes during it, the change may or may not have happened; a
    /// sync has not happened.
    fn change<T>(&self, is_sync: bool, work: impl FnOnce(&mut SimInode) -> T) -> io::Result<T> {
        let mut state = self.state.lock();
        if state.epoch != self.epoch {
            return Err(crashed());
        }
        let survives = state.count_change();
        let happens = survives || (!is_sync && state.epoch.is_multiple_of(2));
        let inode = state
            .inodes
            .get_mut(&self.inode)
            .ok_or(ErrorKind::NotFound)?;
        let outcome = happens.then(|| work(inode));
        outcome.filter(|_| survives).ok_or_else(crashed)
    }
}

impl DiskFile for SimFile {
    fn write_all_at(&self, buffers: &[IoSlice<'_>], position: u64) -> io::Result<()> {
        self.change(false, |inode| {
            let mut bytes = Vec::new();
            buffers
                .iter()
                .for_each(|buffer| bytes.extend_from_slice(buffer));
            inode.write(&bytes, position as usize);
        })
    }

    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        self.with(|inode| {
            let start = (position as usize).min(inode.data.len());
            let count = buffer.len().min(inode.data.len() - start);
            buffer[..count].copy_from_slice(&inode.data[start..start + count]);
            count
        })
    }

    fn read_at_nowait(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        self.read_at(buffer, position)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.change(false, |inode| {
            if inode.data.len() < len as usize {
                inode.resize(len as usize);
            }
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(false, |inode| inode.resize(len as usize))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.state.lock().syncs += 1;
        self.change(true, SimInode::sync)
    }

    fn len(&self) -> io::Result<u64> {
        self.with(|inode| inode.data.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    fn write(file: &Arc<dyn DiskFile>, bytes: &[u8], at: u64) {
        file.write_all_at(&[IoSlice::new(bytes)], at).unwrap();
    }

    #[test]
    fn synced_data_always_survives_and_unsynced_data_sometimes() {
        let mut survived = 0;
        for seed in 0..64 {
            let disk = SimDisk::new();
            let mount = disk.mount();
            mount.create_dir_all("a/b").unwrap();
            let file = mount.open("a/b/c", OpenMode::CreateNew).unwrap();
            write(&file, &[1; 600], 0);
            mount.sync_dir("a/b").unwrap();
            mount.sync_dir("a").unwrap();
            mount.sync_dir("").unwrap();
            file.sync_data().unwrap();
            write(&file, &[2; 1000], 600);
            disk.power_loss(seed);
            assert!(file.len().is_err(), "handles from before the crash fail");
            let file = disk.mount().open("a/b/c", OpenMode::Existing).unwrap();
            let mut bytes = vec![0; 2000];
            let count = file.read_at(&mut bytes, 0).unwrap();
            assert!(count >= 600);
            assert_eq!(bytes[..600], [1; 600]);
            survived += usize::from(count == 1600);
        }
        assert!(survived > 5 && survived < 60, "{survived}");
    }

    #[test]
    fn names_need_a_sync_of_their_folder() {
        let mut survived = 0;
        for seed in 0..64 {
            let disk = SimDisk::new();
            let mount = disk.mount();
            let file = mount.open("x", OpenMode::CreateNew).unwrap();
            write(&file, b"data", 0);
            file.sync_data().unwrap();
            disk.power_loss(seed);
            survived += usize::from(disk.mount().open("x", OpenMode::Existing).is_ok());
        }
        assert!(survived > 5 && survived < 60, "{survived}");
    }

    #[test]
    fn a_kill_keeps_unsynced_changes_until_a_power_loss() {
        let disk = SimDisk::new();
        let file = disk.mount().open("x", OpenMode::CreateNew).unwrap();
        write(&file, b"data", 0);
        disk.kill();
        assert!(disk.mount().open("x", OpenMode::Existing).is_ok());
        // At least one of these seeds loses all unsynced changes.
        let lost = (0..64).any(|seed| {
            let copy = disk.clone();
            copy.power_loss(seed);
            copy.mount().open("x", OpenMode::Existing).is_err()
        });
        assert!(lost);
    }
}
