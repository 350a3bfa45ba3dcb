//! Kafka brokers announce where their clients have to connect. So that a client stays on the proxy,
//! the addresses in two kinds of responses are rewritten: those of Metadata and of FindCoordinator.
//! Other requests and responses pass unchanged. Only their lengths and heads are read.
//!
//! ```text
//! request    size i32 | api key i16 | version i16 | correlation id i32 | …
//! response   size i32 | correlation id i32 | …
//!
//! Metadata         [tags, 9+] [throttle i32, 3+] brokers: count, then each
//!                  node i32 | host | port i32 | [rack, 1+] | [tags, 9+]
//! FindCoordinator  [tags, 3+] [throttle i32, 1+] and up to version 3
//!                  error i16 | [message, 1+] | node i32 | host | port i32, else count, then each
//!                  key | node i32 | host | port i32 | error i16 | message | tags
//! ```

use std::collections::VecDeque;

use crate::reader::Reader;
use crate::wire::put_varint;

const METADATA: i16 = 3;
const FIND_COORDINATOR: i16 = 10;
/// Bytes of a request up to its correlation id, which are kept.
const HEAD_BYTES: usize = 12;
/// A response is rewritten if it is not longer than this, which suffices for 100,000 partitions.
const RESPONSE_BYTES_MAX: usize = 64 << 20;
/// Requests that wait for a response. Beyond this number, the oldest are forgotten.
const WAITING_MAX: usize = 10_000;

/// Returns the address by which clients reach a broker; `None`: it stays unchanged.
pub(super) type Endpoint<'e> = dyn FnMut(&str, u16) -> Option<(String, u16)> + 'e;

/// Follows requests and responses of one connection.
#[derive(Debug, Default)]
pub(super) struct AddressRewriter {
    /// The beginning of the request that is passing.
    head: Vec<u8>,
    /// Bytes of that request that have not passed.
    request_left: usize,
    /// Requests whose response has addresses: correlation id, key, version.
    waiting: VecDeque<(i32, i16, i16)>,
    /// Bytes of a response that are held: its head, or all of it if it has addresses.
    response: Vec<u8>,
    /// Bytes of a response that have not come and will pass unchanged.
    response_left: usize,
    /// The bytes are not those of Kafka's protocol: everything passes unchanged from then on.
    is_lost: bool,
}

impl AddressRewriter {
    /// Follows bytes of requests, which pass unchanged.
    pub(super) fn requests(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && !self.is_lost {
            let passing = bytes.len().min(self.request_left);
            bytes = &bytes[passing..];
            self.request_left -= passing;
            if self.request_left > 0 || bytes.is_empty() {
                return;
            }
            let some = bytes.len().min(HEAD_BYTES - self.head.len());
            self.head.extend_from_slice(&bytes[..some]);
            bytes = &bytes[some..];
            if self.head.len() < HEAD_BYTES {
                return;
            }
            let mut head = Reader(&self.head);
            let parts = (head.i32(), head.i16(), head.i16(), head.i32());
            let (Some(size), Some(key), Some(version), Some(correlation)) = parts else {
                return;
            };
            self.head.clear();
            match usize::try_from(size)
                .ok()
                .and_then(|size| (size + 4).checked_sub(HEAD_BYTES))
            {
                Some(left) => self.request_left = left,
                None => self.is_lost = true,
            }
            if matches!(key, METADATA | FIND_COORDINATOR) {
                self.waiting.push_back((correlation, key, version));
                if self.waiting.len() > WAITING_MAX {
                    self.waiting.pop_front();
                }
            }
        }
    }

    /// Takes bytes of responses. Appends those that pass to `out`.
    pub(super) fn responses(&mut self, mut bytes: &[u8], out: &mut Vec<u8>, to: &mut Endpoint<'_>) {
        while !bytes.is_empty() {
            if self.is_lost {
                out.append(&mut self.response);
                out.extend_from_slice(bytes);
                return;
            }
            let passing = bytes.len().min(self.response_left);
            out.extend_from_slice(&bytes[..passing]);
            bytes = &bytes[passing..];
            self.response_left -= passing;
            if self.response_left > 0 || bytes.is_empty() {
                return;
            }
            // The head of a response, or all of it if it has addresses.
            let wanted = self.wanted();
            let some = bytes.len().min(wanted.saturating_sub(self.response.len()));
            self.response.extend_from_slice(&bytes[..some]);
            bytes = &bytes[some..];
            if self.response.len() == wanted {
                self.pass(out, to);
            }
        }
    }

