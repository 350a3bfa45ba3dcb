//! Seed 003: a pipeline whose processors are idle while messages wait for one of them.

use std::time::Duration;

use cloverleaf_telemetry::Protocol;

use super::play::StoryRun;
use super::seed::SeedFigure;
use super::seed::pipelines::{DEMAND, JOB_S, ONE_PRODUCER, PROCESSORS, PRODUCERS, SERIAL};
use super::{StoryScript, StoryTable};
use crate::amqp::Pipeline;
use crate::command::BenchError;
use crate::words;

/// How long a job takes in a short story.
const SHORT_JOB: Duration = Duration::from_millis(300);
/// As many as there are processors: each could have one.
const MANY: usize = PROCESSORS;
/// "Under light load": two jobs, as in the seed's log.
const FEW: usize = 2;

const LESSON: &str = "\
What to learn: a broker that shares messages out evenly among its consumers does the wrong \
thing for a pipeline in which several of them feed the same processors, because each hands its \
first message to the same one. The queue is empty, processors are idle, and jobs wait in a \
mailbox that no broker sees. The seed's way out is a single producer. The other one needs no \
change to the program: with fill-first the queue gives everything to one consumer until its \
prefetch is used up (x-cloverleaf-dispatch=fill-first, or `cloverleaf subscription dispatch \
QUEUE queue fill-first` while it runs). A broker that does not know this argument ignores it. \
The prefetch must be as large as the number of processors, or no more than that many of them \
ever work.";

pub(super) const SCRIPT: StoryScript = StoryScript {
    seed: "003",
    title: "a pipeline with idle processors (Broadway on AMQP)",
    lesson: LESSON,
    protocols: &[Protocol::Amqp],
    play,
};

fn play(play: &mut StoryRun<'_, '_>) -> Result<(), BenchError> {
    let work = if play.is_full() {
        Duration::from_secs_f64(JOB_S)
    } else {
        SHORT_JOB
    };
    for opened in play.open_all()? {
        let title = format!(
            "{}: {PROCESSORS} processors, jobs of {}",
            opened.label,
            words::time(work.as_nanos() as f64)
        );
        let columns = [
            "pipeline",
            "jobs",
            "all done",
            "idle",
            "most on one",
            "the seed",
        ];
        let table = StoryTable::new(&title, &columns);
        play.rows(table, cases(work), |play, (what, pipeline, theirs)| {
            let queue = format!("cloverleaf-bench-{:08x}", play.session.next_run());
            let stop = play.session.stop();
            let played = opened.at_client(|| pipeline.play(&opened.reached, &queue, stop))??;
            Ok(vec![
                what.to_owned(),
                pipeline.messages.to_string(),
                words::time(played.took.as_nanos() as f64),
                played.idle().to_string(),
                played.most().to_string(),
                theirs.map(SeedFigure::cited).unwrap_or_default(),
            ])
        })?;
    }
    Ok(())
}

/// The name of a row, the pipeline that is measured, and the seed's figure.
type Case = (&'static str, Pipeline, Option<&'static SeedFigure>);

fn cases(work: Duration) -> Vec<Case> {
    let pipeline = |producers, demand, messages| Pipeline {
        dispatch: None,
        producers,
        processors: PROCESSORS,
        demand,
        prefetch: PROCESSORS as u16,
        messages,
        work,
    };
    let fill_first = |it| Pipeline {
        dispatch: Some("fill-first"),
        ..it
    };
    let few = || pipeline(PRODUCERS, DEMAND, FEW);
    let many = pipeline(PRODUCERS, DEMAND, MANY);
    let one_each = || pipeline(PRODUCERS, 1, MANY);
    let one_filled = fill_first(one_each());
    let alone = pipeline(1, 1, MANY);
    vec![
        ("2 producers, as Broadway begins", few(), Some(&SERIAL)),
        ("2 producers, fill-first", fill_first(few()), None),
        ("2 producers, as Broadway begins", many, None),
        ("2 producers, demand of 1", one_each(), None),
        ("2 producers, demand of 1, fill-first", one_filled, None),
        ("1 producer, demand of 1", alone, Some(&ONE_PRODUCER)),
    ]
}
