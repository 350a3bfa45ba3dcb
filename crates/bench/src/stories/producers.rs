//! Seed 000: what a distance costs a producer, and what helps.

use cloverleaf_telemetry::Protocol;

use super::play::{StoryRun, plan, rate, shown};
use super::seed::producers::{
    CONNECTIONS, FAR, FEWER, FIVE, IN_FLIGHT, IN_FLIGHT_EACH, MESSAGES, PARTITIONS, SECONDS,
    SIZE_BYTES, SYNCHRONOUS,
};
use super::{StoryScript, StoryTable};
use crate::command::{BenchError, Opened};
use crate::outcome::Kind;
use crate::plan::{Amount, Plan};
use crate::words;

const WINDOWS: [u32; 5] = [1, 5, 250, 500, 1_000];
const CONNECTED: [u32; 4] = [1, 2, 4, 8];
const PARTITIONED: [u32; 3] = [1, 2, 4];
/// Seconds of a measurement in a short story.
const SHORT_S: f64 = 1.0;

const LESSON: &str = "\
What to learn: over a distance a producer that waits for each answer sends one message per \
round trip, however fast the broker is. With a number of messages in flight it is that number \
per round trip, until something else is full: the line, the client, or the broker. The number \
has to be bounded, and the bound is best chosen as rate × round trip, with some to spare: more \
only makes messages wait longer in queues, which was the seed's timeouts. More connections \
help where one is full, and partitions where the broker writes one after the other; where \
neither is, they change nothing.";

pub(super) const SCRIPT: StoryScript = StoryScript {
    seed: "000",
    title: "producers over a distance",
    lesson: LESSON,
    protocols: &[Protocol::Kafka, Protocol::Nsq],
    play,
};

fn play(play: &mut StoryRun<'_, '_>) -> Result<(), BenchError> {
    play.story.title.push_str(&format!(" ({})", play.link));
    let all = play.open_all()?;
    windows(play, &all)?;
    connections(play, &all)?;
    play.note("The seed's producers ran at a home, over the Internet.".to_owned());
    Ok(())
}

/// One connection with different numbers of messages in flight, from one (synchronous) on.
fn windows(play: &mut StoryRun<'_, '_>, all: &[Opened]) -> Result<(), BenchError> {
    let mut columns = vec!["in flight".to_owned(), "in flight ÷ rtt".to_owned()];
    for opened in all {
        columns.push(opened.label.clone());
        columns.push("p50".to_owned());
    }
    columns.push("the seed".to_owned());
    let title = format!("One connection, messages of {SIZE_BYTES} bytes, one per request");
    let table = StoryTable::new(&title, &columns);
    play.rows(table, WINDOWS, |play, window| {
        let at_most = f64::from(window) / play.link.rtt.as_secs_f64();
        let mut row = vec![words::count(window.into()), words::rate(at_most)];
        for opened in all {
            let amount = play.amount(SHORT_S, Amount::Messages(MESSAGES));
            let plan = Plan {
                in_flight: window,
                ..plan(SIZE_BYTES, amount)
            };
            let what = format!("{window} in flight");
            let outcome = play.measure(opened, Kind::Produce, plan, &what)?;
            row.push(rate(&outcome));
            // The median time from the send of a message to its answer.
            row.push(shown(&outcome, |it| {
                words::time(it.service.quantile_ns(0.5) as f64)
            }));
        }
        row.push(match window {
            1 => format!("{}; {}", SYNCHRONOUS.cited(), FAR.cited()),
            5 => FIVE.cited(),
            1_000 => IN_FLIGHT.cited(),
            _ => FEWER.cited(),
        });
        Ok(row)
    })
}

/// More connections, and more partitions if the protocol has partitions.
fn connections(play: &mut StoryRun<'_, '_>, all: &[Opened]) -> Result<(), BenchError> {
    // A protocol without partitions is measured once.
    let each: Vec<(&Opened, u32)> = all
        .iter()
        .flat_map(|opened| {
            let several = opened.url.protocol.traits().has_partitions;
            let most = if several { PARTITIONED.len() } else { 1 };
            PARTITIONED[..most].iter().map(move |it| (opened, *it))
        })
        .collect();
    let mut columns = vec!["connections".to_owned()];
    for (opened, partitions) in &each {
        columns.push(if opened.url.protocol.traits().has_partitions {
            format!("{}, partitions: {partitions}", opened.label)
        } else {
            opened.label.clone()
        });
    }
    columns.push("the seed".to_owned());
    let title = format!("{IN_FLIGHT_EACH} in flight on each connection, {SIZE_BYTES} bytes");
    let table = StoryTable::new(&title, &columns);
    play.rows(table, CONNECTED, |play, producers| {
        let mut row = vec![producers.to_string()];
        for (opened, partitions) in &each {
            let amount = play.amount(SHORT_S, Amount::Seconds(SECONDS));
            let plan = Plan {
                producers,
                partitions: *partitions,
                in_flight: IN_FLIGHT_EACH,
                ..plan(SIZE_BYTES, amount)
            };
            let what = format!("{producers} connections, {partitions} partitions");
            row.push(rate(&play.measure(opened, Kind::Produce, plan, &what)?));
        }
        row.push(match producers {
            8 => PARTITIONS.cited(),
            _ => CONNECTIONS.cited(),
        });
        Ok(row)
    })
}
