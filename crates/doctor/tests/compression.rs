//! Text over a full link: what must be found, and who must be left in peace.

use crate::common::producers::{Producer, Times};
use crate::common::{Dice, MS, Model, S, Who, World, about, fact};
use cloverleaf_doctor::{Bound, Rule, Severity};
use cloverleaf_telemetry::{Probe, Protocol};

/// Bytes that a read finds on a link where they come slowly.
const READ_BYTES: u64 = 2_896;

/// A producer behind a link.
struct OnLink {
    probe: Probe,
    rtt_us: u64,
    /// The link's bandwidth.
    bytes_per_second: u64,
    request_bytes: u64,
    messages: u64,
    /// Whether its records bear times.
    has_times: bool,
    /// Bytes of a read.
    read_bytes: u64,
    /// It has as many requests on their way as fit, or one.
    is_pipelined: bool,
    /// When it makes its requests at the earliest.
    due_us: Times,
    /// One of so many requests loses a packet.
    loses: Option<u64>,
    /// The compressed bytes that the session sees of 8 KB.
    compressed: u64,
    start_us: u64,
    number: u64,
    /// When the last request was there, and answered.
    whole_us: u64,
    sampled_us: u64,
}

impl OnLink {
    /// Over 2.5 MB/s with 64 KB a request, as fast as it goes.
    fn new(world: &mut World, who: &Who) -> OnLink {
        OnLink {
            probe: world.connect(who),
            rtt_us: who.rtt_us,
            bytes_per_second: 2_500_000,
            request_bytes: 64_000,
            messages: 30,
            has_times: who.protocol == Protocol::Kafka,
            read_bytes: READ_BYTES,
            is_pipelined: true,
            due_us: Box::new(|_| 0),
            loses: None,
            compressed: 2_048,
            start_us: world.now_us,
            number: 0,
            whole_us: world.now_us,
            sampled_us: 0,
        }
    }

    /// One message in each request, as of NSQ's PUB.
    fn one_by_one(self) -> OnLink {
        OnLink {
            request_bytes: 2_000,
            messages: 1,
            read_bytes: 1_000,
            ..self
        }
    }

    /// The same with its batches compressed as well as the samples are.
    fn compressing(mut self) -> OnLink {
        self.request_bytes = self.request_bytes * self.compressed / 8_192;
        self.compressed = 8_192;
        self
    }

    fn with_due(mut self, due_us: impl FnMut(u64) -> u64 + 'static) -> OnLink {
        self.due_us = Box::new(due_us);
        self
    }
}

impl Model for OnLink {
    fn run(&mut self, to_us: u64) {
        loop {
            let answered_us = self.whole_us + 100;
            let due_us = self.start_us + (self.due_us)(self.number) + self.rtt_us / 2;
            let free_us = if self.is_pipelined {
                self.whole_us
            } else {
                answered_us + self.rtt_us + Dice(self.number << 5).between(100, 300)
            };
            let is_lost = self
                .loses
                .is_some_and(|each| self.number % each == each - 1);
            let lost_us = if is_lost { self.rtt_us } else { 0 };
            let head_us = free_us.max(due_us) + lost_us;
            let whole_us = head_us + self.request_bytes * S / self.bytes_per_second;
            if whole_us > to_us {
                return;
            }
            let wire = Dice(self.number).between(0, 30);
            self.number += 1;
            // Long before the last byte of this one is there.
            if self.number > 1 {
                self.probe.answered(1, answered_us);
            }
            for read in 0..self.request_bytes / self.read_bytes {
                let at_us = head_us + read * self.read_bytes * S / self.bytes_per_second;
                self.probe.read(self.read_bytes as usize, at_us);
                self.probe.read_ended_inside_frame();
            }
            let whole_us = whole_us + wire;
            // Records wait in the program's memory, which holds those of a second.
            let age_us = (whole_us - due_us).min(S);
            if self.has_times {
                self.probe.record_age(age_us as i64);
            }
            self.probe
                .request(self.messages, self.request_bytes, head_us, whole_us);
            if whole_us >= self.sampled_us + S && whole_us > head_us + 1 {
                self.sampled_us = whole_us;
                self.probe.sampled(8_192, self.compressed);
            }
            self.whole_us = whole_us;
        }
    }
}

fn who() -> Who {
    Who::new(Protocol::Kafka, "confluent-kafka-go", "2.3.0")
}

/// Messages per second.
fn rate_of(mut producer: OnLink) -> f64 {
    producer.run(producer.start_us + 10 * S);
    producer.probe.snapshot(|_| None).counters.messages_in as f64 / 10.0
}

