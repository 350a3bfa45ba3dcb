//! As much of Kafka's protocol and of AMQP 0-9-1 as it takes to put messages in and to get them
//! out, so that a round costs no start of a client program. NSQ's is in `nsq.rs`.
//!
//! ```text
//! Kafka: size i32 | key i16, version i16 | correlation i32 | client string | body
//! AMQP:  kind u8 | channel u16 | size u32 | payload | 0xce
//!        a method: class u16 | method u16 | arguments
//! ```

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context, Result, bail, ensure};

use crate::wait;

/// Fixed fields of a record batch before its records.
pub(super) const BATCH_HEADER_BYTES: usize = 61;
const PRODUCE: i16 = 0;
const FETCH: i16 = 1;
const LIST_OFFSETS: i16 = 2;
const CREATE_TOPICS: i16 = 19;
const INIT_PRODUCER_ID: i16 = 22;

fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, wait::HANG)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(wait::HANG))?;
    Ok(stream)
}

/// Takes a field from the front of an answer.
fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N]> {
    let (field, more) = rest.split_first_chunk().context("a short answer")?;
    *rest = more;
    Ok(*field)
}

fn take_slice<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8]> {
    let (field, more) = rest.split_at_checked(len).context("a short answer")?;
    *rest = more;
    Ok(field)
}

/// A connection that speaks Kafka's protocol.
pub(super) struct Kafka {
    stream: TcpStream,
}

/// An idempotent producer, of epoch 0.
pub(super) struct Producer {
    pub(super) id: i64,
}

impl Kafka {
    pub(super) fn open(address: SocketAddr) -> Result<Self> {
        let stream = connect(address)?;
        Ok(Self { stream })
    }

    fn ask(&mut self, key: i16, version: i16, body: &[u8]) -> Result<Vec<u8>> {
        let mut request = Vec::new();
        request.extend(key.to_be_bytes());
        request.extend(version.to_be_bytes());
        request.extend(7_i32.to_be_bytes());
        string(&mut request, "rot");
        request.extend(body);
        let size = i32::try_from(request.len())?;
        self.stream.write_all(&size.to_be_bytes())?;
        self.stream.write_all(&request)?;
        let mut size = [0; 4];
        self.stream.read_exact(&mut size)?;
        let mut answer = vec![0; usize::try_from(i32::from_be_bytes(size))?];
        self.stream.read_exact(&mut answer)?;
        ensure!(answer.starts_with(&7_i32.to_be_bytes()), "another's answer");
        Ok(answer.split_off(4))
    }

    pub(super) fn create_topic(&mut self, topic: &str, partitions: i32) -> Result<()> {
        let mut body = 1_i32.to_be_bytes().to_vec();
        string(&mut body, topic);
        body.extend(partitions.to_be_bytes());
        body.extend(1_i16.to_be_bytes());
        // No assignments, and one setting: the messages are old from the first day on.
        body.extend([0, 0, 0, 0, 0, 0, 0, 1]);
        string(&mut body, "retention.ms");
        string(&mut body, "-1");
        body.extend(60_000_i32.to_be_bytes());
        body.push(0);
        let answer = self.ask(CREATE_TOPICS, 2, &body)?;
        let mut rest = &answer[..];
        take::<8>(&mut rest)?;
        let name_bytes = i16::from_be_bytes(take(&mut rest)?);
        take_slice(&mut rest, usize::try_from(name_bytes)?)?;
        match i16::from_be_bytes(take(&mut rest)?) {
            0 => Ok(()),
            error => bail!("CreateTopics: error {error}"),
        }
    }

    pub(super) fn producer(&mut self) -> Result<Producer> {
        let mut body = (-1_i16).to_be_bytes().to_vec();
        body.extend(60_000_i32.to_be_bytes());
        let answer = self.ask(INIT_PRODUCER_ID, 0, &body)?;
        let mut rest = &answer[..];
        take::<4>(&mut rest)?;
        let error = i16::from_be_bytes(take(&mut rest)?);
        ensure!(error == 0, "InitProducerId: error {error}");
        let id = i64::from_be_bytes(take(&mut rest)?);
        Ok(Producer { id })
    }

