//! Seed 004: publishers alone, and publishers with many subscribers on each channel.

use std::panic::resume_unwind;
use std::thread;

use cloverleaf_telemetry::Protocol;

use super::play::{StoryRun, plan};
use super::seed::channels::{
    BATCH_MESSAGES, CONSUMED, CONSUMERS, ONE_CONSUMED, ONE_PUBLISHED, PRODUCERS, PUBLISH_ONLY,
    PUBLISHED, SECONDS, SIZE_BYTES, TOPICS,
};
use super::{StoryScript, StoryTable};
use crate::check::Ranges;
use crate::command::{BenchError, Opened};
use crate::driver::DriverError;
use crate::measure::Target;
use crate::outcome::{Kind, Outcome};
use crate::plan::{Amount, Plan};
use crate::recorder::ClientStats;
use crate::usage::{GENERATOR_THREADS, Meter, Usage};
use crate::words;

/// Seconds of a measurement in a short story.
const SHORT_S: f64 = 2.0;
/// Messages that each of the 24 consumers may have in flight.
const HELD: u32 = 100;

const LESSON: &str = "\
What to learn: publishing alone is half of the story. With consumers a broker does more than \
twice the work for each message: it hands it out, keeps account of who has it, and hears that \
it is done. The seed's three brokers took in 2.07 million messages per second alone and 842 \
thousand with subscribers. The two figures of the second row belong together: where fewer come \
out than go in, a backlog grows, and that rate is not one that can last. And look at who was \
busy: on one machine clients and broker share the processors, so that these figures are a \
lower bound of what the broker can do.";

pub(super) const SCRIPT: StoryScript = StoryScript {
    seed: "004",
    title: "publishers and subscribers at the same time",
    lesson: LESSON,
    protocols: &[Protocol::Nsq],
    play,
};

fn play(play: &mut StoryRun<'_, '_>) -> Result<(), BenchError> {
    let amount = play.amount(SHORT_S, Amount::Seconds(SECONDS));
    for opened in play.open_all()? {
        let mut table = StoryTable::new(
            &format!(
                "{}: {TOPICS} topics, messages of {SIZE_BYTES} bytes, batches of {BATCH_MESSAGES}",
                opened.label
            ),
            &[
                "clients",
                "published",
                "consumed",
                "generator, CPU µs each",
                "broker, CPU µs each",
                "the seed, 3 brokers on 3 machines",
                "one broker, 2012",
            ],
        );
        let alone = measure_topics(play, &opened, Kind::Produce, amount)?;
        table.add(row(
            &format!("{} publishers", TOPICS * PRODUCERS),
            &alone,
            PUBLISH_ONLY.cited(),
            ONE_PUBLISHED.cited(),
        ));
        if !play.is_stopped() {
            let both = measure_topics(play, &opened, Kind::EndToEnd, amount)?;
            table.add(row(
                &format!(
                    "{} publishers, {CONSUMERS} subscribers each",
                    TOPICS * PRODUCERS
                ),
                &both,
                format!("{} in, {} out", PUBLISHED.cited(), CONSUMED.cited()),
                format!(
                    "{} in, then {} out",
                    ONE_PUBLISHED.cited(),
                    ONE_CONSUMED.cited()
                ),
            ));
        }
        play.table(table);
    }
    Ok(())
}

/// The outcomes of all topics together.
struct TopicsRun {
    outcomes: Vec<Outcome>,
    /// From before the first connection is opened until the last one is closed.
    usage: Usage,
}

impl TopicsRun {
    /// CPU microseconds per acknowledged message. Messages and costs of the warm-ups count, too:
    /// topics do not begin and end at one moment, so there is no time in which the process works
    /// for measured messages alone.
    fn each_us(&self, seconds: Option<f64>) -> Option<f64> {
        let sides = self.outcomes.iter().filter_map(|it| it.produced.as_ref());
        let acked = sides.flat_map(|produced| produced.acked.values());
        let messages: u64 = acked.map(Ranges::len).sum();
        (messages > 0).then_some(seconds? * 1e6 / messages as f64)
    }
}

