//! Recordings of a doctor's observations, so that another doctor can evaluate them at any time with
//! the same result.
//!
//! A recording is lines of JSON, compressed as one gzip stream (RFC 1952): a header, then an
//! [`Observation`] each. A field that is added to an observation later needs a default, for old
//! recordings.

use std::io::{self, BufRead, BufReader, Read, Write};

use cloverleaf_telemetry::Snapshot;
use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};

use crate::Observation;

/// The format that this version writes, and the only one that it reads.
const FORMAT: u32 = 1;

/// Maximum bytes of a line: two thousand busy connections.
const LINE_BYTES_MAX: u64 = 32 << 20;

/// Maximum observations in a recording: an hour.
const OBSERVATIONS_MAX: usize = 3_600;

/// Maximum bytes of all lines together.
const BYTES_MAX: u64 = 256 << 20;

/// Why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// Reading failed, or it is no gzip stream, or it ends too early.
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    /// A line is malformed.
    #[error("line {number}: {error}")]
    Line {
        /// Line number, from 1, which is the header.
        number: usize,
        /// The parser's error.
        error: serde_json::Error,
    },
    /// It has another format.
    #[error("it has format {0}; this version reads format {FORMAT}")]
    Format(u32),
    /// It has no header.
    #[error("it has no header")]
    Empty,
    /// It exceeds a limit of recordings.
    #[error("{0}")]
    TooLarge(&'static str),
}

/// The first line.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    format: u32,
    /// The version of the broker that wrote it, for people.
    version: String,
}

/// Writes a recording. Dropping it completes the stream and ignores errors.
#[derive(Debug)]
pub struct Recorder<W: Write> {
    out: GzEncoder<W>,
}

impl<W: Write> Recorder<W> {
    /// Begins a recording of a broker of this version.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn new(out: W, version: &str) -> io::Result<Recorder<W>> {
        let mut recorder = Recorder {
            out: GzEncoder::new(out, Compression::best()),
        };
        recorder.line(&Header {
            format: FORMAT,
            version: version.to_owned(),
        })?;
        Ok(recorder)
    }

    /// Adds an observation, without the sums over all connections, which no rule reads.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn record(&mut self, observation: &Observation) -> io::Result<()> {
        let snapshot = &observation.snapshot;
        self.line(&Observation {
            snapshot: Snapshot {
                totals: Vec::new(),
                ..snapshot.clone()
            },
            ..observation.clone()
        })
    }

    /// Completes it.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn finish(self) -> io::Result<W> {
        self.out.finish()
    }

    fn line(&mut self, line: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, line)?;
        self.out.write_all(b"\n")
    }
}

/// Reads a recording: its observations, in their order.
///
/// # Errors
/// It is no recording, is damaged, or exceeds the limits: 3,600 observations, 32 MiB each, 256 MiB
/// together.
pub fn read_recording(input: impl Read) -> Result<Vec<Observation>, RecordingError> {
    let mut lines = BufReader::new(MultiGzDecoder::new(input).take(BYTES_MAX));
    let mut number = 0;
    let mut line = Vec::new();
    let mut next = |line: &mut Vec<u8>| -> Result<bool, RecordingError> {
        line.clear();
        let read = (&mut lines).take(LINE_BYTES_MAX).read_until(b'\n', line)?;
        if read > 0 && line.last() != Some(&b'\n') {
            return Err(RecordingError::TooLarge(
                "a line does not end, or all together have more than 256 MiB",
            ));
        }
        Ok(read > 0)
    };
    if !next(&mut line)? {
        return Err(RecordingError::Empty);
    }
    let header: Header = parse(&line, &mut number)?;
    if header.format != FORMAT {
        return Err(RecordingError::Format(header.format));
    }
    let mut observations = Vec::new();
    while next(&mut line)? {
        if observations.len() == OBSERVATIONS_MAX {
            return Err(RecordingError::TooLarge("it has more than 3,600 lines"));
        }
        observations.push(parse(&line, &mut number)?);
    }
    Ok(observations)
}

fn parse<'a, T: Deserialize<'a>>(line: &'a [u8], number: &mut usize) -> Result<T, RecordingError> {
    *number += 1;
    let number = *number;
    serde_json::from_slice(line).map_err(|error| RecordingError::Line { number, error })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn compressed(text: &[u8]) -> Vec<u8> {
        let mut out = GzEncoder::new(Vec::new(), Compression::fast());
        out.write_all(text).unwrap();
        out.finish().unwrap()
    }

    fn recorded(observations: &[Observation]) -> Vec<u8> {
        let mut recorder = Recorder::new(Vec::new(), "0.0.0").unwrap();
        for observation in observations {
            recorder.record(observation).unwrap();
        }
        recorder.finish().unwrap()
    }

    fn empty(at_us: u64) -> Observation {
        Observation {
            taken_us: at_us,
            unix_us: at_us,
            snapshot: Snapshot::default(),
            queues: Vec::new(),
        }
    }

    #[test]
    fn what_is_no_recording_is_told() {
        let read = |bytes: &[u8]| read_recording(bytes).unwrap_err().to_string();
        assert!(read(b"no gzip").starts_with("it cannot be read: "));
        assert_eq!(read(&compressed(b"")), "it has no header");
        let newer = read(&compressed(b"{\"format\":2,\"version\":\"9\"}\n"));
        assert_eq!(newer, "it has format 2; this version reads format 1");
        let header = "{\"format\":1,\"version\":\"9\"}\n";
        let damaged = read(&compressed(format!("{header}{{}}\n").as_bytes()));
        assert!(damaged.starts_with("line 2: missing field"), "{damaged}");
        let cut = read(&compressed(header.trim_end().as_bytes()));
        assert!(cut.starts_with("a line does not end"), "{cut}");
        let whole = recorded(&[empty(1)]);
        assert!(read(&whole[..whole.len() - 4]).starts_with("it cannot be read: "));
    }

    #[test]
    fn a_bomb_is_no_recording() {
        let zeroes = compressed(&vec![b' '; 40 << 20]);
        assert!(zeroes.len() < 1 << 20);
        let error = read_recording(&zeroes[..]).unwrap_err();
        assert!(matches!(error, RecordingError::TooLarge(_)), "{error}");
    }

    #[test]
    fn a_field_that_came_later_has_a_default() {
        let line = serde_json::to_string(&empty(7)).unwrap();
        let older = line.replace(",\"closed\":[]", "");
        assert_ne!(older, line);
        let text = format!("{{\"format\":1,\"version\":\"1\"}}\n{older}\n");
        assert_eq!(
            read_recording(&compressed(text.as_bytes())[..]).unwrap(),
            [empty(7)]
        );
    }

    proptest! {
        #[test]
        fn what_is_recorded_is_read(times in prop::collection::vec(0..1_000_000_u64, 0..20)) {
            let seen: Vec<Observation> = times.into_iter().map(empty).collect();
            prop_assert_eq!(read_recording(&recorded(&seen)[..]).unwrap(), seen);
        }

        #[test]
        fn bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..2_000)) {
            let _ = read_recording(&bytes[..]);
            let _ = read_recording(&compressed(&bytes)[..]);
        }
    }
}
