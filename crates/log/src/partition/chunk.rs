//! A pool of buffers for large reads of segments. The buffer that was used last is still in the
//! processor's cache, and a pooled buffer costs neither zeroing nor page faults.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;

use crate::partition::read::CHUNK_BYTES_MAX;

/// Smaller chunks, in bytes, are not pooled: they are not worth a lock and a buffer of the full
/// size.
const POOLED_CHUNK_BYTES_MIN: usize = CHUNK_BYTES_MAX / 4;
/// Maximum number of free buffers in the pool. Each has [`CHUNK_BYTES_MAX`] bytes.
const POOLED_BUFFERS_MAX: usize = 4;

/// The pool of free buffers.
#[derive(Default)]
pub(crate) struct ChunkBuffers {
    free: Arc<Mutex<Vec<Box<[u8]>>>>,
}

impl ChunkBuffers {
    /// Reads a chunk of up to `bytes` bytes. `fill` returns the number of bytes that it has
    /// written. The buffer returns to the pool when the last batch that shares it is dropped.
    pub(crate) fn read(
        &self,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> std::io::Result<usize>,
    ) -> std::io::Result<Bytes> {
        if !(POOLED_CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&bytes) {
            let mut chunk = BytesMut::zeroed(bytes);
            let count = fill(&mut chunk)?;
            chunk.truncate(count);
            return Ok(chunk.freeze());
        }
        let used_before = self.free.lock().pop();
        let mut chunk = PooledChunk {
            bytes: used_before.unwrap_or_else(|| vec![0; CHUNK_BYTES_MAX].into_boxed_slice()),
            count: 0,
            free: self.free.clone(),
        };
        chunk.count = fill(&mut chunk.bytes[..bytes])?;
        Ok(Bytes::from_owner(chunk))
    }
}

/// A buffer in use. The bytes after the first `count` are left over from earlier reads.
struct PooledChunk {
    bytes: Box<[u8]>,
    count: usize,
    free: Arc<Mutex<Vec<Box<[u8]>>>>,
}

impl AsRef<[u8]> for PooledChunk {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.count]
    }
}

impl Drop for PooledChunk {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        let mut free = self.free.lock();
        if free.len() < POOLED_BUFFERS_MAX {
            free.push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    fn read(buffers: &ChunkBuffers, text: &[u8]) -> Bytes {
        let fill = |bytes: &mut [u8]| {
            bytes[..text.len()].copy_from_slice(text);
            Ok(text.len())
        };
        buffers.read(CHUNK_BYTES_MAX, fill).expect("filled")
    }

    #[test]
    fn a_buffer_is_reused_once_no_batch_needs_it() {
        let buffers = ChunkBuffers::default();
        let first = read(&buffers, b"a longer text");
        let slice = first.slice(2..8);
        let place = first.as_ptr();
        drop(first);
        let second = read(&buffers, b"short");
        assert_ne!(
            second.as_ptr(),
            place,
            "a slice still needs the first buffer"
        );
        drop(slice);
        let third = read(&buffers, b"again");
        assert_eq!(third.as_ptr(), place);
        assert_eq!(third, &b"again"[..], "nothing of what was there before");
        assert_eq!(second, &b"short"[..]);
    }

    #[test]
    fn the_pool_of_buffers_is_bounded() {
        let buffers = ChunkBuffers::default();
        let chunks: Vec<Bytes> = (0..20).map(|_| read(&buffers, b"x")).collect();
        drop(chunks);
        assert_eq!(buffers.free.lock().len(), POOLED_BUFFERS_MAX);
    }

    #[test]
    fn a_failed_read_returns_its_buffer() {
        let buffers = ChunkBuffers::default();
        let failed = buffers.read(CHUNK_BYTES_MAX, |_| Err(std::io::Error::other("broken")));
        assert!(failed.is_err());
        assert_eq!(buffers.free.lock().len(), 1);
    }
}
