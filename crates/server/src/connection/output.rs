//! The output of one connection: through the layers, in vectored writes; and the output that the
//! socket has not taken yet.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use cloverleaf_session::{FileRange, Now, Output, Piece, Session};
use rustix::net::{SendAncillaryBuffer, SendFlags};
use tokio::io::{AsyncWrite, Interest};
use tokio::net::TcpStream;

use crate::connection::io::{Progress, TransportError};
use crate::transport::Layers;

/// A shared output buffer that grew beyond this is freed.
const OUTPUT_KEPT_BYTES: usize = 1024 * 1024;

/// A peer with unsent output has to take this much, or all of it, before the write timeout
/// restarts: a peer that takes a byte now and then would hold buffers for ever.
const TAKEN_BYTES_MIN: usize = 64 * 1024;

/// Output goes through layers in steps of this size: a large answer is encrypted as the peer takes
/// it, and other connections of the core have a turn in between.
const LAYER_STEP_BYTES: usize = 256 * 1024;

/// Maximum parts of one vectored write (`IOV_MAX` of Linux).
const PARTS_MAX: usize = 1024;

/// Maximum bytes that one call sends from a file.
const FILE_SEND_BYTES_MAX: usize = 1024 * 1024;

/// Buffers that the connections of a core share; one connection uses them for one turn.
#[derive(Default)]
pub(crate) struct OutputScratch {
    plain: Output,
    raw: Vec<u8>,
}

impl OutputScratch {
    /// Drops the output that was written, and buffers that grew large.
    fn shrink(&mut self) {
        // Shared bytes must not stay here: they belong to the log, which counts them as its memory.
        self.plain.clear();
        if self.plain.bytes.capacity() > OUTPUT_KEPT_BYTES {
            self.plain = Output::default();
        }
        if self.raw.capacity() > OUTPUT_KEPT_BYTES {
            self.raw = Vec::new();
        }
    }
}

/// The socket, the layers and the session of one connection, for one turn.
pub(crate) struct SocketWriter<'a, 'c, S> {
    pub(crate) stream: &'a mut TcpStream,
    pub(crate) layers: Option<&'a mut Layers>,
    pub(crate) session: &'a mut S,
    pub(crate) cx: &'a mut Context<'c>,
    pub(crate) now: Now,
}

impl<S: Session> SocketWriter<'_, '_, S> {
    /// One write; `None` when the socket is full.
    fn write(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        let written = Pin::new(&mut *self.stream).poll_write(self.cx, bytes);
        self.wrote(written)
    }

    /// One write of as many parts as one call takes; also returns the bytes of these parts.
    fn write_parts<'p>(
        &mut self,
        parts: impl Iterator<Item = &'p [u8]>,
    ) -> io::Result<(Option<usize>, usize)> {
        let parts: Vec<IoSlice<'_>> = parts.take(PARTS_MAX).map(IoSlice::new).collect();
        let offered = parts.iter().map(|part| part.len()).sum();
        let written = Pin::new(&mut *self.stream).poll_write_vectored(self.cx, &parts);
        Ok((self.wrote(written)?, offered))
    }

    /// One write of the bytes before a part of a file; they should share a packet with it.
    fn write_before_file(&mut self, queue: &VecDeque<Piece>) -> io::Result<Option<usize>> {
        let parts: Vec<IoSlice<'_>> = leading_bytes(queue).map(IoSlice::new).collect();
        self.send(|stream| {
            let mut control = SendAncillaryBuffer::default();
            let flags = SendFlags::MORE | SendFlags::NOSIGNAL;
            Ok(rustix::net::sendmsg(stream, &parts, &mut control, flags)?)
        })
    }

    /// One write from a file to the socket, within the kernel.
    fn send_file(&mut self, range: &FileRange) -> io::Result<Option<usize>> {
        let count = range.len().min(FILE_SEND_BYTES_MAX);
        self.send(|stream| {
            let mut position = range.position();
            match rustix::fs::sendfile(stream, range.file(), Some(&mut position), count)? {
                0 => Err(io::ErrorKind::UnexpectedEof.into()),
                sent => Ok(sent),
            }
        })
    }

    /// A direct system call on the socket; `None` when the socket is full.
    fn send(
        &mut self,
        call: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> io::Result<Option<usize>> {
        loop {
            if self.stream.poll_write_ready(self.cx)?.is_pending() {
                return Ok(None);
            }
            let stream = &*self.stream;
            match stream.try_io(Interest::WRITABLE, || call(stream)) {
                Err(error) if is_transient(&error) => {}
                sent => return self.wrote(Poll::Ready(sent)),
            }
        }
    }

    fn wrote(&mut self, written: Poll<io::Result<usize>>) -> io::Result<Option<usize>> {
        let Poll::Ready(result) = written else {
            return Ok(None);
        };
        let count = result?;
        self.session.wrote(count, self.now);
        Ok(Some(count))
    }
}

