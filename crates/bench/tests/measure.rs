//! A measurement against a broker that does exactly what a test wants, good or bad.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use cloverleaf_bench::{
    Acks, Amount, Arrivals, BrokerPlace, Connect, Consume, DriverError, Kind, MessageSource, Next,
    Outcome, PayloadKind, Plan, Produce, Promise, Recorder, Stop, Target,
};

const MS: u64 = 1_000_000;

/// The broker's faults, by the sequence of messages.
#[derive(Clone, Default)]
struct Faults {
    is_away: bool,
    lose: Option<u64>,
    twice: Option<u64>,
    /// Comes behind the next one.
    late: Option<u64>,
    refuse: Option<u64>,
    dies_at: Option<u64>,
    /// From so many milliseconds on it answers nothing for so many.
    stall_ms: Option<(u64, u64)>,
    /// Its producer needs so many milliseconds for each message.
    each_ms: u64,
    /// Its consumer needs so many milliseconds for each message, for so many from the first on.
    slow_ms: Option<(u64, u64)>,
    /// The user has enough then.
    stop_at: Option<(u64, Stop)>,
}

type Pipe = (Sender<Vec<u8>>, Option<Receiver<Vec<u8>>>);

#[derive(Default)]
struct Fake {
    faults: Faults,
    pipe: Mutex<Option<Pipe>>,
    cleaned: AtomicU32,
}

impl Connect for Fake {
    fn prepare(&self, _: &Plan) -> Result<(), DriverError> {
        if self.faults.is_away {
            return Err(DriverError::Connect {
                url: "fake".to_owned(),
                reason: "nobody is there".to_owned(),
            });
        }
        let (sender, receiver) = channel();
        *self.pipe.lock().unwrap() = Some((sender, Some(receiver)));
        Ok(())
    }

    fn producer(&self, _: &Plan, _: u32) -> Result<Box<dyn Produce>, DriverError> {
        let pipe = self.pipe.lock().unwrap();
        Ok(Box::new(FakeProducer {
            faults: self.faults.clone(),
            sender: pipe.as_ref().unwrap().0.clone(),
        }))
    }

    fn consumer(&self, _: &Plan, _: u32) -> Result<Box<dyn Consume>, DriverError> {
        let mut pipe = self.pipe.lock().unwrap();
        let receiver = pipe.as_mut().unwrap().1.take();
        Ok(Box::new(FakeConsumer {
            messages: receiver.expect("one consumer"),
            slow_ms: self.faults.slow_ms,
        }))
    }

    fn quiet(&self, _: &Plan) -> Duration {
        Duration::from_secs(1)
    }

