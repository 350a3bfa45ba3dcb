//! A consumer's session does the same work for a message, however many consumers the channel has.
//!
//! The allocator of all integration tests counts the bytes that each thread allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use crate::common::World;

/// Counts bytes and calls the system's allocator.
struct Counting;

thread_local! {
    /// Bytes that this thread has allocated.
    static BYTES: Cell<usize> = const { Cell::new(0) };
}

fn note(bytes: usize) {
    BYTES.set(BYTES.get() + bytes);
}

// SAFETY: every call is passed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        note(bytes);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(pointer, layout, bytes) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The maximum bytes that the thread allocates while a consumer finishes one of ten messages and
/// gets the next. The channel has this many other consumers.
fn bytes_per_message(others: usize) -> usize {
    let world = World::new();
    let others: Vec<_> = (0..others)
        .map(|_| {
            let mut other = world.connect();
            other.subscribe("t", "ch");
            other
        })
        .collect();
    world.publish("t", &["x"; 20]);
    let mut busy = world.subscribe("t", "ch", 1);
    let mut most = 0;
    for _ in 0..10 {
        let id = busy.messages()[0].id.clone();
        // After this time the session checks the channel's depth again.
        world.advance(20);
        let before = BYTES.get();
        busy.send(format!("FIN {id}\n").as_bytes());
        most = most.max(BYTES.get() - before);
    }
    drop(others);
    most
}

#[test]
fn a_busy_consumer_costs_the_same_beside_a_thousand_others() {
    let (alone, beside) = (bytes_per_message(0), bytes_per_message(1000));
    assert!(
        beside < alone + 4096,
        "{beside} bytes for a message instead of {alone}"
    );
}