/// Measures all topics at the same time.
fn measure_topics(
    play: &mut StoryRun<'_, '_>,
    opened: &Opened,
    kind: Kind,
    amount: Amount,
) -> Result<TopicsRun, BenchError> {
    let plans: Vec<Plan> = (0..TOPICS)
        .map(|_| {
            let run = play.session.next_run();
            Plan {
                run,
                topic: format!("cloverleaf-bench-{run:08x}"),
                producers: PRODUCERS,
                consumers: if kind == Kind::Produce { 0 } else { CONSUMERS },
                batch_messages: BATCH_MESSAGES,
                in_flight: match kind {
                    Kind::Produce => 2 * BATCH_MESSAGES,
                    Kind::Consume | Kind::EndToEnd => HELD.max(BATCH_MESSAGES),
                },
                ..plan(SIZE_BYTES, amount)
            }
        })
        .collect();
    let stop = play.session.stop();
    // One meter for all topics: a meter counts the whole process.
    let meter = Meter::begin(&opened.place);
    let target = Target {
        connect: &*opened.connect,
        label: opened.label.clone(),
        url: opened.url.shown(),
        place: opened.place.clone(),
        keeps_topic: false,
    };
    let results: Vec<Result<Outcome, DriverError>> = thread::scope(|scope| {
        let measure = |plan| target.measure(kind, plan, stop, |_| {});
        let threads = plans.iter().map(|plan| {
            let thread = thread::Builder::new().name(format!("{GENERATOR_THREADS}topic"));
            thread.spawn_scoped(scope, move || measure(plan))
        });
        let threads: Vec<_> = threads.collect();
        let joined = threads.into_iter().map(|thread| {
            let thread = thread.map_err(|error| opened.url.unreachable(error))?;
            thread.join().unwrap_or_else(|panic| resume_unwind(panic))
        });
        joined.collect()
    });
    let usage = meter.end();
    let outcomes = results.into_iter().collect::<Result<Vec<_>, _>>()?;
    for outcome in &outcomes {
        play.note_faults(outcome);
    }
    Ok(TopicsRun { outcomes, usage })
}

fn row(clients: &str, played: &TopicsRun, theirs: String, one: String) -> Vec<String> {
    // Topics begin together, so their rates add up. Each has a clock of its own, so times do not.
    let rate = |side: fn(&Outcome) -> Option<&ClientStats>| {
        let sides = played.outcomes.iter().filter_map(side);
        let rates: Vec<f64> = sides.map(ClientStats::rate).collect();
        if rates.is_empty() {
            words::NOTHING.to_owned()
        } else {
            words::rate(rates.iter().sum())
        }
    };
    let each = |seconds| {
        let each_us = played.each_us(seconds);
        each_us.map_or_else(|| words::NOTHING.to_owned(), words::number)
    };
    vec![
        clients.to_owned(),
        rate(|outcome| outcome.produced.as_ref()),
        rate(|outcome| outcome.consumed.as_ref()),
        each(Some(played.usage.client_cpu_s)),
        each(played.usage.broker_cpu_s),
        theirs,
        one,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::outcome;

    #[test]
    fn costs_are_those_of_all_topics_by_the_messages_of_all() {
        let topic = |messages: u64| {
            let mut topic = outcome("a", 5);
            // A topic that ended before the others has seen fewer of the costs.
            topic.usage.broker_cpu_s = Some(0.001);
            let mut acked = Ranges::default();
            acked.insert_range(0, messages);
            if let Some(produced) = &mut topic.produced {
                produced.acked.insert(0, acked);
            }
            topic
        };
        let played = TopicsRun {
            outcomes: vec![topic(1_000), topic(2_000), topic(5_000)],
            usage: Usage {
                client_cpu_s: 0.008,
                broker_cpu_s: Some(0.016),
                ..Usage::default()
            },
        };
        let row = row("3", &played, String::new(), String::new());
        assert_eq!(row[3..5], ["1.00", "2.00"]);
        assert_eq!(played.each_us(None), None);
    }
}
