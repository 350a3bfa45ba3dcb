//! Assigns each bar a row of its lane: bars that overlap in time are in different rows.

/// Maximum rows of a lane: a bar that fits nowhere goes to the row that is free soonest.
pub(super) const ROWS_MAX: usize = 60;

/// A bar of a lane: its time span, its row and its description.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct TimelineBar {
    pub(super) class: &'static str,
    /// Since when the messages waited, drawn as a thin line in the same row; `None`: it is not
    /// known.
    pub(super) waits_from_us: Option<u64>,
    pub(super) from_us: u64,
    /// The bar is faint before this time, and solid from it on.
    pub(super) solid_from_us: u64,
    pub(super) to_us: u64,
    /// Whether it has a mark at its start.
    pub(super) is_marked: bool,
    /// Whether it has not ended yet.
    pub(super) is_open: bool,
    /// Its description, which is shown when the pointer is over it.
    pub(super) title: String,
    pub(super) messages: u64,
    /// Whether it is a delivery: messages that a consumer holds.
    pub(super) holds: bool,
    pub(super) row: usize,
}

/// Assigns a row to each bar, and returns the number of rows. Sorts the bars by their start.
pub(super) fn arrange(bars: &mut [TimelineBar]) -> usize {
    bars.sort_by_key(|bar| (bar.from_us, bar.to_us));
    let mut ends: Vec<u64> = Vec::new();
    for bar in bars {
        let free = ends.iter().position(|end| *end <= bar.from_us);
        let row = match free {
            Some(row) => row,
            None if ends.len() < ROWS_MAX => {
                ends.push(0);
                ends.len() - 1
            }
            None => {
                let least = (0..ends.len()).min_by_key(|row| ends[*row]);
                least.unwrap_or_default()
            }
        };
        ends[row] = ends[row].max(bar.to_us);
        bar.row = row;
    }
    ends.len().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(from_us: u64, to_us: u64) -> TimelineBar {
        TimelineBar {
            from_us,
            to_us,
            ..TimelineBar::default()
        }
    }

    #[test]
    fn overlapping_bars_are_in_different_rows() {
        let mut bars = [
            bar(40, 50),
            bar(0, 30),
            bar(0, 10),
            bar(10, 20),
            bar(15, 60),
        ];
        let rows = arrange(&mut bars);
        let placed: Vec<_> = bars.iter().map(|bar| (bar.from_us, bar.row)).collect();
        assert_eq!(rows, 3);
        assert_eq!(placed, [(0, 0), (0, 1), (10, 0), (15, 2), (40, 0)]);
    }

    #[test]
    fn rows_are_bounded() {
        let mut bars: Vec<TimelineBar> = (0..500).map(|at| bar(at, 1_000 + at)).collect();
        assert_eq!(arrange(&mut bars), ROWS_MAX);
        assert!(bars.iter().all(|bar| bar.row < ROWS_MAX));
    }
}
