//! The interface between the log and the disk: all file operations of the log.
//!
//! [`RealDisk`] is a folder of the operating system, [`SimDisk`] a simulated disk that can lose
//! power, and [`FaultyDisk`] wraps either and fails on demand. Paths are relative to the data
//! folder, with `/` between parts.
//!
//! Each implementation guarantees that a power loss keeps
//! - the bytes and the size of a file: after [`DiskFile::sync_data`];
//! - the name of a file or folder, its removal, a rename: after [`Disk::sync_dir`] of its parent;
//! - all of these: after [`Disk::sync_fs`].

mod faulty;
mod mincore;
mod real;
mod sim;
mod sim_file;

use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::sync::Arc;

pub use faulty::{Faults, FaultyDisk};
pub use real::RealDisk;
pub use sim::SimDisk;

/// Size of a file system's block and of a page of the page cache, in bytes; some file systems use a
/// divisor of it.
pub(crate) const BLOCK_BYTES: u64 = 4096;
/// Bytes of one write of zeros. Syncs of other files wait for a write in progress: with 1 MiB the
/// slowest sync took twice as long (`docs/decisions/007-segments-written-ahead.md`).
const ZEROS_BYTES: usize = 64 << 10;

/// How [`Disk::open`] treats existing and missing files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// The file must exist.
    Existing,
    /// The file is created if it is missing.
    OpenOrCreate,
    /// The file is created; an existing file is an error.
    CreateNew,
}

/// One name in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name without its folder.
    pub name: String,
    /// Whether it is a folder.
    pub is_dir: bool,
}

/// The lock of a data folder; dropping it releases the lock.
pub trait DiskLock: Send + Sync {
    /// Replaces the text, which a second broker shows in its error.
    ///
    /// # Errors
    /// The operating system's error.
    fn set_text(&self, text: &str) -> io::Result<()>;

    /// The text that the previous holder of the lock has left.
    fn previous_text(&self) -> &str;
}

/// The reason why a data folder could not be locked.
#[derive(Debug)]
pub enum LockFailure {
    /// Another process holds the lock; this is its text in the lock file.
    Held(String),
    /// The lock file could not be created or locked.
    Io(io::Error),
}

/// A data folder.
///
/// All methods return the operating system's errors.
#[allow(clippy::missing_errors_doc)]
pub trait Disk: Send + Sync {
    /// The name of this folder in messages.
    fn folder(&self) -> String;

    /// Identifies the current boot of the machine. While it stays the same, no write of an earlier
    /// process is lost, synced or not, except by a failed write-back; segments with a failed sync
    /// are poisoned and never reported as durable.
    fn boot_id(&self) -> String;