/// Output that the socket did not take.
#[derive(Default)]
pub(crate) struct UnsentOutput {
    /// Raw bytes.
    raw: VecDeque<Piece>,
    /// Plain bytes that follow `raw`, and have yet to go through the layers.
    plain: VecDeque<Piece>,
    since_us: Option<u64>,
    /// Bytes that the socket has taken since then.
    taken_bytes: usize,
}

impl UnsentOutput {
    pub(crate) fn is_empty(&self) -> bool {
        self.raw.is_empty() && self.plain.is_empty()
    }

    /// When unsent output appeared, or the socket last took enough of it; `None`: all is sent.
    pub(crate) fn since_us(&self) -> Option<u64> {
        self.since_us
    }

    /// Writes the unsent output; once that is sent, asks the session for more and writes that.
    pub(crate) fn write<S: Session>(
        &mut self,
        writer: &mut SocketWriter<'_, '_, S>,
        scratch: &mut OutputScratch,
    ) -> Result<Progress, TransportError> {
        let mut moved = Progress::None;
        if !self.is_empty() {
            moved = self.write_unsent(writer, scratch)?;
            if !self.is_empty() {
                return Ok(moved);
            }
        }
        // A session whose turn panicked may have left output in the shared buffer.
        scratch.plain.clear();
        writer
            .session
            .poll(writer.cx, writer.now, &mut scratch.plain);
        let written = match writer.layers {
            None if scratch.plain.is_empty() => return Ok(moved),
            None => self.write_plain(writer, &mut scratch.plain),
            Some(_) => self.write_layered(writer, scratch),
        };
        // The buffers are emptied whether or not the write succeeded.
        scratch.shrink();
        match written? {
            0 => Ok(moved),
            bytes => Ok(moved.and(Progress::Bytes(bytes))),
        }
    }

    /// Writes output as it is; keeps the bytes that the socket does not take.
    fn write_plain<S: Session>(
        &mut self,
        writer: &mut SocketWriter<'_, '_, S>,
        output: &mut Output,
    ) -> Result<usize, TransportError> {
        let length = output.len();
        if output.has_files() {
            output.drain_from(0, &mut self.raw);
            self.since_us = Some(writer.now.us);
            self.write_raw(writer)?;
            self.reset_if_empty();
            return Ok(length);
        }
        let (written, offered) = if output.is_plain() {
            (writer.write(&output.bytes)?, length)
        } else {
            writer.write_parts(output.parts())?
        };
        let count = written.unwrap_or(0);
        if count < length {
            output.drain_from(count, &mut self.raw);
            self.since_us = Some(writer.now.us);
            if count == offered {
                // One call could not take all parts, and the socket is not full.
                self.write_raw(writer)?;
                self.reset_if_empty();
            }
        }
        Ok(length)
    }

    /// Writes output through the layers, which may add bytes of their own; keeps the bytes that the
    /// socket does not take. Returns how many raw bytes were made so far.
    fn write_layered<S: Session>(
        &mut self,
        writer: &mut SocketWriter<'_, '_, S>,
        scratch: &mut OutputScratch,
    ) -> Result<usize, TransportError> {
        if scratch.plain.len() > LAYER_STEP_BYTES || scratch.plain.has_files() {
            scratch.plain.drain_from(0, &mut self.plain);
            self.since_us = Some(writer.now.us);
            let bytes = self.write_step(writer, &mut scratch.raw)?;
            self.reset_if_empty();
            return Ok(bytes);
        }
        let OutputScratch { plain, raw } = scratch;
        self.write_through(writer, plain.parts(), raw)
    }

    /// Writes the unsent output; of the part that has yet to go through the layers, one step.
    fn write_unsent<S: Session>(
        &mut self,
        writer: &mut SocketWriter<'_, '_, S>,
        scratch: &mut OutputScratch,
    ) -> Result<Progress, TransportError> {
        let mut moved = self.write_raw(writer)?;
        if self.raw.is_empty() && !self.plain.is_empty() {
            let bytes = self.write_step(writer, &mut scratch.raw)?;
            moved = moved.and(Progress::Bytes(bytes));
            scratch.shrink();
        }
        self.reset_if_empty();
        Ok(moved)
    }

    fn write_step<S: Session>(
        &mut self,
        writer: &mut SocketWriter<'_, '_, S>,
        raw: &mut Vec<u8>,
    ) -> Result<usize, TransportError> {
        let step = take_step(&mut self.plain, LAYER_STEP_BYTES)?;
        self.write_through(writer, step.iter().map(|part| &part[..]), raw)
    }

