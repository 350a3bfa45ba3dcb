//! A wrapper that makes any disk fail on demand.

use std::io::{self, ErrorKind, IoSlice};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::condvar::Condvar;

use super::{Descriptor, DirEntry, Disk, DiskFile, DiskLock, LockFailure, OpenMode};

/// The faults to inject. Counters count down to the failure; `None`: no failure.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Faults of writes, syncs and reads affect only files whose path contains this text.
    pub only: String,
    /// This many writes succeed; the next one fails with an I/O error.
    pub write_after: Option<u64>,
    /// A failing write still writes this many bytes.
    pub torn_bytes: usize,
    /// This many syncs (of a file, a folder or the file system) succeed; the next one fails.
    pub sync_after: Option<u64>,
    /// Free bytes of the disk, which allocations use up. With 0, no file can be created.
    pub free_bytes: Option<u64>,
    /// Refuse all changes, as a read-only file system does.
    pub read_only: bool,
    /// Non-blocking reads fail as if no byte were in the page cache.
    pub uncached: bool,
    /// All bytes count as cached, even if the kernel has evicted them.
    pub all_cached: bool,
    /// Reads fail with an I/O error.
    pub broken_reads: bool,
    /// Blocking reads of files whose path contains this text wait until this field changes.
    pub hanging_reads: Option<String>,
    /// The creation of files whose path contains this text waits until this field changes.
    pub hanging_creates: Option<String>,
    /// Called with a file's path before each write, on the thread that writes; it may panic.
    pub on_write: Option<fn(&str)>,
}

/// The faults to inject, and a condition variable for their changes.
#[derive(Default)]
struct InjectedFaults {
    faults: Mutex<Faults>,
    changed: Condvar,
}

/// A [`Disk`] whose operations fail according to [`Faults`].
pub struct FaultyDisk {
    inner: Arc<dyn Disk>,
    shared: Arc<InjectedFaults>,
}

impl FaultyDisk {
    /// Wraps a disk, without faults at first.
    pub fn new(inner: Arc<dyn Disk>) -> Arc<FaultyDisk> {
        Arc::new(FaultyDisk {
            inner,
            shared: Arc::default(),
        })
    }

    /// Changes the faults from now on.
    pub fn set(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.shared.faults.lock());
        self.shared.changed.notify_all();
    }

    fn writable(&self) -> io::Result<()> {
        if self.shared.faults.lock().read_only {
            return Err(ErrorKind::ReadOnlyFilesystem.into());
        }
        Ok(())
    }
}

impl Faults {
    /// Counts a sync, which may fail.
    fn on_sync(&mut self, path: &str) -> io::Result<()> {
        if !path.contains(&self.only) {
            return Ok(());
        }
        count_down(&mut self.sync_after, "injected sync failure")
    }

    /// Uses up `bytes` of the free space, or fails because the disk is full.
    fn take_space(&mut self, bytes: u64) -> io::Result<()> {
        if let Some(free) = &mut self.free_bytes {
            if *free < bytes {
                return Err(ErrorKind::StorageFull.into());
            }
            *free -= bytes;
        }
        Ok(())
    }
}

/// Whether the path contains a text.
fn path_contains(text: &Option<String>, path: &str) -> bool {
    text.as_ref().is_some_and(|text| path.contains(text))
}

fn count_down(counter: &mut Option<u64>, message: &str) -> io::Result<()> {
    match counter {
        None => Ok(()),
        Some(0) => {
            *counter = None;
            Err(io::Error::other(message.to_owned()))
        }
        Some(left) => {
            *left -= 1;
            Ok(())
        }
    }
}

impl Disk for FaultyDisk {
    fn folder(&self) -> String {
        self.inner.folder()
    }

    fn boot_id(&self) -> String {
        self.inner.boot_id()
    }

    fn open(&self, path: &str, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        if mode != OpenMode::Existing {
            self.writable()?;
        }
        if mode == OpenMode::CreateNew {
            let mut faults = self.shared.faults.lock();
            while path_contains(&faults.hanging_creates, path) {
                self.shared.changed.wait(&mut faults);
            }
            if faults.free_bytes == Some(0) {
                return Err(ErrorKind::StorageFull.into());
            }
        }
        let inner = self.inner.open(path, mode)?;
        Ok(Arc::new(FaultyFile {
            inner,
            path: path.to_owned(),
            shared: self.shared.clone(),
        }))
    }

