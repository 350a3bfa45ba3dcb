//! The output of a session: bytes and file ranges to be written.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use bytes::{Buf, Bytes};

/// A range of an open file, to be sent straight from the file.
#[derive(Clone)]
pub struct FileRange {
    file: Arc<dyn AsFd + Send + Sync>,
    position: u64,
    bytes: usize,
}

impl std::fmt::Debug for FileRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileRange")
            .field("position", &self.position)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl FileRange {
    /// `bytes` bytes of a file from `position` on. They must not change any more.
    pub fn new(file: Arc<dyn AsFd + Send + Sync>, position: u64, bytes: usize) -> Self {
        Self {
            file,
            position,
            bytes,
        }
    }

    /// The file.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Where the range begins, in bytes from the start of the file.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes left.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Removes up to `bytes` from its start.
    pub fn advance(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.position += bytes as u64;
        self.bytes -= bytes;
    }
}

/// A part of the output: bytes in memory or a range of a file. Queueing or advancing it copies
/// nothing.
#[derive(Clone, Debug)]
pub enum Piece {
    /// Bytes in memory.
    Bytes(Bytes),
    /// Bytes in a file.
    File(FileRange),
}

impl Piece {
    /// The number of bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::File(range) => range.len(),
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes up to `count` bytes from its start.
    pub fn advance(&mut self, count: usize) {
        match self {
            Self::Bytes(bytes) => bytes.advance(count.min(bytes.len())),
            Self::File(range) => range.advance(count),
        }
    }
}

/// The output that waits to be written: this connection's own bytes and, between them, pieces that
/// are shared with the log and not copied.
#[derive(Debug, Default)]
pub struct Output {
    /// Bytes created for this connection.
    pub bytes: Vec<u8>,
    shared: Vec<SharedPiece>,
    shared_bytes: usize,
    has_files: bool,
}

/// A shared piece and its position: before the byte at index `at` of [`Output::bytes`].
#[derive(Debug)]
struct SharedPiece {
    at: usize,
    piece: Piece,
}

impl Output {
    /// Appends shared bytes.
    pub fn share(&mut self, bytes: Bytes) {
        self.add(Piece::Bytes(bytes));
    }

    /// Appends a part of a file.
    pub fn share_file(&mut self, range: FileRange) {
        self.has_files |= !range.is_empty();
        self.add(Piece::File(range));
    }

    fn add(&mut self, piece: Piece) {
        if !piece.is_empty() {
            self.shared_bytes += piece.len();
            let at = self.bytes.len();
            self.shared.push(SharedPiece { at, piece });
        }
    }

    /// Moves all of `other` to the end of this output.
    pub fn append(&mut self, other: &mut Output) {
        let at = self.bytes.len();
        self.bytes.append(&mut other.bytes);
        self.shared
            .extend(other.shared.drain(..).map(|shared| SharedPiece {
                at: at + shared.at,
                piece: shared.piece,
            }));
        self.shared_bytes += std::mem::take(&mut other.shared_bytes);
        self.has_files |= std::mem::take(&mut other.has_files);
    }

    /// Whether it contains file ranges: then it must be written through a queue
    /// ([`Output::drain_from`]).
    #[inline]
    pub fn has_files(&self) -> bool {
        self.has_files
    }

