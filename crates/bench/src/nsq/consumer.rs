//! A consumer: acknowledgements go out once per read.

use crate::nsq::codec::{Frame, Frames, HEARTBEAT, command, finish};
use crate::pump::Arrivals;
use crate::wire::{ReceiveCodec, Wire, WireError};

/// A connection that is subscribed, and gets nothing before it starts.
pub(super) struct Receiver {
    pub(super) frames: Frames,
    /// Most messages that it holds.
    pub(super) window: u32,
    /// The words of the last refusal.
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
                // An answer to a command from before.
                Frame::Response(_) => {}
                // The message's time was over, and it comes again: told as a duplicate.
                Frame::Error(words) if words.starts_with(b"E_FIN_FAILED") => {}
                // The end of the connection follows.
                Frame::Error(words) => {
                    self.refused = Some(String::from_utf8_lossy(words).into_owned());
                }
            }
            Ok(())
        })?;
        wire.send()
    }

    /// No more messages; acknowledgements that are still here go out before.
    fn end(&mut self, out: &mut Vec<u8>) {
        command(out, &["CLS"]);
    }

    fn refusal(&mut self) -> Option<String> {
        self.refused.take()
    }
}