    /// Publishes one batch, synced; its base offset.
    pub(super) fn produce(&mut self, topic: &str, partition: i32, batch: &[u8]) -> Result<u64> {
        let mut body = (-1_i16).to_be_bytes().to_vec();
        body.extend((-1_i16).to_be_bytes());
        body.extend(60_000_i32.to_be_bytes());
        one_partition(&mut body, topic, partition);
        body.extend(i32::try_from(batch.len())?.to_be_bytes());
        body.extend(batch);
        let answer = self.ask(PRODUCE, 3, &body)?;
        let mut rest = &answer[..];
        skip_to_partition(&mut rest)?;
        let error = i16::from_be_bytes(take(&mut rest)?);
        ensure!(error == 0, "Produce: error {error}");
        Ok(u64::from_be_bytes(take(&mut rest)?))
    }

    /// The offset of the first message that is there.
    fn earliest(&mut self, topic: &str, partition: i32) -> Result<u64> {
        let mut body = (-1_i32).to_be_bytes().to_vec();
        one_partition(&mut body, topic, partition);
        body.extend((-2_i64).to_be_bytes());
        let answer = self.ask(LIST_OFFSETS, 1, &body)?;
        let mut rest = &answer[..];
        skip_to_partition(&mut rest)?;
        let error = i16::from_be_bytes(take(&mut rest)?);
        ensure!(error == 0, "ListOffsets: error {error}");
        take::<8>(&mut rest)?;
        Ok(u64::from_be_bytes(take(&mut rest)?))
    }

    /// All batches of a partition, back to back.
    pub(super) fn fetch_all(&mut self, topic: &str, partition: i32) -> Result<Vec<u8>> {
        let (mut all, mut from) = (Vec::new(), self.earliest(topic, partition)?);
        loop {
            let mut body = (-1_i32).to_be_bytes().to_vec();
            // Waits for nothing.
            body.extend([0; 8]);
            body.extend((1_i32 << 20).to_be_bytes());
            body.push(0);
            one_partition(&mut body, topic, partition);
            body.extend(from.to_be_bytes());
            body.extend((1_i32 << 20).to_be_bytes());
            let answer = self.ask(FETCH, 4, &body)?;
            let mut rest = &answer[..];
            take::<4>(&mut rest)?;
            skip_to_partition(&mut rest)?;
            let error = i16::from_be_bytes(take(&mut rest)?);
            ensure!(error == 0, "Fetch of {topic} from {from}: error {error}");
            let end = u64::from_be_bytes(take(&mut rest)?);
            take::<8>(&mut rest)?;
            let aborted = i32::from_be_bytes(take(&mut rest)?);
            ensure!(aborted <= 0, "transactions");
            let bytes = usize::try_from(i32::from_be_bytes(take(&mut rest)?).max(0))?;
            let records = take_slice(&mut rest, bytes)?;
            let Some(last) = batches(records).last() else {
                ensure!(from >= end, "Fetch of {topic} stops at {from} of {end}");
                return Ok(all);
            };
            all.extend(&records[..last.at + last.bytes]);
            from = last.end;
        }
    }
}

fn string(into: &mut Vec<u8>, text: &str) {
    into.extend(u16::try_from(text.len()).unwrap_or(0).to_be_bytes());
    into.extend(text.as_bytes());
}

/// The beginning of a request's list of topics with one of one partition.
fn one_partition(into: &mut Vec<u8>, topic: &str, partition: i32) {
    into.extend(1_i32.to_be_bytes());
    string(into, topic);
    into.extend(1_i32.to_be_bytes());
    into.extend(partition.to_be_bytes());
}

