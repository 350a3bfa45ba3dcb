//! A report for the terminal.

use comfy_table::{CellAlignment, ContentArrangement, Table};

use crate::driver::Promise;
use crate::figures::{self, Summary, Times};
use crate::outcome::{Kind, Outcome, Report, Row, Subject};
use crate::recorder::ClientStats;
use crate::schedule::Arrivals;
use crate::{notes, words};

/// Lines above and below, and below the headings, in the order of comfy-table's presets.
const LINES: &str = "  ── ══      ──    ";

/// The percentiles of every table.
pub(crate) const QUANTILES: [(&str, f64); 6] = [
    ("p50", 0.5),
    ("p75", 0.75),
    ("p95", 0.95),
    ("p99", 0.99),
    ("p99.9", 0.999),
    ("p99.99", 0.9999),
];

/// Figures in rows and columns, for a terminal or a page.
pub(crate) struct FigureTable {
    pub(crate) headings: Vec<String>,
    /// The first columns are names, the others numbers.
    pub(crate) names: usize,
    /// Cells, with the place of the row that they are about. A second line in a cell is its spread.
    pub(crate) lines: Vec<(usize, Vec<String>)>,
}

impl FigureTable {
    /// `broker`, on a page the kind of measurement, the settings that differ between these rows,
    /// then these names.
    fn new(rows: &[&Row], in_full: bool, names: &[&str]) -> FigureTable {
        let kind: &[&str] = if in_full { &["measured"] } else { &[] };
        let headings = [&["broker"], kind, &variations(rows), names].concat();
        FigureTable {
            names: headings.len(),
            headings: headings.into_iter().map(str::to_owned).collect(),
            lines: Vec::new(),
        }
    }

    /// Adds columns with numbers.
    fn add_columns(&mut self, headings: &[&str]) {
        let headings = headings.iter().map(|heading| (*heading).to_owned());
        self.headings.extend(headings);
    }

    fn shown(self, width: u16) -> String {
        let mut table = new_table(self.headings, self.names, width);
        table.add_rows(self.lines.into_iter().map(|(_, cells)| cells));
        table.to_string()
    }
}

/// The whole report, at most `width` characters wide.
pub fn render(report: &Report, width: u16) -> String {
    let rows: Vec<&Row> = report.rows.iter().collect();
    let classes = classes(report).into_iter();
    let mut lines = vec![title(report)];
    lines.extend(classes.map(|(class, promise)| {
        let sentence = words::promise_sentence(promise);
        format!("  {class}: {sentence}")
    }));
    lines.push(conditions(report));
    lines.extend(places(report));
    lines.push(settings(report));
    lines.push(throughput(&rows, false).shown(width));
    let latency = latency(&rows, false);
    if !latency.lines.is_empty() {
        lines.push(latency.shown(width));
    }
    lines.extend(notes::of(report));
    lines.join("\n") + "\n"
}

/// The report's title, with the durability class.
pub(crate) fn title(report: &Report) -> String {
    let classes = classes(report);
    match classes.as_slice() {
        [] => report.title.clone(),
        [(one, _)] => format!("{} · durability: {one}", report.title),
        several => {
            let each: Vec<&str> = several.iter().map(|(class, _)| class.as_str()).collect();
            format!("{} · durability differs: {}", report.title, each.join(", "))
        }
    }
}

/// The durability classes of a report, each once, with what they mean.
fn classes(report: &Report) -> Vec<(String, Promise)> {
    once_each(subjects(report).map(|subject| (words::class(subject), subject.promise)))
}

/// The URLs of brokers whose label is not their URL, with the options of their clients.
fn places(report: &Report) -> Vec<String> {
    let others = subjects(report).filter(|subject| subject.label != subject.url);
    once_each(others.map(|subject| format!("{}: {}", subject.label, subject.url)))
}

/// The client libraries and brokers with their versions, each once.
pub(crate) fn versions<'r>(subjects: impl Iterator<Item = &'r Subject>) -> Vec<String> {
    let each = subjects.flat_map(|subject| &subject.versions);
    once_each(each.map(|(name, version)| format!("{name} {version}")))
}

fn subjects(report: &Report) -> impl Iterator<Item = &Subject> {
    let runs = report.rows.iter().flat_map(|row| &row.runs);
    runs.map(|run| &run.subject)
}

/// Removes repeated values, and keeps the order of their first occurrence.
fn once_each<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for value in values {
        if !found.contains(&value) {
            found.push(value);
        }
    }
    found
}

