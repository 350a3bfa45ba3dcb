//! The facts about a connection that are not counts.

use crate::{Identity, TcpInfo};

const NO_SOCKET: i32 = -1;

/// The identity of the other end, and the socket that the kernel may be asked about.
#[derive(Debug)]
pub(crate) struct About {
    pub(crate) identity: Identity,
    /// No descriptor is negative: an option would take as much again, and connections are many.
    socket: i32,
    /// The round trip when it was young; 0: nobody has asked.
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
