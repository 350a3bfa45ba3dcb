//! The properties of a connection that are not counts.

use crate::{Identity, TcpInfo};

const NO_SOCKET: i32 = -1;

/// The client's identity, and the socket whose `TCP_INFO` the kernel reports.
#[derive(Debug)]
pub(crate) struct About {
    pub(crate) identity: Identity,
    /// A file descriptor, or [`NO_SOCKET`]. An `Option` would take twice the memory, and there are
    /// many connections.
    socket: i32,
    /// The kernel's round-trip time right after accept, in microseconds; 0 if it was not fetched.
    pub(crate) young_rtt_us: u32,
}

impl Default for About {
    fn default() -> Self {
        About {
            identity: Identity::default(),
            socket: NO_SOCKET,
            young_rtt_us: 0,
        }
    }
}

impl About {
    pub(crate) fn attach(&mut self, socket: i32) {
        self.socket = socket;
    }

    pub(crate) fn detach(&mut self) {
        self.socket = NO_SOCKET;
    }

    /// The answer of `tcp_info` about this connection's socket, if there is one.
    pub(crate) fn ask(&self, tcp_info: impl FnOnce(i32) -> Option<TcpInfo>) -> Option<TcpInfo> {
        match self.socket {
            NO_SOCKET => None,
            socket => tcp_info(socket),
        }
    }
}