/// The machine in one line.
pub(crate) fn conditions(report: &Report) -> String {
    let here = &report.conditions;
    let versions = versions(subjects(report));
    let mut line = format!(
        "{}, {} cores, {}, {}, bench {}",
        here.processor,
        here.cores,
        words::memory(here.memory_bytes as f64),
        here.kernel,
        here.version
    );
    if !versions.is_empty() {
        line.push_str(&format!("; {}", versions.join(", ")));
    }
    line
}

/// The settings that all rows share, in one line.
fn settings(report: &Report) -> String {
    let runs = report.rows.iter().filter_map(|row| row.runs.first());
    let each = words::shared_settings(runs).into_iter();
    let each = each.map(|(name, value)| format!("{name} {value}"));
    each.collect::<Vec<_>>().join(" · ")
}

/// An empty table; its first columns are `names`, the others numbers.
pub(crate) fn new_table(headings: Vec<String>, names: usize, width: u16) -> Table {
    let mut table = Table::new();
    table.load_preset(LINES);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(width);
    let columns = headings.len();
    table.set_header(headings);
    for at in names..columns {
        if let Some(column) = table.column_mut(at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Names of what differs between rows, in the order of their appearance.
fn variations<'r>(rows: &[&'r Row]) -> Vec<&'r str> {
    let all = rows.iter().flat_map(|row| &row.variations);
    once_each(all.map(|it| it.name.as_str()))
}

/// The cells of the first columns ([`FigureTable::new`]).
fn begin(row: &Row, outcome: &Outcome, rows: &[&Row], in_full: bool) -> Vec<String> {
    let mut cells = vec![outcome.subject.label.clone()];
    cells.extend(in_full.then(|| words::kind(outcome.kind).to_lowercase()));
    for name in variations(rows) {
        let found = row.variations.iter().find(|it| it.name == name);
        cells.push(found.map_or_else(String::new, |it| words::whole_or_number(it.value)));
    }
    cells
}

type TallyOfSide = fn(&Outcome) -> Option<&ClientStats>;

/// The sides of a measurement that have figures, with their names.
fn sides(kind: Kind) -> Vec<(&'static str, TallyOfSide)> {
    let produced: TallyOfSide = |outcome| outcome.produced.as_ref();
    let consumed: TallyOfSide = |outcome| outcome.consumed.as_ref();
    match kind {
        Kind::Produce => vec![("published", produced)],
        Kind::Consume => vec![("consumed", consumed)],
        Kind::EndToEnd => vec![("published", produced), ("consumed", consumed)],
    }
}

/// Rates, costs and what the checks have found, a line for each side. In full it has columns for
/// which a terminal is too narrow.
pub(crate) fn throughput(rows: &[&Row], in_full: bool) -> FigureTable {
    let several = rows.iter().any(|row| row.runs.len() > 1);
    let mut plans = rows.iter().flat_map(|row| &row.runs).map(|run| &run.plan);
    let has_asked = in_full && plans.any(|plan| words::asked(&plan.arrivals).is_some());
    let mut table = FigureTable::new(rows, in_full, &["durability", "what"]);
    if in_full {
        table.add_columns(&["runs"]);
    }
    if has_asked {
        table.add_columns(&["asked, messages/s"]);
    }
    table.add_columns(&["messages/s"]);
    if several {
        table.add_columns(&["least … most"]);
    }
    table.add_columns(&[
        "per second",
        "client CPU µs/msg",
        "broker CPU µs/msg",
        "broker memory",
        "errors",
        "lost",
        "twice",
        "out of order",
    ]);
    for (place, row) in rows.iter().enumerate() {
        let Some(first) = row.runs.first() else {
            continue;
        };
        for (at, (name, side)) in sides(first.kind).into_iter().enumerate() {
            let mut cells = begin(row, first, rows, in_full);
            cells.extend([words::class(&first.subject), name.to_owned()]);
            cells.extend(in_full.then(|| words::count(row.runs.len() as u64)));
            if has_asked {
                cells.push(or_dash(words::asked(&first.plan.arrivals), words::number));
            }
            // A run without messages has no rate.
            let some = move |outcome: &Outcome| {
                let stats = side(outcome).filter(|stats| stats.messages > 0)?;
                Some((stats.rate(), stats.byte_rate()))
            };
            let rate = |outcome: &Outcome| some(outcome).map(|(rate, _)| rate);
            cells.push(or_dash(row.median(rate), words::number));
            if several {
                let spread = row.spread(rate);
                cells.push(or_dash(spread, |(least, most)| {
                    format!("{} … {}", words::number(least), words::number(most))
                }));
            }
            let bytes = row.median(|outcome| some(outcome).map(|(_, bytes)| bytes));
            cells.push(or_dash(bytes, words::byte_rate));
            let errors = row.runs.iter().filter_map(side).map(|stats| stats.errors);
            // Figures of the whole measurement stand in its first line.
            let of_all = |figures: [String; 3]| if at == 0 { figures } else { Default::default() };
            cells.extend(of_all(costs(row)));
            cells.push(words::count(errors.sum()));
            cells.extend(of_all(
                found(row).unwrap_or_else(|| ["–", "–", "–"].map(str::to_owned)),
            ));
            table.lines.push((place, cells));
        }
    }
    table
}

