//! A consumer: the acknowledgements of one read are sent together.

use crate::nsq::codec::{Frame, Frames, HEARTBEAT, command, finish};
use crate::pump::Arrivals;
use crate::wire::{ReceiveCodec, Wire, WireError};

/// A subscribed connection. It receives no messages before RDY.
pub(super) struct Receiver {
    pub(super) frames: Frames,
    /// Maximum of messages that are not acknowledged.
    pub(super) window: u32,
    /// The text of the last error.
    pub(super) refused: Option<String>,
}

impl ReceiveCodec for Receiver {
    fn start(&mut self, out: &mut Vec<u8>) {
        command(out, &["RDY", &self.window.to_string()]);
    }

    fn messages(&mut self, wire: &mut Wire, arrivals: &mut Arrivals<'_>) -> Result<(), WireError> {
        wire.frames(self.frames, |frame, out| {
            match frame {
                Frame::Message { id, body, .. } => {
                    // NSQ promises no order.
                    arrivals.came(body, None);
                    finish(out, id);
                }
                Frame::Response(HEARTBEAT) => command(out, &["NOP"]),
                // The answer to an earlier command.
                Frame::Response(_) => {}
                // The message timed out and is redelivered, which counts as a duplicate.
                Frame::Error(words) if words.starts_with(b"E_FIN_FAILED") => {}
                // The broker closes the connection after this.
                Frame::Error(words) => {
                    self.refused = Some(String::from_utf8_lossy(words).into_owned());
                }
            }
            Ok(())
        })?;
        wire.send()
    }

    /// Asks for no more messages. Acknowledgements in the output buffer are sent before.
    fn end(&mut self, out: &mut Vec<u8>) {
        command(out, &["CLS"]);
    }

    fn refusal(&mut self) -> Option<String> {
        self.refused.take()
    }
}
