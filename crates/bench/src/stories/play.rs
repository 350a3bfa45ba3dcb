//! The common parts of all stories: brokers, measurements, tables and notes.

use super::{Story, StoryName, StoryScript, StoryTable};
use crate::command::{BenchError, LiveLine, Opened, Session, Task};
use crate::outcome::{Kind, Outcome};
use crate::payload::PayloadKind;
use crate::plan::{Acks, Amount, Plan};
use crate::proxy::Link;
use crate::recorder::ClientStats;
use crate::schedule::Arrivals;
use crate::url::Url;
use crate::words;

/// A story while it is played.
pub(crate) struct StoryRun<'p, 's> {
    pub(super) session: &'p mut Session<'s>,
    pub(super) story: Story,
    /// The distance, where the story has one.
    pub(super) link: Link,
    script: &'static StoryScript,
    urls: Vec<Url>,
    how: StoryOptions,
}

/// How a story is played.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StoryOptions {
    /// At the seed's size.
    pub(crate) is_full: bool,
    /// The time or the number of messages of each measurement, in place of the story's.
    pub(crate) amount: Option<Amount>,
    /// No progress is shown.
    pub(crate) is_quiet: bool,
}

/// Seconds of warm-up; a shorter measurement has a warm-up of its own length.
const WARM_UP_S: f64 = 0.3;

impl<'p, 's> StoryRun<'p, 's> {
    /// Begins a story. Without URLs it is played with embedded brokers.
    pub(crate) fn new(
        session: &'p mut Session<'s>,
        name: StoryName,
        (urls, link): (Vec<Url>, Link),
        how: StoryOptions,
    ) -> StoryRun<'p, 's> {
        let script = name.script();
        let story = Story {
            seed: script.seed.to_owned(),
            title: script.title.to_owned(),
            lesson: script.lesson.to_owned(),
            is_good: true,
            ..Story::default()
        };
        StoryRun {
            session,
            story,
            link,
            script,
            urls,
            how,
        }
    }

    /// Measures everything, and returns the story.
    ///
    /// # Errors
    /// A broker cannot be opened or measured.
    pub(crate) fn play(mut self) -> Result<Story, BenchError> {
        (self.script.play)(&mut self)?;
        Ok(self.story)
    }

    /// Whether measurements are as long as the seed's.
    pub(super) fn is_full(&self) -> bool {
        self.how.is_full
    }

    /// The amount of a measurement: this many seconds, or `full` in a story at the seed's size.
    pub(super) fn amount(&self, short_s: f64, full: Amount) -> Amount {
        match (self.how.amount, self.how.is_full) {
            (Some(amount), _) => amount,
            (None, true) => full,
            (None, false) => Amount::Seconds(short_s),
        }
    }

    /// The brokers that the user named, or embedded ones.
    pub(super) fn urls(&self) -> Result<Vec<Url>, BenchError> {
        let protocols = self.script.protocols;
        if self.urls.is_empty() {
            return Ok(protocols.iter().map(|it| Url::embedded(*it)).collect());
        }
        let other = |url: &&Url| !protocols.contains(&url.protocol);
        match self.urls.iter().find(other) {
            Some(url) => {
                let names: Vec<&str> = protocols.iter().map(|it| it.name()).collect();
                Err(BenchError::Settings(format!(
                    "story {} is played through {}, not through {url}",
                    self.story.seed,
                    names.join(" or ")
                )))
            }
            None => Ok(self.urls.clone()),
        }
    }

    /// A client for a broker, over the distance if there is one.
    pub(super) fn open(&mut self, url: &Url) -> Result<Opened, BenchError> {
        self.session.open_over(url, &self.link)
    }

    /// Clients for all brokers that the user named, or embedded ones.
    pub(super) fn open_all(&mut self) -> Result<Vec<Opened>, BenchError> {
        self.urls()?.iter().map(|url| self.open(url)).collect()
    }

    /// Adds a table with a row for each of these. It ends early when the user stops the story.
    pub(super) fn rows<T>(
        &mut self,
        mut table: StoryTable,
        of: impl IntoIterator<Item = T>,
        mut row: impl FnMut(&mut Self, T) -> Result<Vec<String>, BenchError>,
    ) -> Result<(), BenchError> {
        for one in of {
            if self.is_stopped() {
                break;
            }
            table.add(row(self, one)?);
        }
        self.table(table);
        Ok(())
    }

    /// Makes one measurement.
    pub(super) fn measure(
        &mut self,
        opened: &Opened,
        kind: Kind,
        plan: Plan,
        what: &str,
    ) -> Result<Outcome, BenchError> {
        let what = format!("{} · {what}", opened.label);
        let live = LiveLine::new(what, kind, &plan, self.how.is_quiet);
        let task = Task {
            opened,
            kind,
            variations: Vec::new(),
            plan,
        };
        let outcome = self.session.measure(&task, &live)?;
        self.note_faults(&outcome);
        Ok(outcome)
    }

    /// Adds notes about the faults of a measurement.
    pub(super) fn note_faults(&mut self, outcome: &Outcome) {
        self.story.is_good &= outcome.is_good();
        let label = &outcome.subject.label;
        if let Some(reason) = &outcome.cut {
            self.note(format!("CUT SHORT: {label}: {reason}."));
        }
        if outcome
            .findings
            .is_some_and(|findings| findings.is_broken())
        {
            let sentence = words::findings([outcome]);
            self.note(format!("BROKEN: {label}: {sentence}"));
        }
    }

    /// Adds a sentence, unless it is there already.
    pub(super) fn note(&mut self, note: String) {
        if !self.story.notes.contains(&note) {
            self.story.notes.push(note);
        }
    }

    pub(super) fn table(&mut self, table: StoryTable) {
        self.story.tables.push(table);
    }

    /// Whether the user has stopped the story.
    pub(super) fn is_stopped(&self) -> bool {
        self.session.stop().is_set()
    }
}

/// The messages per second of a measurement.
pub(super) fn rate(outcome: &Outcome) -> String {
    shown(outcome, |stats| words::rate(stats.rate()))
}

/// A figure of a measurement, which may have none.
pub(super) fn shown(outcome: &Outcome, figure: impl Fn(&ClientStats) -> String) -> String {
    outcome
        .main()
        .map_or_else(|| words::NOTHING.to_owned(), figure)
}

/// The plan that stories vary: one producer, one consumer, requests of one message.
pub(super) fn plan(size_bytes: usize, amount: Amount) -> Plan {
    Plan {
        run: 0,
        topic: String::new(),
        producers: 1,
        consumers: 1,
        size_bytes,
        payload: PayloadKind::Random,
        amount,
        warm_up_s: match amount {
            Amount::Seconds(seconds) => WARM_UP_S.min(seconds),
            Amount::Messages(_) => 0.0,
        },
        arrivals: Arrivals::Closed,
        batch_messages: 1,
        in_flight: 1_000,
        acks: Acks::One,
        partitions: 1,
        keys: 0,
        seed: 1,
    }
}