fn costs(row: &Row) -> [String; 3] {
    [
        or_dash(row.median(Outcome::client_us), words::number),
        or_dash(row.median(Outcome::broker_us), words::number),
        or_dash(row.median(figures::memory_bytes), words::memory),
    ]
}

/// Lost, twice, out of order, over all runs. `None`: not checked.
pub(crate) fn found(row: &Row) -> Option<[String; 3]> {
    let findings = || row.runs.iter().filter_map(|outcome| outcome.findings);
    findings().next()?;
    let lost = findings().map(|it| it.lost).sum::<u64>();
    let twice = findings().map(|it| it.duplicates).sum();
    let unordered = findings().map(|it| it.out_of_order).sum();
    Some([lost, twice, unordered].map(words::count))
}

fn or_dash<T>(value: Option<T>, show: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "–".to_owned(), show)
}

/// Times by percentile, a line for each clock that a row has; in full the generator's own lag too.
pub(crate) fn latency(rows: &[&Row], in_full: bool) -> FigureTable {
    let mut table = FigureTable::new(rows, in_full, &["latency"]);
    table.add_columns(&QUANTILES.map(|(name, _)| name));
    table.add_columns(&["max"]);
    for (place, row) in rows.iter().enumerate() {
        let Some(first) = row.runs.first() else {
            continue;
        };
        let mut clocks = latencies(first);
        if in_full && row.counted().any(|run| figures::lag(run).is_some()) {
            clocks.push(("the generator's own lag".to_owned(), figures::lag));
        }
        for (name, times) in clocks {
            let mut cells = begin(row, first, rows, in_full);
            cells.push(name);
            let shares = QUANTILES.into_iter().map(|(_, share)| share).chain([1.0]);
            cells.extend(shares.map(|share| {
                let times = Summary::Share(times, share);
                let mut text = or_dash(times.of(row), words::time);
                if let Some((least, most)) = times.spread(row) {
                    text.push_str(&format!("\n{} – {}", words::time(least), words::time(most)));
                }
                text
            }));
            table.lines.push((place, cells));
        }
    }
    table
}

