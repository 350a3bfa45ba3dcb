//! Publishers whose requests queue before a narrow link, as the kernel's round trips show it, and
//! others that look like them.

use crate::common::{MS, S, Who, World, about, fact};
use cloverleaf_doctor::{Bound, Rule, Severity};
use cloverleaf_telemetry::{Probe, Protocol};

fn go_nsq() -> Who {
    Who::new(Protocol::Nsq, "go-nsq", "1.1.0").far(20 * MS)
}

fn amqplib() -> Who {
    Who::new(Protocol::Amqp, "amqplib", "0.10.9").far(20 * MS)
}

/// The load that a publisher puts on a connection.
#[derive(Clone, Copy)]
struct Flood {
    /// From a request to the next.
    every_us: u64,
    /// How long one takes to come in.
    receive_us: u64,
    /// How much longer the round trip is than the least one.
    queue_us: u64,
    /// From an answer to the next request, where that waits for it.
    waits_us: u64,
    /// Whether it wants answers.
    wants_answers: bool,
}

/// 200 messages of some KB each second over a link that carries no more.
const FULL: Flood = Flood {
    every_us: 5 * MS,
    receive_us: 5 * MS,
    queue_us: 600 * MS,
    waits_us: 0,
    wants_answers: true,
};

impl Flood {
    fn play(&self, world: &mut World, probe: &Probe, seconds: u64) {
        for _ in 0..seconds {
            let from_us = world.now_us;
            for number in 0..S / self.every_us {
                self.request(probe, from_us + number * self.every_us);
            }
            world.queue_us = self.queue_us;
            world.run(1);
        }
    }

    fn request(&self, probe: &Probe, at_us: u64) {
        let first_us = at_us + self.waits_us;
        let last_us = first_us + self.receive_us;
        probe.read(1_000, first_us);
        probe.read_ended_inside_frame();
        probe.read(1_000, last_us);
        probe.request(1, 2_000, first_us, last_us);
        if self.wants_answers {
            probe.wrote(10);
            probe.answered(1, last_us);
        } else {
            probe.unanswered(1)
        }
    }

    /// Connections that live for so long, and end within a request.
    fn lives(&self, who: &Who, seconds: u64, count: u64) -> World {
        let mut world = World::new();
        // So that the doctor has looked before.
        world.run(2);
        (0..count).for_each(|_| self.life(&mut world, who, seconds));
        world
    }

    fn life(&self, world: &mut World, who: &Who, seconds: u64) {
        let probe = world.connect(who);
        self.play(world, &probe, seconds);
        probe.read(8_000, world.now_us);
        probe.read_ended_inside_frame();
    }

    /// One connection that lasts.
    fn lasts(&self, who: &Who, seconds: u64) -> World {
        let mut world = World::new();
        let probe = world.connect(who);
        self.play(&mut world, &probe, seconds);
        world
    }
}

#[test]
fn requests_that_are_given_up_before_a_narrow_link_are_too_many() {
    let world = FULL.lives(&go_nsq(), 4, 6);
    let finding = world.only(Rule::TooManyInFlight);
    assert!(world.appeared[0].0 <= 20, "{} s", world.appeared[0].0);
    about(fact(&finding, "rtt_us"), 620e3, 1.1);
    about(fact(&finding, "in_flight"), 124.0, 1.2);
    assert_eq!(fact(&finding, "given_up"), 5.0);
    // Twice 200/s x 30 ms.
    about(finding.prediction.after, 60e3, 1.1);
    assert_eq!(finding.prediction.bound, Bound::AtMost);
    assert_eq!(finding.severity, Severity::Medium);
    let change = &finding.changes[0];
    assert_eq!(change.setting, "a bound on PublishAsync");
    assert!(change.say.contains("channel of 13 "), "{}", change.say);
}

#[test]
fn so_are_those_that_are_left_without_an_answer() {
    let mut world = World::new();
    world.run(2);
    for _ in 0..6 {
        let probe = world.connect(&amqplib());
        FULL.play(&mut world, &probe, 4);
        probe.requests(20, 20, 40_000, world.now_us, world.now_us);
    }
    let finding = world.only(Rule::TooManyInFlight);
    assert_eq!(
        finding.changes[0].setting,
        "a bound on unconfirmed messages"
    );
}

#[test]
fn it_ends_when_nobody_gives_up_any_more() {
    let mut world = FULL.lives(&go_nsq(), 4, 6);
    let probe = world.connect(&go_nsq());
    let calm = Flood {
        queue_us: 40 * MS,
        ..FULL
    };
    calm.play(&mut world, &probe, 40);
    assert!(world.findings().is_empty());
    assert_eq!(world.appeared.len(), 1);
}

#[test]
fn twice_is_no_rule() {
    let mut world = FULL.lives(&go_nsq(), 4, 2);
    world.run(70);
    FULL.life(&mut world, &go_nsq(), 4);
    world.run(70);
    world.silent();
}

