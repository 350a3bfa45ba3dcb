//! Producers whose messages queue on a narrow link until their clients give up, and others that
//! look like them.

use crate::common::{MS, S, Who, World, about, fact};
use cloverleaf_doctor::Rule;
use cloverleaf_telemetry::{Probe, Protocol};

fn librdkafka() -> Who {
    Who::new(Protocol::Kafka, "librdkafka", "2.10.0").far(20 * MS)
}

/// A connection's life on a link that carries five requests of 1,000 messages per second.
#[derive(Clone, Copy)]
struct Life {
    seconds: u64,
    /// How old the first record is when it arrives.
    age_us: u64,
    /// It ends within a request.
    is_cut: bool,
    /// Each request waits for the answer to the last.
    is_sync: bool,
    /// How long a request takes to come in.
    receive_us: u64,
    messages: u64,
}

/// As librdkafka does with message.timeout.ms.
const TIMED_OUT: Life = Life {
    seconds: 2,
    age_us: 1500 * MS,
    is_cut: true,
    is_sync: false,
    receive_us: 198 * MS,
    messages: 1000,
};

const REQUEST_US: u64 = 200 * MS;

impl Life {
    fn play(&self, world: &mut World, who: &Who) {
        let probe = world.connect(who);
        // ApiVersions.
        probe.read(50, world.now_us);
        probe.request(0, 50, world.now_us, world.now_us);
        probe.answered(1, world.now_us);
        for _ in 0..self.seconds {
            let from_us = world.now_us;
            for number in 0..S / REQUEST_US {
                self.request(&probe, from_us + number * REQUEST_US, who.rtt_us);
            }
            world.run(1);
        }
        if self.is_cut {
            probe.read(500_000, world.now_us);
            probe.read_ended_inside_frame();
        }
    }

    fn request(&self, probe: &Probe, at_us: u64, rtt_us: u64) {
        let waits_us = if self.is_sync { rtt_us } else { 100 };
        let first_us = at_us + waits_us;
        let last_us = first_us + self.receive_us.min(REQUEST_US - waits_us - MS);
        let bytes = 1000 * self.messages;
        probe.read(1400, first_us);
        probe.read_ended_inside_frame();
        probe.read(bytes as usize - 1400, last_us);
        probe.request(self.messages, bytes, first_us, last_us);
        probe.record_age(self.age_us as i64);
        probe.wrote(50);
        probe.answered(1, last_us + 100);
    }
}

fn lives(life: Life, count: u64) -> World {
    let mut world = World::new();
    // So that the doctor has looked before.
    world.run(2);
    let who = librdkafka();
    for _ in 0..count {
        life.play(&mut world, &who);
    }
    world
}

#[test]
fn messages_that_time_out_on_a_narrow_link_are_too_many() {
    let world = lives(TIMED_OUT, 8);
    let finding = world.only(Rule::TooManyInFlight);
    assert!(world.appeared[0].0 <= 15, "{} s", world.appeared[0].0);
    about(fact(&finding, "record_age_us"), 1.5e6, 1.1);
    about(fact(&finding, "messages_in_flight"), 7_500.0, 1.3);
    let change = &finding.changes[0];
    assert_eq!(change.setting, "queue.buffering.max.messages");
    let messages: f64 = change.value.as_deref().unwrap().parse().unwrap();
    // Four times 5,000/s x 30 ms.
    about(messages, 600.0, 1.3);
    about(finding.prediction.after, 140e3, 1.1);
}

#[test]
fn who_loses_patience_with_all_that_waits_at_once_cuts_often() {
    let mut world = lives(TIMED_OUT, 0);
    // At first nothing is old enough; then each request is.
    let first = Life {
        seconds: 4,
        ..TIMED_OUT
    };
    first.play(&mut world, &librdkafka());
    let later = Life {
        seconds: 1,
        age_us: 3 * S,
        ..TIMED_OUT
    };
    (0..8).for_each(|_| later.play(&mut world, &librdkafka()));
    world.only(Rule::TooManyInFlight);
}

#[test]
fn it_ends_when_nobody_gives_up_any_more() {
    let mut world = lives(TIMED_OUT, 8);
    let calm = Life {
        seconds: 40,
        age_us: 100 * MS,
        ..TIMED_OUT
    };
    calm.play(&mut world, &librdkafka());
    assert!(world.findings().is_empty());
    assert_eq!(world.appeared.len(), 1);
}

#[test]
fn twice_is_no_rule() {
    let mut world = lives(TIMED_OUT, 2);
    world.run(70);
    let calm = Life {
        seconds: 60,
        ..TIMED_OUT
    };
    (0..4).for_each(|_| calm.play(&mut world, &librdkafka()));
    world.silent();
}

