//! Which parts of a file the kernel has in memory, ready to be read: `mincore(2)`.
//!
//! `cachestat(2)` needs no mapping, but counts pages whose read is still under way or has failed,
//! and a thread that sends these waits for the disk, or gets its error.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};

/// Pages of a file, mapped and never touched: to touch one whose disk fails would end the process.
struct Mapping {
    address: NonNull<c_void>,
    bytes: usize,
}

impl Mapping {
    /// `None`: the system does not want to.
    fn new(file: BorrowedFd<'_>, position: u64, bytes: usize) -> Option<Self> {
        let position = libc::off_t::try_from(position).ok()?;
        // SAFETY: a new mapping at an address that the kernel chooses changes nothing of ours.
        let address = unsafe {
            let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED);
            libc::mmap(
                null_mut(),
                bytes,
                protection,
                flags,
                file.as_raw_fd(),
                position,
            )
        };
        if address == libc::MAP_FAILED {
            return None;
        }
        let address = NonNull::new(address)?;
        Some(Self { address, bytes })
    }

    /// Whether each page is in memory.
    fn is_in_memory(&self, page_bytes: usize) -> bool {
        let mut pages = vec![0_u8; self.bytes.div_ceil(page_bytes)];
        // SAFETY: the range is this mapping, and there is an octet for each of its pages.
        let result =
            unsafe { libc::mincore(self.address.as_ptr(), self.bytes, pages.as_mut_ptr()) };
        // Other bits mean nothing.
        result == 0 && pages.iter().all(|page| page & 1 == 1)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody else knows this mapping.
        let result = unsafe { libc::munmap(self.address.as_ptr(), self.bytes) };
        debug_assert_eq!(result, 0);
    }
}

/// Whether all of these bytes can be read without the disk. `false` if the system does not say.
pub(super) fn is_in_memory(file: BorrowedFd<'_>, position: u64, bytes: usize) -> bool {
    let page_bytes = rustix::param::page_size();
    let before = position % page_bytes as u64;
    let bytes = bytes + before as usize;
    bytes == 0
        || Mapping::new(file, position - before, bytes)
            .is_some_and(|mapping| mapping.is_in_memory(page_bytes))
}
