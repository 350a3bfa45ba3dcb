//! The relay of packets between two devices, each of which is held for its time.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::io::{Errno, read, write};
use tokio::io::unix::AsyncFd;

use crate::delay::{DelayLine, DelayThread, Link, registered};

/// The longest packet, with what stands before it.
const PACKET_BYTES_MAX: usize = (64 << 10) + 64;
/// Without a bandwidth so much may be on its way each way: more than two systems' windows.
const HELD_BYTES_MAX: usize = 64 << 20;
/// Packets of one device that are taken before others have their turn.
const TURN: usize = 64;

/// Begins to carry packets between two devices, until the thread is dropped.
pub(super) fn start(link: &Link, [one, two]: [OwnedFd; 2]) -> io::Result<DelayThread> {
    let link = *link;
    let most_bytes = match link.bandwidth {
        Some(_) => link.room_bytes(),
        None => HELD_BYTES_MAX,
    };
    let register = || Ok([registered(one)?, registered(two)?]);
    DelayThread::start(register, move |[one, two], alarm| async move {
        let direction = || Rc::new(RefCell::new(link.direction()));
        let line = || DelayLine::new(&alarm, &direction(), most_bytes);
        let (there, back) = (line(), line());
        // They end when a device is gone.
        tokio::select! {
            () = receive(&one, &there) => {}
            () = send(&there, &two) => {}
            () = receive(&two, &back) => {}
            () = send(&back, &one) => {}
        }
    })
}

async fn receive(from: &AsyncFd<OwnedFd>, line: &DelayLine<Box<[u8]>>) {
    let mut buffer = vec![0; PACKET_BYTES_MAX];
    while let Ok(mut ready) = from.readable().await {
        for _ in 0..TURN {
            match read(from.get_ref(), &mut buffer[..]) {
                Ok(bytes) => line.put_or_lose(buffer[..bytes].into(), bytes),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    ready.clear_ready();
                    break;
                }
                Err(_) => return,
            }
        }
        tokio::task::yield_now().await;
    }
}

async fn send(line: &DelayLine<Box<[u8]>>, to: &AsyncFd<OwnedFd>) {
    loop {
        let packet = line.next().await;
        // A network may lose one; nobody is told.
        let _ = write(to.get_ref(), &packet);
    }
}