#[test]
fn a_full_link_is_found_and_the_gain_is_right() {
    for (rtt_us, is_pipelined, request_bytes, loses, within_s) in [
        (10 * MS, true, 64_000, None, 10),
        (10 * MS, true, 1_000_000, None, 10),
        (10 * MS, true, 64_000, Some(20), 15),
        (20 * MS, true, 64_000, Some(10), 15),
        (2 * MS, false, 32_000, None, 15),
        // With few rounds in a step it takes longer to see that they come by no clock.
        (10 * MS, false, 128_000, None, 50),
    ] {
        let one = |world: &mut World| OnLink {
            is_pipelined,
            request_bytes,
            loses,
            ..OnLink::new(world, &who().far(rtt_us))
        };
        let mut world = World::new();
        let producer = one(&mut world);
        world.add(producer);
        world.run(within_s);
        let finding = world.only(Rule::NoCompression);
        about(fact(&finding, "compression_ratio"), 4.0, 1.01);
        assert_eq!(finding.changes[0].setting, "compression.type");
        assert_eq!(finding.changes[0].value.as_deref(), Some("lz4"));
        assert_eq!(finding.prediction.bound, Bound::Exact);
        let fixed = rate_of(one(&mut World::new()).compressing());
        about(finding.prediction.after, fixed, 1.15);
    }
}

#[test]
fn where_the_round_trip_may_be_the_limit_then_the_gain_is_a_bound() {
    let mut world = World::new();
    let producer = OnLink {
        compressed: 80,
        ..OnLink::new(&mut world, &who().far(50 * MS))
    };
    world.add(producer);
    world.run(20);
    let finding = world.only(Rule::NoCompression);
    assert_eq!(finding.prediction.bound, Bound::AtMost);
}

#[test]
fn who_fills_the_link_and_has_no_more_is_told_a_bound() {
    // 2.46 MB/s of 2.5.
    let mut world = World::new();
    let producer = OnLink::new(&mut world, &who()).with_due(|number| number * 26 * MS);
    world.add(producer);
    world.run(20);
    let finding = world.only(Rule::NoCompression);
    assert_eq!(finding.prediction.bound, Bound::AtMost);
    assert_eq!(finding.severity, Severity::Medium);
}

#[test]
fn nsq_publishers_are_told_to_compress_their_connections() {
    for (library, version, setting, value) in [
        ("go-nsq", "1.1.0", "Config.Deflate", "true"),
        ("pynsq", "0.9.1", "deflate", "True"),
        ("nsqjs", "0.13.0", "deflate", "true"),
        ("", "", "deflate of IDENTIFY", "true"),
    ] {
        let who = Who::new(Protocol::Nsq, library, version);
        let one = |world: &mut World| OnLink::new(world, &who).one_by_one();
        let mut world = World::new();
        let producer = one(&mut world);
        world.add(producer);
        world.run(10);
        let finding = world.only(Rule::NoCompression);
        let change = &finding.changes[0];
        assert_eq!(change.setting, setting);
        assert_eq!(change.value.as_deref(), Some(value));
        // Whether it has more to send, nothing shows.
        assert_eq!(finding.prediction.bound, Bound::AtMost);
        let fixed = rate_of(one(&mut World::new()).compressing());
        about(finding.prediction.after, fixed, 1.15);
    }
}

#[test]
fn a_request_of_many_messages_is_as_well_compressed() {
    let mut world = World::new();
    let who = Who::new(Protocol::Nsq, "go-nsq", "1.1.0");
    let producer = OnLink {
        is_pipelined: false,
        request_bytes: 128_000,
        messages: 100,
        ..OnLink::new(&mut world, &who)
    };
    world.add(producer);
    world.run(60);
    world.only(Rule::NoCompression);
}

mod healthy {
    use super::*;

    #[track_caller]
    fn left_alone_of_nsq(change: impl FnOnce(OnLink) -> OnLink) {
        let mut world = World::new();
        let who = Who::new(Protocol::Nsq, "pynsq", "0.9.1");
        let producer = change(OnLink::new(&mut world, &who).one_by_one());
        world.add(producer);
        world.run(20);
        world.silent();
    }

    #[test]
    fn nsq_publishers_whose_messages_do_not_compress() {
        for compressed in [8_192, 6_000] {
            left_alone_of_nsq(|it| OnLink { compressed, ..it });
        }
    }