    /// Opens a file for reading and writing.
    fn open(&self, path: &str, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>>;

    /// Creates a file of `len` bytes (a multiple of 4096) whose blocks are all *written* with
    /// zeros. Makes bytes and size durable, but not the name. Calls `goes_on` repeatedly, and ends
    /// with an error when it returns `false`. After an error the file may exist.
    fn create_zeroed(&self, path: &str, len: u64, goes_on: &dyn Fn() -> bool) -> io::Result<()> {
        let file = self.open(path, OpenMode::CreateNew)?;
        file.allocate(len)?;
        let zeros = vec![0; ZEROS_BYTES.min(len as usize)];
        write_zeros(&*file, &zeros, len, goes_on)?;
        file.sync_data()
    }

    /// Creates a folder and its parents. Existing ones are no error.
    fn create_dir_all(&self, path: &str) -> io::Result<()>;

    /// The names in a folder, in no particular order. The empty path is the data folder itself.
    fn list(&self, path: &str) -> io::Result<Vec<DirEntry>>;

    /// Renames a file; replaces an existing target.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    fn remove_file(&self, path: &str) -> io::Result<()>;

    /// Removes a folder and everything in it.
    fn remove_dir_all(&self, path: &str) -> io::Result<()>;

    /// Makes the names in this folder durable.
    fn sync_dir(&self, path: &str) -> io::Result<()>;

    /// Makes everything on the file system durable (`syncfs`).
    fn sync_fs(&self) -> io::Result<()>;

    /// Whether [`Disk::sync_fs`] reports failed writes. If not, a file is durable only after its
    /// own sync.
    fn sync_fs_reports_errors(&self) -> bool {
        true
    }

    /// Free bytes for an ordinary process.
    fn free_bytes(&self) -> io::Result<u64>;

    /// Size of the file system in bytes.
    fn total_bytes(&self) -> io::Result<u64>;

    /// Takes the folder's lock, or returns the holder's text.
    ///
    /// # Errors
    /// [`LockFailure::Held`] when another process or another open log holds it.
    fn lock(&self, path: &str) -> Result<Box<dyn DiskLock>, LockFailure>;
}

/// An open file of the operating system, for `sendfile`.
pub type Descriptor = Arc<dyn AsFd + Send + Sync>;

/// An open file. Reads and writes have an explicit position; there is no cursor.
///
/// All methods return the operating system's errors.
#[allow(clippy::missing_errors_doc)]
pub trait DiskFile: Send + Sync {
    /// Writes all buffers one after the other at `position`. After an error any part may have been
    /// written.
    fn write_all_at(&self, buffers: &[IoSlice<'_>], position: u64) -> io::Result<()>;

    /// Reads at `position`. Fewer bytes than `buffer` has mean the end of the file.
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize>;

    /// As `read_at`, but reads only bytes in the page cache; `WouldBlock` if there are none. May
    /// return fewer bytes than `buffer` has at any position.
    fn read_at_nowait(&self, buffer: &mut [u8], position: u64) -> io::Result<usize>;

    /// Reserves space for `len` bytes and sets the size to at least `len`. New bytes read as 0.
    fn allocate(&self, len: u64) -> io::Result<()>;

    /// Sets the size. Bytes beyond it are removed; new bytes read as 0.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Makes bytes and size durable (`fdatasync`).
    fn sync_data(&self) -> io::Result<()>;

    /// Size in bytes.
    fn len(&self) -> io::Result<u64>;

    /// The operating system's file, for `sendfile`; `None` for a simulated one.
    fn descriptor(&self) -> Option<Descriptor> {
        None
    }

    /// Whether all these bytes are in the page cache. `false` if that is unknown.
    fn is_in_memory(&self, _position: u64, _bytes: usize) -> bool {
        false
    }

    /// Whether the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// Writes `zeros` repeatedly, up to `len` bytes in total.
fn write_zeros(
    file: &dyn DiskFile,
    zeros: &[u8],
    len: u64,
    goes_on: &dyn Fn() -> bool,
) -> io::Result<()> {
    let mut position = 0;
    while position < len {
        if !goes_on() {
            return Err(io::Error::other("no longer wanted"));
        }
        let part = (len - position).min(zeros.len() as u64);
        file.write_all_at(&[IoSlice::new(&zeros[..part as usize])], position)?;
        position += part;
    }
    Ok(())
}

/// Reads a whole file. Parts that the disk cannot read are zeros in the result; the caller finds
/// them by its checksums.
pub(crate) fn read_whole(disk: &dyn Disk, path: &str) -> io::Result<Vec<u8>> {
    let file = disk.open(path, OpenMode::Existing)?;
    let len = usize::try_from(file.len()?).map_err(io::Error::other)?;
    let mut bytes = vec![0; len];
    if read_full(&*file, &mut bytes, 0).is_ok_and(|count| count == len) {
        return Ok(bytes);
    }
    bytes.fill(0);
    let mut unreadable = 0;
    for (number, block) in bytes.chunks_mut(BLOCK_BYTES as usize).enumerate() {
        let read = read_full(&*file, block, number as u64 * BLOCK_BYTES);
        if let Err(error) = read {
            unreadable += block.len();
            block.fill(0);
            if unreadable == len {
                return Err(error);
            }
        }
    }
    if unreadable > 0 {
        tracing::error!(
            file = path,
            unreadable,
            "the disk cannot read bytes of this file"
        );
    }
    Ok(bytes)
}

/// Writes a file atomically, durably and under its final name: after a crash there is either the
/// old file or the new one. Reserves space up to `reserve_bytes` bytes.
pub(crate) fn replace_file(
    disk: &dyn Disk,
    dir: &str,
    path: &str,
    bytes: &[u8],
    reserve_bytes: u64,
) -> io::Result<()> {
    let fresh = format!("{path}.new");
    let file = disk.open(&fresh, OpenMode::OpenOrCreate)?;
    file.set_len(0)?;
    file.write_all_at(&[IoSlice::new(bytes)], 0)?;
    if reserve_bytes > bytes.len() as u64 {
        file.allocate(reserve_bytes)?;
    }
    file.sync_data()?;
    disk.rename(&fresh, path)?;
    disk.sync_dir(dir)
}

/// Reads until the buffer is full or the file ends.
pub(crate) fn read_full(file: &dyn DiskFile, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        let count = file.read_at(&mut buffer[filled..], at + filled as u64)?;
        if count == 0 {
            break;
        }
        filled += count;
    }
    Ok(filled)
}
