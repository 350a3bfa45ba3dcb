//! The clients of `cloverleaf bench` for Kafka and AMQP against the real binary.

use std::net::TcpListener;

use cloverleaf_bench::{
    Acks, Amount, Arrivals, BrokerPlace, Kind, Outcome, PayloadKind, Plan, Progress, Promise, Stop,
    Target, Url, connect,
};

/// Messages of each measurement that is not limited by time.
const MESSAGES: u64 = 1_000;

/// A broker that lets in one user.
struct Broker {
    broker: crate::support::Broker,
    _folder: tempfile::TempDir,
}

impl Broker {
    fn start() -> Broker {
        let folder = tempfile::tempdir().unwrap();
        let user = [("amqp-user", "me:secret/1")];
        Broker {
            broker: crate::support::Broker::with(folder.path(), &user),
            _folder: folder,
        }
    }

    fn kafka(&self) -> String {
        format!("kafka://{}", self.broker.address("kafka"))
    }

    fn amqp(&self) -> String {
        format!("amqp://me:secret%2F1@{}", self.broker.address("amqp"))
    }

    /// Each client.
    fn urls(&self) -> [String; 4] {
        let libraries = [self.kafka(), self.amqp()];
        let [kafka, amqp] = libraries.clone().map(|url| format!("{url}?client=raw"));
        let [librdkafka, lapin] = libraries;
        [librdkafka, lapin, kafka, amqp]
    }
}

fn plan(topic: &str) -> Plan {
    Plan {
        run: 7,
        topic: topic.to_owned(),
        producers: 2,
        consumers: 2,
        size_bytes: 200,
        payload: PayloadKind::Random,
        amount: Amount::Messages(MESSAGES),
        warm_up_s: 0.1,
        arrivals: Arrivals::Closed,
        batch_messages: 50,
        in_flight: 100,
        acks: Acks::All,
        partitions: 2,
        keys: 0,
        seed: 5,
    }
}

fn measure(url: &str, kind: Kind, plan: &Plan) -> Result<Outcome, String> {
    let stop = Stop::default();
    measure_with(url, kind, plan, &stop, |_| {})
}

fn measure_with(
    url: &str,
    kind: Kind,
    plan: &Plan,
    stop: &Stop,
    progress: impl FnMut(&Progress),
) -> Result<Outcome, String> {
    let url: Url = url.parse().map_err(|error| format!("{error}"))?;
    let client = connect(&url).map_err(|error| error.to_string())?;
    let target = Target {
        connect: &*client,
        label: url.name(),
        url: url.to_string(),
        place: BrokerPlace::of(&url.addresses().unwrap()),
        keeps_topic: false,
    };
    let measured = target.measure(kind, plan, stop, progress);
    measured.map_err(|error| error.to_string())
}

/// Checks what every measurement without faults has in common, whatever was measured.
fn assert_good(outcome: &Outcome) {
    let what = format!("{} {:?}", outcome.subject.url, outcome.kind);
    assert_eq!(outcome.cut, None, "{what}");
    for tally in [&outcome.produced, &outcome.consumed].into_iter().flatten() {
        assert_eq!(tally.error_texts, Vec::<String>::new(), "{what}");
        assert_eq!((tally.errors, tally.foreign), (0, 0), "{what}");
        assert_eq!(tally.messages, MESSAGES, "{what}");
        assert_eq!(tally.bytes, 200 * MESSAGES, "{what}");
        assert_eq!(tally.response.len(), MESSAGES, "{what}");
    }
    if let Some(findings) = outcome.findings {
        let faults = (findings.lost, findings.duplicates, findings.out_of_order);
        assert_eq!(faults, (0, 0, 0), "{what}");
    }
    assert!(outcome.usage.broker_cpu_s.is_some(), "{what}");
}

#[test]
fn everything_that_is_sent_comes_once_and_in_order() {
    let broker = Broker::start();
    for url in broker.urls() {
        for (acks, promise) in [
            (Acks::All, Promise::Disk),
            (Acks::One, Promise::Kernel),
            (Acks::None, Promise::None),
        ] {
            let plan = Plan {
                acks,
                ..plan("both-sides")
            };
            let outcome = measure(&url, Kind::EndToEnd, &plan).unwrap();
            assert_good(&outcome);
            assert_eq!(outcome.subject.promise, promise, "{url}");
            let versions = &outcome.subject.versions;
            let broker = (
                "Cloverleaf".to_owned(),
                env!("CARGO_PKG_VERSION").to_owned(),
            );
            assert_eq!(versions[1], broker);
            assert!(
                versions[0].1.starts_with(|it: char| it.is_ascii_digit()),
                "{versions:?}"
            );
        }
    }
}

#[test]
fn one_side_alone_is_measured() {
    let broker = Broker::start();
    for url in broker.urls() {
        for (in_flight, batch_messages, keys) in [(1, 1, 0), (7, 1, 3), (0, 200, 0)] {
            let plan = Plan {
                in_flight,
                batch_messages,
                // The raw client for Kafka has none.
                keys: if url.contains("raw") { 0 } else { keys },
                warm_up_s: 0.0,
                acks: Acks::One,
                ..plan("one-side")
            };
            assert_good(&measure(&url, Kind::Produce, &plan).unwrap());
        }
        let plan = Plan {
            warm_up_s: 0.0,
            ..plan("other-side")
        };
        assert_good(&measure(&url, Kind::Consume, &plan).unwrap());
    }
}

