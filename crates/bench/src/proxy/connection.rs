//! One connection through the proxy: the client's socket, the broker's, and a line each way.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};

use super::Carries;
use super::kafka::AddressRewriter;
use super::relay::TcpRelay;
use crate::delay::DelayLine;

/// The part of a connection that is on its way.
#[derive(Debug)]
enum Piece {
    Bytes(Vec<u8>),
    /// The sender has closed its half.
    End,
    /// The connection broke: the other side hears of it as late as of bytes.
    Broken,
}

/// Has a socket break when it is dropped, or end as usual.
fn break_on_drop(stream: &TcpStream, breaks: bool) -> io::Result<()> {
    SockRef::from(stream).set_linger(breaks.then_some(Duration::ZERO))
}

/// Waits for the writer of a line; its reader is of no use afterwards.
async fn until_written<T>(reader: impl Future<Output = ()>, writer: impl Future<Output = T>) -> T {
    let (mut reader, mut writer) = (pin!(reader), pin!(writer));
    tokio::select! {
        written = &mut writer => written,
        () = &mut reader => writer.await,
    }
}

impl TcpRelay {
    /// Carries a connection that a client has just made, until it has ended.
    ///
    /// # Errors
    /// It broke: both sides are reset.
    pub(super) async fn carry(
        self: Rc<Self>,
        mut client: TcpStream,
        upstream: SocketAddr,
    ) -> io::Result<()> {
        let (now_ns, rtt_ns) = (self.alarm.now_ns(), self.link.rtt_ns());
        // When the client would have got the answer to its first packet: it can send from then on.
        let open_ns = now_ns + rtt_ns;
        // When the broker would have got the third packet.
        let connect_ns = open_ns + rtt_ns / 2;
        break_on_drop(&client, true)?;
        client.set_nodelay(true)?;
        let line = |direction| DelayLine::new(&self.alarm, direction, self.link.room_bytes());
        let (up, down) = (line(&self.up), line(&self.down));
        let rewriter = (self.carries == Carries::Kafka).then(AddressRewriter::default);
        let rewriter = RefCell::new(rewriter);
        let (client_is_lost, server_is_lost) = (Cell::new(false), Cell::new(false));
        let (client_read, client_write) = client.split();
        let requests = |bytes: &[u8]| {
            if let Some(rewriter) = &mut *rewriter.borrow_mut() {
                rewriter.requests(bytes);
            }
            bytes.to_vec()
        };
        let responses = |bytes: &[u8]| match &mut *rewriter.borrow_mut() {
            None => bytes.to_vec(),
            Some(rewriter) if bytes.is_empty() => rewriter.rest(),
            Some(rewriter) => {
                let mut passes = Vec::with_capacity(bytes.len());
                let mut endpoint = |host: &str, port| self.endpoint(host, port);
                rewriter.responses(bytes, &mut passes, &mut endpoint);
                passes
            }
        };
        let there = async {
            self.alarm.until(connect_ns).await;
            let mut server = TcpStream::connect(upstream).await?;
            break_on_drop(&server, true)?;
            server.set_nodelay(true)?;
            let (server_read, server_write) = server.split();
            tokio::try_join!(
                write(&up, server_write, &server_is_lost),
                until_written(
                    self.read(server_read, &server_is_lost, &down, 0, responses),
                    write(&down, client_write, &client_is_lost),
                ),
            )?;
            break_on_drop(&server, false)
        };
        let read = self.read(client_read, &client_is_lost, &up, open_ns, requests);
        until_written(read, there).await?;
        break_on_drop(&client, false)
    }

    /// Puts what comes into a line, not before that time, until its end. `pass` gives the bytes
    /// that are sent for those that came; none come at the end.
    async fn read(
        &self,
        from: ReadHalf<'_>,
        is_lost: &Cell<bool>,
        line: &DelayLine<Piece>,
        not_before_ns: u64,
        pass: impl Fn(&[u8]) -> Vec<u8>,
    ) {
        let put = |bytes: &[u8]| {
            let passes = pass(bytes);
            let length = passes.len();
            if length > 0 {
                line.put(Piece::Bytes(passes), length, not_before_ns);
            }
        };
        let end = loop {
            // A fast sender lets others have their turn.
            tokio::task::consume_budget().await;
            let free_bytes = line.has_free_bytes().await;
            if from.readable().await.is_err() {
                break Piece::Broken;
            }
            let mut buffer = self.buffer.borrow_mut();
            let most = free_bytes.min(buffer.len());
            match from.try_read(&mut buffer[..most]) {
                // The error of a broken socket is told once, perhaps to who wrote.
                Ok(0) if is_lost.get() => break Piece::Broken,
                Ok(0) => break Piece::End,
                Ok(bytes) => put(&buffer[..bytes]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break Piece::Broken,
            }
        };
        put(&[]);
        line.put(end, 0, not_before_ns);
    }
}

/// Writes what arrives, until the end has. A receiver that is gone is the end, too: its other half
/// tells.
///
/// # Errors
/// The connection broke, and that has arrived.
async fn write(
    line: &DelayLine<Piece>,
    mut to: WriteHalf<'_>,
    is_lost: &Cell<bool>,
) -> io::Result<()> {
    loop {
        match line.next().await {
            Piece::Bytes(bytes) => {
                if to.write_all(&bytes).await.is_err() {
                    is_lost.set(true);
                    return Ok(());
                }
            }
            Piece::End => {
                // A peer that is gone need not be told.
                let _ = to.shutdown().await;
                return Ok(());
            }
            Piece::Broken => return Err(ErrorKind::ConnectionReset.into()),
        }
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
