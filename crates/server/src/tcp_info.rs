//! The kernel's view of a connection, fetched on demand.

use cloverleaf_telemetry::TcpInfo;

/// Asks the kernel about a socket; `None` if the descriptor is not that of a TCP socket.
pub(crate) fn tcp_info(descriptor: i32) -> Option<TcpInfo> {
    let info = ask(descriptor)?;
    Some(TcpInfo {
        rtt_us: info.tcpi_rtt,
        // All ones: there is no sample yet. The handshake's round trip counts as a sample.
        min_rtt_us: match info.tcpi_min_rtt {
            u32::MAX => 0,
            min_rtt_us => min_rtt_us,
        },
        rttvar_us: info.tcpi_rttvar,
        rcv_rtt_us: info.tcpi_rcv_rtt,
        retransmits: info.tcpi_total_retrans,
        lost: info.tcpi_lost,
        unacked: info.tcpi_unacked,
        cwnd: info.tcpi_snd_cwnd,
        mss_bytes: info.tcpi_snd_mss,
        last_sent_ms: info.tcpi_last_data_sent,
        last_received_ms: info.tcpi_last_data_recv,
    })
}

/// The number of segments that a socket has sent, pure acknowledgements included, so that a test
/// can see without a clock whether data was acknowledged. `None` as in [`tcp_info`].
pub fn segments_sent(descriptor: i32) -> Option<u32> {
    ask(descriptor).map(|info| info.tcpi_segs_out)
}

fn ask(descriptor: i32) -> Option<libc::tcp_info> {
    // SAFETY: `tcp_info` is a plain C struct of integers, for which all zeroes is a valid value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the pointer is to `info`, which is writable for `length` bytes; the kernel writes
    // at most that many, and fewer if it is older than the struct.
    let result = unsafe {
        libc::getsockopt(
            descriptor,
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    (result == 0).then_some(info)
}

/// The smallest round trip of a socket, in microseconds; 0 if the kernel knows none. A socket that
/// was just accepted has that of its handshake.
pub(crate) fn round_trip_us(descriptor: i32) -> u32 {
    match tcp_info(descriptor) {
        Some(info) if info.min_rtt_us > 0 => info.min_rtt_us,
        Some(info) => info.rtt_us,
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_connection_has_a_round_trip_time_and_other_files_have_none() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let info = tcp_info(client.as_raw_fd()).unwrap();
        assert!(info.rtt_us > 0 && info.mss_bytes > 0, "{info:?}");
        assert!(
            info.min_rtt_us > 0 && info.min_rtt_us <= info.rtt_us,
            "{info:?}"
        );
        let (accepted, _) = listener.accept().unwrap();
        let rtt_us = round_trip_us(accepted.as_raw_fd());
        assert!(rtt_us > 0 && rtt_us < 5_000_000, "{rtt_us}");
        assert_eq!(tcp_info(std::io::stdin().as_raw_fd()), None);
        assert_eq!((tcp_info(-1), round_trip_us(-1)), (None, 0));
    }
}