    fn clean_up(&self, _: &Plan) -> Result<(), DriverError> {
        self.cleaned.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn versions(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    fn promise(&self, _: &Plan) -> Promise {
        Promise::Memory
    }
}

struct FakeProducer {
    faults: Faults,
    sender: Sender<Vec<u8>>,
}

/// Lets time go by: what a broker's or a network's time is.
fn pass(ns: u64) {
    let (never, mutex) = (Condvar::new(), Mutex::new(()));
    let _ = never.wait_timeout(mutex.lock().unwrap(), Duration::from_nanos(ns));
}

impl Produce for FakeProducer {
    fn run(
        &mut self,
        source: &mut MessageSource,
        recorder: &mut Recorder,
        stop: &Stop,
    ) -> Result<(), DriverError> {
        let (clock, faults) = (source.clock(), self.faults.clone());
        let (mut begun_ns, mut free_since_ns, mut held) = (None, 0, None);
        while !stop.is_set() {
            let now_ns = clock.now_ns();
            let message = match source.next(now_ns) {
                Next::Send(message) => message,
                Next::At(due_ns) => {
                    pass(due_ns - now_ns);
                    continue;
                }
                Next::Done => break,
            };
            let at = Some(message.sequence);
            let since_ns = now_ns - *begun_ns.get_or_insert(now_ns);
            recorder.sent(&message, message.intended_ns < free_since_ns);
            let mut body = Vec::new();
            source.push(&message, &mut body);
            let bytes = body.len();
            if at == faults.dies_at {
                return Err(DriverError::Gone {
                    url: "fake".to_owned(),
                    reason: "connection reset".to_owned(),
                });
            }
            if let Some((from_ms, for_ms)) = faults.stall_ms {
                let end_ns = (from_ms + for_ms) * MS;
                if (from_ms * MS..end_ns).contains(&since_ns) {
                    pass(end_ns - since_ns);
                }
            }
            if faults.each_ms > 0 {
                pass(faults.each_ms * MS);
            }
            free_since_ns = clock.now_ns();
            if at == faults.refuse {
                recorder.failed(&message, &"the disk is full", free_since_ns);
                continue;
            }
            if at == faults.twice {
                self.sender.send(body.clone()).unwrap();
            }
            if at == faults.late {
                held = Some(body);
            } else if at != faults.lose {
                self.sender.send(body).unwrap();
                if let Some(body) = held.take() {
                    self.sender.send(body).unwrap();
                }
            }
            recorder.acked(&message, bytes, free_since_ns);
            if let Some((sequence, stop)) = &faults.stop_at
                && message.sequence == *sequence
            {
                stop.set();
            }
        }
        Ok(())
    }
}

struct FakeConsumer {
    messages: Receiver<Vec<u8>>,
    slow_ms: Option<(u64, u64)>,
}

impl Consume for FakeConsumer {
    fn run(&mut self, recorder: &mut Recorder, stop: &Stop) -> Result<(), DriverError> {
        let clock = recorder.clock();
        let mut begun_ns = None;
        while !stop.is_set() {
            match self.messages.recv_timeout(Duration::from_millis(10)) {
                Ok(body) => {
                    let now_ns = clock.now_ns();
                    let since_ns = now_ns - *begun_ns.get_or_insert(now_ns);
                    if let Some((each_ms, for_ms)) = self.slow_ms
                        && since_ns < for_ms * MS
                    {
                        pass(each_ms * MS);
                    }
                    recorder.came(&body, Some(0), clock.now_ns());
                }
                Err(RecvTimeoutError::Timeout) => {}
                // The producer's side is gone.
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        Ok(())
    }
}

fn plan(amount: Amount) -> Plan {
    Plan {
        run: 77,
        topic: "t".to_owned(),
        producers: 1,
        consumers: 1,
        size_bytes: 100,
        payload: PayloadKind::Random,
        amount,
        warm_up_s: 0.0,
        arrivals: Arrivals::Closed,
        batch_messages: 1,
        in_flight: 1,
        acks: Acks::One,
        partitions: 1,
        keys: 0,
        seed: 1,
    }
}

fn plan_of_seconds(seconds: f64) -> Plan {
    plan(Amount::Seconds(seconds))
}

fn measure(fake: &Fake, kind: Kind, plan: &Plan, stop: &Stop) -> Result<Outcome, DriverError> {
    let target = Target {
        connect: fake,
        label: "fake".to_owned(),
        url: "fake".to_owned(),
        place: BrokerPlace::Elsewhere,
        keeps_topic: false,
    };
    target.measure(kind, plan, stop, |_| {})
}

fn with(faults: Faults) -> Fake {
    Fake {
        faults,
        ..Fake::default()
    }
}

#[test]
fn a_good_broker_is_good() {
    let fake = Fake::default();
    let plan = plan(Amount::Messages(2_000));
    let outcome = measure(&fake, Kind::EndToEnd, &plan, &Stop::default()).unwrap();
    assert!(outcome.is_good(), "{:?}", outcome.cut);
    let (produced, consumed) = (outcome.produced.unwrap(), outcome.consumed.unwrap());
    assert_eq!((produced.messages, consumed.messages), (2_000, 2_000));
    assert_eq!((produced.sent, produced.bytes), (2_000, 200_000));
    assert_eq!(
        (produced.response.len(), consumed.service.len()),
        (2_000, 2_000)
    );
    let by_second = produced.seconds.values().map(|second| second.messages);
    assert_eq!(by_second.sum::<u64>(), 2_000);
    assert_eq!(outcome.findings.unwrap(), Default::default());
    assert_eq!(fake.cleaned.load(Ordering::Relaxed), 1);
}

#[test]
fn loss_duplicates_and_disorder_are_found() {
    let fake = with(Faults {
        lose: Some(10),
        twice: Some(20),
        late: Some(30),
        refuse: Some(40),
        ..Faults::default()
    });
    let plan = plan(Amount::Messages(100));
    let outcome = measure(&fake, Kind::EndToEnd, &plan, &Stop::default()).unwrap();
    let findings = outcome.findings.unwrap();
    let told = outcome.remarks.join(" ");
    assert!(told.contains("nothing had come for 1.00 s"), "{told}");
    assert_eq!(
        (findings.lost, findings.duplicates, findings.out_of_order),
        (1, 1, 1)
    );
    assert!(!outcome.is_good());
    assert_eq!(
        outcome.cut, None,
        "a broker's fault is no fault of the measurement"
    );
    let produced = outcome.produced.unwrap();
    assert_eq!((produced.messages, produced.errors), (99, 1));
    assert_eq!(produced.error_texts, ["the disk is full"]);
}

#[test]
fn a_topic_that_cannot_be_filled_is_not_measured() {
    let fake = with(Faults {
        refuse: Some(40),
        ..Faults::default()
    });
    let plan = plan(Amount::Messages(100));
    let error = measure(&fake, Kind::Consume, &plan, &Stop::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "fake refuses: 1 messages could not be put in for consumers, the first because the disk is \
         full"
    );
    assert_eq!(fake.cleaned.load(Ordering::Relaxed), 1);
}

#[test]
fn what_was_measured_before_the_broker_died_is_kept_and_marked() {
    let fake = with(Faults {
        dies_at: Some(500),
        ..Faults::default()
    });
    let plan = plan(Amount::Messages(2_000));
    let outcome = measure(&fake, Kind::EndToEnd, &plan, &Stop::default()).unwrap();
    assert_eq!(
        outcome.cut.as_deref(),
        Some("fake went away: connection reset")
    );
    assert_eq!(outcome.produced.as_ref().unwrap().messages, 500);
    assert_eq!(outcome.findings.unwrap().lost, 0, "nobody can say that");
    assert!(!outcome.is_good());
}

#[test]
fn a_user_who_has_enough_gets_what_there_is() {
    let stop = Stop::default();
    let fake = with(Faults {
        stop_at: Some((300, stop.clone())),
        ..Faults::default()
    });
    let plan = plan(Amount::Seconds(600.0));
    let outcome = measure(&fake, Kind::EndToEnd, &plan, &stop).unwrap();
    assert!(outcome.cut.unwrap().contains("stopped before its time"));
    assert_eq!(outcome.produced.unwrap().messages, 301);
    assert_eq!(outcome.findings.unwrap().lost, 0);
}

/// Coordinated omission: while the broker stands still, a producer that waits for it sends
/// nothing. The few messages that it did send look slow; those that it should have sent are not
/// in the service time at all. Their response time is what a user would have felt.
#[test]
fn a_stall_is_in_the_response_time_and_hardly_in_the_service_time() {
    let fake = with(Faults {
        stall_ms: Some((300, 400)),
        ..Faults::default()
    });
    let plan = Plan {
        arrivals: Arrivals::Constant { rate: 1_000.0 },
        ..plan(Amount::Seconds(1.0))
    };
    let outcome = measure(&fake, Kind::Produce, &plan, &Stop::default()).unwrap();
    let produced = outcome.produced.unwrap();
    assert_eq!(produced.messages, 1_000, "an open loop sends all of them");
    // 400 of 1,000 were due in the stall; half of these waited for more than 200 ms.
    let response_ns = produced.response.quantile_ns(0.8);
    assert!(response_ns > 150 * MS, "{response_ns}");
    // How much less depends on the machine; the tests of `message_source.rs` and `recorder.rs` set
    // the time.
    let service_ns = produced.service.quantile_ns(0.8);
    assert!(service_ns < response_ns, "{service_ns} of {response_ns}");
    assert!(
        produced.service.max_ns() > 300 * MS,
        "the one that was on its way"
    );
    // The generator is not to blame for what had to wait.
    assert!(produced.lag.len() <= 650, "{}", produced.lag.len());
}

#[test]
fn the_warm_up_is_checked_but_not_counted() {
    let plan = Plan {
        warm_up_s: 0.2,
        arrivals: Arrivals::Constant { rate: 1_000.0 },
        ..plan(Amount::Messages(100))
    };
    let fake = with(Faults {
        twice: Some(50),
        ..Faults::default()
    });
    let outcome = measure(&fake, Kind::EndToEnd, &plan, &Stop::default()).unwrap();
    let produced = outcome.produced.unwrap();
    assert_eq!((produced.sent, produced.messages), (100, 100));
    assert_eq!(produced.acked[&0].len(), 300);
    assert_eq!(outcome.findings.unwrap().duplicates, 1);
}

#[test]
fn consuming_takes_out_what_was_put_in() {
    let fake = Fake::default();
    let plan = plan(Amount::Messages(3_000));
    let outcome = measure(&fake, Kind::Consume, &plan, &Stop::default()).unwrap();
    assert!(outcome.produced.is_none() && outcome.is_good());
    assert_eq!(outcome.consumed.unwrap().messages, 3_000);
}

#[test]
fn a_consumer_warms_up() {
    // It has a thousand messages per second at most, and half a second.
    let fake = with(Faults {
        slow_ms: Some((1, 60_000)),
        ..Faults::default()
    });
    let plan = Plan {
        warm_up_s: 0.3,
        ..plan(Amount::Seconds(0.2))
    };
    let outcome = measure(&fake, Kind::Consume, &plan, &Stop::default()).unwrap();
    assert_eq!(outcome.cut, None);
    let consumed = outcome.consumed.unwrap();
    assert!(
        (1..=300).contains(&consumed.messages),
        "{}",
        consumed.messages
    );
    assert!(consumed.rate() <= 1_010.0, "{}", consumed.rate());
}

#[test]
fn a_warm_up_ends_with_its_share_of_a_topic_that_would_be_empty_too_soon() {
    let plan = Plan {
        warm_up_s: 30.0,
        ..plan(Amount::Messages(10))
    };
    let outcome = measure(&Fake::default(), Kind::Consume, &plan, &Stop::default()).unwrap();
    assert_eq!(outcome.plan.warm_up_s, 0.0, "all that was put in counts");
    assert_eq!(outcome.consumed.unwrap().messages, 10);
    // Producers need ten times as long as consumers.
    let fake = with(Faults {
        each_ms: 20,
        slow_ms: Some((2, 60_000)),
        ..Faults::default()
    });
    let plan = Plan {
        warm_up_s: 0.3,
        ..plan_of_seconds(0.3)
    };
    let outcome = measure(&fake, Kind::Consume, &plan, &Stop::default()).unwrap();
    assert!(outcome.is_good(), "{:?}", outcome.cut);
    let consumed = outcome.consumed.unwrap();
    assert!(
        (1..=18).contains(&consumed.messages),
        "{}",
        consumed.messages
    );
    assert!(
        outcome.remarks[0].contains("the warm-up ended early"),
        "{:?}",
        outcome.remarks
    );
}

#[test]
fn consumers_have_the_rate_of_the_time_in_which_producers_send() {
    // Two hundred messages per second at most, and a thousand are sent.
    let fake = with(Faults {
        slow_ms: Some((5, 60_000)),
        ..Faults::default()
    });
    let plan = Plan {
        arrivals: Arrivals::Constant { rate: 1_000.0 },
        ..plan(Amount::Seconds(0.5))
    };
    let outcome = measure(&fake, Kind::EndToEnd, &plan, &Stop::default()).unwrap();
    assert!(outcome.is_good(), "{:?}", outcome.cut);
    let consumed = outcome.consumed.unwrap();
    let meanwhile = consumed.meanwhile.unwrap();
    assert_eq!(consumed.messages, 500);
    assert!(consumed.rate() < 210.0, "{meanwhile:?}");
    // Half a second at least, in which a hundred can come.
    assert!((1..500).contains(&meanwhile.backlog), "{meanwhile:?}");
    assert!(meanwhile.drain_s > 0.0, "{meanwhile:?}");
    assert!(outcome.produced.unwrap().meanwhile.is_none());
}

#[test]
fn what_a_broker_needs_for_its_first_answer_is_part_of_the_time() {
    let fake = with(Faults {
        stall_ms: Some((0, 400)),
        ..Faults::default()
    });
    let plan = plan(Amount::Messages(100));
    let outcome = measure(&fake, Kind::Produce, &plan, &Stop::default()).unwrap();
    let rate = outcome.produced.unwrap().rate();
    assert!(rate <= 250.0, "{rate}");
    // And what was asked for is the time also if the last answer came before its end.
    let plan = Plan {
        arrivals: Arrivals::Constant { rate: 10.0 },
        ..plan_of_seconds(0.3)
    };
    let outcome = measure(&Fake::default(), Kind::Produce, &plan, &Stop::default()).unwrap();
    let rate = outcome.produced.unwrap().rate();
    assert!(rate <= 10.0, "{rate}");
}

#[test]
fn what_is_not_consumed_in_time_is_not_lost() {
    let fake = Fake::default();
    let plan = plan(Amount::Seconds(0.2));
    let outcome = measure(&fake, Kind::Consume, &plan, &Stop::default()).unwrap();
    assert!(outcome.is_good(), "{:?}", outcome.findings);
    let findings = outcome.findings.unwrap();
    assert_eq!(findings.lost, 0);
    assert!(outcome.consumed.unwrap().messages > 0);
}

#[test]
fn publishing_alone_has_no_consumers() {
    let plan = plan(Amount::Messages(50));
    let outcome = measure(&Fake::default(), Kind::Produce, &plan, &Stop::default()).unwrap();
    assert!(outcome.consumed.is_none() && outcome.findings.is_none());
    assert_eq!(outcome.plan.consumers, 0);
}

#[test]
fn a_broker_that_is_away_is_an_error_and_a_users_topic_stays() {
    let away = with(Faults {
        is_away: true,
        ..Faults::default()
    });
    let plan = plan(Amount::Messages(50));
    let error = measure(&away, Kind::Produce, &plan, &Stop::default()).unwrap_err();
    assert_eq!(error.to_string(), "cannot connect to fake: nobody is there");
    let fake = Fake::default();
    let target = Target {
        connect: &fake,
        label: "fake".to_owned(),
        url: "fake".to_owned(),
        place: BrokerPlace::Elsewhere,
        keeps_topic: true,
    };
    target
        .measure(Kind::Produce, &plan, &Stop::default(), |_| {})
        .unwrap();
    assert_eq!(fake.cleaned.load(Ordering::Relaxed), 0);
}
