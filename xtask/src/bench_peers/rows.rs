//! The runs of one measurement, and their median.

use super::record::Record;

/// Medians of the runs of one measurement.
pub(super) struct Row<'a> {
    pub(super) records: Vec<&'a Record>,
}

impl Row<'_> {
    pub(super) fn first(&self) -> &Record {
        self.records[0]
    }

    pub(super) fn median(&self, value: impl Fn(&Record) -> f64) -> f64 {
        let mut values: Vec<f64> = self.records.iter().map(|record| value(record)).collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        if values.len() % 2 == 1 {
            values[middle]
        } else {
            (values[middle - 1] + values[middle]) / 2.0
        }
    }

    pub(super) fn rate(&self) -> f64 {
        self.median(Record::rate)
    }

    pub(super) fn cpu_us(&self) -> f64 {
        self.median(Record::cpu_us)
    }

    pub(super) fn range(&self) -> String {
        let rates = self.records.iter().map(|record| record.rate());
        let lowest = rates.clone().fold(f64::INFINITY, f64::min);
        let highest = rates.fold(0.0, f64::max);
        format!("{} – {}", thousands(lowest), thousands(highest))
    }
}

/// `1234567` as `1,235 k`; small numbers as they are.
pub(super) fn thousands(value: f64) -> String {
    if value < 10_000.0 {
        return format!("{value:.0}");
    }
    let k = (value / 1000.0).round() as u64;
    if k < 1000 {
        format!("{k} k")
    } else {
        format!("{},{:03} k", k / 1000, k % 1000)
    }
}

/// Records of the newest run that has these kinds, grouped and ordered by `key`, by subject
/// within that.
pub(super) fn newest<'a, K: Ord>(
    all: &'a [Record],
    kinds: &[&str],
    key: impl Fn(&Record) -> K,
) -> Vec<Row<'a>> {
    let of_kind = || all.iter().filter(|r| kinds.contains(&r.kind.as_str()));
    let Some(run) = of_kind().map(|record| record.run).max() else {
        return Vec::new();
    };
    let mut rows: Vec<Row<'a>> = Vec::new();
    for record in of_kind().filter(|record| record.run == run) {
        let same = |row: &&mut Row<'_>| {
            key(row.first()) == key(record) && row.first().subject == record.subject
        };
        match rows.iter_mut().find(same) {
            Some(row) => row.records.push(record),
            None => rows.push(Row {
                records: vec![record],
            }),
        }
    }
    rows.sort_by_key(|row| key(row.first()));
    rows
}
