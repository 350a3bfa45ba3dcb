//! A connection that consumes: acknowledgements go out once per read.

use crate::book::Book;
use crate::driver::{Consume, DriverError, Stop};
use crate::nsq::codec::{Frame, HEARTBEAT, command, finish};
use crate::nsq::wire::{Wire, WireError};
use crate::url::Url;

/// How often a consumer that gets nothing looks whether it is stopped.
const LOOK_NS: u64 = 50_000_000;

/// A connection that consumes. It is subscribed, and gets nothing before it runs.
pub(super) struct Consumer {
    pub(super) wire: Wire,
    pub(super) url: Url,
    /// Most messages that it holds.
    pub(super) window: u32,
}

impl Consume for Consumer {
    fn run(&mut self, book: &mut Book, stop: &Stop) -> Result<(), DriverError> {
        let mut refused = None;
        let result = self.work(book, stop, &mut refused);
        result.map_err(|error| match refused {
            Some(words) => self.url.refused(words),
            None => self.url.gone(error),
        })
    }
}

impl Consumer {
    fn work(
        &mut self,
        book: &mut Book,
        stop: &Stop,
        refused: &mut Option<String>,
    ) -> Result<(), WireError> {
        let clock = book.clock();
        command(self.wire.out(), &["RDY", &self.window.to_string()]);
        self.wire.send()?;
        while !stop.is_set() {
            if self.wire.wait(LOOK_NS)? && self.wire.receive()? {
                let now_ns = clock.now_ns();
                self.wire.frames(|frame, out| match frame {
                    Frame::Message { id, body, .. } => {
                        // NSQ promises no order.
                        book.came(body, None, now_ns);
                        finish(out, id);
                    }
                    Frame::Response(HEARTBEAT) => command(out, &["NOP"]),
                    // An answer to a command from before.
                    Frame::Response(_) => {}
                    // The message's time was over, and it comes again: told as a duplicate.
                    Frame::Error(words) if words.starts_with(b"E_FIN_FAILED") => {}
                    // The end of the connection follows.
                    Frame::Error(words) => {
                        *refused = Some(String::from_utf8_lossy(words).into_owned());
                    }
                })?;
            }
            self.wire.send()?;
        }
        // No more messages; acknowledgements that are still here go out before.
        command(self.wire.out(), &["CLS"]);
        self.wire.send()
    }
}
