//! The cost of writing down a message: `cargo run --release -p cloverleaf-bench --example
//! recording`.

use std::hint::black_box;
use std::time::Instant;

use cloverleaf_bench::{Clock, Live, Message, Recorder, STAMP_BYTES, Stamp};

const MESSAGES: u64 = 20_000_000;
/// Times as a broker has them: spread over a range that is larger than the caches' lines.
const SPREAD_NS: u64 = 2_000_000;

fn recorder(clock: Clock) -> Recorder {
    Recorder::new(clock, 1, 0, 0, Live::default())
}

fn message(sequence: u64, intended_ns: u64) -> Message {
    Message {
        sequence,
        intended_ns,
        sent_ns: intended_ns + 1_000,
        key: None,
        is_measured: true,
    }
}

fn tell(what: &str, begun: Instant) {
    let ns = begun.elapsed().as_nanos() as f64 / MESSAGES as f64;
    println!("{what}: {ns:.1} ns per message");
}

fn main() {
    let clock = Clock::new();
    let late_ns = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % SPREAD_NS;

    let (mut producing, begun) = (recorder(clock), Instant::now());
    for number in 0..MESSAGES {
        let now_ns = number * 100 + SPREAD_NS;
        let message = message(number, now_ns - late_ns(number));
        producing.sent(&message, false);
        producing.acked(&message, 200, now_ns);
    }
    tell("sent and acknowledged, one by one", begun);
    black_box(producing.finish());

    let (mut producing, begun) = (recorder(clock), Instant::now());
    for batch in 0..MESSAGES / 200 {
        let now_ns = batch * 20_000 + SPREAD_NS;
        let first = message(batch * 200, now_ns - late_ns(batch));
        for number in 0..200 {
            let message = message(batch * 200 + number, first.intended_ns);
            producing.sent(&message, true);
        }
        producing.acked_many(&first, 200, 200, now_ns);
    }
    tell("sent and acknowledged, by 200", begun);
    black_box(producing.finish());

    let (mut consuming, begun) = (recorder(clock), Instant::now());
    let mut bytes = vec![0; 200.max(STAMP_BYTES)];
    for number in 0..MESSAGES {
        let now_ns = number * 100 + SPREAD_NS;
        let stamp = Stamp {
            run: 1,
            producer: 0,
            sequence: number,
            intended_unix_ns: clock.to_unix_ns(now_ns - late_ns(number)),
            lag_us: 0,
        };
        stamp.write(&mut bytes);
        consuming.came(black_box(&bytes), Some(0), now_ns);
    }
    tell("stamped, come and checked", begun);
    black_box(consuming.finish());
}
