//! Checks whether parts of a file are in the page cache, with `mincore(2)`.
//!
//! `cachestat(2)` needs no mapping, but also counts pages whose read is not finished or has failed.
//! A thread that sends such pages would wait for the disk or get its error.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};

/// Pages of a file, mapped and never accessed: access to a page that the disk cannot read would end
/// the process (`SIGBUS`).
struct PageMapping {
    address: NonNull<c_void>,
    bytes: usize,
}

impl PageMapping {
    /// `None`: the system refuses the mapping.
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

    /// Whether all pages are in memory.
    fn is_in_memory(&self, page_bytes: usize) -> bool {
        let mut pages = vec![0_u8; self.bytes.div_ceil(page_bytes)];
        // SAFETY: the range is this mapping, and `pages` has one byte for each of its pages.
        let result =
            unsafe { libc::mincore(self.address.as_ptr(), self.bytes, pages.as_mut_ptr()) };
        // The other bits have no meaning.
        result == 0 && pages.iter().all(|page| page & 1 == 1)
    }
}

impl Drop for PageMapping {
    fn drop(&mut self) {
        // SAFETY: no other code has the address of this mapping.
        let result = unsafe { libc::munmap(self.address.as_ptr(), self.bytes) };
        debug_assert_eq!(result, 0);
    }
}

/// Whether all these bytes are in the page cache. `false` if the system does not say.
pub(super) fn is_in_memory(file: BorrowedFd<'_>, position: u64, bytes: usize) -> bool {
    let page_bytes = rustix::param::page_size();
    let before = position % page_bytes as u64;
    let bytes = bytes + before as usize;
    bytes == 0
        || PageMapping::new(file, position - before, bytes)
            .is_some_and(|mapping| mapping.is_in_memory(page_bytes))
}
