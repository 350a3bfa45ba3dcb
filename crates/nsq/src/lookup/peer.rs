//! The broker's side of the protocol to one nsqlookupd, sans I/O: a state machine without the
//! socket.
//!
//! The owner of the socket reports connects and disconnects, passes in the bytes that arrive and
//! sends those of [`LookupPeer::take_output`]. While the connection lasts, the registrations at
//! nsqlookupd converge to the set that was last passed to [`LookupPeer::set_wanted`]. The first
//! registration, the one after a reconnect and every change take this same path. A missed change is
//! repaired by the next call of [`LookupPeer::set_wanted`] or the next reconnect.
//!
//! nsqd sends one command and waits for its answer. Here up to [`OUTSTANDING_MAX`] commands may be
//! unanswered, because a broker with thousands of channels would otherwise need thousands of round
//! trips.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::lookup::protocol::{
    AnswerDecoder, AnswerTooLarge, LookupCommand, LookupIdentity, LookupdInfo, MAGIC, Registration,
};

/// Maximum commands sent and not yet answered. Their answers (6 bytes each) fit any socket buffer,
/// so nsqlookupd never blocks on writing them and always reads on.
pub const OUTSTANDING_MAX: usize = 256;

/// Maximum bytes of an answer. nsqlookupd's longest one, to IDENTIFY, has about 150 bytes.
pub const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Why the connection must be closed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// nsqlookupd announced an answer longer than [`ANSWER_BYTES_MAX`].
    #[error(transparent)]
    TooLarge(#[from] AnswerTooLarge),
    /// nsqlookupd refused a command.
    #[error("{command} was answered with {answer:?}")]
    Refused {
        /// The command that was refused.
        command: &'static str,
        /// Its answer.
        answer: String,
    },
    /// An answer came while no command was unanswered.
    #[error("an answer to nothing that was asked: {0:?}")]
    Unasked(String),
}

/// A command that was sent and is not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    Identify,
    Register,
    Unregister,
    Ping,
}

impl Sent {
    fn name(self) -> &'static str {
        match self {
            Sent::Identify => "IDENTIFY",
            Sent::Register => "REGISTER",
            Sent::Unregister => "UNREGISTER",
            Sent::Ping => "PING",
        }
    }
}

/// The registrations at one nsqlookupd: those sent, those still to be sent, and the commands that
/// are not answered yet.
#[derive(Debug)]
pub struct LookupPeer {
    decoder: AnswerDecoder,
    output: BytesMut,
    outstanding: VecDeque<Sent>,
    wanted: Arc<BTreeSet<Registration>>,
    /// The registrations that nsqlookupd has once it has processed every command sent.
    registered: BTreeSet<Registration>,
    /// Changes that are still to be sent: `true` to register, `false` to unregister.
    pending_changes: VecDeque<(bool, Registration)>,
    info: Option<LookupdInfo>,
}

impl Default for LookupPeer {
    fn default() -> LookupPeer {
        LookupPeer::new()
    }
}

impl LookupPeer {
    /// A peer that is not connected and has nothing to register.
    pub fn new() -> LookupPeer {
        LookupPeer {
            decoder: AnswerDecoder::new(ANSWER_BYTES_MAX),
            output: BytesMut::new(),
            outstanding: VecDeque::new(),
            wanted: Arc::default(),
            registered: BTreeSet::new(),
            pending_changes: VecDeque::new(),
            info: None,
        }
    }

    /// A new connection is open: queues the magic and IDENTIFY. Registrations follow the answer to
    /// IDENTIFY.
    pub fn connected(&mut self, identity: &LookupIdentity) {
        self.disconnected();
        self.output.extend_from_slice(MAGIC);
        self.send(Sent::Identify, LookupCommand::Identify(identity));
    }

    /// The connection is closed: nsqlookupd drops the registrations of a closed connection.
    pub fn disconnected(&mut self) {
        self.decoder.clear();
        self.output = BytesMut::new();
        self.outstanding.clear();
        self.registered.clear();
        self.pending_changes.clear();
        self.info = None;
    }

    /// Sets the registrations that nsqlookupd is to have from now on.
    pub fn set_wanted(&mut self, wanted: Arc<BTreeSet<Registration>>) {
        self.wanted = wanted;
        self.compare();
    }

    /// Sends a PING, unless other commands are unanswered. nsqlookupd's time of the last update
    /// advances with IDENTIFY and PING only; a PING that is left out here follows with a later
    /// call.
    pub fn ping(&mut self) {
        if self.outstanding.is_empty() && self.info.is_some() {
            self.send(Sent::Ping, LookupCommand::Ping);
        }
    }

