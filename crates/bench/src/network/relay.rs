//! The relay of packets between two devices: one thread, which holds each packet for its time.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read, write};

use crate::clock::Clock;
use crate::proxy::{DelayThread, Link, LinkDirection};

/// The longest packet, with the header of the device before it.
const PACKET_BYTES_MAX: usize = (64 << 10) + 64;
/// Bytes that are held in each direction at most where there is no bandwidth: more than the TCP
/// windows of both sides.
const HELD_BYTES_MAX: usize = 64 << 20;
/// Bytes that a held packet counts at least, so that many small packets are bounded, too.
const HELD_BYTES_MIN: usize = 128;
/// Packets that are read from one device before the other device is served.
const TURN: usize = 64;

/// Starts a thread that carries packets between two devices.
pub(super) fn start(link: &Link, devices: [OwnedFd; 2]) -> io::Result<DelayThread> {
    let lines = [DelayedPackets::new(link), DelayedPackets::new(link)];
    DelayThread::start(|_| Ok(move |end: &OwnedFd| carry(&devices, lines, end)))
}

/// The thread's loop. Packets from a device go to the other one, delayed by the queue with the
/// number of the first.
fn carry(devices: &[OwnedFd; 2], mut lines: [DelayedPackets; 2], end: &OwnedFd) {
    let clock = Clock::new();
    let mut buffer = vec![0; PACKET_BYTES_MAX];
    loop {
        let now_ns = clock.now_ns();
        for (line, to) in lines.iter_mut().zip(devices.iter().rev()) {
            while let Some(packet) = line.take(now_ns) {
                // A network may lose a packet, so a failure is not reported.
                let _ = write(to, &packet);
            }
        }
        let next_ns = lines.iter().filter_map(DelayedPackets::next_ns).min();
        let left_ns = next_ns.map(|ns| ns.saturating_sub(clock.now_ns()));
        let left = left_ns.and_then(|ns| Timespec::try_from(Duration::from_nanos(ns)).ok());
        let (wanted, none) = (PollFlags::IN, PollFlags::empty());
        let mut polled = [&devices[0], &devices[1], end].map(|it| PollFd::new(it, wanted));
        match poll(&mut polled, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
        let [one, two, over] = polled.map(|it| it.revents());
        if over != none {
            return;
        }
        for ((events, from), line) in [one, two].into_iter().zip(devices).zip(&mut lines) {
            if events.intersects(PollFlags::IN) {
                receive(from, line, clock, &mut buffer);
            } else if events != none {
                // The device is gone.
                return;
            }
        }
    }
}

fn receive(from: &OwnedFd, line: &mut DelayedPackets, clock: Clock, buffer: &mut [u8]) {
    for _ in 0..TURN {
        match read(from, &mut *buffer) {
            Ok(bytes) => line.put(&buffer[..bytes], clock.now_ns()),
            // There is no packet, or the call was interrupted: the next poll says which.
            Err(_) => return,
        }
    }
}

/// Packets of one direction, in order, each with the time at which it arrives.
#[derive(Debug)]
struct DelayedPackets {
    direction: LinkDirection,
    packets: VecDeque<(u64, Box<[u8]>)>,
    held_bytes: usize,
    room_bytes: usize,
    last_due_ns: u64,
}

impl DelayedPackets {
    fn new(link: &Link) -> DelayedPackets {
        DelayedPackets {
            direction: link.direction(),
            packets: VecDeque::new(),
            held_bytes: 0,
            room_bytes: match link.bandwidth {
                Some(_) => link.room_bytes(),
                None => HELD_BYTES_MAX,
            },
            last_due_ns: 0,
        }
    }

    /// Adds a packet. It is dropped if the queue is full, as in a network.
    fn put(&mut self, packet: &[u8], now_ns: u64) {
        let held_bytes = self.held_bytes + cost(packet);
        if held_bytes > self.room_bytes {
            return;
        }
        self.held_bytes = held_bytes;
        // Jitter delays packets and never reorders them.
        let due_ns = self
            .direction
            .due_ns(packet.len(), now_ns)
            .max(self.last_due_ns);
        self.last_due_ns = due_ns;
        self.packets.push_back((due_ns, packet.into()));
    }

    /// The next packet, if it has arrived.
    fn take(&mut self, now_ns: u64) -> Option<Box<[u8]>> {
        let (_, packet) = self.packets.pop_front_if(|(due_ns, _)| *due_ns <= now_ns)?;
        self.held_bytes -= cost(&packet);
        Some(packet)
    }

    /// When the next one arrives.
    fn next_ns(&self) -> Option<u64> {
        self.packets.front().map(|(due_ns, _)| *due_ns)
    }
}

fn cost(packet: &[u8]) -> usize {
    packet.len().max(HELD_BYTES_MIN)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn link(rtt_us: u64, jitter_us: u64, bandwidth: Option<&str>) -> Link {
        Link {
            rtt: Duration::from_micros(rtt_us),
            jitter: Duration::from_micros(jitter_us),
            bandwidth: bandwidth.map(|text| text.parse().unwrap()),
        }
    }

    proptest! {
        #[test]
        fn packets_arrive_in_order_and_not_before_their_time(
            pauses_ns in prop::collection::vec(0..3_000_000u64, 1..100),
            jitter_us in 0..5_000u64,
        ) {
            let mut line = DelayedPackets::new(&link(10_000, jitter_us, None));
            let (mut now_ns, mut sent_ns) = (0, Vec::new());
            for pause_ns in pauses_ns {
                now_ns += pause_ns;
                line.put(&(sent_ns.len() as u64).to_ne_bytes(), now_ns);
                sent_ns.push(now_ns);
            }
            for (at, sent_ns) in sent_ns.into_iter().enumerate() {
                let due_ns = line.next_ns().unwrap();
                prop_assert!(due_ns >= sent_ns + 5_000_000);
                prop_assert!(due_ns <= now_ns.min(sent_ns + 5_000_000) + 5_000_000
                    + jitter_us * 1_000);
                prop_assert!(line.take(due_ns - 1).is_none());
                let packet = line.take(due_ns).unwrap();
                prop_assert_eq!(&packet[..], &(at as u64).to_ne_bytes()[..]);
            }
            prop_assert_eq!((line.next_ns(), line.held_bytes), (None, 0));
        }
    }

    #[test]
    fn a_full_line_loses_packets_and_has_room_again() {
        let mut line = DelayedPackets::new(&link(10_000, 0, Some("8Mbit")));
        let packet = [1; 1_500];
        for _ in 0..1_000 {
            line.put(&packet, 0);
        }
        assert!(line.held_bytes <= line.room_bytes && line.room_bytes < 1_000 * packet.len());
        let held = line.packets.len();
        // A megabyte per second.
        let last_ns = line.packets.back().unwrap().0;
        let seconds = (held * packet.len()) as f64 / 1e6;
        assert!((last_ns as f64 / 1e9 - seconds).abs() < 0.03, "{last_ns}");
        assert!(line.take(last_ns).is_some());
        line.put(&packet, last_ns);
        assert_eq!(line.packets.len(), held);
    }

    #[test]
    fn many_empty_packets_are_bounded_too() {
        let mut line = DelayedPackets::new(&link(10_000, 0, None));
        for _ in 0..2 * HELD_BYTES_MAX / HELD_BYTES_MIN {
            line.put(&[], 0);
        }
        assert_eq!(line.packets.len(), HELD_BYTES_MAX / HELD_BYTES_MIN);
    }
}
