//! A connection that carries NSQ's frames.

use std::io;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};

pub(super) use crate::wire::{PATIENCE, WireError};

use super::codec::{Frame, FrameError, frame};

/// Bytes on their way out and frames on their way in.
#[derive(Debug)]
pub(super) struct Wire {
    wire: crate::wire::Wire,
    /// Most bytes of a frame.
    frame_bytes_max: usize,
}

impl Wire {
    /// Connects.
    pub(super) fn connect(address: SocketAddr, frame_bytes_max: usize) -> io::Result<Wire> {
        Ok(Wire {
            wire: crate::wire::Wire::connect(address)?,
            frame_bytes_max,
        })
    }

    /// Hands over each frame that is whole, with the output for what is to be said to it.
    pub(super) fn frames(
        &mut self,
        mut each: impl FnMut(Frame<'_>, &mut Vec<u8>),
    ) -> Result<(), WireError> {
        loop {
            let (received, out) = self.wire.parts();
            let Some((frame, used)) = frame(received, self.frame_bytes_max)? else {
                return Ok(());
            };
            each(frame, out);
            self.wire.take(used);
        }
    }
}

impl Deref for Wire {
    type Target = crate::wire::Wire;

    fn deref(&self) -> &Self::Target {
        &self.wire
    }
}

impl DerefMut for Wire {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.wire
    }
}

impl From<FrameError> for WireError {
    fn from(error: FrameError) -> Self {
        WireError::Protocol(error.to_string())
    }
}
