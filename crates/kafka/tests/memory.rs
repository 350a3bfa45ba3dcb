//! No request makes the broker allocate memory by the counts that it announces, only by the bytes
//! that have arrived.
//!
//! The allocator of all integration tests counts allocations, for each thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::task::{Context, Waker};

use crate::common::{World, batch};
use bytes::Bytes;
use cloverleaf_kafka::Session;
use cloverleaf_kafka::apis::APIS;
use cloverleaf_log::{Batch, Durability};
use cloverleaf_session::{Input, Output, Session as _};

/// Counts allocations, and forwards them to the system's allocator.
struct Counting;

thread_local! {
    /// Of the thread's allocations: the largest, the sum and the number.
    static COUNTERS: Cell<(usize, usize, usize)> = const { Cell::new((0, 0, 0)) };
}

fn note(bytes: usize) {
    let (largest, total, count) = COUNTERS.get();
    COUNTERS.set((largest.max(bytes), total + bytes, count + 1));
}

// SAFETY: every call is forwarded unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
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

/// The allocations of this thread while `work` runs: the largest, the sum and the number.
fn measure(work: impl FnOnce()) -> (usize, usize, usize) {
    COUNTERS.set((0, 0, 0));
    work();
    COUNTERS.get()
}

fn request(key: i16, version: i16, is_flexible: bool, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&key.to_be_bytes());
    bytes.extend_from_slice(&version.to_be_bytes());
    bytes.extend_from_slice(&[0, 0, 0, 1, 0xff, 0xff]);
    if is_flexible {
        bytes.push(0);
    }
    bytes.extend_from_slice(body);
    let mut frame = (bytes.len() as i32).to_be_bytes().to_vec();
    frame.extend_from_slice(&bytes);
    frame
}

/// The largest counts of each encoding, and a plausible one of each.
const HUGE: [&[u8]; 4] = [
    &[0x7f, 0xff, 0xff, 0xff],
    &[0xff, 0xff, 0xff, 0xff, 0x0f],
    &[0x00, 0x0f, 0xff, 0xff],
    &[0xff, 0xff, 0x3f],
];

/// Bound on answers that do not depend on the request, such as the list of versions or a table of
/// settings.
const ANSWER_BYTES_MAX: usize = 256 << 10;

#[test]
fn short_frames_with_huge_counts() {
    let world = World::new();
    let mut frames = 0;
    for api in APIS {
        for version in api.min..=api.max {
            // Filler before the first, second, ... array: in one of the encodings, zeros and ones
            // are empty strings, nulls and small numbers.
            for (before, filler) in (0..48).flat_map(|before| [(before, 0), (before, 1)]) {
                for huge in HUGE {
                    let mut body = vec![filler; before];
                    body.extend_from_slice(huge);
                    body.extend_from_slice(&[filler; 24]);
                    let flexible = api.is_flexible(version);
                    let bytes = request(api.api as i16, version, flexible, &body);
                    let mut peer = world.connect();
                    let (largest, total, _) = measure(|| {
                        peer.feed(&bytes);
                        peer.poll();
                    });
                    let what = format!("{:?} version {version}, {bytes:02x?}", api.api);
                    assert!(
                        largest < ANSWER_BYTES_MAX,
                        "{largest} bytes at once: {what}"
                    );
                    assert!(total < 4 * ANSWER_BYTES_MAX, "{total} bytes: {what}");
                    frames += 1;
                }
            }
        }
    }
    assert!(frames > 10_000);
}

/// In a steady state neither a message nor a request of a producer or a consumer costs an
/// allocation. Exceptions are the batch, which the log keeps, and the list in which the log returns
/// batches.
#[test]
fn steady_requests_allocate_next_to_nothing() {
    let world = World::new();
    let topic = world.topic("t", 1);
    let batch = batch(&["x".repeat(100).as_str(); 8]);
    let len = batch.bytes().len() + 1;
    assert!((128..16_000).contains(&len), "a length of two bytes");
    // No transactional id, acks 1, time-out, one topic, one partition.
    let mut produce = vec![0, 0, 1, 0, 0, 0, 0, 2, 2, b't', 2, 0, 0, 0, 0];
    produce.extend_from_slice(&[len as u8 | 0x80, (len >> 7) as u8]);
    produce.extend_from_slice(batch.bytes());
    produce.extend_from_slice(&[0, 0, 0]);
    let produce = request(0, 9, true, &produce);
    // The allocations of the log and the simulated disk for such a batch, including the test's own
    // copy.
    let (_, _, appended) = measure_least(|| {
        let copy = Batch::parse(Bytes::copy_from_slice(batch.bytes())).unwrap();
        drop(topic.publish_to(0, copy, Durability::Kernel).unwrap());
    });
    let mut steady = SteadyConnection::new(&world);
    let (_, _, count) = measure_least(|| steady.turn(&produce, 1));
    assert!(
        count <= appended,
        "{count} allocations, the log alone {appended}"
    );

    // Replica, wait, min bytes, max bytes, isolation, session 0, epoch -1, one topic.
    let mut fetch = vec![0xff; 4];
    fetch.extend_from_slice(&[0, 0, 1, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0]);
    fetch.extend_from_slice(&[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 2, 2, b't', 2]);
    // Partition, leader epoch, offset, last epoch, log start, max bytes, tags.
    fetch.extend_from_slice(&[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0]);
    fetch.extend_from_slice(&[0xff; 12]);
    fetch.extend_from_slice(&[0, 0, 0x0f, 0xa0, 0, 0]);
    // Nothing forgotten, no rack.
    fetch.extend_from_slice(&[1, 1, 0]);
    let fetch = request(1, 12, true, &fetch);
    let (_, _, count) = measure_least(|| steady.turn(&fetch, 2_000));
    assert!(
        count <= 4,
        "{count} allocations of a fetch: its list of batches"
    );
}

/// The round with the fewest allocations: now and then a list grows, or a segment begins.
fn measure_least(mut work: impl FnMut()) -> (usize, usize, usize) {
    let rounds = (0..20).map(|_| measure(&mut work));
    rounds.min_by_key(|(_, _, count)| *count).unwrap()
}

/// A connection whose driver reuses its output, like the server's.
struct SteadyConnection<'w> {
    world: &'w World,
    session: Session,
    out: Output,
}

impl SteadyConnection<'_> {
    fn new(world: &World) -> SteadyConnection<'_> {
        let session = world.connect().session;
        let out = Output::default();
        SteadyConnection {
            world,
            session,
            out,
        }
    }

    /// One request and its answer, of at least this size.
    fn turn(&mut self, request: &[u8], bytes_min: usize) {
        let now = self.world.now();
        let received = self.session.receive(Input::Lent(request), now);
        assert_eq!(received.consumed_bytes, request.len());
        self.out.clear();
        let mut cx = Context::from_waker(Waker::noop());
        self.session.poll(&mut cx, now, &mut self.out);
        assert!(
            self.out.len() >= bytes_min,
            "{:?}",
            self.session.take_failure()
        );
    }
}
