//! The line that is shown while something is measured.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::measure::Progress;
use crate::outcome::Kind;
use crate::plan::{Amount, Plan};
use crate::words;

/// How often it is drawn again though nothing new is known: the clock in it goes on.
const TICK: Duration = Duration::from_millis(200);
const TEMPLATE: &str = "{spinner} {prefix} {elapsed} {bar:16} {msg}";

/// Rate and percentiles of the last second, on the error output if it is a terminal.
pub struct LiveLine {
    bar: ProgressBar,
    kind: Kind,
    /// Messages or seconds that make the whole.
    counts_messages: bool,
}

impl LiveLine {
    /// Begins a line about `what`.
    pub fn new(what: String, kind: Kind, plan: &Plan, is_quiet: bool) -> LiveLine {
        let target = if is_quiet {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr()
        };
        let (whole, counts_messages) = match plan.amount {
            Amount::Messages(messages) => (messages, true),
            Amount::Seconds(seconds) => (seconds.ceil() as u64, false),
        };
        let bar = ProgressBar::with_draw_target(Some(whole), target).with_prefix(what);
        // A template that is wrong is seen by the test below.
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style);
        }
        bar.set_message(match (kind, plan.warm_up_s > 0.0) {
            (Kind::Consume, _) => "filling the topic",
            (_, true) => "warming up",
            (_, false) => "",
        });
        if !bar.is_hidden() {
            bar.enable_steady_tick(TICK);
        }
        LiveLine {
            bar,
            kind,
            counts_messages,
        }
    }

    /// Shows a second.
    pub fn show(&self, progress: &Progress) {
        let second = match self.kind {
            Kind::Produce => &progress.produced,
            Kind::Consume | Kind::EndToEnd => &progress.consumed,
        };
        if self.counts_messages {
            self.bar.inc(second.messages)
        } else {
            self.bar.set_position(u64::from(progress.second) + 1)
        }
        self.bar.set_message(line(progress, self.kind));
    }

    /// Removes the line.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// One second in words.
fn line(progress: &Progress, kind: Kind) -> String {
    let second = match kind {
        Kind::Produce => &progress.produced,
        Kind::Consume | Kind::EndToEnd => &progress.consumed,
    };
    let rate = words::rate(second.messages as f64);
    let mut line = format!("{rate}  {}", words::byte_rate(second.bytes as f64));
    // The age of what was put in before is no latency.
    if kind != Kind::Consume {
        line.push_str(&format!(
            "  p50 {}  p99 {}",
            words::time(second.response.quantile_ns(0.5) as f64),
            words::time(second.response.quantile_ns(0.99) as f64),
        ));
    }
    let errors = progress.produced.errors + progress.consumed.errors;
    if errors > 0 {
        line.push_str(&format!("  {errors} errors"));
    }
    line
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_second_is_one_line() {
        ProgressStyle::with_template(TEMPLATE).unwrap();
        let mut progress = Progress::default();
        progress.consumed.messages = 12_345;
        progress.consumed.bytes = 12_345 * 128;
        progress.produced.errors = 2;
        for ms in 1..=100 {
            progress.consumed.response.record(ms * 1_000_000);
        }
        let line = line(&progress, Kind::EndToEnd);
        let expected = "12,345/s  1.58 MB/s  p50 50.0 ms  p99 99.0 ms  2 errors";
        assert_eq!(line.replace('\u{a0}', " "), expected);
    }
}