#[test]
fn a_minute_without_a_short_round_trip_is_told() {
    for who in [go_nsq(), amqplib()] {
        let world = FULL.lasts(&who, 80);
        let finding = world.only(Rule::TooManyInFlight);
        let second = world.appeared[0].0;
        assert!((60..=72).contains(&second), "{second} s");
        assert_eq!(finding.severity, Severity::Low, "nobody is seen to suffer");
        assert!(finding.prediction.may_be_meant);
        about(fact(&finding, "rtt_us"), 620e3, 1.1);
        about(finding.prediction.after, 60e3, 1.1);
    }
}

#[test]
fn less_than_a_minute_is_a_load_that_takes_its_time() {
    let mut world = FULL.lasts(&go_nsq(), 50);
    world.run(60);
    world.silent();
}

#[test]
fn who_fills_the_link_without_a_queue_is_well() {
    // The queue that BBR keeps before the link, and the one that a router has room for.
    for queue_us in [0, 40 * MS, 200 * MS] {
        let flood = Flood { queue_us, ..FULL };
        flood.lasts(&go_nsq(), 120).silent();
        // Nor does it matter how often such a program is killed.
        let calm = Flood {
            queue_us: queue_us.min(60 * MS),
            ..FULL
        };
        calm.lives(&go_nsq(), 4, 10).silent();
    }
    // 50 ms are many times the round trip of a machine room, and nothing to wait for.
    let near = Flood {
        queue_us: 50 * MS,
        ..FULL
    };
    near.lasts(&go_nsq().far(100), 120).silent();
    near.lives(&go_nsq().far(100), 4, 10).silent();
}

#[test]
fn round_trips_that_come_and_go_are_the_radio() {
    let mut world = World::new();
    let probe = world.connect(&amqplib());
    for second in 0..150 {
        let queue_us = if second % 8 < 6 { 500 * MS } else { 20 * MS };
        Flood { queue_us, ..FULL }.play(&mut world, &probe, 1);
    }
    world.silent();
}

#[test]
fn the_beginning_of_a_connection_fills_the_queue_and_means_nothing() {
    let mut world = World::new();
    for _ in 0..4 {
        let probe = world.connect(&go_nsq());
        FULL.play(&mut world, &probe, 12);
        let later = Flood {
            queue_us: 50 * MS,
            ..FULL
        };
        later.play(&mut world, &probe, 30);
        world.run(2);
    }
    world.silent();
}

#[test]
fn a_queue_that_others_make_is_not_this_clients() {
    // It sends a part of the time only.
    for receive_us in [0, MS, 3 * MS] {
        let little = Flood {
            receive_us,
            queue_us: S,
            ..FULL
        };
        little.lasts(&go_nsq(), 120).silent();
    }
    // The queue was there before each connection began.
    let later = go_nsq().far(600 * MS);
    FULL.lives(&later, 4, 10).silent();
    FULL.lasts(&later, 120).silent();
}

#[test]
fn a_round_trip_of_long_ago_is_none_of_now() {
    // The kernel tells the last one for ever, and nobody has sent anything since.
    let mut world = FULL.lasts(&go_nsq(), 30);
    let probe = world.connect(&go_nsq());
    for _ in 0..60 {
        probe.read(1_000, world.now_us);
        probe.read_ended_inside_frame();
        world.run(2);
    }
    world.silent();
}

#[test]
fn few_requests_do_not_wait_for_each_other() {
    // Large ones, one after the other or as good as.
    let large = Flood {
        every_us: 500 * MS,
        receive_us: 500 * MS,
        ..FULL
    };
    large.lasts(&amqplib(), 120).silent();
    large.lives(&amqplib(), 4, 10).silent();
    // Each waits for the answer to the last, whatever the kernel's mean says.
    let one_by_one = Flood {
        every_us: 50 * MS,
        receive_us: 29 * MS,
        waits_us: 21 * MS,
        ..FULL
    };
    one_by_one.lives(&amqplib(), 4, 10).silent();
}

#[test]
fn who_gets_more_than_it_sends_may_have_the_queue_on_that_way() {
    let mut world = World::new();
    let probe = world.connect(&amqplib());
    for _ in 0..120 {
        probe.delivered(300, 0);
        probe.wrote(600_000);
        FULL.play(&mut world, &probe, 1);
    }
    world.silent();
}

#[test]
fn who_wants_no_answers_waits_for_none() {
    let silent = Flood {
        wants_answers: false,
        ..FULL
    };
    silent.lasts(&amqplib(), 120).silent();
}

#[test]
fn of_kafka_clients_their_records_tell() {
    let who = Who::new(Protocol::Kafka, "librdkafka", "2.10.0").far(20 * MS);
    FULL.lasts(&who, 120).silent();
    FULL.lives(&who, 4, 10).silent();
}