    /// Returns the held bytes of a response whose rest does not come.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.response)
    }

    /// The length at which [`AddressRewriter::response`] can be passed on.
    fn wanted(&self) -> usize {
        match self.request_of_response() {
            Some((_, size)) if size + 4 <= RESPONSE_BYTES_MAX => size + 4,
            _ => 8,
        }
    }

    /// The index of the response's request in [`AddressRewriter::waiting`], and the response's
    /// size, once the head has come.
    fn request_of_response(&self) -> Option<(usize, usize)> {
        let mut head = Reader(&self.response);
        let (size, correlation) = (head.i32()?, head.i32()?);
        let place = self
            .waiting
            .iter()
            .position(|(waiting, ..)| *waiting == correlation)?;
        Some((place, usize::try_from(size).ok().filter(|size| *size >= 4)?))
    }

    /// Passes [`AddressRewriter::response`] on, with other addresses if it has some.
    fn pass(&mut self, out: &mut Vec<u8>, to: &mut Endpoint<'_>) {
        if self.response.len() < self.wanted() {
            return;
        }
        let size = Reader(&self.response)
            .i32()
            .and_then(|size| usize::try_from(size).ok());
        let Some(left) = size.and_then(|size| (size + 4).checked_sub(self.response.len())) else {
            self.is_lost = true;
            out.append(&mut self.response);
            return;
        };
        self.response_left = left;
        let request = self.request_of_response().filter(|_| left == 0);
        let request = request.and_then(|(place, _)| self.waiting.remove(place));
        let changed =
            request.and_then(|(_, key, version)| changed(&self.response[4..], key, version, to));
        match changed {
            Some(changed) => {
                // It is as long as the response, which is bounded, and some host names.
                let size = i32::try_from(changed.len()).unwrap_or(i32::MAX);
                out.extend_from_slice(&size.to_be_bytes());
                out.extend_from_slice(&changed);
                self.response.clear();
            }
            None => out.append(&mut self.response),
        }
    }
}

/// A response, from its correlation id on, with other addresses; `None`: it cannot be read, and
/// passes unchanged.
fn changed(response: &[u8], key: i16, version: i16, to: &mut Endpoint<'_>) -> Option<Vec<u8>> {
    let mut copy = Copy {
        from: Reader(response),
        out: Vec::with_capacity(response.len() + 64),
        is_flexible: version >= if key == METADATA { 9 } else { 3 },
    };
    copy.bytes(4)?;
    copy.tags()?;
    match key {
        METADATA => {
            copy.bytes(if version >= 3 { 4 } else { 0 })?;
            for _ in 0..copy.count()? {
                copy.node(to)?;
                if version >= 1 {
                    copy.text()?;
                }
                copy.tags()?;
            }
        }
        _ if version <= 3 => {
            copy.bytes(if version >= 1 { 4 } else { 0 } + 2)?;
            if version >= 1 {
                copy.text()?;
            }
            copy.node(to)?;
        }
        _ => {
            copy.bytes(4)?;
            for _ in 0..copy.count()? {
                copy.text()?;
                copy.node(to)?;
                copy.bytes(2)?;
                copy.text()?;
                copy.tags()?;
            }
        }
    }
    copy.out.extend_from_slice(copy.from.0);
    Some(copy.out)
}

/// The length of a string, an array or bytes; that of null is 0.
fn length(reader: &mut Reader<'_>, is_flexible: bool, is_wide: bool) -> Option<usize> {
    let length = match (is_flexible, is_wide) {
        (true, _) => return usize::try_from(reader.varint()?.saturating_sub(1)).ok(),
        (false, true) => reader.i32()?,
        (false, false) => reader.i16()?.into(),
    };
    Some(usize::try_from(length).unwrap_or(0))
}

/// Copies a response, with changes.
struct Copy<'b> {
    from: Reader<'b>,
    out: Vec<u8>,
    is_flexible: bool,
}

impl Copy<'_> {
    fn bytes(&mut self, bytes: usize) -> Option<()> {
        self.out.extend_from_slice(self.from.take(bytes)?);
        Some(())
    }

    /// Copies the bytes that `read` reads.
    fn read<T>(&mut self, read: impl FnOnce(&mut Reader<'_>) -> Option<T>) -> Option<T> {
        let mut after = self.from;
        let value = read(&mut after)?;
        self.bytes(self.from.0.len() - after.0.len())?;
        Some(value)
    }

    fn count(&mut self) -> Option<usize> {
        let is_flexible = self.is_flexible;
        self.read(|reader| length(reader, is_flexible, true))
    }

    fn text(&mut self) -> Option<()> {
        let is_flexible = self.is_flexible;
        self.read(|reader| {
            let bytes = length(reader, is_flexible, false)?;
            reader.take(bytes).map(drop)
        })
    }

    fn tags(&mut self) -> Option<()> {
        if !self.is_flexible {
            return Some(());
        }
        self.read(|reader| {
            for _ in 0..reader.varint()? {
                reader.varint()?;
                let length = reader.varint()?;
                reader.take(usize::try_from(length).ok()?)?;
            }
            Some(())
        })
    }

    /// Copies a node, with another address.
    fn node(&mut self, to: &mut Endpoint<'_>) -> Option<()> {
        self.bytes(4)?;
        let mut after = self.from;
        let bytes = length(&mut after, self.is_flexible, false)?;
        let host = std::str::from_utf8(after.take(bytes)?).ok()?;
        let port = u16::try_from(after.i32()?).ok();
        // A response without a coordinator has an empty address.
        let known = port.filter(|port| *port > 0 && !host.is_empty());
        let Some((host, port)) = known.and_then(|port| to(host, port)) else {
            return self.bytes(self.from.0.len() - after.0.len());
        };
        self.from = after;
        if self.is_flexible {
            put_varint(&mut self.out, host.len() as u64 + 1);
        } else {
            let length = i16::try_from(host.len()).ok()?;
            self.out.extend_from_slice(&length.to_be_bytes());
        }
        self.out.extend_from_slice(host.as_bytes());
        self.out.extend_from_slice(&i32::from(port).to_be_bytes());
        Some(())
    }
}

#[cfg(test)]
#[path = "kafka_tests.rs"]
mod tests;
