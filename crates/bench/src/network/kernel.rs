//! System calls without a safe interface: all unsafe code of networks.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use rustix::ioctl::{IntegerSetter, Opcode, Updater, ioctl};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Where TUN devices are made.
const DEVICES: &str = "/dev/net/tun";
/// Packets are read and written with a `virtio_net_hdr` before them, and no other header.
const FLAGS: libc::c_int = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
/// Packets may lack a checksum and may be segments of up to 64 KiB, as a network card accepts them.
/// The header before a packet says so, and the kernel of the other side understands it.
const SEGMENTS: libc::c_uint = libc::TUN_F_CSUM | libc::TUN_F_TSO4;

/// `struct ifreq` of linux/if.h. No architecture has a longer one.
#[repr(C)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    flags: libc::c_short,
    rest: [u8; 22],
}

/// Moves this thread into a new network namespace.
pub(super) fn enter_new_network() -> io::Result<()> {
    // SAFETY: only unsharing the table of descriptors is dangerous, and these flags do not.
    Ok(unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?)
}

/// Moves this process, which has one thread, into a new user namespace, where it has all rights.
pub(super) fn enter_new_users() -> io::Result<()> {
    // SAFETY: as above.
    Ok(unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }?)
}

/// Makes a TUN device in this thread's network namespace. Packets that the kernel sends to it can
/// be read, and packets that are written to it arrive. Reads and writes do not block. The device is
/// removed when it is closed.
pub(super) fn tun(name: &str, has_segments: bool) -> io::Result<OwnedFd> {
    let device: File = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(DEVICES)?;
    let mut request = Request {
        name: [0; libc::IFNAMSIZ],
        flags: FLAGS as libc::c_short,
        rest: [0; 22],
    };
    // The last byte stays 0.
    let place = request.name[..libc::IFNAMSIZ - 1].iter_mut();
    place.zip(name.bytes()).for_each(|(to, from)| *to = from);
    // SAFETY: this operation reads and writes an `ifreq`, and `request` has room for one.
    unsafe {
        const OPERATION: Opcode = libc::TUNSETIFF as Opcode;
        ioctl(&device, Updater::<OPERATION, Request>::new(&mut request))?;
    }
    let offload = if has_segments { SEGMENTS } else { 0 };
    // SAFETY: this operation takes a number.
    unsafe {
        const OPERATION: Opcode = libc::TUNSETOFFLOAD as Opcode;
        ioctl(
            &device,
            IntegerSetter::<OPERATION>::new_usize(offload as usize),
        )?;
    }
    Ok(device.into())
}

/// The round trip of a connection that the kernel has measured.
pub(super) fn rtt(socket: BorrowedFd<'_>) -> io::Result<Duration> {
    // SAFETY: `tcp_info` is a plain C struct of integers, for which all zeroes is a valid value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the pointer is to `info`, which is writable for `length` bytes; the kernel writes
    // at most that many, and fewer if it is older than the struct.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    match result {
        0 => Ok(Duration::from_micros(info.tcpi_rtt.into())),
        _ => Err(io::Error::last_os_error()),
    }
}
