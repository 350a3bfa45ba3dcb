//! Seed 001: a client that waits 40 ms for nothing.
//!
//! The client writes a request in two pieces. With Nagle's algorithm the second one waits for the
//! acknowledgement of the first, and the broker's system delays that, because it hopes for an
//! answer to send it along with. The broker has nothing to answer: it waits for the second piece.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use cloverleaf_telemetry::Protocol;

use super::StoryTable;
use super::play::{Play, plan};
use super::seed::nagle::{MESSAGES, OFF_RATE, OFF_TIME, SIZE_BYTES, WAITING_RATE, WAITING_TIME};
use crate::command::{BenchError, Opened};
use crate::driver::DriverError;
use crate::histogram::Histogram;
use crate::plan::Amount;
use crate::url::Url;
use crate::words;

/// An answer may take so long.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longer frames are no answers to a publish.
const FRAME_BYTES_MAX: usize = 1 << 16;
/// A request of a client that does not wait takes less than this, a delayed acknowledgement more.
const DELAYED: Duration = Duration::from_millis(30);

const LESSON: &str = "\
What to learn: TCP_NODELAY belongs on every socket of a client that waits for answers, and a \
request belongs into one write. But clients are as they are: librdkafka left Nagle's algorithm \
on when the seed was written, and its user saw 23 messages per second and no reason. A broker \
can see to it: when a read ends inside a request, Cloverleaf asks the kernel to acknowledge at \
once (--quick-ack, on by default), and the same client is as fast as the others, unchanged.";

/// A way to write requests.
#[derive(Debug, Clone, Copy)]
struct Way {
    what: &'static str,
    nagle: bool,
    in_pieces: bool,
}

const WAYS: [Way; 3] = [
    Way {
        what: "two writes, Nagle on",
        nagle: true,
        in_pieces: true,
    },
    Way {
        what: "two writes, Nagle off (socket.nagle.disable)",
        nagle: false,
        in_pieces: true,
    },
    Way {
        what: "one write, Nagle on",
        nagle: true,
        in_pieces: false,
    },
];

pub(super) fn play(play: &mut Play<'_, '_>) -> Result<(), BenchError> {
    play.story.title = "a synchronous producer and Nagle's algorithm".to_owned();
    LESSON.clone_into(&mut play.story.lesson);
    let link = play.link;
    // Clients that need round trips are not late.
    let slow = DELAYED.saturating_add(link.rtt.saturating_mul(2));
    let over = format!("over {} ms", slow.as_millis());
    let mut table = StoryTable::new(
        &format!(
            "{MESSAGES} messages of {SIZE_BYTES} bytes, each after the answer to the one before"
        ),
        &[
            "client", "broker", "messages", "median", "slowest", &over, "the seed",
        ],
    );
    for url in play.urls(&[Protocol::Nsq])? {
        let mut urls = vec![url.clone()];
        if url.is_embedded() {
            // The same broker without `quick-ack`, for comparison.
            let mut without = url.clone();
            without.set_default("quick-ack", "false".to_owned());
            without.label = Some(format!("{url}, --quick-ack=false"));
            urls.insert(0, without);
        }
        for url in urls {
            let opened = play.open(&url, &link)?;
            for way in WAYS {
                if play.is_stopped() {
                    break;
                }
                table.add(row(play, (&opened, &url), way, slow)?);
            }
        }
    }
    if !link.is_none() {
        play.note(
            "Over a distance Nagle's algorithm costs a round trip more per request, whatever a \
             broker does: the end of the second piece waits until the acknowledgement of what was \
             sent before is back. That one is not delayed here, because the second piece is longer \
             than a packet, of which two are acknowledged at once; over a loopback device it is \
             none."
                .to_owned(),
        );
    }
    play.table(table);
    Ok(())
}

fn row(
    play: &mut Play<'_, '_>,
    (opened, url): (&Opened, &Url),
    way: Way,
    slow: Duration,
) -> Result<Vec<String>, BenchError> {
    let topic = format!("cloverleaf-bench-{:08x}", play.session.next_run());
    let begun = Instant::now();
    let times = opened.at_client(|| publish(&opened.reached, &topic, way))?;
    let took = begun.elapsed();
    let plan = crate::plan::Plan {
        topic,
        ..plan(SIZE_BYTES, Amount::Messages(MESSAGES.into()))
    };
    if let Err(error) = opened.connect.clean_up(&plan) {
        play.note(format!("{error}."));
    }
    let times = times?;
    let slow = times.iter().filter(|time| **time > slow).count();
    let mut histogram = Histogram::new();
    for time in &times {
        histogram.record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }
    let waits = way.nagle && way.in_pieces;
    // The seed's broker did nothing against it.
    let is_theirs = !url.is_embedded() || url.option("quick-ack").is_some();
    let theirs = match (is_theirs, waits, way.in_pieces) {
        (true, true, _) => format!("{}, {}", WAITING_RATE.cited(), WAITING_TIME.cited()),
        (true, false, true) => format!("{}, {}", OFF_RATE.cited(), OFF_TIME.cited()),
        _ => String::new(),
    };
    Ok(vec![
        way.what.to_owned(),
        opened.label.clone(),
        words::rate(times.len() as f64 / took.as_secs_f64()),
        words::time(histogram.quantile_ns(0.5) as f64),
        words::time(histogram.max_ns() as f64),
        format!("{slow} of {}", times.len()),
        theirs,
    ])
}

