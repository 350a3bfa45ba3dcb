//! A message's body, borrowed from where it was received. A large body comes in several frames;
//! they are joined only when the body is copied into its batch.

use crate::wire::peek_frame;

/// A body: one piece or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Body<'a>(BodyBytes<'a>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyBytes<'a> {
    One(&'a [u8]),
    /// Whole frames, already validated, and the total length of their payloads.
    Frames(&'a [u8], usize),
    /// Pieces, and their total length.
    Pieces(&'a [Vec<u8>], usize),
}

impl<'a> Body<'a> {
    /// The payloads of whole, well-formed frames, of `length` bytes in total.
    pub(crate) fn of_frames(frames: &'a [u8], length: usize) -> Self {
        Self(BodyBytes::Frames(frames, length))
    }

    /// A body in several pieces.
    pub(crate) fn of_pieces(pieces: &'a [Vec<u8>]) -> Self {
        Self(BodyBytes::Pieces(pieces, pieces.iter().map(Vec::len).sum()))
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self.0 {
            BodyBytes::One(body) => body.len(),
            BodyBytes::Frames(_, length) | BodyBytes::Pieces(_, length) => length,
        }
    }

    /// Whether the body has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pieces, in order.
    pub fn pieces(&self) -> Pieces<'a> {
        Pieces(match self.0 {
            BodyBytes::One(body) => RemainingPieces::One(Some(body)),
            BodyBytes::Frames(frames, _) => RemainingPieces::Frames(frames),
            BodyBytes::Pieces(pieces, _) => RemainingPieces::Pieces(pieces.iter()),
        })
    }

    /// The body, if it is in one piece.
    #[inline]
    pub fn one(&self) -> Option<&'a [u8]> {
        match self.0 {
            BodyBytes::One(body) => Some(body),
            _ => None,
        }
    }

    /// A copy in one piece.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut whole = Vec::with_capacity(self.len());
        self.pieces()
            .for_each(|piece| whole.extend_from_slice(piece));
        whole
    }
}

impl<'a> From<&'a [u8]> for Body<'a> {
    fn from(body: &'a [u8]) -> Self {
        Self(BodyBytes::One(body))
    }
}

/// The pieces of a body.
#[derive(Clone, Debug)]
pub struct Pieces<'a>(RemainingPieces<'a>);

#[derive(Clone, Debug)]
enum RemainingPieces<'a> {
    One(Option<&'a [u8]>),
    Frames(&'a [u8]),
    Pieces(std::slice::Iter<'a, Vec<u8>>),
}

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        match &mut self.0 {
            RemainingPieces::One(body) => body.take(),
            RemainingPieces::Frames(frames) => {
                // Cannot fail: the frames were validated when they came.
                let frame = peek_frame(frames, u32::MAX).ok()?.ok()?;
                *frames = &frames[frame.len_bytes()..];
                Some(frame.payload)
            }
            RemainingPieces::Pieces(pieces) => pieces.next().map(Vec::as_slice),
        }
    }
}

/// A body that arrives piece by piece: small pieces are joined, large ones stay as they are.
#[derive(Debug, Default)]
pub(crate) struct CollectedBody {
    pieces: Vec<Vec<u8>>,
}

/// Small pieces are joined up to this size.
const PIECE_BYTES_MAX: usize = 64 << 10;

impl CollectedBody {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        match self.pieces.last_mut() {
            Some(last) if last.len() + bytes.len() <= PIECE_BYTES_MAX => {
                last.extend_from_slice(bytes)
            }
            _ => self.pieces.push(bytes.to_vec()),
        }
    }

    pub(crate) fn body(&self) -> Body<'_> {
        Body::of_pieces(&self.pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_pieces_become_one_and_large_ones_stay_alone() {
        let mut collected = CollectedBody::default();
        let (small, large) = ([1; 1000], [2; 100_000]);
        for _ in 0..100 {
            collected.push(&small);
        }
        collected.push(&large);
        collected.push(&large);
        collected.push(&small);
        let body = collected.body();
        let lengths: Vec<usize> = body.pieces().map(<[u8]>::len).collect();
        assert_eq!(lengths, [65_000, 35_000, 100_000, 100_000, 1000]);
        assert_eq!(body.len(), 301_000);
        assert_eq!(body.one(), None);
        let whole = [&[1; 100_000][..], &large, &large, &small].concat();
        assert_eq!(body.to_vec(), whole);
        assert_eq!(Body::from(&whole[..]).to_vec(), whole);
        assert!(CollectedBody::default().body().is_empty());
    }
}