    /// The number of bytes to be written.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes.len() + self.shared_bytes
    }

    /// Whether there is nothing to write.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether all of it is in [`Output::bytes`].
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.shared.is_empty()
    }

    /// Clears the output and keeps the allocations.
    #[inline]
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.shared.clear();
        self.shared_bytes = 0;
        self.has_files = false;
    }

    /// Appends everything but the first `skip_bytes` to `queue` and clears this output. Shared
    /// pieces stay shared; own bytes are copied once.
    pub fn drain_from(&mut self, skip_bytes: usize, queue: &mut VecDeque<Piece>) {
        if self.is_plain() {
            let rest = self.bytes.get(skip_bytes..).unwrap_or_default();
            if !rest.is_empty() {
                queue.push_back(Piece::Bytes(Bytes::copy_from_slice(rest)));
            }
            self.clear();
            return;
        }
        let own = Bytes::copy_from_slice(&self.bytes);
        let (mut from, mut skip) = (0, skip_bytes);
        let mut push = |mut piece: Piece| {
            let skipped = skip.min(piece.len());
            skip -= skipped;
            if skipped < piece.len() {
                piece.advance(skipped);
                queue.push_back(piece);
            }
        };
        for shared in self.shared.drain(..) {
            push(Piece::Bytes(own.slice(from..shared.at)));
            push(shared.piece);
            from = shared.at;
        }
        push(Piece::Bytes(own.slice(from..)));
        self.clear();
    }

    /// Its parts in the order of writing, without file ranges. None is empty.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        debug_assert!(!self.has_files, "the caller leaves something out");
        let mut from = 0;
        let between = self.shared.iter().flat_map(move |shared| {
            let own = &self.bytes[from..shared.at];
            from = shared.at;
            match &shared.piece {
                Piece::Bytes(bytes) => [own, &bytes[..]],
                Piece::File(_) => [own, &[]],
            }
        });
        let last = self.shared.last().map_or(0, |shared| shared.at);
        between
            .chain(std::iter::once(&self.bytes[last..]))
            .filter(|part| !part.is_empty())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    fn bytes_of(piece: Piece) -> Bytes {
        match piece {
            Piece::Bytes(bytes) => bytes,
            Piece::File(range) => panic!("{range:?}"),
        }
    }

    #[test]
    fn parts_come_in_the_order_in_which_they_were_added() {
        let mut out = Output::default();
        out.share(Bytes::from_static(b"a"));
        out.bytes.extend_from_slice(b"bc");
        out.share(Bytes::from_static(b"d"));
        out.share(Bytes::from_static(b"e"));
        out.share(Bytes::new());
        out.bytes.extend_from_slice(b"f");
        assert_eq!(
            out.parts().collect::<Vec<_>>(),
            [&b"a"[..], b"bc", b"d", b"e", b"f"]
        );
        assert_eq!(out.len(), 6);
        assert!(!out.is_plain());
        out.clear();
        assert!(out.is_empty() && out.is_plain());
        assert_eq!(out.parts().count(), 0);
        out.bytes.push(b'x');
        assert_eq!(out.parts().collect::<Vec<_>>(), [b"x"]);
    }

    #[test]
    fn appended_output_follows() {
        let (mut out, mut other) = (Output::default(), Output::default());
        out.bytes.extend_from_slice(b"ab");
        out.share(Bytes::from_static(b"c"));
        other.share(Bytes::from_static(b"d"));
        other.bytes.extend_from_slice(b"ef");
        other.share(Bytes::from_static(b"g"));
        other.bytes.push(b'h');
        out.append(&mut other);
        assert!(other.is_empty() && other.is_plain());
        let parts: Vec<&[u8]> = out.parts().collect();
        assert_eq!(parts, [&b"ab"[..], b"c", b"d", b"ef", b"g", b"h"]);
        assert_eq!(out.len(), 8);
    }

    #[test]
    fn unwritten_output_is_queued_and_shared_bytes_stay_shared() {
        let shared = Bytes::from_static(b"shared");
        for skip_bytes in 0..=11 {
            let (mut out, mut queue) = (Output::default(), VecDeque::new());
            out.bytes.extend_from_slice(b"abc");
            out.share(shared.clone());
            out.bytes.extend_from_slice(b"de");
            out.drain_from(skip_bytes, &mut queue);
            assert!(out.is_empty());
            let queue: Vec<Bytes> = queue.into_iter().map(bytes_of).collect();
            assert_eq!(queue.concat(), b"abcsharedde"[skip_bytes..]);
            let mut parts = queue.iter().map(|part| part.as_ptr());
            if skip_bytes <= 3 {
                assert!(parts.any(|part| part == shared.as_ptr()));
            }
        }
        let (mut plain, mut queue) = (Output::default(), VecDeque::new());
        plain.bytes.extend_from_slice(b"abc");
        plain.drain_from(1, &mut queue);
        assert_eq!(
            queue.into_iter().map(bytes_of).collect::<Vec<_>>(),
            [&b"bc"[..]]
        );
    }

    #[test]
    fn ranges_of_files_lie_between_bytes() {
        let file = std::fs::File::open("/dev/null").expect("there is one");
        let file: Arc<dyn AsFd + Send + Sync> = Arc::new(file);
        for skip_bytes in 0..=14 {
            let (mut out, mut queue) = (Output::default(), VecDeque::new());
            out.share_file(FileRange::new(file.clone(), 5, 0));
            assert!(!out.has_files(), "there is nothing in it");
            out.bytes.extend_from_slice(b"abc");
            out.share_file(FileRange::new(file.clone(), 100, 10));
            out.bytes.push(b'd');
            assert!(out.has_files());
            assert_eq!(out.len(), 14);
            out.drain_from(skip_bytes, &mut queue);
            assert!(!out.has_files() && out.is_empty());
            let ranges = queue.iter().filter_map(|piece| match piece {
                Piece::File(range) => Some((range.position(), range.len())),
                Piece::Bytes(_) => None,
            });
            let skipped = skip_bytes.saturating_sub(3) as u64;
            let expected = (skipped < 10).then(|| (100 + skipped, 10 - skipped as usize));
            assert_eq!(ranges.collect::<Vec<_>>(), Vec::from_iter(expected));
            let bytes: usize = queue.iter().map(Piece::len).sum();
            assert_eq!(bytes, 14 - skip_bytes);
        }
    }
}