/// The latencies that a measurement of this kind has, with their names. In a closed loop there is
/// one clock; a topic that was filled before has ages, not latencies.
pub(crate) fn latencies(outcome: &Outcome) -> Vec<(String, Times)> {
    let publish: [(&str, Times); 2] = [
        ("response", |it| Some(&it.produced.as_ref()?.response)),
        ("service", |it| Some(&it.produced.as_ref()?.service)),
    ];
    let deliver: [(&str, Times); 2] = [
        ("response", |it| Some(&it.consumed.as_ref()?.response)),
        ("service", |it| Some(&it.consumed.as_ref()?.service)),
    ];
    let clocks = |what: &str, times: [(&'static str, Times); 2]| {
        let is_closed = outcome.plan.arrivals == Arrivals::Closed;
        let from = usize::from(is_closed);
        let times = times[from..].iter();
        times
            .map(|(clock, histogram)| (format!("{what}, {clock} time"), *histogram))
            .collect::<Vec<_>>()
    };
    let has_acks = outcome.has_acks();
    match outcome.kind {
        Kind::Consume => Vec::new(),
        Kind::Produce if has_acks => clocks("acknowledged", publish),
        Kind::Produce => Vec::new(),
        Kind::EndToEnd if has_acks => {
            let mut both = clocks("acknowledged", publish);
            both.extend(clocks("delivered", deliver));
            both
        }
        Kind::EndToEnd => clocks("delivered", deliver),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::check::Findings;
    use crate::outcome::Variation;
    use crate::payload::PayloadKind;
    use crate::plan::{Acks, Amount, Plan};
    use crate::usage::Usage;

    /// A run of 1,000 messages in a second, the slowest of which took `slowest_ms` milliseconds.
    pub(crate) fn outcome(label: &str, slowest_ms: u64) -> Outcome {
        let mut stats = ClientStats {
            sent: 1_000,
            messages: 1_000,
            bytes: 100_000,
            span_ns: Some((0, 1_000_000_000)),
            ..ClientStats::default()
        };
        for number in 1..=1_000 {
            stats.response.record(slowest_ms * 1_000 * number);
            stats.service.record(1_000_000);
            stats.lag.record(50_000);
        }
        Outcome {
            subject: Subject {
                label: label.to_owned(),
                url: format!("nsq://{label}"),
                versions: vec![("client".to_owned(), "1".to_owned())],
                promise: Promise::Kernel,
                is_claimed: false,
                may_reorder: None,
            },
            kind: Kind::EndToEnd,
            plan: Plan {
                run: 1,
                topic: "t".to_owned(),
                producers: 1,
                consumers: 1,
                size_bytes: 100,
                payload: PayloadKind::Random,
                amount: Amount::Seconds(1.0),
                warm_up_s: 0.0,
                arrivals: Arrivals::Constant { rate: 1_000.0 },
                batch_messages: 1,
                in_flight: 10,
                acks: Acks::One,
                partitions: 1,
                keys: 0,
                seed: 1,
            },
            started_unix_ms: 0,
            produced: Some(stats.clone()),
            consumed: Some(stats),
            findings: Some(Findings::default()),
            usage: Usage {
                wall_s: 1.0,
                client_cpu_s: 0.2,
                broker_cpu_s: Some(0.4),
                broker_rss_bytes: Some(64 << 20),
                ..Usage::default()
            },
            cut: None,
            remarks: Vec::new(),
        }
    }

    pub(crate) fn report(rows: Vec<Row>) -> Report {
        Report {
            title: "Test".to_owned(),
            command: Vec::new(),
            conditions: crate::conditions::Conditions::here(),
            rows,
            notes: Vec::new(),
            failure: None,
        }
    }

    fn plain(report: &Report) -> String {
        render(report, 300).replace('\u{a0}', " ")
    }

    /// Cells of the lines that contain all of these.
    fn cells<'t>(table: &'t str, parts: &[&str]) -> Vec<Vec<&'t str>> {
        let lines = table.lines();
        let lines = lines.filter(|line| parts.iter().all(|part| line.contains(part)));
        let cells = |line: &'t str| line.split("  ").map(str::trim).filter(|it| !it.is_empty());
        lines.map(|line| cells(line).collect()).collect()
    }

    #[test]
    fn rows_show_medians_of_rates_and_times_of_all_runs() {
        let runs = [100, 300, 200].map(|slowest_ms| outcome("a", slowest_ms));
        let row = Row {
            variations: vec![Variation {
                name: "message size, bytes".to_owned(),
                value: 1_024.0,
            }],
            runs: runs.to_vec(),
        };
        let table = plain(&report(vec![row]));
        assert!(table.starts_with("Test · durability: kernel\n"), "{table}");
        let published = cells(&table, &["published"]);
        let rates = [
            "a",
            "1,024",
            "kernel",
            "published",
            "1,000",
            "1,000 … 1,000",
            "0.100 MB/s",
        ];
        assert_eq!(published[0][..7], rates, "{table}");
        let costs = ["200", "400", "64.0 MiB", "0", "0", "0", "0"];
        assert_eq!(published[0][7..], costs, "{table}");
        let response = cells(&table, &["delivered, response time"]);
        let expected = [
            "a",
            "1,024",
            "delivered, response time",
            "81.9 ms",
            "150 ms",
        ];
        assert_eq!(response[0][..5], expected, "{table}");
        assert_eq!(
            response[0].last(),
            Some(&"300 ms"),
            "the longest of all: {table}"
        );
        assert_eq!(
            response[0][7..9],
            ["–", "–"],
            "a thousandth of 3,000: {table}"
        );
        assert_eq!(
            cells(&table, &["service time", "1.00 ms"]).len(),
            2,
            "{table}"
        );
    }

    #[test]
    fn a_closed_loop_has_one_clock_and_says_so() {
        let mut closed = outcome("a", 5);
        closed.plan.arrivals = Arrivals::Closed;
        let row = Row {
            variations: Vec::new(),
            runs: vec![closed],
        };
        let table = plain(&report(vec![row]));
        assert!(!table.contains("response time  "), "{table}");
        assert!(table.contains("Closed loop: a producer waits"), "{table}");
    }

    #[test]
    fn different_promises_are_not_hidden() {
        let mut disk = outcome("b", 5);
        (disk.subject.promise, disk.subject.is_claimed) = (Promise::Disk, true);
        let rows = [outcome("a", 5), disk].map(|outcome| Row {
            variations: Vec::new(),
            runs: vec![outcome],
        });
        let table = plain(&report(rows.to_vec()));
        assert!(
            table.starts_with("Test · durability differs: kernel, disk (claimed)\n"),
            "{table}"
        );
        assert!(
            table.contains("  disk (claimed): Acknowledged once synced"),
            "{table}"
        );
        assert_eq!(
            cells(&table, &["b", "disk (claimed)", "published"]).len(),
            1,
            "{table}"
        );
    }
}
