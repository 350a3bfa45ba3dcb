//! Raw Deflate, both ways, for streams that come in pieces.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use crate::transport::{Inbox, LayerError};

/// Inflates a stream.
pub(crate) struct Inflater {
    stream: Decompress,
    ended: bool,
}

impl Inflater {
    pub(crate) fn new() -> Inflater {
        Inflater {
            stream: Decompress::new(false),
            ended: false,
        }
    }

    /// Returns the count of plain bytes; 0 when more of the stream is needed, or it has ended.
    pub(crate) fn read(&mut self, inbox: &mut Inbox, out: &mut [u8]) -> Result<usize, LayerError> {
        if self.ended {
            inbox.take(inbox.rest().len());
            return Ok(0);
        }
        loop {
            let (read, written) = (self.stream.total_in(), self.stream.total_out());
            let status = self
                .stream
                .decompress(inbox.rest(), out, FlushDecompress::None)
                .map_err(|_| LayerError::Compressed("Deflate: malformed stream"))?;
            let taken = (self.stream.total_in() - read) as usize;
            let produced = (self.stream.total_out() - written) as usize;
            inbox.take(taken);
            self.ended = status == Status::StreamEnd;
            if produced > 0 || taken == 0 || self.ended {
                return Ok(produced);
            }
        }
    }
}

/// Deflates a stream.
pub(crate) struct Deflater {
    stream: Compress,
}

impl Deflater {
    /// `level` from 0 to 9.
    pub(crate) fn new(level: u32) -> Deflater {
        Deflater {
            stream: Compress::new(Compression::new(level.min(9)), false),
        }
    }

    /// Appends `plain` and flushes, so that the peer can read all of it.
    pub(crate) fn write(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), LayerError> {
        let mut rest = plain;
        loop {
            // A sync flush needs a few bytes beyond the data; the capacity is checked after the
            // call.
            out.reserve(rest.len() / 2 + 256);
            let read = self.stream.total_in();
            self.stream
                .compress_vec(rest, out, FlushCompress::Sync)
                .map_err(|_| LayerError::Compressed("Deflate: cannot compress"))?;
            rest = &rest[(self.stream.total_in() - read) as usize..];
            // Spare capacity means that the flush is complete too.
            if rest.is_empty() && out.capacity() > out.len() {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn each_write_can_be_read_completely_in_any_pieces() {
        for (level, piece) in [(0, 1), (1, 3), (6, 1000), (9, 100_000)] {
            let (mut inflater, mut inbox) = (Inflater::new(), Inbox::default());
            let mut deflater = Deflater::new(level);
            for round in 0..5_u32 {
                let noise = (0..3000 * round).map(|n| (n.wrapping_mul(2_654_435_761) >> 9) as u8);
                let plain: Vec<u8> = [vec![round as u8; 5000], noise.collect()].concat();
                let mut sent = Vec::new();
                deflater.write(&plain, &mut sent).unwrap();
                let (mut read, mut out) = (Vec::new(), [0; 700]);
                for bytes in sent.chunks(piece) {
                    inbox.push(bytes);
                    loop {
                        match inflater.read(&mut inbox, &mut out).unwrap() {
                            0 => break,
                            count => read.extend_from_slice(&out[..count]),
                        }
                    }
                }
                assert!(read == plain, "level {level}, round {round}");
            }
        }
    }

    #[test]
    fn malformed_streams_are_refused() {
        let (mut inflater, mut inbox) = (Inflater::new(), Inbox::default());
        inbox.push(b"\xff\xff\xff\xff\xff");
        assert!(inflater.read(&mut inbox, &mut [0; 10]).is_err());
    }

    #[test]
    fn a_bomb_is_inflated_only_as_far_as_the_buffer_allows() {
        let mut sent = Vec::new();
        Deflater::new(9)
            .write(&vec![0; 10 << 20], &mut sent)
            .unwrap();
        let (mut inflater, mut inbox) = (Inflater::new(), Inbox::default());
        inbox.push(&sent);
        let mut out = [1; 4096];
        assert_eq!(inflater.read(&mut inbox, &mut out).unwrap(), 4096);
        assert!(!inbox.rest().is_empty());
    }
}
