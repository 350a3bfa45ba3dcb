//! Seed 001: a client that waits 40 ms for nothing.
//!
//! The client writes a request in two pieces. With Nagle's algorithm the second one waits for the
//! acknowledgement of the first. The kernel of the broker's machine delays that acknowledgement,
//! to send it together with an answer. The broker has no answer yet: it waits for the second piece.

use std::time::{Duration, Instant};

use cloverleaf_telemetry::Protocol;

use super::play::{StoryRun, plan};
use super::seed::nagle::{MESSAGES, OFF_RATE, OFF_TIME, SIZE_BYTES, WAITING_RATE, WAITING_TIME};
use super::{StoryScript, StoryTable};
use crate::command::{BenchError, Opened};
use crate::histogram::Histogram;
use crate::nsq::{Nsq, PublishWrites};
use crate::plan::Amount;
use crate::url::Url;
use crate::words;

/// A publish takes longer than this only if it waits for a delayed acknowledgement.
const DELAYED: Duration = Duration::from_millis(30);

const LESSON: &str = "\
What to learn: TCP_NODELAY belongs on every socket of a client that waits for answers, and a \
request belongs into one write. But clients are as they are: librdkafka left Nagle's algorithm \
on when the seed was written, and its user saw 23 messages per second and no reason. A broker \
can see to it: when a read ends inside a request, Cloverleaf asks the kernel to acknowledge at \
once (--quick-ack, on by default), and the same client is as fast as the others, unchanged.";

const fn writes(has_nagle: bool, in_pieces: bool) -> PublishWrites {
    PublishWrites {
        has_nagle,
        in_pieces,
    }
}

/// Ways to write requests.
const WAYS: [(&str, PublishWrites); 3] = [
    ("two writes, Nagle on", writes(true, true)),
    (
        "two writes, Nagle off (socket.nagle.disable)",
        writes(false, true),
    ),
    ("one write, Nagle on", writes(true, false)),
];

pub(super) const SCRIPT: StoryScript = StoryScript {
    seed: "001",
    title: "a synchronous producer and Nagle's algorithm",
    lesson: LESSON,
    protocols: &[Protocol::Nsq],
    play,
};

fn play(play: &mut StoryRun<'_, '_>) -> Result<(), BenchError> {
    let link = play.link;
    // The distance itself does not count as a delay.
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
    for url in play.urls()? {
        let mut urls = vec![url.clone()];
        if url.is_embedded() {
            // The same broker without `quick-ack`, for comparison.
            let mut without = url.clone();
            without.set_default("quick-ack", "false".to_owned());
            without.label = Some(format!("{url}, --quick-ack=false"));
            urls.insert(0, without);
        }
        for url in urls {
            let opened = play.open(&url)?;
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
    play: &mut StoryRun<'_, '_>,
    (opened, url): (&Opened, &Url),
    (what, way): (&str, PublishWrites),
    slow: Duration,
) -> Result<Vec<String>, BenchError> {
    let topic = format!("cloverleaf-bench-{:08x}", play.session.next_run());
    let begun = Instant::now();
    let body = vec![b'x'; SIZE_BYTES];
    let publish = || Nsq::new(&opened.reached)?.publish_one_by_one(&topic, &body, MESSAGES, way);
    let times = opened.at_client(publish)?;
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
    let waits = way.has_nagle && way.in_pieces;
    // The seed's broker left acknowledgements to the kernel.
    let is_theirs = !url.is_embedded() || url.option("quick-ack").is_some();
    let theirs = match (is_theirs, waits, way.in_pieces) {
        (true, true, _) => format!("{}, {}", WAITING_RATE.cited(), WAITING_TIME.cited()),
        (true, false, true) => format!("{}, {}", OFF_RATE.cited(), OFF_TIME.cited()),
        _ => String::new(),
    };
    Ok(vec![
        what.to_owned(),
        opened.label.clone(),
        words::rate(times.len() as f64 / took.as_secs_f64()),
        words::time(histogram.quantile_ns(0.5) as f64),
        words::time(histogram.max_ns() as f64),
        format!("{slow} of {}", times.len()),
        theirs,
    ])
}
