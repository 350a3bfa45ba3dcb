//! The floor under the Kafka measurements: a server that reads Produce requests, checks each
//! batch's CRC, writes it, syncs where the producer asked for it, and answers. It is no broker: any
//! topic exists, and nothing can be read.
//!
//! One thread and one set of files per connection, blocking calls. All requests that have come are
//! served before one sync covers them, as a group commit does.
//!
//! Layouts are those of the versions that [`APIS`] names, none of them flexible:
//!
//! ```text
//! request:  size i32 | key i16 | version i16 | correlation i32 | client string | ...
//! Produce:  transactional id string | acks i16 | timeout i32
//!           | topics [name string | partitions [number i32 | records bytes]]
//! answer:   topics [name string | partitions [number i32 | error i16 | base offset i64
//!           | append time i64 | log start i64]] | throttle i32
//! ```

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Kafka's limit for a request.
const REQUEST_BYTES_MAX: usize = 100 << 20;
const READ_BYTES: usize = 256 << 10;
/// Where the CRC of a batch stands, and what it covers.
const CRC_AT: usize = 17;
const CRC_FROM: usize = 21;
const LAST_OFFSET_DELTA_AT: usize = 23;
const PRODUCE: i16 = 0;
const METADATA: i16 = 3;
const API_VERSIONS: i16 = 18;
const INIT_PRODUCER_ID: i16 = 22;
/// Key, oldest and newest version. librdkafka wants a Fetch that knows batches before it sends any.
const APIS: &[(i16, i16, i16)] = &[
    (PRODUCE, 5, 7),
    (1, 4, 11),
    (METADATA, 1, 4),
    (API_VERSIONS, 0, 0),
    (INIT_PRODUCER_ID, 0, 1),
];
const UNSUPPORTED_VERSION: i16 = 35;

/// Serve Produce without being a broker (started by `bench-peers`).
pub(crate) fn main(address: SocketAddr, data: &Path, partitions: u32) -> Result<bool> {
    std::fs::create_dir_all(data)?;
    let listener = TcpListener::bind(address)?;
    for (number, stream) in listener.incoming().enumerate() {
        let mut connection = Connection {
            stream: stream?,
            data: data.join(number.to_string()),
            address,
            partitions,
            files: HashMap::new(),
            next_offsets: HashMap::new(),
        };
        std::thread::spawn(move || {
            if let Err(error) = connection.serve() {
                eprintln!("connection {number}: {error:#}");
            }
        });
    }
    Ok(true)
}

struct Connection {
    stream: TcpStream,
    data: PathBuf,
    address: SocketAddr,
    partitions: u32,
    files: HashMap<i32, File>,
    next_offsets: HashMap<i32, i64>,
}

impl Connection {
    fn serve(&mut self) -> Result<()> {
        self.stream.set_nodelay(true)?;
        let mut buffer = Vec::with_capacity(READ_BYTES);
        let mut chunk = vec![0; READ_BYTES];
        loop {
            let read = self.stream.read(&mut chunk)?;
            if read == 0 {
                return Ok(());
            }
            buffer.extend_from_slice(&chunk[..read]);
            let mut answers = Vec::new();
            let mut taken = 0;
            let mut wants_sync = false;
            while let Some(request) = whole(&buffer[taken..])? {
                taken += 4 + request.len();
                wants_sync |= self.one(request, &mut answers)?;
            }
            buffer.drain(..taken);
            if wants_sync {
                for file in self.files.values() {
                    file.sync_data()?;
                }
            }
            self.stream.write_all(&answers)?;
        }
    }

    /// Serves a request; true when its answer has to wait for a sync.
    fn one(&mut self, request: &[u8], answers: &mut Vec<u8>) -> Result<bool> {
        let mut reader = Reader(request);
        let (key, version) = (reader.i16()?, reader.i16()?);
        let correlation = reader.i32()?;
        reader.string()?;
        let start = answers.len();
        answers.extend([0; 4]);
        answers.extend(correlation.to_be_bytes());
        let mut wants_sync = false;
        match key {
            API_VERSIONS => api_versions(version, answers),
            METADATA => self.metadata(version, &mut reader, answers)?,
            INIT_PRODUCER_ID => answers.extend([0; 16]),
            PRODUCE => {
                let acks = self.produce(&mut reader, answers)?;
                if acks == 0 {
                    answers.truncate(start);
                    return Ok(false);
                }
                wants_sync = acks == -1;
            }
            other => bail!("request {other} has no answer here"),
        }
        let size = i32::try_from(answers.len() - start - 4)?;
        answers[start..start + 4].copy_from_slice(&size.to_be_bytes());
        Ok(wants_sync)
    }

