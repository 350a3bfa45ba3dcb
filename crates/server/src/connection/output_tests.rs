#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::future::poll_fn;
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::Arc;

use cloverleaf_session::{Input, Meter, Received};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use super::*;

fn queue(parts: &[&'static str]) -> VecDeque<Piece> {
    let bytes = |part: &&'static str| Piece::Bytes(Bytes::from_static(part.as_bytes()));
    parts.iter().map(bytes).collect()
}

/// A file with these bytes.
fn file(bytes: &[u8]) -> Arc<dyn AsFd + Send + Sync> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    Arc::new(file)
}

#[test]
fn steps_are_taken_in_order_and_cut_where_they_end() {
    let mut waiting = queue(&["abc", "def", "g"]);
    let range = FileRange::new(file(b"0123456789"), 2, 5);
    waiting.insert(2, Piece::File(range));
    let mut step = |bytes_max| take_step(&mut waiting, bytes_max).unwrap();
    assert_eq!(step(4), ["abc", "d"]);
    assert_eq!(step(2), ["ef"]);
    assert_eq!(step(3), ["234"]);
    assert_eq!(step(9), ["56", "g"]);
    assert!(step(9).is_empty());
}

#[test]
fn a_file_that_is_too_short_is_an_error() {
    let range = FileRange::new(file(b"0123456789"), 8, 5);
    let mut waiting = VecDeque::from([Piece::File(range)]);
    let error = take_step(&mut waiting, 9).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn written_bytes_are_dropped() {
    let mut unsent = queue(&["abc", "def", "g"]);
    let mut left_after = |count| {
        drop_first(&mut unsent, count);
        leading_bytes(&unsent)
            .map(<[u8]>::to_vec)
            .collect::<Vec<_>>()
    };
    assert_eq!(left_after(4), [b"ef".to_vec(), b"g".to_vec()]);
    assert_eq!(left_after(2), [b"g"]);
    assert!(left_after(1).is_empty());
}

/// A session that has one output.
struct Speaker {
    output: Option<Output>,
    wrote: usize,
}

impl Session for Speaker {
    fn wants_input(&self) -> bool {
        false
    }

    fn is_ended(&self) -> bool {
        false
    }

    fn take_failure(&mut self) -> Option<String> {
        None
    }

    fn receive(&mut self, _input: Input<'_>, _now: Now) -> Received {
        unreachable!("wants no input")
    }

    fn end_of_input(&mut self, _rest: &[u8], _now: Now) {}

    fn drain(&mut self) {}

    fn poll(&mut self, _cx: &mut Context<'_>, _now: Now, out: &mut Output) {
        if let Some(output) = self.output.take() {
            *out = output;
        }
    }

    fn next_due_us(&self) -> u64 {
        u64::MAX
    }

    fn meter(&mut self) -> &mut Meter {
        unreachable!("no reads; `wrote` counts the output")
    }

    fn wrote(&mut self, bytes: usize, _now: Now) {
        self.wrote += bytes;
    }
}

/// Owned bytes and shared ones in turn: more parts than one call takes, and more bytes than a
/// socket buffers. Every shared part is a slice of `shared` and differs from its neighbours.
fn many_parts(shared: &Bytes) -> (Output, Vec<u8>) {
    let (mut output, mut expected) = (Output::default(), Vec::new());
    for number in 0..3_000_usize {
        let own = number.to_be_bytes();
        output.bytes.extend_from_slice(&own);
        let part = shared.slice(number..number + 5_000);
        expected.extend_from_slice(&own);
        expected.extend_from_slice(&part);
        output.share(part);
    }
    (output, expected)
}

/// Writes `output` of one session to a slow reader; `look` gets the unsent output after the first
/// turn. Returns the bytes that the reader got.
fn write_to_slow_reader(output: Output, look: impl FnOnce(&UnsentOutput)) -> Vec<u8> {
    let length = output.len();
    let mut session = Speaker {
        output: Some(output),
        wrote: 0,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let read = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap());
        let (client, accepted) = tokio::join!(client, listener.accept());
        let (mut client, mut stream) = (client.unwrap(), accepted.unwrap().0);
        let (mut unsent, mut scratch) = (UnsentOutput::default(), OutputScratch::default());
        let now = Now { us: 1, unix_us: 1 };
        let mut turn = |unsent: &mut UnsentOutput, cx: &mut Context<'_>| {
            let mut writer = SocketWriter {
                stream: &mut stream,
                layers: None,
                session: &mut session,
                cx,
                now,
            };
            unsent.write(&mut writer, &mut scratch).unwrap();
            if unsent.is_empty() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        };
        let first = poll_fn(|cx| Poll::Ready(turn(&mut unsent, cx))).await;
        assert!(first.is_pending(), "more than the socket buffers");
        assert_eq!(unsent.since_us(), Some(1));
        look(&unsent);
        let reading = async {
            let mut read = vec![0; length];
            for piece in read.chunks_mut(50_000) {
                client.read_exact(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
            read
        };
        let writing = poll_fn(|cx| turn(&mut unsent, cx));
        let (read, ()) = tokio::join!(reading, writing);
        assert_eq!(unsent.since_us(), None);
        assert_eq!(unsent.raw.capacity(), 0, "an idle connection keeps nothing");
        read
    });
    assert_eq!(session.wrote, length);
    read
}

#[test]
fn a_slow_reader_gets_many_parts_in_order_and_shared_bytes_are_not_copied() {
    let bytes: Vec<u8> = (0..8_000_u32).map(|n| (n * 7 / 3) as u8).collect();
    let shared = Bytes::from(bytes);
    let (output, expected) = many_parts(&shared);
    let memory = shared.as_ptr_range();
    let read = write_to_slow_reader(output, |unsent| {
        let stuck = unsent.raw.iter().filter(|piece| match piece {
            Piece::Bytes(bytes) => memory.contains(&bytes.as_ptr()),
            Piece::File(_) => false,
        });
        assert!(stuck.count() > 100, "what is shared was copied");
    });
    assert!(read == expected);
}

#[test]
fn a_slow_reader_gets_parts_of_files_between_bytes() {
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n * 7 / 3) as u8).collect();
    let file = file(&bytes);
    let (mut output, mut expected) = (Output::default(), Vec::new());
    for number in 0..10_usize {
        let (own, position) = (number.to_be_bytes(), number * 1_001);
        output.bytes.extend_from_slice(&own);
        output.share_file(FileRange::new(file.clone(), position as u64, 2_500_000));
        expected.extend_from_slice(&own);
        expected.extend_from_slice(&bytes[position..][..2_500_000]);
    }
    output.bytes.push(b'!');
    expected.push(b'!');
    let read = write_to_slow_reader(output, |unsent| {
        let files = unsent.raw.iter();
        let files = files.filter(|piece| matches!(piece, Piece::File(_)));
        assert!(files.count() > 5, "files wait as files");
    });
    assert!(read == expected);
}