/// Publishes one by one over NSQ's protocol; how long each took.
fn publish(url: &Url, topic: &str, way: Way) -> Result<Vec<Duration>, DriverError> {
    let gone = |error: std::io::Error| url.gone(error);
    let mut reached = Err(std::io::Error::other("its name has no address"));
    for address in url.addresses()? {
        reached = TcpStream::connect_timeout(&address, PATIENCE);
        if reached.is_ok() {
            break;
        }
    }
    let mut stream = reached.map_err(|error| url.unreachable(error))?;
    stream.set_nodelay(!way.nagle).map_err(gone)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(gone)?;
    stream.write_all(b"  V2").map_err(gone)?;
    let mut head = format!("PUB {topic}\n").into_bytes();
    head.extend((SIZE_BYTES as u32).to_be_bytes());
    let body = vec![b'x'; SIZE_BYTES];
    let whole = [&head[..], &body].concat();
    let mut times = Vec::new();
    for _ in 0..MESSAGES {
        let begun = Instant::now();
        let written = if way.in_pieces {
            stream
                .write_all(&head)
                .and_then(|()| stream.write_all(&body))
        } else {
            stream.write_all(&whole)
        };
        written.map_err(gone)?;
        loop {
            let (kind, words) = frame(&mut stream).map_err(gone)?;
            match (kind, words.as_slice()) {
                (0, b"_heartbeat_") => stream.write_all(b"NOP\n").map_err(gone)?,
                (0, _) => break,
                _ => return Err(url.refused(String::from_utf8_lossy(&words))),
            }
        }
        times.push(begun.elapsed());
    }
    Ok(times)
}

/// The kind of a frame, and what is in it.
fn frame(stream: &mut TcpStream) -> std::io::Result<(u32, Vec<u8>)> {
    let mut head = [0; 8];
    stream.read_exact(&mut head)?;
    let [a, b, c, d, kind @ ..] = head;
    let size = u32::from_be_bytes([a, b, c, d]) as usize;
    let Some(size) = size.checked_sub(4).filter(|size| *size <= FRAME_BYTES_MAX) else {
        return Err(std::io::Error::other(
            "what it answers is not NSQ's protocol",
        ));
    };
    let mut words = vec![0; size];
    stream.read_exact(&mut words)?;
    Ok((u32::from_be_bytes(kind), words))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::net::TcpListener;

    use super::*;

    /// A broker that answers each publish, and sends a heartbeat before the third answer.
    fn broker(answer: &'static [u8]) -> Url {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("nsq://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; 4]).unwrap();
            let mut request = vec![0; "PUB t\n".len() + 4 + SIZE_BYTES];
            let mut count = 0;
            while stream.read_exact(&mut request).is_ok() {
                assert!(
                    request.starts_with(b"PUB t\n\0\0\x08\xab"),
                    "{:?}",
                    &request[..12]
                );
                count += 1;
                if count == 3 {
                    stream.write_all(b"\0\0\0\x0f\0\0\0\0_heartbeat_").unwrap();
                    stream.write_all(answer).unwrap();
                    stream.read_exact(&mut [0; 4]).unwrap();
                } else {
                    stream.write_all(answer).unwrap();
                }
            }
        });
        url.parse().unwrap()
    }

    #[test]
    fn each_message_waits_for_its_answer() {
        for way in WAYS {
            let url = broker(b"\0\0\0\x06\0\0\0\0OK");
            let times = publish(&url, "t", way).unwrap();
            assert_eq!(times.len(), MESSAGES as usize, "{}", way.what);
        }
    }

    #[test]
    fn what_a_broker_says_against_it_is_said() {
        let url = broker(b"\0\0\0\x0c\0\0\0\x01E_BAD_XY");
        let error = publish(&url, "t", WAYS[2]).unwrap_err().to_string();
        assert!(error.ends_with("refuses: E_BAD_XY"), "{error}");
        let url = broker(b"\xff\0\0\x0c\0\0\0\x01");
        let error = publish(&url, "t", WAYS[2]).unwrap_err().to_string();
        assert!(error.contains("not NSQ's protocol"), "{error}");
    }
}