#[test]
fn messages_have_a_schedule_with_each_client() {
    let broker = Broker::start();
    for url in broker.urls() {
        let plan = Plan {
            arrivals: Arrivals::Constant { rate: 3_000.0 },
            batch_messages: 1,
            in_flight: 0,
            warm_up_s: 0.05,
            ..plan("scheduled")
        };
        let outcome = measure(&url, Kind::EndToEnd, &plan).unwrap();
        assert_good(&outcome);
        // The tests of `schedule.rs` cover when a message is due.
        assert!(!outcome.produced.unwrap().lag.is_empty(), "{url}");
    }
}

#[test]
fn what_was_there_before_is_left_alone() {
    let broker = Broker::start();
    let (kafka, amqp) = (broker.kafka(), broker.amqp());
    for url in [&kafka, &amqp] {
        let url: Url = url.parse().unwrap();
        let first = connect(&url).unwrap();
        first.prepare(&plan("mine")).unwrap();
        // A second measurement uses the topic as it is, and does not remove it.
        let other = connect(&url).unwrap();
        other.prepare(&plan("mine")).unwrap();
        other.clean_up(&plan("mine")).unwrap();
        let third = connect(&url).unwrap();
        third.prepare(&plan("mine")).unwrap();
        first.clean_up(&plan("mine")).unwrap();
        first.prepare(&plan("mine")).unwrap();
        first.clean_up(&plan("mine")).unwrap();
    }
    let kafka: Url = kafka.parse().unwrap();
    let client = connect(&kafka).unwrap();
    client.prepare(&plan("narrow")).unwrap();
    let wide = Plan {
        partitions: 5,
        ..plan("narrow")
    };
    let error = client.prepare(&wide).unwrap_err().to_string();
    assert!(
        error.contains("with 2 partitions, and 5 are wanted"),
        "{error}"
    );
    // A queue with messages is not emptied.
    let amqp: Url = amqp.parse().unwrap();
    let client = connect(&amqp).unwrap();
    let full = Plan {
        warm_up_s: 0.0,
        ..plan("full")
    };
    let target = Target {
        connect: &*client,
        label: String::new(),
        url: String::new(),
        place: BrokerPlace::Elsewhere,
        keeps_topic: true,
    };
    let produced = target.measure(Kind::Produce, &full, &Stop::default(), |_| {});
    assert!(produced.unwrap().is_good());
    let error = client.prepare(&full).unwrap_err().to_string();
    assert!(
        error.contains(&format!("is there already and has {MESSAGES} messages")),
        "{error}"
    );
}

#[test]
fn a_broker_that_dies_leaves_what_was_measured() {
    for place in 0..4 {
        let mut broker = Broker::start();
        let url = broker.urls()[place].clone();
        let plan = Plan {
            // Longer than any machine takes until the broker's end is noticed.
            amount: Amount::Seconds(3_600.0),
            arrivals: Arrivals::Constant { rate: 2_000.0 },
            warm_up_s: 0.0,
            ..plan("dying")
        };
        let stop = Stop::default();
        // Once there are messages to be kept.
        let mut seen = 0;
        let measured = measure_with(&url, Kind::EndToEnd, &plan, &stop, |progress| {
            seen += progress.produced.messages;
            if seen > 100 {
                broker.broker.child.kill().unwrap();
            }
        });
        let outcome = measured.unwrap();
        let cut = outcome.cut.clone().unwrap();
        assert!(cut.contains("went away: "), "{cut}");
        assert!(!cut.contains("secret"), "{cut}");
        assert!(!outcome.is_good());
        let produced = outcome.produced.as_ref().unwrap();
        assert!(produced.messages > 100, "{cut}: {}", produced.messages);
    }
}

#[test]
fn who_cannot_be_reached_or_refuses_is_named() {
    let broker = Broker::start();
    // A port without a listener.
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    for protocol in ["kafka", "amqp"] {
        let url = format!("{protocol}://{address}");
        let error = measure(&url, Kind::Produce, &plan("t")).unwrap_err();
        let expected = format!("cannot connect to {url}: Connection refused");
        assert!(error.starts_with(&expected), "{error}");
    }
    let wrong = format!("amqp://me:wrong@{}", broker.broker.address("amqp"));
    let error = measure(&wrong, Kind::Produce, &plan("t")).unwrap_err();
    assert!(
        error.contains("refuses: ") && error.contains("ACCESS_REFUSED"),
        "{error}"
    );
    assert!(!error.contains("wrong"), "{error}");
    let vhost = format!("{}/none", broker.amqp());
    let error = measure(&vhost, Kind::Produce, &plan("t")).unwrap_err();
    assert!(
        error.contains("refuses: ") && error.contains("none"),
        "{error}"
    );
    // Kafka where AMQP is wanted.
    let swapped = format!("amqp://{}", broker.broker.address("kafka"));
    let error = measure(&swapped, Kind::Produce, &plan("t")).unwrap_err();
    assert!(error.contains("cannot connect to "), "{error}");
    let option = format!("{}?linger=5", broker.kafka());
    let error = measure(&option, Kind::Produce, &plan("t")).unwrap_err();
    assert!(
        error.contains("librdkafka does not take") && error.contains("linger"),
        "{error}"
    );
}

#[test]
fn a_measurement_is_stopped_before_its_time() {
    let broker = Broker::start();
    for url in broker.urls() {
        let plan = Plan {
            amount: Amount::Seconds(3_600.0),
            ..plan("stopped")
        };
        let stop = Stop::default();
        let outcome = measure_with(&url, Kind::EndToEnd, &plan, &stop, |_| stop.set());
        let outcome = outcome.unwrap();
        assert!(
            outcome.cut.as_ref().unwrap().contains("stopped"),
            "{:?}",
            outcome.cut
        );
        assert!(
            outcome
                .findings
                .is_some_and(|findings| !findings.is_broken()),
            "{url}"
        );
    }
}