    #[test]
    fn nsq_publishers_on_a_link_with_room() {
        // A message takes 0.8 ms.
        for period_us in [900, 1_000, 1_500, 10_000] {
            left_alone_of_nsq(|it| it.with_due(move |number| number * period_us));
            left_alone_of_nsq(|it| it.with_due(move |number| number / 10 * 10 * period_us));
            left_alone_of_nsq(|it| {
                it.with_due(move |number| {
                    number * period_us + Dice(number).between(0, period_us / 5)
                })
            });
        }
    }

    #[test]
    fn nsq_publishers_on_a_fast_link() {
        // Their messages are there as soon as they are sent, or as much as the broker takes.
        for bytes_per_second in [125_000_000, 1_250_000_000] {
            left_alone_of_nsq(|it| OnLink {
                bytes_per_second,
                ..it
            });
            left_alone_of_nsq(|it| {
                let link = OnLink {
                    bytes_per_second,
                    ..it
                };
                link.with_due(|number| number * 400)
            });
        }
    }

    #[track_caller]
    fn left_alone(change: impl FnOnce(OnLink) -> OnLink) {
        let mut world = World::new();
        let producer = change(OnLink::new(&mut world, &who()));
        world.add(producer);
        world.run(60);
        world.silent();
    }

    #[test]
    fn batches_that_are_compressed_and_bytes_that_do_not_compress() {
        for compressed in [8_192, 7_500, 6_000] {
            for is_pipelined in [true, false] {
                left_alone(|it| OnLink {
                    compressed,
                    is_pipelined,
                    ..it
                });
            }
        }
    }

    #[test]
    fn a_fast_link() {
        // Its batches are there as soon as they are sent.
        for bytes_per_second in [40_000_000, 125_000_000, 1_250_000_000] {
            left_alone(|it| {
                let link = OnLink {
                    bytes_per_second,
                    ..it
                };
                link.with_due(|number| number * 10 * MS)
            });
            // As much as the broker takes.
            left_alone(|it| OnLink {
                bytes_per_second,
                read_bytes: 16_000,
                ..it
            });
        }
    }

    #[test]
    fn one_large_request_a_minute() {
        left_alone(|it| {
            let large = OnLink {
                request_bytes: 10_000_000,
                ..it
            };
            large.with_due(|number| number * 60 * S)
        });
    }

    /// A link that is busy, and not full: what is made comes through.
    #[test]
    fn a_pace_of_its_own() {
        // A request takes 25.6 ms.
        for period_us in [60 * MS, 40 * MS, 34 * MS, 30 * MS, 28 * MS] {
            left_alone(|it| it.with_due(move |number| number * period_us));
            left_alone(|it| {
                it.with_due(move |number| {
                    number * period_us + Dice(number).between(0, period_us / 20)
                })
            });
        }
    }

    #[test]
    fn bursts_by_a_clock() {
        // Several at once, for 80 to 92 % of the time.
        for (count, period_us) in [(2, 60), (5, 145), (8, 222), (30, 900)] {
            left_alone(|it| it.with_due(move |number| number / count * period_us * MS));
        }
    }

    /// Each of its requests takes longer to make than to send.
    #[test]
    fn work_of_its_own() {
        left_alone(|it| {
            let mut dice = Dice(9);
            let mut at_us = 0;
            it.with_due(move |_| {
                at_us += dice.between(40 * MS, 90 * MS);
                at_us
            })
        });
    }

    #[test]
    fn a_broker_that_reads_late() {
        left_alone(|it| OnLink {
            bytes_per_second: 20_000_000,
            request_bytes: 1_000_000,
            read_bytes: 250_000,
            ..it
        });
    }

    #[test]
    fn small_requests_of_many_in_flight_whose_ends_nagle_holds_back() {
        // Each takes about a round trip, or a part of it: the acknowledgement of the one before
        // comes meanwhile.
        for percent in [25, 50, 90, 100, 120] {
            left_alone(|one| OnLink {
                request_bytes: 4_100,
                bytes_per_second: 4_100 * S / one.rtt_us * 100 / percent,
                read_bytes: 1_448,
                ..one
            });
        }
    }

    #[test]
    fn what_nagle_holds_back_is_nagle() {
        let mut world = World::new();
        let probe = world.connect(&who().far(MS));
        let mut one = Producer::new(probe, world.now_us, MS);
        one.hole_us = 41 * MS;
        one.bytes = 2_219;
        one.probe.sampled(8_192, 2_000);
        world.add(one);
        world.run(20);
        assert_eq!(world.rules(), [Rule::Nagle]);
    }
}
