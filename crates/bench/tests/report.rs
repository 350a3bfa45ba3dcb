//! The report as a page: well-formed, whole, and safe whatever names users give.

use std::collections::BTreeMap;

use cloverleaf_bench::{
    Acks, Amount, Arrivals, ClientStats, Conditions, Findings, Kind, Outcome, PayloadKind, Plan,
    Promise, Report, Row, Second, Subject, Usage, Variation, page,
};
use roxmltree::{Document, Node, ParsingOptions};

const HOSTILE: &str = "</text><script>alert('&\"')</script>\u{0}\u{202e}";

fn plan(size_bytes: usize, arrivals: Arrivals) -> Plan {
    Plan {
        run: 7,
        topic: "bench".to_owned(),
        producers: 4,
        consumers: 4,
        size_bytes,
        payload: PayloadKind::Random,
        amount: Amount::Seconds(10.0),
        warm_up_s: 1.0,
        arrivals,
        batch_messages: 200,
        in_flight: 1_000,
        acks: Acks::One,
        partitions: 1,
        keys: 0,
        seed: 1,
    }
}

/// Numbers that look random and are the same each time.
struct Dice(u64);

impl Dice {
    /// Between 0 and 1.
    fn roll(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Times as those of a broker: a body with a long tail, and some pauses.
    fn time_ns(&mut self, typical_ns: f64) -> u64 {
        let tail = (1.0 - self.roll()).max(1e-6).powf(-0.35);
        let pause = if self.roll() > 0.9997 { 40.0 } else { 0.0 };
        (typical_ns * (0.7 + 0.3 * tail + pause * self.roll())) as u64
    }
}

fn stats(
    rate: f64,
    typical_ns: f64,
    is_open: bool,
    size_bytes: usize,
    dice: &mut Dice,
) -> ClientStats {
    let mut stats = ClientStats::default();
    for at in 0..10u32 {
        let messages = (rate * (0.93 + 0.1 * dice.roll())) as u64;
        let mut second = Second {
            messages,
            bytes: messages * size_bytes as u64,
            ..Second::default()
        };
        for _ in 0..700 {
            let service_ns = dice.time_ns(typical_ns);
            let waited_ns = if is_open && dice.roll() > 0.985 {
                service_ns * 6
            } else {
                0
            };
            second.response.record(service_ns + waited_ns);
            stats.service.record(service_ns);
            stats.lag.record((20_000.0 * dice.roll()) as u64);
        }
        stats.response.add(&second.response);
        stats.messages += messages;
        stats.bytes += second.bytes;
        stats.seconds.insert(at, second);
    }
    stats.sent = stats.messages;
    stats.span_ns = Some((1_000_000_000, 11_000_000_000));
    stats
}

/// A broker that is so good.
#[derive(Clone, Copy)]
struct Broker {
    label: &'static str,
    promise: Promise,
    rate: f64,
    typical_ns: f64,
    cpu_us: f64,
}

const BROKERS: [Broker; 3] = [
    Broker {
        label: "Cloverleaf",
        promise: Promise::Kernel,
        rate: 812_000.0,
        typical_ns: 180_000.0,
        cpu_us: 0.42,
    },
    Broker {
        label: "nsqd",
        promise: Promise::Memory,
        rate: 610_000.0,
        typical_ns: 240_000.0,
        cpu_us: 0.9,
    },
    Broker {
        label: "Kafka",
        promise: Promise::Kernel,
        rate: 702_000.0,
        typical_ns: 1_900_000.0,
        cpu_us: 1.3,
    },
];

fn outcome(broker: Broker, kind: Kind, plan: Plan, dice: &mut Dice) -> Outcome {
    let is_open = plan.arrivals != Arrivals::Closed;
    let asked = match plan.arrivals {
        Arrivals::Constant { rate } => rate,
        _ => f64::INFINITY,
    };
    let by_size = 1.0 / (1.0 + plan.size_bytes as f64 / 3_000.0);
    let rate = (broker.rate * by_size * (0.92 + 0.16 * dice.roll())).min(asked);
    let mut side = || stats(rate, broker.typical_ns, is_open, plan.size_bytes, dice);
    let produced = (kind != Kind::Consume).then(&mut side);
    let consumed = (kind != Kind::Produce).then(&mut side);
    Outcome {
        subject: Subject {
            label: broker.label.to_owned(),
            url: format!("nsq://{}.example:4150", broker.label.len()),
            versions: vec![
                ("client".to_owned(), "2.10.0".to_owned()),
                ("broker".to_owned(), "1.3.0".to_owned()),
            ],
            promise: broker.promise,
            is_claimed: false,
            may_reorder: None,
        },
        kind,
        started_unix_ms: 1_795_322_460_000,
        produced,
        findings: consumed.is_some().then(Findings::default),
        consumed,
        usage: Usage {
            proxy_cpu_s: 0.0,
            wall_s: 10.0,
            client_cpu_s: 0.3e-6 * rate * 10.0,
            broker_cpu_s: Some(broker.cpu_us * 1e-6 * rate * 10.0),
            broker_rss_bytes: Some((broker.typical_ns * 300.0) as u64),
            ..Usage::default()
        },
        cut: None,
        remarks: Vec::new(),
        plan,
    }
}

fn variation(name: &str, value: f64) -> Variation {
    Variation {
        name: name.to_owned(),
        value,
    }
}

fn report(title: &str, rows: Vec<Row>) -> Report {
    Report {
        title: title.to_owned(),
        command: ["cloverleaf", "bench", "compare"]
            .map(str::to_owned)
            .to_vec(),
        conditions: Conditions {
            is_release: true,
            ..Conditions::here()
        },
        rows,
        notes: vec!["Client and brokers share two cores.".to_owned()],
        failure: None,
    }
}

/// The report that `compare` makes: three brokers, four sizes, three runs each.
fn compared(kinds: &[Kind], arrivals: Arrivals) -> Report {
    let mut dice = Dice(42);
    let mut rows = Vec::new();
    for kind in kinds {
        for size_bytes in [128usize, 512, 1_024, 5_120] {
            for broker in BROKERS {
                let run = |_| outcome(broker, *kind, plan(size_bytes, arrivals), &mut dice);
                rows.push(Row {
                    variations: vec![variation("message size, bytes", size_bytes as f64)],
                    runs: (0..3).map(run).collect(),
                });
            }
        }
    }
    report("Three brokers on one machine", rows)
}

/// The report that `sweep` makes: one broker under more and more load.
fn swept() -> Report {
    let mut dice = Dice(7);
    let rows = (1..=9).map(|n| {
        let rate = f64::from(n) * 20_000.0;
        let near = (1.0 - f64::from(n) / 9.2).max(0.03);
        let broker = Broker {
            typical_ns: BROKERS[0].typical_ns / near,
            rate: 171_000.0,
            ..BROKERS[0]
        };
        let arrivals = Arrivals::Poisson { rate };
        let mut outcome = outcome(broker, Kind::Produce, plan(128, arrivals), &mut dice);
        if let Some(produced) = &mut outcome.produced {
            let seconds = produced.messages as f64 / rate.min(171_000.0);
            produced.span_ns = Some((0, (seconds * 1e9) as u64));
        }
        Row {
            variations: vec![variation("asked rate, messages/s", rate)],
            runs: vec![outcome],
        }
    });
    report("Where it bends", rows.collect())
}

/// Writes the page where it can be looked at, and reads it as XML.
fn checked(name: &str, report: &Report) -> String {
    let page = page(report);
    let path = format!("{}/{name}.html", env!("CARGO_TARGET_TMPDIR"));
    std::fs::write(&path, &page).unwrap();
    page
}

fn parsed(page: &str) -> Document<'_> {
    let options = ParsingOptions {
        allow_dtd: true,
        ..ParsingOptions::default()
    };
    Document::parse_with_options(page, options).unwrap()
}