fn skip_to_partition(rest: &mut &[u8]) -> Result<()> {
    take::<4>(rest)?;
    let name_bytes = i16::from_be_bytes(take(rest)?);
    take_slice(rest, usize::try_from(name_bytes)?)?;
    take::<8>(rest)?;
    Ok(())
}

/// Where a batch lies, and its offsets.
pub(super) struct Place {
    pub(super) at: usize,
    pub(super) bytes: usize,
    pub(super) base: u64,
    pub(super) end: u64,
}

/// Whole batches, back to back, as far as they look like some.
pub(super) fn batches(bytes: &[u8]) -> impl Iterator<Item = Place> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let header = bytes.get(at..at + BATCH_HEADER_BYTES)?;
        let number = |at: usize| {
            let field = header[at..at + 4].try_into().unwrap_or([0; 4]);
            u32::from_be_bytes(field)
        };
        let len = number(8) as usize + 12;
        if header[16] != 2 || len < BATCH_HEADER_BYTES || bytes.len() < at + len {
            return None;
        }
        let base = u64::from(number(0)) << 32 | u64::from(number(4));
        let place = Place {
            at,
            bytes: len,
            base,
            end: base + u64::from(number(23)) + 1,
        };
        at += len;
        Some(place)
    })
}

/// A batch of an idempotent producer.
pub(super) fn batch(producer: &Producer, sequence: i32, bodies: &[Vec<u8>]) -> Vec<u8> {
    let count = i32::try_from(bodies.len()).unwrap_or(0);
    let mut body = Vec::new();
    // Attributes, the last offset, two times.
    body.extend(0_i16.to_be_bytes());
    body.extend((count - 1).to_be_bytes());
    body.extend(1_700_000_000_000_i64.to_be_bytes());
    body.extend(1_700_000_000_000_i64.to_be_bytes());
    body.extend(producer.id.to_be_bytes());
    body.extend(0_i16.to_be_bytes());
    body.extend(sequence.to_be_bytes());
    body.extend(count.to_be_bytes());
    for (delta, value) in bodies.iter().enumerate() {
        let mut record = vec![0, 0];
        varint(&mut record, delta);
        // No key.
        record.push(1);
        varint(&mut record, value.len());
        record.extend(value);
        record.push(0);
        varint(&mut body, record.len());
        body.extend(record);
    }
    let mut batch = vec![0; 8];
    batch.extend(u32::try_from(body.len() + 9).unwrap_or(0).to_be_bytes());
    batch.extend([0, 0, 0, 0, 2]);
    batch.extend(crc32c::crc32c(&body).to_be_bytes());
    batch.extend(body);
    batch
}

fn varint(into: &mut Vec<u8>, value: usize) {
    let mut left = value << 1;
    while left >= 0x80 {
        into.push((left & 0x7f) as u8 | 0x80);
        left >>= 7;
    }
    into.push(left as u8);
}

/// A connection with one channel in confirm mode that speaks AMQP.
pub(super) struct Amqp {
    stream: TcpStream,
}

/// Class and method.
type Method = (u16, u16);

impl Amqp {
    pub(super) fn open(address: SocketAddr) -> Result<Self> {
        let mut amqp = Self {
            stream: connect(address)?,
        };
        amqp.stream.write_all(b"AMQP\x00\x00\x09\x01")?;
        amqp.expect((10, 10))?;
        let mut start_ok = 0_u32.to_be_bytes().to_vec();
        short(&mut start_ok, "PLAIN");
        start_ok.extend(12_u32.to_be_bytes());
        start_ok.extend(b"\0guest\0guest");
        short(&mut start_ok, "en_US");
        amqp.send(0, (10, 11), &start_ok)?;
        amqp.expect((10, 30))?;
        amqp.send(0, (10, 31), &[0, 9, 0, 2, 0, 0, 0, 0])?;
        amqp.ask(0, (10, 40), b"\x01/\0\0", (10, 41))?;
        amqp.ask(1, (20, 10), &[0], (20, 11))?;
        amqp.ask(1, (85, 10), &[0], (85, 11))?;
        Ok(amqp)
    }