    /// Sends plain bytes through the layers and to the socket; `raw` is scratch memory.
    fn write_through<'p, S: Session>(
        &mut self,
        writer: &mut SocketWriter<'_, '_, S>,
        parts: impl Iterator<Item = &'p [u8]>,
        raw: &mut Vec<u8>,
    ) -> Result<usize, TransportError> {
        raw.clear();
        if let Some(layers) = &mut writer.layers {
            layers.write(parts, raw)?;
        }
        if raw.is_empty() {
            return Ok(0);
        }
        let count = writer.write(raw)?.unwrap_or(0);
        self.note_taken(count, writer.now);
        if count < raw.len() {
            let rest = Bytes::copy_from_slice(&raw[count..]);
            self.raw.push_back(Piece::Bytes(rest));
            self.since_us.get_or_insert(writer.now.us);
        }
        Ok(raw.len())
    }

    /// Writes the unsent raw bytes.
    fn write_raw<S: Session>(
        &mut self,
        writer: &mut SocketWriter<'_, '_, S>,
    ) -> Result<Progress, TransportError> {
        let mut moved = Progress::None;
        while let Some(first) = self.raw.front() {
            let written = match first {
                Piece::File(range) => writer.send_file(range)?,
                Piece::Bytes(first) if self.raw.len() == 1 => writer.write(first)?,
                Piece::Bytes(_) if has_file(&self.raw) => writer.write_before_file(&self.raw)?,
                Piece::Bytes(_) => writer.write_parts(leading_bytes(&self.raw))?.0,
            };
            let Some(count) = written else {
                break;
            };
            drop_first(&mut self.raw, count);
            self.note_taken(count, writer.now);
            moved = moved.and(Progress::Bytes(count));
        }
        Ok(moved)
    }

    /// Counts bytes that the socket took, if output was unsent; enough of them restart the timeout.
    fn note_taken(&mut self, count: usize, now: Now) {
        if self.since_us.is_some() {
            self.taken_bytes += count;
            if self.taken_bytes >= TAKEN_BYTES_MIN {
                self.taken_bytes = 0;
                self.since_us = Some(now.us);
            }
        }
    }

    fn reset_if_empty(&mut self) {
        if self.is_empty() {
            // The allocations are freed too: an idle connection keeps none.
            *self = UnsentOutput::default();
        }
    }
}

/// Whether the call should be repeated, at once or when the socket is writable again.
fn is_transient(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, WouldBlock};
    matches!(error.kind(), Interrupted | WouldBlock)
}

/// The buffers that one vectored write may take: those before the first part of a file.
fn leading_bytes(queue: &VecDeque<Piece>) -> impl Iterator<Item = &[u8]> {
    let bytes = queue.iter().map_while(|piece| match piece {
        Piece::Bytes(bytes) => Some(&bytes[..]),
        Piece::File(_) => None,
    });
    bytes.take(PARTS_MAX)
}

/// Whether a part of a file is among the pieces that one vectored write would take.
fn has_file(queue: &VecDeque<Piece>) -> bool {
    let mut among = queue.iter().take(PARTS_MAX);
    among.any(|piece| matches!(piece, Piece::File(_)))
}

/// Takes up to `bytes_max` from the front; parts of files are read into memory.
fn take_step(queue: &mut VecDeque<Piece>, bytes_max: usize) -> io::Result<Vec<Bytes>> {
    let (mut step, mut left) = (Vec::new(), bytes_max);
    while left > 0
        && let Some(first) = queue.front_mut()
    {
        let count = first.len().min(left);
        step.push(match first {
            Piece::Bytes(bytes) => bytes.split_to(count),
            Piece::File(range) => read_range(range, count)?,
        });
        left -= count;
        if first.is_empty() {
            queue.pop_front();
        }
    }
    Ok(step)
}

/// Reads the first `count` bytes of the range and removes them from it.
fn read_range(range: &mut FileRange, count: usize) -> io::Result<Bytes> {
    let mut bytes = vec![0; count];
    let mut filled = 0;
    while filled < count {
        let position = range.position() + filled as u64;
        match rustix::io::pread(range.file(), &mut bytes[filled..], position) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => filled += read,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    range.advance(count);
    Ok(bytes.into())
}

/// Drops `count` bytes from the front.
fn drop_first(queue: &mut VecDeque<Piece>, mut count: usize) {
    while count > 0
        && let Some(first) = queue.front_mut()
    {
        if first.len() > count {
            first.advance(count);
            return;
        }
        count -= first.len();
        queue.pop_front();
    }
}

#[cfg(test)]
#[path = "output_tests.rs"]
mod tests;