/// Numbers in places of a picture, and all attributes together.
fn check_pictures(document: &Document<'_>) -> usize {
    let is_picture = |it: &Node<'_, '_>| it.tag_name().name() == "svg";
    let pictures: Vec<_> = document.descendants().filter(is_picture).collect();
    for picture in &pictures {
        let view: Vec<f64> = picture
            .attribute("viewBox")
            .unwrap()
            .split(' ')
            .map(|number| number.parse().unwrap())
            .collect();
        for node in picture.descendants().filter(Node::is_element) {
            for (name, end) in [
                ("x", 2),
                ("x1", 2),
                ("x2", 2),
                ("cx", 2),
                ("y", 3),
                ("cy", 3),
            ] {
                let Some(value) = node.attribute(name) else {
                    continue;
                };
                let value: f64 = value.parse().unwrap();
                assert!(
                    (-1.0..=view[end] + 1.0).contains(&value),
                    "{name}={value} in {node:?}"
                );
            }
        }
    }
    pictures.len()
}

/// Boxes of texts that are at most as wide as a wide font makes them.
fn check_overlaps(document: &Document<'_>) {
    let is_svg = |it: &Node<'_, '_>| it.tag_name().name() == "svg";
    for picture in document.descendants().filter(is_svg) {
        let texts = picture
            .descendants()
            .filter(|it| it.tag_name().name() == "text");
        let boxes: Vec<(f64, f64, f64, String)> = texts
            .map(|node| {
                let text = node.text().unwrap_or_default().to_owned();
                let place = |name| node.attribute(name).unwrap().parse::<f64>().unwrap();
                let wide = text.chars().count() as f64 * 6.0;
                let class = node.attribute("class").unwrap_or_default();
                let left = match class {
                    class if class.contains("end") => place("x") - wide,
                    class if class.contains("middle") => place("x") - wide / 2.0,
                    _ => place("x"),
                };
                (left, left + wide, place("y"), text)
            })
            .collect();
        for (at, one) in boxes.iter().enumerate() {
            for two in &boxes[at + 1..] {
                let is_over = one.0 < two.1 && two.0 < one.1 && (one.2 - two.2).abs() < 10.0;
                assert!(!is_over, "\"{}\" lies over \"{}\"", one.3, two.3);
            }
        }
    }
}

