//! A [`Disk`] over the operating system's files below one folder.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Advice, FallocateFlags, FlockOperation, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use crate::error::OpenError;

use super::{
    BLOCK_BYTES, Descriptor, DirEntry, Disk, DiskFile, DiskLock, LockFailure, OpenMode,
    ZEROS_BYTES, mincore, write_zeros,
};

/// Maximum number of buffers in one vectored write on Linux (`IOV_MAX`).
const BUFFERS_MAX: usize = 1024;

/// A folder on a real file system.
#[derive(Debug)]
pub struct RealDisk {
    root: PathBuf,
    /// The folder, kept open for `syncfs`, which reports an error once per open file.
    handle: File,
    syncfs_reports_errors: bool,
}

/// Options to create files that only the broker's user can read, because they contain messages.
fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
}

/// Creates a folder and its missing parents, for the broker's user only.
fn create_private_folders(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

impl RealDisk {
    /// Opens the data folder and creates it if it is missing.
    ///
    /// # Errors
    /// The folder cannot be created or opened.
    pub fn open(root: impl AsRef<Path>) -> Result<Arc<RealDisk>, OpenError> {
        let root = root.as_ref().to_path_buf();
        let opened = create_private_folders(&root).and_then(|()| File::open(&root));
        match opened {
            Ok(handle) => Ok(Arc::new(RealDisk {
                root,
                handle,
                syncfs_reports_errors: syncfs_reports_errors(),
            })),
            Err(error) => {
                let (folder, message) = (root.display().to_string(), error.to_string());
                Err(OpenError::NotWritable { folder, message })
            }
        }
    }

    fn path(&self, path: &str) -> PathBuf {
        if path.is_empty() {
            self.root.clone()
        } else {
            self.root.join(path)
        }
    }
}

impl Disk for RealDisk {
    fn folder(&self) -> String {
        self.root.display().to_string()
    }

    fn boot_id(&self) -> String {
        // If the kernel has no such file, the empty text counts as another boot.
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        id.map(|id| id.trim().to_owned()).unwrap_or_default()
    }

    fn open(&self, path: &str, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = private_file();
        match mode {
            OpenMode::Existing => {}
            OpenMode::OpenOrCreate => {
                options.create(true).truncate(false);
            }
            OpenMode::CreateNew => {
                options.create_new(true);
            }
        }
        Ok(Arc::new(RealFile {
            file: Arc::new(options.open(self.path(path))?),
        }))
    }

    fn create_zeroed(&self, path: &str, len: u64, goes_on: &dyn Fn() -> bool) -> io::Result<()> {
        let path = self.path(path);
        let created = private_file().create_new(true).open(&path)?;
        let ordinary = RealFile {
            file: Arc::new(created),
        };
        ordinary.allocate(len)?;
        let memory = vec![0; ZEROS_BYTES + BLOCK_BYTES as usize];
        let skipped = memory.as_ptr().align_offset(BLOCK_BYTES as usize);
        let zeros = memory.get(skipped..skipped.saturating_add(ZEROS_BYTES));
        let zeros = zeros.ok_or(ErrorKind::Unsupported)?;
        // Bypasses the page cache: 64 MiB that are not read would evict pages that are.
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let direct = options
            .custom_flags(OFlags::DIRECT.bits() as i32)
            .open(&path);
        let written = direct.and_then(|file| {
            let file = Arc::new(file);
            let direct = RealFile { file };
            write_zeros(&direct, zeros, len, goes_on)
        });
        match written {
            // The file system does not support direct I/O.
            Err(error) if error.kind() == ErrorKind::InvalidInput => {
                write_zeros(&ordinary, zeros, len, goes_on)?;
                ordinary.sync_data()?;
                // A failure is harmless: this is only a hint.
                let _ = rustix::fs::fadvise(&ordinary.file, 0, None, Advice::DontNeed);
                Ok(())
            }
            written => written.and_then(|()| ordinary.sync_data()),
        }
    }

    fn create_dir_all(&self, path: &str) -> io::Result<()> {
        create_private_folders(&self.path(path))
    }

    fn list(&self, path: &str) -> io::Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(self.path(path))? {
            let entry = entry?;
            let is_dir = entry.file_type()?.is_dir();
            entries.push(DirEntry {
                name: entry.file_name().to_string_lossy().into(),
                is_dir,
            });
        }
        Ok(entries)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path(from), self.path(to))
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        fs::remove_file(self.path(path))
    }

    fn remove_dir_all(&self, path: &str) -> io::Result<()> {
        fs::remove_dir_all(self.path(path))
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        File::open(self.path(path))?.sync_all()
    }

    fn sync_fs(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(&self.handle)?)
    }

    fn sync_fs_reports_errors(&self) -> bool {
        self.syncfs_reports_errors
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let stat = rustix::fs::fstatvfs(&self.handle)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn total_bytes(&self) -> io::Result<u64> {
        let stat = rustix::fs::fstatvfs(&self.handle)?;
        Ok(stat.f_blocks.saturating_mul(stat.f_frsize))
    }

    fn lock(&self, path: &str) -> Result<Box<dyn DiskLock>, LockFailure> {
        let path = self.path(path);
        let file = private_file()
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(LockFailure::Io)?;
        let held = match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => false,
            Err(Errno::WOULDBLOCK) => true,
            Err(error) => return Err(LockFailure::Io(error.into())),
        };
        let text = fs::read_to_string(&path)
            .unwrap_or_default()
            .trim()
            .to_owned();
        if held {
            return Err(LockFailure::Held(text));
        }
        Ok(Box::new(RealLock {
            file,
            previous: text,
        }))
    }
}

