//! The file seam: everything that the log asks of a disk, and nothing else.
//!
//! [`RealDisk`] is a folder, [`SimDisk`] a simulated disk that can lose power, and [`FaultyDisk`]
//! wraps either and fails on demand. Paths are relative to the data folder, with `/` between parts.
//!
//! The guarantees for a power loss, on every implementation. These survive:
//! - the bytes and the size of a file: after [`DiskFile::sync_data`];
//! - the name of a file or folder, its removal, a rename: after [`Disk::sync_dir`] of its parent;
//! - everything: after [`Disk::sync_fs`].

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

/// File systems write in blocks of this size or a divisor of it, and page caches in pages.
pub(crate) const BLOCK_BYTES: u64 = 4096;
/// Zeros are written in pieces of this size. Syncs of others wait behind a piece: with 1 MiB the
/// slowest took twice as long (`docs/decisions/007-segments-written-ahead.md`).
const ZEROS_BYTES: usize = 64 << 10;

/// How [`Disk::open`] treats existing and missing files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// The file must exist (read and write).
    Existing,
    /// Created if it is missing.
    OpenOrCreate,
    /// Created; an existing file is an error.
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
    /// Replaces the text that a second broker is shown.
    ///
    /// # Errors
    /// The operating system's.
    fn set_text(&self, text: &str) -> io::Result<()>;

    /// The text that the previous holder left behind.
    fn previous_text(&self) -> &str;
}

/// Why a data folder could not be locked.
#[derive(Debug)]
pub enum LockFailure {
    /// Somebody else holds it; this is the text they left in the lock file.
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

    /// Names the time since the machine was switched on: while it stays the same, the kernel still
    /// has everything that it was ever handed. Only a failed write-back can make that untrue; what
    /// it may concern is poisoned, and said to nobody to be on the disk.
    fn boot_id(&self) -> String;

    /// Opens a file for reading and writing.
    fn open(&self, path: &str, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>>;

    /// Creates a file of `len` bytes (a multiple of 4096) whose blocks are all *written* with
    /// zeros, and makes bytes and size durable, not its name. Ends early, with an error, when
    /// `goes_on` says no; it is asked now and then. After an error the file may be there.
    fn create_zeroed(&self, path: &str, len: u64, goes_on: &dyn Fn() -> bool) -> io::Result<()> {
        let file = self.open(path, OpenMode::CreateNew)?;
        file.allocate(len)?;
        let zeros = vec![0; ZEROS_BYTES.min(len as usize)];
        write_zeros(&*file, &zeros, len, goes_on)?;
        file.sync_data()
    }

    /// Creates a folder and its parents. Existing ones are no error.
    fn create_dir_all(&self, path: &str) -> io::Result<()>;

    /// Names in a folder, in no particular order. The data folder itself is the empty path.
    fn list(&self, path: &str) -> io::Result<Vec<DirEntry>>;

    /// Renames a file; an existing target is replaced.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    fn remove_file(&self, path: &str) -> io::Result<()>;

    /// Removes a folder and everything in it.
    fn remove_dir_all(&self, path: &str) -> io::Result<()>;

    /// Makes the names in this folder durable.
    fn sync_dir(&self, path: &str) -> io::Result<()>;

    /// Makes everything on the file system durable (`syncfs`).
    fn sync_fs(&self) -> io::Result<()>;

    /// Whether [`Disk::sync_fs`] reports data that could not be written. If not, a file is durable
    /// only after its own sync.
    fn sync_fs_reports_errors(&self) -> bool {
        true
    }

    /// Bytes that an ordinary process may still write.
    fn free_bytes(&self) -> io::Result<u64>;

    /// Bytes that the file system has in all.
    fn total_bytes(&self) -> io::Result<u64>;

    /// Takes the folder's lock, or says who has it.
    ///
    /// # Errors
    /// [`LockFailure::Held`] when another process or another open log holds it.
    fn lock(&self, path: &str) -> Result<Box<dyn DiskLock>, LockFailure>;
}

/// An open file of the operating system, for calls that send from it.
pub type Descriptor = Arc<dyn AsFd + Send + Sync>;

/// An open file. Reads and writes name their position; there is no cursor.
///
/// All methods return the operating system's errors.
#[allow(clippy::missing_errors_doc)]
pub trait DiskFile: Send + Sync {
    /// Writes all buffers one after the other at `position`, or fails. After an error any part of
    /// it may have been written.
    fn write_all_at(&self, buffers: &[IoSlice<'_>], position: u64) -> io::Result<()>;

    /// Reads at `position`; fewer bytes than asked for mean the end of the file.
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize>;

    /// As `read_at`, but only what needs no disk access; `WouldBlock` when that is nothing. May
    /// return fewer bytes than asked for anywhere.
    fn read_at_nowait(&self, buffer: &mut [u8], position: u64) -> io::Result<usize>;

    /// Reserves space up to `len` bytes and sets the size to at least that; new bytes read as 0.
    fn allocate(&self, len: u64) -> io::Result<()>;

    /// Sets the size; bytes beyond it are gone, new ones read as 0.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Makes bytes and size durable (`fdatasync`).
    fn sync_data(&self) -> io::Result<()>;

    /// Size in bytes.
    fn len(&self) -> io::Result<u64>;

    /// The operating system's file, for calls that send from it; none if there is none.
    fn descriptor(&self) -> Option<Descriptor> {
        None
    }

    /// Whether all of these bytes can be read without the disk. `false` if nobody knows.
    fn is_in_memory(&self, _position: u64, _bytes: usize) -> bool {
        false
    }

    /// Whether the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// Writes `zeros` again and again, up to `len` bytes.
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

/// Reads a file as a whole. Parts that the disk cannot read are zeros in the answer: bytes that
/// their checksum tells from others.
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

/// Writes a file and puts it in the place of that of the same name, if there is one: after a crash
/// it is the old one or the new one. Space up to `room` bytes is reserved.
pub(crate) fn replace_file(
    disk: &dyn Disk,
    dir: &str,
    path: &str,
    bytes: &[u8],
    room: u64,
) -> io::Result<()> {
    let fresh = format!("{path}.new");
    let file = disk.open(&fresh, OpenMode::OpenOrCreate)?;
    file.set_len(0)?;
    file.write_all_at(&[IoSlice::new(bytes)], 0)?;
    if room > bytes.len() as u64 {
        file.allocate(room)?;
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