#[test]
fn a_deep_pipeline_that_nobody_gives_up_on_is_well() {
    for seconds in [2, 60] {
        let life = Life {
            seconds,
            age_us: 5 * S,
            is_cut: false,
            ..TIMED_OUT
        };
        lives(life, 60 / seconds).silent();
    }
}

#[test]
fn catching_up_over_a_link_that_fails_is_well() {
    for age_us in [60 * S, 600 * S] {
        for seconds in [5, 10, 15] {
            let life = Life {
                seconds,
                age_us,
                ..TIMED_OUT
            };
            lives(life, 8).silent();
        }
    }
}

#[test]
fn catching_up_over_a_link_that_fails_when_it_likes_is_well() {
    let mut world = lives(TIMED_OUT, 0);
    for seconds in [30, 2, 4, 40, 1, 3, 9] {
        let life = Life {
            seconds,
            age_us: 60 * S,
            ..TIMED_OUT
        };
        life.play(&mut world, &librdkafka());
    }
    world.silent();
}

#[test]
fn old_times_of_records_that_are_passed_on_are_no_waiting() {
    // Of relays, of mirrors, and of programs that set the time themselves.
    for age_us in [10 * S, 3_600 * S, 86_400 * S] {
        let life = Life {
            age_us,
            ..TIMED_OUT
        };
        lives(life, 10).silent();
    }
}

#[test]
fn one_request_at_a_time_on_a_slow_link_is_well() {
    for messages in [2, 1000] {
        let life = Life {
            is_sync: true,
            messages,
            ..TIMED_OUT
        };
        lives(life, 10).silent();
    }
}

#[test]
fn programs_that_are_killed_have_nothing_that_waits() {
    // Its records are young.
    let life = Life {
        age_us: 60 * MS,
        ..TIMED_OUT
    };
    lives(life, 10).silent();
    // Its clock is wrong, and the link is not full.
    let life = Life {
        receive_us: 5 * MS,
        ..TIMED_OUT
    };
    lives(life, 10).silent();
}

#[test]
fn programs_that_are_killed_and_started_anew_have_lost_no_patience() {
    // Their queues are always full, and nobody waits too long for that: the first is what
    // librdkafka does with a queue of its own size, the second one whose author bounded it.
    for (seconds, age_us) in [(10, S), (7, 1200 * MS)] {
        let life = Life {
            seconds,
            age_us,
            ..TIMED_OUT
        };
        lives(life, 8).silent();
    }
}

#[test]
fn programs_that_are_replaced_one_after_another_have_lost_no_patience() {
    for age_us in [S, 3 * S, 10 * S] {
        let mut world = World::new();
        let who = librdkafka();
        let mut workers: Vec<_> = (0..5).map(|_| world.connect(&who)).collect();
        let work = |world: &mut World, workers: &[Probe], seconds: u64| {
            let life = Life {
                age_us,
                ..TIMED_OUT
            };
            for _ in 0..seconds {
                let from_us = world.now_us;
                for number in 0..S / REQUEST_US {
                    let at_us = from_us + number * REQUEST_US;
                    workers
                        .iter()
                        .for_each(|probe| life.request(probe, at_us, who.rtt_us));
                }
                world.run(1);
            }
        };
        work(&mut world, &workers, 70);
        while !workers.is_empty() {
            workers[0].read(500_000, world.now_us);
            workers[0].read_ended_inside_frame();
            workers.remove(0);
            work(&mut world, &workers, 2);
        }
        world.silent();
    }
}

#[test]
fn a_life_of_an_hour_makes_no_age_believable() {
    let mut world = lives(TIMED_OUT, 0);
    for seconds in [3_600, 10, 10, 10] {
        let life = Life {
            seconds,
            age_us: 600 * S,
            ..TIMED_OUT
        };
        life.play(&mut world, &librdkafka());
    }
    world.silent();
}

#[test]
fn what_is_too_much_to_add_up_is_no_age() {
    // 20,000 times of 1997: the sum of their ages wraps around, and leaves 1.5 s for each.
    const AGE_US: i64 = (u64::MAX / 20_000) as i64 + 1_500_000;
    let mut world = lives(TIMED_OUT, 0);
    let who = librdkafka();
    for _ in 0..8 {
        let probe = world.connect(&who);
        TIMED_OUT.request(&probe, world.now_us, who.rtt_us);
        (0..20_000).for_each(|_| probe.record_age(AGE_US));
        world.run(1);
        TIMED_OUT.request(&probe, world.now_us, who.rtt_us);
        probe.read(500_000, world.now_us);
        probe.read_ended_inside_frame();
    }
    world.silent();
}

#[test]
fn connections_that_end_between_requests_are_no_trouble() {
    let life = Life {
        is_cut: false,
        ..TIMED_OUT
    };
    lives(life, 10).silent();
}
