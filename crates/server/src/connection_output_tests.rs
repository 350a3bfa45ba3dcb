#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::future::poll_fn;

use cloverleaf_session::Received;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use super::*;

fn queue(parts: &[&'static str]) -> VecDeque<Bytes> {
    let parts = parts.iter().copied();
    parts
        .map(|part| Bytes::from_static(part.as_bytes()))
        .collect()
}

#[test]
fn steps_are_taken_in_order_and_cut_where_they_end() {
    let mut waiting = queue(&["abc", "def", "g"]);
    assert_eq!(take_step(&mut waiting, 4), ["abc", "d"]);
    assert_eq!(take_step(&mut waiting, 2), ["ef"]);
    assert_eq!(take_step(&mut waiting, 9), ["g"]);
    assert!(take_step(&mut waiting, 9).is_empty());
}

#[test]
fn what_was_written_is_forgotten() {
    let mut unsent = queue(&["abc", "def", "g"]);
    forget_first(&mut unsent, 4);
    assert_eq!(unsent, ["ef", "g"]);
    forget_first(&mut unsent, 2);
    assert_eq!(unsent, ["g"]);
    forget_first(&mut unsent, 1);
    assert!(unsent.is_empty());
}

/// Says something once.
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

    fn receive(&mut self, _input: &[u8], _now: Now) -> Received {
        unreachable!("it wants no input")
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

    fn read(&mut self, _bytes: usize, _now: Now) {}

    fn read_ended_inside_frame(&mut self) {}

    fn wrote(&mut self, bytes: usize, _now: Now) {
        self.wrote += bytes;
    }
}

/// Own bytes and shared ones in turn, more parts than one call takes and more bytes than a socket
/// holds. All are parts of `shared`, and unlike their neighbours.
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

#[test]
fn a_slow_reader_gets_many_parts_in_order_and_what_is_shared_is_not_copied() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap());
        let (client, accepted) = tokio::join!(client, listener.accept());
        let (mut client, mut stream) = (client.unwrap(), accepted.unwrap().0);
        let bytes: Vec<u8> = (0..8_000_u32).map(|n| (n * 7 / 3) as u8).collect();
        let shared = Bytes::from(bytes);
        let (output, expected) = many_parts(&shared);
        let mut session = Speaker {
            output: Some(output),
            wrote: 0,
        };
        let (mut unsent, mut scratch) = (Unsent::default(), OutputScratch::default());
        let now = Now { us: 1, unix_us: 1 };
        let mut turn = |unsent: &mut Unsent, cx: &mut Context<'_>| {
            let mut wire = Wire {
                stream: &mut stream,
                layers: None,
                session: &mut session,
                cx,
                now,
            };
            unsent.write(&mut wire, &mut scratch).unwrap();
            match unsent.is_empty() {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        };
        let first = poll_fn(|cx| Poll::Ready(turn(&mut unsent, cx))).await;
        assert!(first.is_pending(), "the socket does not hold all of it");
        assert_eq!(unsent.since_us(), Some(1));
        let memory = shared.as_ptr_range();
        let stuck = unsent.raw.iter();
        let in_place = stuck.filter(|part| memory.contains(&part.as_ptr()));
        assert!(in_place.count() > 100, "what is shared was copied");
        let reading = async {
            let mut read = vec![0; expected.len()];
            for piece in read.chunks_mut(50_000) {
                client.read_exact(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
            read
        };
        let writing = poll_fn(|cx| turn(&mut unsent, cx));
        let (read, ()) = tokio::join!(reading, writing);
        assert!(read == expected);
        assert_eq!(session.wrote, expected.len());
        assert_eq!(unsent.since_us(), None);
        assert!(
            unsent.raw.capacity() == 0,
            "an idle connection keeps nothing"
        );
    });
}
