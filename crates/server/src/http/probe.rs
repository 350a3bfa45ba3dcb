//! The facts about a publishing HTTP connection, for the doctor and the timeline.
//!
//! hyper reads and writes the socket, axum answers: the stream below reports bytes, the service
//! above reports requests. A connection has one request at a time.

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use axum::http::header::USER_AGENT;
use axum::http::{HeaderMap, StatusCode};
use cloverleaf_nsq::http::Published;
use cloverleaf_telemetry::{Identity, Probe, Protocol, Topics};
use parking_lot::Mutex;
use tokio::net::TcpStream;

use crate::context::ServerContext;
use crate::tcp_info::round_trip_us;

/// A connection's probe, which is shared by the stream and the service above it.
pub(crate) struct HttpProbe {
    context: Arc<ServerContext>,
    state: Mutex<ProbedRequest>,
}

struct ProbedRequest {
    /// `None` once the socket is about to be closed.
    probe: Option<Probe>,
    /// Whether the client was identified, by the `User-Agent` of its first request.
    is_identified: bool,
    /// When the first bytes of the current request came; 0: none have.
    first_us: u64,
    last_us: u64,
    /// Whether an answer is complete and not sent yet.
    is_answering: bool,
}

impl HttpProbe {
    /// The probe of a connection that has just been accepted.
    pub(crate) fn open(context: &Arc<ServerContext>, peer: SocketAddr) -> HttpProbe {
        let now_us = context.now_us();
        let probe = context.registry.open(Protocol::Http, peer, now_us);
        HttpProbe {
            context: Arc::clone(context),
            state: Mutex::new(ProbedRequest {
                probe: Some(probe),
                is_identified: false,
                first_us: 0,
                last_us: 0,
                is_answering: false,
            }),
        }
    }

    /// Lets the doctor ask the kernel about this socket, until [`HttpProbe::close`]. The kernel is
    /// asked for the round trip once now: a client that connects for each message would be gone
    /// before the doctor's next check.
    pub(crate) fn attach(&self, stream: &TcpStream) {
        let state = self.state.lock();
        let descriptor = stream.as_raw_fd();
        if let Some(probe) = &state.probe {
            probe.attach_socket(descriptor);
            probe.round_trip_at_accept(round_trip_us(descriptor));
        }
    }

    /// The socket is about to be closed.
    pub(crate) fn close(&self) {
        self.state.lock().probe = None;
    }

    /// Bytes came from the client.
    pub(crate) fn received(&self, bytes: usize) {
        let now_us = self.context.now_us();
        let mut state = self.state.lock();
        if state.first_us == 0 {
            state.first_us = now_us;
        }
        state.last_us = now_us;
        state.probe.iter().for_each(|it| it.read(bytes, now_us));
    }

    /// The client took bytes of an answer.
    pub(crate) fn sent(&self, bytes: usize) {
        let now_us = self.context.now_us();
        let mut state = self.state.lock();
        let is_answering = std::mem::take(&mut state.is_answering);
        if !is_answering {
            // This was 100 Continue: the client has waited for it with its body, which comes now.
            state.first_us = 0;
        }
        if let Some(probe) = &state.probe {
            probe.wrote(bytes);
            probe.answered(u64::from(is_answering), now_us);
        }
    }

    /// The head of a request is complete.
    pub(crate) fn request_begins(&self, headers: &HeaderMap) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.is_identified, true)
            && let Some(probe) = &state.probe
        {
            let agent = headers.get(USER_AGENT).map(|it| it.as_bytes());
            let agent = String::from_utf8_lossy(agent.unwrap_or_default());
            probe.identify(identity(&agent));
        }
    }

    /// A request is complete and its answer is ready.
    pub(crate) fn request_ends(&self, status: StatusCode, published: Option<&Published>) {
        let mut state = self.state.lock();
        let (first_us, last_us) = (std::mem::take(&mut state.first_us), state.last_us);
        let first_us = if first_us == 0 { last_us } else { first_us };
        state.is_answering = true;
        let Some(probe) = &state.probe else { return };
        if status.is_client_error() || status.is_server_error() {
            probe.error();
        }
        match published {
            Some(it) => {
                let mut topics = Topics::default();
                topics.add(it.topic);
                let sums = (it.messages, it.bytes);
                probe.publishes((1, 0), sums, &topics, first_us, last_us);
            }
            None => probe.request(0, 0, first_us, last_us),
        }
    }
}

/// The library and its version from `python-requests/2.32.3`, or from the first part of
/// `Apache-HttpClient/5.4 (Java/21)`.
fn identity(user_agent: &str) -> Identity {
    let agent = user_agent.split(' ').next().unwrap_or_default();
    let (library, version) = agent.split_once('/').unwrap_or((agent, ""));
    Identity {
        library: library.to_owned(),
        version: version.to_owned(),
        ..Identity::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_agent_begins_with_the_library_and_its_version() {
        for (agent, library, version) in [
            ("python-requests/2.32.3", "python-requests", "2.32.3"),
            (
                "Apache-HttpClient/5.4 (Java/21)",
                "Apache-HttpClient",
                "5.4",
            ),
            ("node", "node", ""),
            ("", "", ""),
        ] {
            let seen = identity(agent);
            assert_eq!(
                (seen.library.as_str(), seen.version.as_str()),
                (library, version)
            );
        }
    }
}
