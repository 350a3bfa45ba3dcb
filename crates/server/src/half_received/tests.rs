#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Wake, Waker};

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

/// A connection with a command that comes in part.
struct Peer {
    hold: HeldMemory,
    woken: Arc<Woken>,
}

fn memory_with(bounds: BudgetBounds) -> Arc<HalfReceived> {
    HalfReceived::new(bounds, &[Protocol::Nsq, Protocol::Kafka, Protocol::Amqp])
}

/// A budget of `bytes_max` bytes, without a limit for addresses.
fn memory(bytes_max: u64) -> Arc<HalfReceived> {
    memory_with(BudgetBounds {
        bytes_max,
        address_bytes_max: None,
        timeout_us: 30 * SECOND_US,
    })
}

impl Peer {
    fn new(of: &Arc<HalfReceived>) -> Peer {
        Peer::from(of, Protocol::Nsq, [127, 0, 0, 1])
    }

    fn from(of: &Arc<HalfReceived>, protocol: Protocol, address: [u8; 4]) -> Peer {
        Peer {
            hold: HeldMemory::new(Arc::clone(of), protocol, IpAddr::from(address)),
            woken: Arc::default(),
        }
    }

    /// `bytes` bytes of a command of `needed` bytes have come, in a buffer of that size.
    fn came(&mut self, needed: usize, bytes: usize, now_us: u64) {
        self.came_into(needed, bytes, bytes, now_us);
    }

    /// `bytes` bytes have come, in a buffer of `size` bytes.
    fn came_into(&mut self, needed: usize, bytes: usize, size: usize, now_us: u64) {
        let waker = Waker::from(Arc::clone(&self.woken));
        let cx = Context::from_waker(&waker);
        self.hold.charge(needed, bytes, size, false, &cx, now_us);
    }

    /// Its command is complete, or dropped.
    fn done(&mut self) {
        self.hold.release();
    }

    /// Whether it may hold `bytes` bytes of a command of `needed` bytes.
    fn grows(&mut self, needed: usize, bytes: usize, now_us: u64) -> bool {
        let waker = Waker::from(Arc::clone(&self.woken));
        let cx = Context::from_waker(&waker);
        self.hold.poll_grow(needed, bytes, &cx, now_us).is_ready()
    }
}

#[test]
fn the_largest_request_fits_when_it_is_alone() {
    let memory = memory(4096);
    let mut peer = Peer::new(&memory);
    for bytes in 1..=100 {
        assert!(peer.grows(100 * MIB, bytes * MIB, 0));
    }
    assert_eq!(memory.bytes(), 100 << 20);
    peer.done();
    assert_eq!((memory.bytes(), memory.waiting()), (0, 0));
}

