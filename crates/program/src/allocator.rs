//! The allocator, and how long it keeps what is free.

use std::ffi::{c_int, c_long};

/// Keeps the heap of each thread apart, which suits one runtime per core.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay`: after how many milliseconds free pages go back to the kernel.
const PURGE_DELAY: c_int = 15;
/// By itself it keeps them for a second: in that time a hundred connections may have held and freed
/// some megabytes each, one after the other, and all of it would count as ours. Pages that are used
/// again and again are not free for as long as this.
const PURGE_DELAY_MS: c_long = 10;

unsafe extern "C" {
    fn mi_option_set_default(option: c_int, value: c_long);
}

/// Lets free memory go soon, unless the environment says otherwise (`MIMALLOC_PURGE_DELAY`).
pub(crate) fn give_back_soon() {
    // SAFETY: it sets a number, whose name is that of the linked allocator's header.
    unsafe { mi_option_set_default(PURGE_DELAY, PURGE_DELAY_MS) }
}