    fn metadata(&self, version: i16, request: &mut Reader<'_>, answer: &mut Vec<u8>) -> Result<()> {
        let count = request.i32()?.max(0);
        if version >= 3 {
            answer.extend([0; 4]); // throttle
        }
        answer.extend(1_i32.to_be_bytes());
        answer.extend(1_i32.to_be_bytes());
        put_string(answer, &self.address.ip().to_string());
        answer.extend(i32::from(self.address.port()).to_be_bytes());
        answer.extend((-1_i16).to_be_bytes()); // rack
        if version >= 2 {
            put_string(answer, "floor");
        }
        answer.extend(1_i32.to_be_bytes()); // controller
        answer.extend(count.to_be_bytes());
        for _ in 0..count {
            answer.extend(0_i16.to_be_bytes());
            put_string(answer, request.string()?);
            answer.push(0); // not internal
            answer.extend(self.partitions.to_be_bytes());
            for number in 0..self.partitions {
                answer.extend(0_i16.to_be_bytes());
                answer.extend(number.to_be_bytes());
                answer.extend(1_i32.to_be_bytes()); // leader
                for _ in ["replicas", "in sync"] {
                    answer.extend(1_i32.to_be_bytes());
                    answer.extend(1_i32.to_be_bytes());
                }
            }
        }
        Ok(())
    }

    fn produce(&mut self, request: &mut Reader<'_>, answer: &mut Vec<u8>) -> Result<i16> {
        request.string()?;
        let acks = request.i16()?;
        request.i32()?;
        let topics = request.i32()?;
        answer.extend(topics.to_be_bytes());
        for _ in 0..topics {
            put_string(answer, request.string()?);
            let partitions = request.i32()?;
            answer.extend(partitions.to_be_bytes());
            for _ in 0..partitions {
                let number = request.i32()?;
                let length = usize::try_from(request.i32()?)?;
                let base = self.append(number, request.take(length)?)?;
                answer.extend(number.to_be_bytes());
                answer.extend(0_i16.to_be_bytes());
                answer.extend(base.to_be_bytes());
                answer.extend((-1_i64).to_be_bytes());
                answer.extend(0_i64.to_be_bytes());
            }
        }
        answer.extend([0; 4]); // throttle
        Ok(acks)
    }

    fn append(&mut self, partition: i32, batch: &[u8]) -> Result<i64> {
        let stored = Reader(batch.get(CRC_AT..).context("half a batch")?).i32()? as u32;
        if crc32c::crc32c(&batch[CRC_FROM..]) != stored {
            bail!("a batch with a wrong CRC");
        }
        let last = Reader(&batch[LAST_OFFSET_DELTA_AT..]).i32()?;
        let next = self.next_offsets.entry(partition).or_default();
        let base = *next;
        *next += i64::from(last) + 1;
        let file = match self.files.entry(partition) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                let name = self.data.with_extension(partition.to_string());
                entry.insert(File::create(name)?)
            }
        };
        file.write_all(&base.to_be_bytes())?;
        file.write_all(&batch[8..])?;
        Ok(base)
    }
}

fn api_versions(version: i16, answer: &mut Vec<u8>) {
    let error = if version == 0 { 0 } else { UNSUPPORTED_VERSION };
    answer.extend(error.to_be_bytes());
    answer.extend((APIS.len() as u32).to_be_bytes());
    for (key, oldest, newest) in APIS {
        for field in [key, oldest, newest] {
            answer.extend(field.to_be_bytes());
        }
    }
}

/// The first request without its size, if it is whole.
fn whole(bytes: &[u8]) -> Result<Option<&[u8]>> {
    let Some((size, rest)) = bytes.split_first_chunk() else {
        return Ok(None);
    };
    let size = u32::from_be_bytes(*size) as usize;
    if size > REQUEST_BYTES_MAX {
        bail!("a request of {size} bytes");
    }
    Ok(rest.get(..size))
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u16).to_be_bytes());
    out.extend(text.as_bytes());
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length).context("half a request")?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk().context("half a request")?;
        self.0 = rest;
        Ok(*taken)
    }

    fn i16(&mut self) -> Result<i16> {
        self.array().map(i16::from_be_bytes)
    }

    fn i32(&mut self) -> Result<i32> {
        self.array().map(i32::from_be_bytes)
    }

    /// A string; null is an empty one.
    fn string(&mut self) -> Result<&'a str> {
        let length = self.i16()?;
        let bytes = self.take(usize::try_from(length).unwrap_or(0))?;
        Ok(std::str::from_utf8(bytes)?)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_request_is_whole_or_not_there() {
        let request = [0, 0, 0, 2, 7, 8, 9];
        assert_eq!(whole(&request[..3]).unwrap(), None);
        assert_eq!(whole(&request[..5]).unwrap(), None);
        assert_eq!(whole(&request).unwrap(), Some(&[7, 8][..]));
        assert!(whole(&[0xff; 8]).is_err());
    }

    #[test]
    fn a_null_string_is_empty() {
        assert_eq!(Reader(&[0xff, 0xff]).string().unwrap(), "");
        assert_eq!(Reader(&[0, 1, b'x']).string().unwrap(), "x");
        assert!(Reader(&[0, 2, b'x']).string().is_err());
    }
}