    pub(super) fn declare(&mut self, queue: &str) -> Result<()> {
        let mut arguments = vec![0, 0];
        short(&mut arguments, queue);
        // Durable, no table.
        arguments.extend([2, 0, 0, 0, 0]);
        self.ask(1, (50, 10), &arguments, (50, 11)).map(drop)
    }

    /// Publishes a persistent message to a queue, and waits until it is confirmed.
    pub(super) fn publish(&mut self, queue: &str, body: &[u8]) -> Result<()> {
        let mut arguments = vec![0, 0, 0];
        short(&mut arguments, queue);
        arguments.push(0);
        self.send(1, (60, 40), &arguments)?;
        let mut header = [0, 60, 0, 0].to_vec();
        header.extend((body.len() as u64).to_be_bytes());
        // One property, the delivery mode.
        header.extend([0x10, 0, 2]);
        self.frame(2, 1, &header)?;
        self.frame(3, 1, body)?;
        self.expect((60, 80)).map(drop)
    }

    /// Takes a message from a queue, acknowledged by that.
    pub(super) fn get(&mut self, queue: &str) -> Result<Option<Vec<u8>>> {
        let mut arguments = vec![0, 0];
        short(&mut arguments, queue);
        arguments.push(1);
        self.send(1, (60, 70), &arguments)?;
        let (_, payload) = self.read()?;
        match method_of(&payload) {
            (60, 72) => return Ok(None),
            (60, 71) => {}
            other => bail!("method {other:?} where a message was due"),
        }
        let (_, header) = self.read()?;
        let mut rest = header.get(4..).context("a short header")?;
        let size = u64::from_be_bytes(take(&mut rest)?);
        let mut body = Vec::new();
        while (body.len() as u64) < size {
            body.extend(self.read()?.1);
        }
        Ok(Some(body))
    }

    fn ask(&mut self, channel: u16, method: Method, arguments: &[u8], ok: Method) -> Result<()> {
        self.send(channel, method, arguments)?;
        self.expect(ok)
    }

    fn send(&mut self, channel: u16, method: Method, arguments: &[u8]) -> Result<()> {
        let mut payload = method.0.to_be_bytes().to_vec();
        payload.extend(method.1.to_be_bytes());
        payload.extend(arguments);
        self.frame(1, channel, &payload)
    }

    fn frame(&mut self, kind: u8, channel: u16, payload: &[u8]) -> Result<()> {
        let mut frame = vec![kind];
        frame.extend(channel.to_be_bytes());
        frame.extend(u32::try_from(payload.len())?.to_be_bytes());
        frame.extend(payload);
        frame.push(0xce);
        Ok(self.stream.write_all(&frame)?)
    }

    fn expect(&mut self, method: Method) -> Result<()> {
        let (_, payload) = self.read()?;
        let text = String::from_utf8_lossy(&payload);
        ensure!(method_of(&payload) == method, "{text:?}, not {method:?}");
        Ok(())
    }

    /// The next frame that is no heartbeat: its kind and payload.
    fn read(&mut self) -> Result<(u8, Vec<u8>)> {
        loop {
            let mut head = [0; 7];
            self.stream.read_exact(&mut head)?;
            let [kind, _, _, s0, s1, s2, s3] = head;
            let mut payload = vec![0; u32::from_be_bytes([s0, s1, s2, s3]) as usize + 1];
            self.stream.read_exact(&mut payload)?;
            payload.pop();
            if kind != 8 {
                return Ok((kind, payload));
            }
        }
    }
}

fn method_of(payload: &[u8]) -> Method {
    match payload {
        [c0, c1, m0, m1, ..] => (
            u16::from_be_bytes([*c0, *c1]),
            u16::from_be_bytes([*m0, *m1]),
        ),
        _ => (0, 0),
    }
}

fn short(into: &mut Vec<u8>, text: &str) {
    into.push(text.len() as u8);
    into.extend(text.as_bytes());
}