fn text_of(document: &Document<'_>) -> String {
    let texts = document.descendants().filter(|it| it.is_text());
    let texts: Vec<&str> = texts.filter_map(|it| it.text()).collect();
    // Numbers and units do not break.
    texts.join("\n").replace('\u{a0}', " ")
}

#[test]
fn every_broker_size_and_class_is_there() {
    let kinds = [Kind::Produce, Kind::Consume, Kind::EndToEnd];
    let page = checked("compare", &compared(&kinds, Arrivals::Closed));
    let document = parsed(&page);
    // Throughput, 4 latencies, 4 × 2 series, 2 costs; consumers have no latencies.
    assert_eq!(check_pictures(&document), 15 + 1 + 4 + 2 + 15);
    check_overlaps(&document);
    let text = text_of(&document);
    for broker in BROKERS {
        assert!(text.contains(broker.label), "{}", broker.label);
    }
    for word in [
        "128 bytes",
        "5,120 bytes",
        "durability: kernel",
        "durability: memory",
        "The durability classes differ",
        "broker 1.3.0",
        "Linux",
        "closed loop",
        "none is missing",
        "Client and brokers share two cores.",
    ] {
        assert!(text.contains(word), "{word} is missing");
    }
    assert!(
        !page.contains("NaN") && !page.contains("inf "),
        "a figure that is none"
    );
    assert!(loads_nothing(&page));
}

/// Whether all addresses in a page are names of XML, which nobody loads.
fn loads_nothing(page: &str) -> bool {
    let names = ["http://www.w3.org/1999/xhtml", "http://www.w3.org/2000/svg"];
    let rest = names
        .iter()
        .fold(page.to_owned(), |page, name| page.replace(name, ""));
    !["http://", "https://", " src=", "url(", "@import", "<script"]
        .iter()
        .any(|word| rest.contains(word))
}

#[test]
fn an_open_loop_shows_both_times_and_a_closed_one_says_what_it_hides() {
    let open = Arrivals::Poisson { rate: 50_000.0 };
    let page_open = checked("open", &compared(&[Kind::EndToEnd], open));
    let document = parsed(&page_open);
    check_overlaps(&document);
    assert!(page_open.contains("class=\"line dashed\""));
    let text = text_of(&document);
    for word in [
        "response time",
        "service time",
        "50,000/s at random times",
        "generator's own lag",
    ] {
        assert!(text.contains(word), "{word} is missing");
    }
    let closed = page(&compared(&[Kind::EndToEnd], Arrivals::Closed));
    assert!(!closed.contains("class=\"line dashed\""));
    assert!(closed.contains("Closed loop: service time"));
}

#[test]
fn a_single_measurement_has_its_figures_in_large() {
    let mut report = compared(&[Kind::EndToEnd], Arrivals::Constant { rate: 20_000.0 });
    report.rows.truncate(1);
    report.rows[0].variations.clear();
    report.title = "Publishing and consuming".to_owned();
    let page = checked("single", &report);
    let document = parsed(&page);
    check_pictures(&document);
    check_overlaps(&document);
    assert!(page.contains("class=\"tiles\""));
}