#[test]
fn one_goes_beyond_the_bound_and_the_others_follow_in_order() {
    let memory = memory(8 << 20);
    let mut peers: Vec<Peer> = (0..4).map(|_| Peer::new(&memory)).collect();
    let whole = 10 * MIB;
    // Five of the eight MiB are common: each of the three protocols has one to itself.
    assert!(peers[0].grows(whole, 3 * MIB, 0));
    for peer in &mut peers[1..3] {
        assert!(peer.grows(whole, MIB, 0));
    }
    assert!(peers[0].grows(whole, 4 * MIB, 0), "exceeds the budget");
    for peer in &mut peers[1..] {
        assert!(!peer.grows(whole, 2 * MIB, 0));
    }
    assert_eq!(memory.waiting(), 3);
    for bytes in 4..=10 {
        assert!(peers[0].grows(whole, bytes * MIB, 0), "and to its end");
    }
    assert_eq!(memory.bytes(), 12 << 20);
    for next in 1..4 {
        peers[next - 1].done();
        assert!(peers[next].woken.take(), "{next} is next");
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
fn a_connection_that_ends_or_pauses_leaves_the_queue() {
    let memory = memory(4 << 20);
    let mut peers: Vec<Peer> = (0..4).map(|_| Peer::new(&memory)).collect();
    assert!(peers[0].grows(10 * MIB, 10 * MIB, 0));
    for peer in &mut peers[1..] {
        assert!(!peer.grows(10 * MIB, MIB, 0));
    }
    // The first connection in the queue has paused, so the second one gets the memory.
    peers[1].hold.pause(0);
    drop(peers.remove(2));
    assert_eq!(memory.waiting(), 1);
    peers.remove(0);
    assert!(peers[1].woken.take());
    assert!(peers[1].grows(10 * MIB, MIB, 0));
    assert!(peers[0].grows(10 * MIB, MIB, 0), "memory is free");
    drop(peers);
    assert_eq!(memory.bytes(), 0);
}

#[test]
fn each_protocol_has_memory_of_its_own_for_usual_requests() {
    let memory = memory(8 << 20);
    let of = |protocol| Peer::from(&memory, protocol, [127, 0, 0, 1]);
    let mut large = of(Protocol::Kafka);
    assert!(large.grows(90 * MIB, 90 * MIB, 0));
    let mut other = of(Protocol::Kafka);
    assert!(!other.grows(90 * MIB, MIB, 0));
    for protocol in [Protocol::Nsq, Protocol::Kafka, Protocol::Amqp] {
        let mut usual = [of(protocol), of(protocol), of(protocol)];
        assert!(usual[0].grows(MIB, MIB, 0));
        assert!(usual[1].grows(MIB, MIB, 0), "exceeds the budget");
        assert!(!usual[2].grows(MIB, 60_000, 0));
    }
}

#[test]
fn memory_for_bytes_that_did_not_come_is_released() {
    let memory = memory(8 << 20);
    let mut peer = Peer::new(&memory);
    peer.came(MIB, 40_000, 0);
    assert!(peer.grows(MIB, 300_000, 0));
    assert_eq!(memory.bytes(), 300_000);
    peer.came(MIB, 40_000, 0);
    assert_eq!(memory.bytes(), 40_000);
}

#[test]
fn a_peer_has_a_total_time_limit_only_while_others_wait() {
    let memory = memory(8 << 20);
    let mut peer = Peer::new(&memory);
    assert_eq!(peer.hold.due_us(), None);
    assert!(peer.grows(10 * MIB, 5 * MIB, 5 * SECOND_US));
    assert_eq!(peer.hold.due_us(), Some((5 + 30) * SECOND_US));
    // As long as the peer sends and no connection waits, there is no limit to its total time.
    peer.came(10 * MIB, 4 * MIB, 90 * SECOND_US);
    assert_eq!(peer.hold.due_us(), Some(120 * SECOND_US));
    // A few bytes do not count as progress.
    peer.came(10 * MIB, 4 * MIB + 1000, 95 * SECOND_US);
    assert_eq!(peer.hold.due_us(), Some(120 * SECOND_US));
    // A pause does not count as silence.
    peer.hold.pause(90 * SECOND_US);
    assert_eq!(peer.hold.due_us(), None);
    assert!(peer.grows(10 * MIB, 4 * MIB, 190 * SECOND_US));
    assert_eq!(peer.hold.due_us(), Some(220 * SECOND_US));
    // Another connection waits: now the peer has 30 s in all, and 10 s more for the size of its
    // command.
    let mut others = [Peer::new(&memory), Peer::new(&memory)];
    assert!(others[0].grows(10 * MIB, 2 * MIB, 190 * SECOND_US));
    assert!(!others[1].grows(10 * MIB, 2 * MIB, 190 * SECOND_US));
    assert!(!others[1].hold.is_expired(u64::MAX), "a wait is no silence");
    assert!(peer.hold.is_expired((5 + 100 + 30 + 10) * SECOND_US));
    assert!(!peer.hold.is_expired((5 + 100 + 30 + 10) * SECOND_US - 1));
}

#[test]
fn the_connections_silent_longest_are_closed() {
    let memory = memory(8 << 20);
    let mut peers: Vec<Peer> = (0..6).map(|_| Peer::new(&memory)).collect();
    for (peer, at) in peers.iter_mut().zip([3, 1, 5, 2, 4, 6]) {
        peer.came(MIB, MIB, at * SECOND_US / 10);
        assert!(peer.grows(MIB, MIB, at * SECOND_US / 10));
    }
    // These six hold all of the common five MiB and NSQ's own one. One more goes beyond, the next
    // one waits.
    let mut usual = [Peer::new(&memory), Peer::new(&memory)];
    assert!(usual[0].grows(MIB, MIB, SECOND_US));
    assert!(!usual[1].grows(MIB, 1000, SECOND_US));
    let over = |peers: &[Peer], now_us: u64| -> Vec<usize> {
        let over = |peer: &usize| peers[*peer].hold.is_expired(now_us);
        (0..peers.len()).filter(over).collect()
    };
    assert_eq!(over(&peers, SECOND_US), [0; 0]);
    // It is due again when the peer silent longest has been silent for a second.
    assert_eq!(usual[1].hold.due_us(), Some(SECOND_US * 11 / 10));
    assert!(!usual[1].grows(MIB, 1000, SECOND_US * 11 / 10));
    assert_eq!(over(&peers, SECOND_US), [1]);
    assert!(peers[1].woken.take());
    // One such connection is not enough for both, and is closed at its own time. Never more are
    // closed at once than necessary.
    assert!(!usual[1].grows(MIB, 1000, SECOND_US * 19 / 10));
    assert_eq!(over(&peers, SECOND_US), [1, 3]);
    peers[1].done();
    assert!(!usual[1].grows(MIB, 1000, SECOND_US * 19 / 10));
    peers[3].done();
    assert!(usual[1].woken.take());
    assert!(usual[1].grows(MIB, 1000, SECOND_US * 19 / 10));
    assert_eq!(over(&peers, 2 * SECOND_US), [0; 0]);
}

#[test]
fn a_peer_whose_bytes_are_in_the_socket_is_not_closed() {
    let memory = memory(8 << 20);
    let mut peers: Vec<Peer> = (0..6).map(|_| Peer::new(&memory)).collect();
    for peer in &mut peers {
        peer.came(MIB, MIB / 2, 0);
        assert!(peer.grows(MIB, MIB, 0));
    }
    let mut usual = [Peer::new(&memory), Peer::new(&memory)];
    assert!(usual[0].grows(MIB, MIB, SECOND_US));
    assert!(!usual[1].grows(MIB, MIB, SECOND_US));
    let given_up: Vec<bool> = peers
        .iter()
        .map(|it| it.hold.is_expired(SECOND_US))
        .collect();
    assert_eq!(given_up, [true, true, false, false, false, false]);
    // Its core had been busy: the bytes that had come are in the socket, and are read before the
    // connection would be closed.
    peers[0].came_into(MIB, MIB - 1, MIB, SECOND_US);
    assert!(!peers[0].hold.is_expired(SECOND_US));
    assert!(peers[1].hold.is_expired(SECOND_US));
}

#[test]
fn waiting_connections_are_not_closed_and_silent_ones_are() {
    let memory = memory(8 << 20);
    let mut peers: Vec<Peer> = (0..7).map(|_| Peer::new(&memory)).collect();
    for peer in &mut peers {
        peer.came(MIB, MIB, 0);
    }
    let mut ahead = Peer::new(&memory);
    assert!(ahead.grows(MIB, MIB, 0));
    for peer in &mut peers {
        assert!(!peer.grows(MIB, MIB + 1000, 0));
    }
    // The sockets of all but these two have more bytes.
    for silent in [2, 4] {
        peers[silent].hold.await_peer(0);
    }
    assert!(!peers[0].grows(MIB, MIB + 1000, SECOND_US));
    let over: Vec<bool> = peers
        .iter()
        .map(|peer| peer.hold.is_expired(SECOND_US))
        .collect();
    assert_eq!(over, [false, false, true, false, true, false, false]);
}

#[test]
fn an_address_limit_delays_only_its_own_connections() {
    let memory = memory_with(BudgetBounds {
        bytes_max: 80 << 20,
        address_bytes_max: Some(2 << 20),
        timeout_us: 30 * SECOND_US,
    });
    let (near, far) = ([10, 0, 0, 1], [10, 0, 0, 2]);
    let of = |address| Peer::from(&memory, Protocol::Kafka, address);
    let mut peers = [of(near), of(near), of(near), of(near)];
    for peer in &mut peers[..2] {
        assert!(peer.grows(MIB, MIB, 0));
    }
    assert!(peers[2].grows(MIB, MIB, 0), "exceeds the budget");
    assert!(!peers[3].grows(MIB, MIB, 0));
    let mut other = of(far);
    assert!(other.grows(MIB, MIB, 0), "does not wait");
    // The memory that it waits for is that of its own address, so those connections are closed.
    assert!(!peers[3].grows(MIB, MIB, SECOND_US));
    assert!(!other.hold.is_expired(SECOND_US));
    assert!(
        peers[..2]
            .iter()
            .all(|peer| peer.hold.is_expired(SECOND_US))
    );
    for peer in &mut peers[..3] {
        peer.done();
    }
    assert!(peers[3].grows(MIB, MIB, SECOND_US));
}

/// An address with a limit of two MiB, which it has used up, of the six MiB that Kafka may have.
fn full_address(near: [u8; 4]) -> (Arc<HalfReceived>, Vec<Peer>) {
    let memory = memory_with(BudgetBounds {
        bytes_max: 8 << 20,
        address_bytes_max: Some(2 << 20),
        timeout_us: 30 * SECOND_US,
    });
    let of = || Peer::from(&memory, Protocol::Kafka, near);
    let mut peers = vec![of(), of(), of(), of()];
    for peer in &mut peers[..3] {
        assert!(peer.grows(MIB, MIB, 0), "the third exceeds it");
    }
    assert!(!peers[3].grows(MIB, MIB, 0));
    (memory, peers)
}

#[test]
fn one_may_exceed_the_budget_and_another_the_limit_of_its_address() {
    let (memory, _near) = full_address([10, 0, 0, 1]);
    let mut far: Vec<Peer> = (2..6)
        .map(|number| Peer::from(&memory, Protocol::Kafka, [10, 0, 0, number]))
        .collect();
    for peer in &mut far {
        assert!(peer.grows(MIB, MIB, 0));
    }
    assert_eq!(memory.bytes(), 7 << 20);
}

#[test]
fn a_connection_that_waits_for_its_address_delays_no_other_address() {
    let (memory, mut near) = full_address([10, 0, 0, 1]);
    // One byte is free now, and the fourth connection wants more.
    near[0].done();
    near[2].came(MIB, MIB - 1, 0);
    assert!(!near[3].grows(MIB, MIB, 0));
    near[3].woken.take();
    let mut far = Peer::from(&memory, Protocol::Kafka, [10, 0, 0, 2]);
    assert!(far.grows(MIB, MIB, 0), "does not wait");
    near[1].done();
    assert!(near[3].woken.take());
    assert!(near[3].grows(MIB, MIB, 0));
}

#[test]
fn a_connection_queued_after_it_delays_no_other_address() {
    let (memory, mut near) = full_address([10, 0, 0, 1]);
    near[0].done();
    near[2].came(MIB, MIB / 2, 0);
    // Half a MiB is free, and the fourth connection wants more; another one of its address that
    // wants less does not overtake it.
    assert!(!near[3].grows(MIB, MIB, 0));
    let mut small = Peer::from(&memory, Protocol::Kafka, [10, 0, 0, 1]);
    assert!(!small.grows(MIB, MIB / 8, 0));
    let mut far = Peer::from(&memory, Protocol::Kafka, [10, 0, 0, 2]);
    assert!(far.grows(MIB, MIB, 0), "waits for neither");
    small.woken.take();
    near[1].done();
    assert!(near[3].woken.take());
    assert!(near[3].grows(MIB, MIB, 0));
    assert!(small.woken.take());
    assert!(small.grows(MIB, MIB / 8, 0));
}

#[test]
fn a_full_address_shortens_no_time_limit_of_others() {
    let (memory, mut near) = full_address([10, 0, 0, 1]);
    let mut far = Peer::from(&memory, Protocol::Kafka, [10, 0, 0, 2]);
    assert!(far.grows(MIB, MIB, 0));
    far.came(MIB, MIB / 2, 60 * SECOND_US);
    assert!(!far.hold.is_expired(90 * SECOND_US - 1));
    // Connections of the full address itself have 30 s, and a second for the size of their command.
    near[1].came_into(MIB, MIB / 2, MIB, 20 * SECOND_US);
    assert!(!near[1].hold.is_expired(31 * SECOND_US - 1));
    assert!(near[1].hold.is_expired(31 * SECOND_US));
}

#[test]
fn a_silent_connection_is_closed_at_once_if_others_wait() {
    let memory = memory(8 << 20);
    let mut peers: Vec<Peer> = (0..6).map(|_| Peer::new(&memory)).collect();
    for peer in &mut peers {
        peer.came(MIB, MIB, 0);
    }
    let mut usual = [Peer::new(&memory), Peer::new(&memory)];
    assert!(usual[0].grows(MIB, MIB, SECOND_US));
    assert!(!usual[1].grows(MIB, 1000, SECOND_US));
    assert!(peers[0].hold.is_expired(SECOND_US));
    assert!(peers[0].woken.take());
}

#[test]
fn bytes_already_read_are_charged_without_a_check() {
    let memory = memory(1 << 20);
    let mut peer = Peer::new(&memory);
    peer.came(MIB, FREE_BYTES, 0);
    assert_eq!(memory.bytes(), 0);
    peer.came(MIB, MIB, 0);
    assert_eq!(memory.bytes(), 1 << 20);
    assert!(peer.hold.is_tight());
    // The beginning of the next command is smaller than the whole one before.
    peer.done();
    peer.came(MIB, 100 << 10, 0);
    assert_eq!(memory.bytes(), 100 << 10);
    assert!(!peer.hold.is_tight());
    peer.done();
    peer.came(MIB, FREE_BYTES, 0);
    assert_eq!(memory.bytes(), 0);
}

#[test]
fn competing_threads_all_finish() {
    assert_all_finish(&memory(1 << 20));
}

#[test]
fn competing_threads_with_address_limits_all_finish() {
    assert_all_finish(&memory_with(BudgetBounds {
        bytes_max: 1 << 20,
        address_bytes_max: Some(600 << 10),
        timeout_us: 30 * SECOND_US,
    }));
}

/// Eight connections of three addresses compete until each has finished its commands.
fn assert_all_finish(memory: &Arc<HalfReceived>) {
    let bound = (1 << 20) + (2 << 20);
    std::thread::scope(|scope| {
        for number in 0..8 {
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread();
                let mut peer = Peer::from(memory, Protocol::Nsq, [10, 0, 0, number % 3]);
                { runtime }.build().unwrap().block_on(async {
                    for _ in 0..200 {
                        for quarter in 1..=8 {
                            let bytes = quarter * (256 << 10);
                            let hold = &mut peer.hold;
                            std::future::poll_fn(|cx| hold.poll_grow(2 * MIB, bytes, cx, 0)).await;
                            assert!(memory.bytes() <= bound);
                        }
                        peer.done();
                    }
                });
            });
        }
    });
    assert_eq!((memory.bytes(), memory.waiting()), (0, 0));
}
