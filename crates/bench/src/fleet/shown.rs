//! The figures of each second that are shown while several machines measure.

use std::collections::BTreeMap;

use crate::measure::Progress;
use crate::recorder::Second;

/// Maximum of seconds that wait to be shown. Further ones are dropped.
const WAITING_MAX: usize = 100;

/// The figures of seconds that were reported and not yet shown.
#[derive(Default)]
pub(super) struct Shown {
    seconds: BTreeMap<u32, Progress>,
    /// Seconds before this one were shown.
    before: u32,
}

impl Shown {
    /// Adds a worker's figures of a second.
    pub(super) fn add(&mut self, at: u32, produced: Second, consumed: Second) {
        if at < self.before || self.seconds.len() >= WAITING_MAX {
            return;
        }
        let progress = self.seconds.entry(at).or_insert_with(|| Progress {
            second: at,
            ..Progress::default()
        });
        progress.produced.add(&produced);
        progress.consumed.add(&consumed);
    }

    /// Shows the seconds before `before`.
    pub(super) fn show(&mut self, before: u32, progress: &mut impl FnMut(&Progress)) {
        let later = self.seconds.split_off(&before);
        for second in std::mem::replace(&mut self.seconds, later).values() {
            progress(second);
        }
        self.before = self.before.max(before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_is_shown_once_with_all_that_was_reported_of_it() {
        let second = |messages| Second {
            messages,
            ..Second::default()
        };
        let mut shown = Shown::default();
        shown.add(3, second(1), second(10));
        shown.add(3, second(2), second(20));
        shown.add(4, second(5), second(50));
        let mut seen = Vec::new();
        let mut show = |it: &Progress| seen.push((it.second, it.produced.messages));
        shown.show(3, &mut show);
        shown.show(4, &mut show);
        // This report comes too late: its second was shown.
        shown.add(3, second(9), second(9));
        shown.show(u32::MAX, &mut show);
        assert_eq!(seen, [(3, 3), (4, 5)]);
        let mut many = Shown::default();
        (0..1_000).for_each(|at| many.add(at, second(1), second(1)));
        assert_eq!(many.seconds.len(), WAITING_MAX);
    }
}