#[test]
fn a_sweep_is_drawn_as_lines() {
    let page = checked("sweep", &swept());
    let document = parsed(&page);
    assert!(check_pictures(&document) >= 4);
    check_overlaps(&document);
    let text = text_of(&document);
    assert!(text.contains("by asked rate") && text.contains("asked rate, messages/s"));
    assert!(text.contains("4 of 9 are drawn"));
}

#[test]
fn many_groups_have_names_in_two_lines() {
    let mut dice = Dice(3);
    let mut rows = Vec::new();
    for size in [128.0, 1_024.0, 5_120.0] {
        for in_flight in [1.0, 5.0, 50.0, 250.0, 500.0, 1_000.0] {
            for broker in BROKERS {
                let plan = plan(size as usize, Arrivals::Closed);
                rows.push(Row {
                    variations: vec![
                        variation("message size, bytes", size),
                        variation("in flight, messages", in_flight),
                    ],
                    runs: vec![outcome(broker, Kind::Produce, plan, &mut dice)],
                });
            }
        }
    }
    let page = checked("many", &report("Many groups", rows));
    let document = parsed(&page);
    check_pictures(&document);
    check_overlaps(&document);
    let text = text_of(&document);
    assert!(text.contains("Producer by message size and in flight"));
    assert!(text.contains("Along the axis: in flight, messages; below it: message size, bytes."));
    assert_eq!(
        text.matches("\n1,024 bytes\n").count(),
        1,
        "one name for six groups"
    );
}

#[test]
fn names_and_words_of_users_and_brokers_stay_text() {
    let mut report = compared(&[Kind::EndToEnd], Arrivals::Closed);
    report.title = HOSTILE.to_owned();
    report.notes = vec![HOSTILE.to_owned()];
    report.command = vec![HOSTILE.to_owned()];
    report.failure = Some(HOSTILE.to_owned());
    for outcome in report.rows.iter_mut().flat_map(|row| &mut row.runs) {
        outcome.subject.label = format!("{HOSTILE}{}", outcome.subject.label);
        outcome.subject.url = HOSTILE.to_owned();
        outcome.subject.versions = vec![(HOSTILE.to_owned(), HOSTILE.to_owned())];
        outcome.plan.topic = HOSTILE.to_owned();
        outcome.cut = Some(HOSTILE.to_owned());
    }
    for row in &mut report.rows {
        row.variations[0].name = HOSTILE.to_owned();
    }
    let page = checked("hostile", &report);
    let document = parsed(&page);
    check_overlaps(&document);
    let is_script = |it: &Node<'_, '_>| it.tag_name().name() == "script";
    assert!(!document.descendants().any(|it| is_script(&it)));
    assert!(!page.contains("<script") && !page.contains('\u{202e}') && !page.contains('\u{0}'));
}

#[test]
fn what_failed_is_shown_and_the_others_go_on() {
    let mut report = compared(&[Kind::Produce], Arrivals::Closed);
    for row in report.rows.iter_mut().skip(2).step_by(3) {
        for run in &mut row.runs {
            run.produced = None;
            run.usage = Usage::default();
            run.cut = Some("cannot connect to kafka://127.0.0.1:9092: refused".to_owned());
        }
    }
    let page = checked("failed", &report);
    let document = parsed(&page);
    check_pictures(&document);
    check_overlaps(&document);
    let text = text_of(&document);
    assert!(text.contains("failed") && text.contains("127.0.0.1:9092: refused"));
    assert!(text.contains("Not everything went well"));
    assert!(!page.contains("NaN"));
}

#[test]
fn nothing_at_all_is_a_page_too() {
    let page = checked("empty", &report("Nothing", Vec::new()));
    parsed(&page);
    let mut report = compared(&[Kind::Produce], Arrivals::Closed);
    for run in report.rows.iter_mut().flat_map(|row| &mut row.runs) {
        run.produced = Some(ClientStats {
            seconds: BTreeMap::new(),
            ..ClientStats::default()
        });
    }
    let page = page_of_nothing(&report);
    assert!(!page.contains("NaN"));
}

fn page_of_nothing(report: &Report) -> String {
    let page = page(report);
    parsed(&page);
    page
}