    fn create_dir_all(&self, path: &str) -> io::Result<()> {
        self.writable()?;
        self.inner.create_dir_all(path)
    }

    fn list(&self, path: &str) -> io::Result<Vec<DirEntry>> {
        self.inner.list(path)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.writable()?;
        self.inner.rename(from, to)
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        self.writable()?;
        self.inner.remove_file(path)
    }

    fn remove_dir_all(&self, path: &str) -> io::Result<()> {
        self.writable()?;
        self.inner.remove_dir_all(path)
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        self.shared.faults.lock().on_sync(path)?;
        self.inner.sync_dir(path)
    }

    fn sync_fs(&self) -> io::Result<()> {
        // A sync of the file system covers all paths, so `only` does not matter.
        count_down(
            &mut self.shared.faults.lock().sync_after,
            "injected sync failure",
        )?;
        self.inner.sync_fs()
    }

    fn sync_fs_reports_errors(&self) -> bool {
        self.inner.sync_fs_reports_errors()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        match self.shared.faults.lock().free_bytes {
            Some(free) => Ok(free),
            None => self.inner.free_bytes(),
        }
    }

    fn total_bytes(&self) -> io::Result<u64> {
        self.inner.total_bytes()
    }

    fn lock(&self, path: &str) -> Result<Box<dyn DiskLock>, LockFailure> {
        self.writable().map_err(LockFailure::Io)?;
        self.inner.lock(path)
    }
}

struct FaultyFile {
    inner: Arc<dyn DiskFile>,
    path: String,
    shared: Arc<InjectedFaults>,
}

impl DiskFile for FaultyFile {
    fn write_all_at(&self, buffers: &[IoSlice<'_>], position: u64) -> io::Result<()> {
        let mut faults = self.shared.faults.lock();
        if let Some(on_write) = faults.on_write {
            on_write(&self.path);
        }
        if faults.read_only {
            return Err(ErrorKind::ReadOnlyFilesystem.into());
        }
        if self.path.contains(&faults.only)
            && let Err(error) = count_down(&mut faults.write_after, "injected write failure")
        {
            let mut left = faults.torn_bytes;
            let mut at = position;
            for buffer in buffers {
                let part = &buffer[..buffer.len().min(left)];
                self.inner.write_all_at(&[IoSlice::new(part)], at)?;
                at += part.len() as u64;
                left -= part.len();
            }
            return Err(error);
        }
        drop(faults);
        self.inner.write_all_at(buffers, position)
    }

    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let mut faults = self.shared.faults.lock();
        while path_contains(&faults.hanging_reads, &self.path) {
            self.shared.changed.wait(&mut faults);
        }
        if faults.broken_reads && self.path.contains(&faults.only) {
            return Err(io::Error::other("injected read failure"));
        }
        drop(faults);
        self.inner.read_at(buffer, position)
    }

    fn read_at_nowait(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let faults = self.shared.faults.lock();
        if faults.uncached && self.path.contains(&faults.only) {
            return Err(ErrorKind::WouldBlock.into());
        }
        if faults.broken_reads && self.path.contains(&faults.only) {
            return Err(io::Error::other("injected read failure"));
        }
        let all_cached = faults.all_cached;
        drop(faults);
        match all_cached {
            true => self.inner.read_at(buffer, position),
            false => self.inner.read_at_nowait(buffer, position),
        }
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let mut faults = self.shared.faults.lock();
        if faults.read_only {
            return Err(ErrorKind::ReadOnlyFilesystem.into());
        }
        let grows = len.saturating_sub(self.inner.len()?);
        faults.take_space(grows)?;
        drop(faults);
        self.inner.allocate(len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut faults = self.shared.faults.lock();
        if faults.read_only {
            return Err(ErrorKind::ReadOnlyFilesystem.into());
        }
        let freed = self.inner.len()?.saturating_sub(len);
        if let Some(free) = &mut faults.free_bytes {
            *free += freed;
        }
        drop(faults);
        self.inner.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.shared.faults.lock().on_sync(&self.path)?;
        self.inner.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn descriptor(&self) -> Option<Descriptor> {
        self.inner.descriptor()
    }

    fn is_in_memory(&self, position: u64, bytes: usize) -> bool {
        let faults = self.shared.faults.lock();
        let fails = faults.uncached || faults.broken_reads;
        if fails && self.path.contains(&faults.only) {
            return false;
        }
        let all_cached = faults.all_cached;
        drop(faults);
        all_cached || self.inner.is_in_memory(position, bytes)
    }
}