/// Whether `syncfs` reports write-back errors of files: Linux does since 5.8 (syncfs(2)).
fn syncfs_reports_errors() -> bool {
    let name = rustix::system::uname();
    name.release().to_str().is_ok_and(is_since_5_8)
}

/// Whether a kernel's release text, as in `uname -r`, names 5.8 or later.
fn is_since_5_8(release: &str) -> bool {
    let mut numbers = release
        .split(|letter: char| !letter.is_ascii_digit())
        .map_while(|number| number.parse::<u32>().ok());
    let version = (numbers.next(), numbers.next());
    version >= (Some(5), Some(8))
}

/// Closing the file releases the lock.
struct RealLock {
    file: File,
    previous: String,
}

impl DiskLock for RealLock {
    fn set_text(&self, text: &str) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.write_all_at(text.as_bytes(), 0)
    }

    fn previous_text(&self) -> &str {
        &self.previous
    }
}

#[derive(Debug)]
struct RealFile {
    file: Arc<File>,
}

impl RealFile {
    /// Finishes a vectored write that the kernel has done only in part.
    fn write_rest(
        &self,
        buffers: &[IoSlice<'_>],
        mut written: usize,
        mut position: u64,
    ) -> io::Result<()> {
        for buffer in buffers {
            if written >= buffer.len() {
                written -= buffer.len();
            } else {
                self.file
                    .write_all_at(&buffer[written..], position + written as u64)?;
                written = 0;
            }
            position += buffer.len() as u64;
        }
        Ok(())
    }
}

impl DiskFile for RealFile {
    fn write_all_at(&self, buffers: &[IoSlice<'_>], mut position: u64) -> io::Result<()> {
        for group in buffers.chunks(BUFFERS_MAX) {
            let total: usize = group.iter().map(|buffer| buffer.len()).sum();
            let written = loop {
                match rustix::io::pwritev(&self.file, group, position) {
                    Ok(count) => break count,
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            };
            if written < total {
                self.write_rest(group, written, position)?;
            }
            position += total as u64;
        }
        Ok(())
    }

    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        loop {
            match self.file.read_at(buffer, position) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    fn read_at_nowait(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let mut buffers = [IoSliceMut::new(buffer)];
        let read = rustix::io::preadv2(&self.file, &mut buffers, position, ReadWriteFlags::NOWAIT);
        match read {
            Ok(count) => Ok(count),
            // File systems without the flag: the caller reads on the reader thread.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INTR | Errno::INVAL) => {
                Err(ErrorKind::WouldBlock.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, len) {
            Ok(()) => Ok(()),
            // File systems without preallocation: set at least the size.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                if self.len()? < len {
                    self.file.set_len(len)
                } else {
                    Ok(())
                }
            }
            Err(error) => Err(error.into()),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn descriptor(&self) -> Option<Descriptor> {
        Some(self.file.clone())
    }

    fn is_in_memory(&self, position: u64, bytes: usize) -> bool {
        mincore::is_in_memory(self.file.as_fd(), position, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_releases_are_compared_as_numbers() {
        for (release, expected) in [
            ("5.8.0", true),
            ("5.10.0-28-amd64", true),
            ("6.1", true),
            ("5.7.19-rc1", false),
            ("4.19.0", false),
            ("5", false),
            ("", false),
            ("unknown", false),
        ] {
            assert_eq!(is_since_5_8(release), expected, "{release}");
        }
    }
}
