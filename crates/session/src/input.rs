//! The input bytes of a session, and whether it may keep their buffer.

use std::ops::{Deref, Range};

use bytes::{Bytes, BytesMut};

/// A smaller part is copied: copying is cheaper than taking the buffer, and keeps less memory.
const TAKEN_BYTES_MIN: usize = 64 * 1024;

/// Upper limit of bytes besides the part. The whole buffer stays in memory as long as the part
/// does, but memory accounting counts only the part.
const BESIDE_BYTES_MAX: usize = 4 * 1024;

/// Bytes that were received and not consumed yet.
#[derive(Debug)]
pub enum Input<'a> {
    /// Bytes in a buffer that the driver keeps.
    Lent(&'a [u8]),
    /// One complete, large command, alone in its buffer. The session may take that buffer instead
    /// of copying the command.
    Own(&'a mut BytesMut),
}

impl Input<'_> {
    /// Takes a part of an owned buffer without a copy, if it is nearly all of the buffer. The other
    /// bytes are dropped and the input is empty afterwards. `None`: the part must be copied.
    pub fn take(&mut self, part: Range<usize>) -> Option<Bytes> {
        let Input::Own(buffer) = self else {
            return None;
        };
        let beside = buffer.len() - part.len();
        // A buffer with much spare capacity would stay in memory with the part.
        let is_tight = buffer.capacity() - buffer.len() <= buffer.len() / 8;
        if part.len() < TAKEN_BYTES_MIN || beside > BESIDE_BYTES_MAX || !is_tight {
            return None;
        }
        // The bytes before the part are dropped here, so the part becomes the only owner of the
        // buffer.
        let mut taken = std::mem::take(*buffer).split_off(part.start);
        taken.truncate(part.len());
        Some(taken.freeze())
    }
}

impl Deref for Input<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Input::Lent(bytes) => bytes,
            Input::Own(buffer) => buffer,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn taken(bytes: usize, room: usize, part: Range<usize>) -> Option<Bytes> {
        let mut buffer = BytesMut::with_capacity(bytes + room);
        buffer.resize(bytes, 7);
        let lies = buffer.as_ptr_range();
        let mut input = Input::Own(&mut buffer);
        let taken = input.take(part);
        assert_eq!(input.len(), if taken.is_some() { 0 } else { bytes });
        if let Some(taken) = &taken {
            assert!(lies.contains(&taken.as_ptr()), "it was copied");
        }
        taken
    }

    #[test]
    fn a_large_part_is_taken_with_its_buffer_and_is_its_only_owner() {
        let part = taken(70_000, 0, 100..69_999).unwrap();
        assert_eq!(part.len(), 69_899);
        assert!(part.try_into_mut().is_ok());
    }

    #[test]
    fn a_part_that_would_keep_much_else_in_memory_is_not_taken() {
        assert_eq!(taken(60_000, 0, 0..60_000), None, "small");
        assert_eq!(taken(75_000, 0, 100..70_000), None, "much beside it");
        assert_eq!(taken(70_000, 70_000, 0..70_000), None, "much room");
    }

    #[test]
    fn a_lent_buffer_is_not_taken() {
        let bytes = [7; 70_000];
        let mut input = Input::Lent(&bytes);
        assert_eq!(input.take(0..70_000), None);
        assert_eq!(input.len(), 70_000);
    }
}
