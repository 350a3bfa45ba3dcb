#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::atomic::AtomicUsize;
use std::task::Wake;

use super::*;

const MIB: usize = 1 << 20;
const SECOND_US: u64 = 1_000_000;

/// Counts how often it is woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

impl Woken {
    fn take(&self) -> bool {
        self.0.swap(0, SeqCst) > 0
    }
}

/// A connection that holds what it can of a command.
struct Peer {
    hold: Hold,
    woken: Arc<Woken>,
}

impl Peer {
    fn new(of: &Arc<HalfReceived>) -> Peer {
        Peer {
            hold: Hold::new(Arc::clone(of)),
            woken: Arc::default(),
        }
    }

    /// Whether there is room for so many bytes of a command.
    fn grows(&mut self, needed: usize, bytes: usize, now_us: u64) -> bool {
        let waker = Waker::from(Arc::clone(&self.woken));
        let cx = Context::from_waker(&waker);
        self.hold.poll_grow(needed, bytes, &cx, now_us).is_ready()
    }
}

#[test]
fn the_largest_request_fits_when_it_is_alone() {
    let memory = HalfReceived::new(4096, SECOND_US);
    let mut peer = Peer::new(&memory);
    for bytes in 1..=100 {
        assert!(peer.grows(100 * MIB, bytes * MIB, 0));
    }
    assert_eq!(memory.bytes(), 100 << 20);
    peer.hold.settle(0, 0, true, 0);
    assert_eq!((memory.bytes(), memory.waiting()), (0, 0));
}

#[test]
fn one_goes_beyond_the_bound_and_the_others_follow_in_order() {
    let memory = HalfReceived::new(4 << 20, SECOND_US);
    let mut peers: Vec<Peer> = (0..4).map(|_| Peer::new(&memory)).collect();
    let whole = 10 * MIB;
    // Three of the four MiB are for such requests.
    for peer in &mut peers[..3] {
        assert!(peer.grows(whole, MIB, 0));
    }
    assert!(peers[0].grows(whole, 2 * MIB, 0), "it may go beyond");
    for peer in &mut peers[1..] {
        assert!(!peer.grows(whole, 2 * MIB, 0));
    }
    assert_eq!(memory.waiting(), 3);
    for bytes in 2..=10 {
        assert!(peers[0].grows(whole, bytes * MIB, 0), "and to its end");
    }
    assert_eq!(memory.bytes(), 12 << 20);
    for next in 1..4 {
        peers[next - 1].hold.settle(0, 0, true, 0);
        assert!(peers[next].woken.take(), "{next} comes next");
        assert!(peers[next].grows(whole, whole, 0));
        for later in &mut peers[next + 1..] {
            later.woken.take();
            assert!(!later.grows(whole, 2 * MIB, 0));
        }
    }
    drop(peers);
    assert_eq!((memory.bytes(), memory.waiting()), (0, 0));
}

#[test]
fn who_goes_or_pauses_leaves_its_place() {
    let memory = HalfReceived::new(4 << 20, SECOND_US);
    let mut peers: Vec<Peer> = (0..4).map(|_| Peer::new(&memory)).collect();
    assert!(peers[0].grows(10 * MIB, 10 * MIB, 0));
    for peer in &mut peers[1..] {
        assert!(!peer.grows(10 * MIB, MIB, 0));
    }
    // The first in the queue is not asked any more, the second one goes.
    peers[1].hold.pause(0);
    drop(peers.remove(2));
    assert_eq!(memory.waiting(), 1);
    peers.remove(0);
    assert!(peers[1].woken.take());
    assert!(peers[1].grows(10 * MIB, MIB, 0));
    assert!(peers[0].grows(10 * MIB, MIB, 0), "there is room");
    drop(peers);
    assert_eq!(memory.bytes(), 0);
}

#[test]
fn usual_requests_have_room_of_their_own() {
    let memory = HalfReceived::new(8 << 20, SECOND_US);
    let (mut one, mut other) = (Peer::new(&memory), Peer::new(&memory));
    assert!(one.grows(90 * MIB, 90 * MIB, 0));
    assert!(!other.grows(90 * MIB, MIB, 0));
    let mut usual = Peer::new(&memory);
    assert!(usual.grows(MIB, MIB, 0));
    assert!(!usual.hold.is_tight());
    let mut second = Peer::new(&memory);
    assert!(second.grows(MIB, MIB, 0));
    assert!(usual.hold.is_tight());
}

#[test]
fn a_silent_peer_has_less_time_than_one_that_sends() {
    let memory = HalfReceived::new(4 << 20, SECOND_US);
    let mut peer = Peer::new(&memory);
    assert_eq!(peer.hold.due_us(), None);
    assert!(peer.grows(10 * MIB, 4 * MIB, 5 * SECOND_US));
    assert_eq!(peer.hold.due_us(), Some(6 * SECOND_US));
    // As long as it sends and nobody waits, it has all the time that it wants.
    peer.hold.moved(90 * SECOND_US);
    assert_eq!(peer.hold.due_us(), Some(91 * SECOND_US));
    // Not counted: it was not read from.
    peer.hold.pause(90 * SECOND_US);
    assert_eq!(peer.hold.due_us(), None);
    assert!(peer.grows(10 * MIB, 4 * MIB, 190 * SECOND_US));
    assert_eq!(peer.hold.due_us(), Some(191 * SECOND_US));
    // Somebody waits: it had a second, and ten for its size.
    let mut other = Peer::new(&memory);
    assert!(!other.grows(10 * MIB, MIB, 190 * SECOND_US));
    assert_eq!(other.hold.due_us(), None, "who waits is not to blame");
    assert_eq!(peer.hold.due_us(), Some((5 + 100 + 1 + 10) * SECOND_US));
}

#[test]
fn what_was_read_already_is_charged_without_asking() {
    let memory = HalfReceived::new(1 << 20, SECOND_US);
    let mut peer = Peer::new(&memory);
    peer.hold.settle(MIB, FREE_BYTES, false, 0);
    assert_eq!(memory.bytes(), 0);
    peer.hold.settle(MIB, 256 << 10, true, 0);
    assert_eq!(memory.bytes(), 256 << 10);
    assert!(peer.hold.is_tight());
    // The next command's beginning is less.
    peer.hold.settle(MIB, 100 << 10, true, 0);
    assert_eq!(memory.bytes(), 100 << 10);
    peer.hold.settle(MIB, FREE_BYTES, true, 0);
    assert_eq!(memory.bytes(), 0);
    // The beginning of a huge one takes nothing from the usual ones.
    peer.hold.settle(90 * MIB, 256 << 10, true, 0);
    assert_eq!(memory.bytes(), 256 << 10);
    assert!(!peer.hold.is_tight());
}

#[test]
fn threads_that_compete_all_come_to_their_end() {
    let memory = HalfReceived::new(1 << 20, SECOND_US);
    let bound = (3 << 18) + (2 << 20) + 8 * (256 << 10);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread();
                let mut hold = Hold::new(Arc::clone(&memory));
                { runtime }.build().unwrap().block_on(async {
                    for _ in 0..200 {
                        for quarter in 1..=8 {
                            let bytes = quarter * (256 << 10);
                            std::future::poll_fn(|cx| hold.poll_grow(2 * MIB, bytes, cx, 0)).await;
                            assert!(memory.bytes() <= bound);
                        }
                        hold.settle(0, 0, true, 0);
                    }
                });
            });
        }
    });
    assert_eq!((memory.bytes(), memory.waiting()), (0, 0));
}