    /// Processes bytes from nsqlookupd.
    ///
    /// # Errors
    /// [`PeerError`], after which the owner closes the connection and calls
    /// [`LookupPeer::disconnected`].
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), PeerError> {
        self.decoder.push(bytes);
        while let Some(answer) = self.decoder.next_answer()? {
            self.answered(&answer)?;
        }
        self.send_changes();
        Ok(())
    }

    fn answered(&mut self, answer: &[u8]) -> Result<(), PeerError> {
        let text = || String::from_utf8_lossy(answer).into_owned();
        let Some(sent) = self.outstanding.pop_front() else {
            return Err(PeerError::Unasked(text()));
        };
        let refused = || PeerError::Refused {
            command: sent.name(),
            answer: text(),
        };
        if sent != Sent::Identify {
            return if answer == b"OK" {
                Ok(())
            } else {
                Err(refused())
            };
        }
        // An nsqlookupd that fails to encode its description answers OK. Registrations work
        // nevertheless.
        let info = match answer {
            b"OK" => LookupdInfo::default(),
            json => serde_json::from_slice(json).map_err(|_| refused())?,
        };
        self.info = Some(info);
        self.compare();
        Ok(())
    }

    /// Compares the wanted registrations with those sent, and sends the differences.
    fn compare(&mut self) {
        if self.info.is_none() {
            return;
        }
        let wanted = Arc::clone(&self.wanted);
        // Channels are unregistered before their topic and registered after it.
        let gone = self
            .registered
            .iter()
            .rev()
            .filter(|r| !wanted.contains(r))
            .map(|r| (false, r.clone()));
        let new = wanted
            .difference(&self.registered)
            .map(|r| (true, r.clone()));
        self.pending_changes = gone.chain(new).collect();
        self.send_changes();
    }

    fn send_changes(&mut self) {
        while self.outstanding.len() < OUTSTANDING_MAX {
            let Some((register, what)) = self.pending_changes.pop_front() else {
                return;
            };
            if register {
                self.send(Sent::Register, LookupCommand::Register(&what));
                self.registered.insert(what);
            } else {
                self.send(Sent::Unregister, LookupCommand::Unregister(&what));
                self.registered.remove(&what);
            }
        }
    }

    fn send(&mut self, sent: Sent, command: LookupCommand<'_>) {
        command.encode(&mut self.output);
        self.outstanding.push_back(sent);
    }

    /// Bytes to be written to the connection, if there are any.
    pub fn take_output(&mut self) -> Option<Bytes> {
        (!self.output.is_empty()).then(|| self.output.split().freeze())
    }

    /// Whether a command is unanswered. If that lasts, the owner considers the connection dead.
    pub fn awaits_answer(&self) -> bool {
        !self.outstanding.is_empty()
    }

    /// nsqlookupd's description of itself, once it has sent it.
    pub fn info(&self) -> Option<&LookupdInfo> {
        self.info.as_ref()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use proptest::prelude::*;

    const INFO: &str = r#"{"tcp_port":4160,"http_port":4161,"version":"1.3.0",
        "broadcast_address":"lookup","hostname":"h"}"#;

    fn identity() -> LookupIdentity {
        LookupIdentity {
            broadcast_address: "b".into(),
            hostname: "h".into(),
            http_port: 1,
            tcp_port: 2,
            topology_region: String::new(),
            topology_zone: String::new(),
            version: "1.3.0".into(),
        }
    }

    fn names(names: &[&str]) -> Arc<BTreeSet<Registration>> {
        let parse = |name: &&str| match name.split_once('/') {
            Some((topic, channel)) => Registration {
                topic: topic.into(),
                channel: Some(channel.into()),
            },
            None => Registration {
                topic: (*name).into(),
                channel: None,
            },
        };
        Arc::new(names.iter().map(parse).collect())
    }

    fn answer(text: &str) -> Vec<u8> {
        let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
        bytes.extend(text.as_bytes());
        bytes
    }

    fn lines(peer: &mut LookupPeer) -> Vec<String> {
        let bytes = peer.take_output().unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        text.lines().map(ToOwned::to_owned).collect()
    }

    fn identified() -> LookupPeer {
        let mut peer = LookupPeer::new();
        peer.connected(&identity());
        assert!(peer.take_output().unwrap().starts_with(b"  V1IDENTIFY\n"));
        peer.receive(&answer(INFO)).unwrap();
        peer
    }

    #[test]
    fn names_follow_the_answer_to_identify() {
        let mut peer = LookupPeer::new();
        peer.set_wanted(names(&["t", "t/c"]));
        assert_eq!(peer.take_output(), None);
        peer.connected(&identity());
        peer.take_output();
        assert_eq!(peer.info(), None);
        peer.receive(&answer(INFO)).unwrap();
        assert_eq!(peer.info().unwrap().broadcast_address, "lookup");
        assert_eq!(lines(&mut peer), ["REGISTER t", "REGISTER t c"]);
    }

    #[test]
    fn changes_are_sent_as_differences_channels_before_their_topic() {
        let mut peer = identified();
        peer.set_wanted(names(&["a", "a/x", "b"]));
        assert_eq!(
            lines(&mut peer),
            ["REGISTER a", "REGISTER a x", "REGISTER b"]
        );
        peer.set_wanted(names(&["b", "b/y"]));
        assert_eq!(
            lines(&mut peer),
            ["UNREGISTER a x", "UNREGISTER a", "REGISTER b y"]
        );
        peer.set_wanted(names(&["b", "b/y"]));
        assert_eq!(peer.take_output(), None);
    }

    #[test]
    fn a_reconnect_registers_everything_again() {
        let mut peer = identified();
        peer.set_wanted(names(&["a"]));
        peer.disconnected();
        assert_eq!(peer.take_output(), None);
        peer.connected(&identity());
        peer.take_output();
        peer.receive(&answer(INFO)).unwrap();
        assert_eq!(lines(&mut peer), ["REGISTER a"]);
    }

    #[test]
    fn a_ping_is_sent_when_nothing_else_is_on_the_way() {
        let mut peer = identified();
        peer.set_wanted(names(&["a"]));
        peer.take_output();
        peer.ping();
        assert_eq!(peer.take_output(), None);
        peer.receive(&answer("OK")).unwrap();
        assert!(!peer.awaits_answer());
        peer.ping();
        assert_eq!(lines(&mut peer), ["PING"]);
        assert!(peer.awaits_answer());
    }

    #[test]
    fn the_number_of_unanswered_commands_is_bounded() {
        let mut peer = identified();
        let many: Vec<String> = (0..OUTSTANDING_MAX + 5)
            .map(|n| format!("t{n:04}"))
            .collect();
        peer.set_wanted(names(&many.iter().map(String::as_str).collect::<Vec<_>>()));
        assert_eq!(lines(&mut peer).len(), OUTSTANDING_MAX);
        peer.receive(&answer("OK")).unwrap();
        assert_eq!(
            lines(&mut peer),
            [format!("REGISTER t{OUTSTANDING_MAX:04}")]
        );
        for _ in 0..OUTSTANDING_MAX {
            peer.receive(&answer("OK")).unwrap();
        }
        assert_eq!(lines(&mut peer).len(), 4);
    }

    #[test]
    fn a_refusal_names_the_command() {
        let mut peer = identified();
        peer.set_wanted(names(&["a"]));
        let error = peer.receive(&answer("E_INVALID no")).unwrap_err();
        assert_eq!(
            error.to_string(),
            r#"REGISTER was answered with "E_INVALID no""#
        );
        let mut peer = LookupPeer::new();
        peer.connected(&identity());
        let error = peer.receive(&answer("E_INVALID")).unwrap_err();
        assert_eq!(
            error.to_string(),
            r#"IDENTIFY was answered with "E_INVALID""#
        );
        assert_eq!(
            identified().receive(&answer("OK")),
            Err(PeerError::Unasked("OK".into()))
        );
    }

    proptest! {
        #[test]
        fn registrations_converge_to_the_wanted_set(
            sets in proptest::collection::vec(
                proptest::collection::btree_set((0u8..4, proptest::option::of(0u8..3)), 0..10),
                1..8),
        ) {
            let mut peer = identified();
            let mut known = BTreeSet::new();
            for set in sets {
                let wanted: BTreeSet<Registration> = set
                    .into_iter()
                    .map(|(topic, channel)| Registration {
                        topic: format!("t{topic}"),
                        channel: channel.map(|c| format!("c{c}")),
                    })
                    .collect();
                peer.set_wanted(Arc::new(wanted.clone()));
                for line in lines(&mut peer) {
                    let mut words = line.split(' ');
                    let register = words.next() == Some("REGISTER");
                    let topic = words.next().unwrap().to_owned();
                    let channel = words.next().map(ToOwned::to_owned);
                    let what = Registration { topic, channel };
                    if register {
                        prop_assert!(known.insert(what));
                    } else {
                        prop_assert!(known.remove(&what));
                    }
                    peer.receive(&answer("OK")).unwrap();
                }
                prop_assert_eq!(&known, &wanted);
            }
        }

        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut peer = identified();
            peer.set_wanted(names(&["a", "b"]));
            let _ = peer.receive(&bytes);
        }
    }
}
