//! No test is judged by how long something took: what is about time has a driven clock, CPU time
//! or a count. Code that reads the machine's clock all the same stands in [`READS`], with the
//! reason.

use std::path::Path;

use super::{Finding, Source};

/// Ways to ask the machine what time it is, in the languages of the tests.
const CLOCKS: &[&str] = &[
    "Instant::now(",
    "SystemTime::now(",
    ".elapsed()",
    "time.monotonic(",
    "time.time(",
    "time.perf_counter",
    "Date.now(",
    "performance.now(",
    "System.nanoTime(",
    "System.currentTimeMillis(",
    "time.Now(",
    "time.Since(",
];

/// Waits that fail when they are over.
const WAITS: &[&str] = &[
    "recv_timeout(",
    "set_read_timeout(",
    "set_write_timeout(",
    "connect_timeout(",
];

/// The least time, in seconds, after which a test may say that something hangs.
const HANG_S_MIN: u64 = 60;

/// Programs that measure, and what starts them: the gate runs none of it.
const MEASURING: &[&str] = &[
    "xtask/src/bench_peers",
    "xtask/src/bench_peers.rs",
    "xtask/src/suites",
    "tests/clients/doctor",
];

/// Files by why they may read the clock, each with how many of its lines do. One line more or less
/// is a finding.
const READS: &[(&str, &[(&str, usize)])] = &[
    (
        "a limit for hangs, of a minute at least",
        &[
            ("crates/amqp/src/routing/headers.rs", 2),
            ("crates/amqp/tests/host_threads.rs", 4),
            ("crates/bench/src/fleet/line.rs", 2),
            ("crates/bench/src/wait.rs", 2),
            ("crates/bench/tests/network.rs", 2),
            ("crates/broker/src/housekeeping/work.rs", 2),
            ("crates/broker/tests/shared_windows.rs", 2),
            ("crates/cli/tests/doctor.rs", 4),
            ("crates/cli/tests/doctor_many.rs", 3),
            ("crates/cli/tests/serve.rs", 2),
            ("crates/server/tests/support/mod.rs", 2),
            ("crates/workbench/tests/bench.rs", 2),
            ("tests/clients/amqp/node/amqplib_test.js", 2),
            ("tests/clients/amqp/python/broadway_test.py", 2),
            ("tests/clients/amqp/python/crash_test.py", 3),
            ("tests/clients/amqp/python/dead_letters_test.py", 2),
            ("tests/clients/amqp/python/kit.py", 6),
            ("tests/clients/kafka/java/ClientTest.java", 4),
            ("tests/clients/kafka/node/kafkajs_test.js", 2),
            ("tests/clients/kafka/python/compaction_test.py", 2),
            ("tests/clients/kafka/python/confluent_kit.py", 2),
            ("tests/clients/kafka/python/confluent_test.py", 2),
            ("tests/clients/kafka/python/harness.py", 2),
            ("tests/clients/nsq/go/manyclients/main.go", 2),
            ("tests/clients/nsq/go/restarts/main.go", 5),
            ("tests/clients/nsq/python/pynsq_test.py", 2),
            ("xtask/src/wait.rs", 2),
        ],
    ),
    (
        "not too early: a slow machine only makes it later",
        &[
            ("tests/clients/amqp/python/celery_test.py", 4),
            ("tests/clients/amqp/python/connections_test.py", 2),
            ("tests/clients/amqp/python/hostile_test.py", 2),
            ("tests/clients/amqp/python/queues_test.py", 2),
            ("tests/clients/amqp/python/restart_test.py", 2),
            ("tests/clients/nsq/node/nsqjs_test.js", 2),
            ("tests/clients/nsq/python/pynsq_test.py", 3),
        ],
    ),
    (
        "where a driven clock begins, a time of day, or a number that nobody had before",
        &[
            ("crates/server/src/http/activity.rs", 1),
            ("crates/server/src/log_throttle.rs", 1),
            ("crates/server/tests/kafka_support/mod.rs", 1),
            ("crates/server/tests/support/mod.rs", 1),
            ("tests/clients/amqp/python/dead_letters_test.py", 1),
            ("tests/clients/kafka/python/confluent_test.py", 2),
            ("tests/clients/nsq/go/manyclients/main.go", 1),
            ("tests/clients/nsq/go/restarts/main.go", 1),
        ],
    ),
    (
        "shown to who reads the log, and compared with nothing",
        &[
            ("tests/clients/kafka/python/harness.py", 2),
            ("xtask/src/clients/memory.rs", 2),
            ("xtask/src/clients/report.rs", 2),
            ("xtask/src/clients/side_by_side.rs", 2),
            ("xtask/src/limit.rs", 2),
        ],
    ),
    (
        "how long the test goes on, or until nothing changes any more",
        &[
            ("crates/cli/tests/doctor.rs", 2),
            ("tests/clients/amqp/python/connections_test.py", 2),
            ("tests/clients/amqp/python/dead_letters_test.py", 2),
            ("tests/clients/amqp/python/hostile_test.py", 3),
            ("xtask/src/clients/hostile.rs", 3),
        ],
    ),
];

/// Files where a wait that is over fails nothing.
const SHORT_WAITS: &[&str] = &[
    // A writer gives up once nobody reads, and a fake consumer looks whether it has to stop.
    "crates/bench/src/proxy/proxy_tests.rs",
    "crates/bench/tests/measure.rs",
];

pub(super) fn check(source: &Source, findings: &mut Vec<Finding>) {
    let path = source.path.as_path();
    if !is_of_the_gate(path) {
        return;
    }
    let reads: Vec<usize> = source
        .test_lines()
        .filter(|(_, code)| CLOCKS.iter().any(|clock| code.contains(clock)))
        .map(|(number, _)| number)
        .collect();
    let allowed: usize = READS
        .iter()
        .flat_map(|(_, files)| *files)
        .filter(|(file, _)| path == Path::new(file))
        .map(|(_, count)| count)
        .sum();
    if reads.len() != allowed {
        let what = format!(
            "{} lines read the clock where {allowed} may (the last one is this): a test is judged \
             by a driven clock, CPU time or a count; where it is a limit for hangs, or has another \
             of the reasons there, say so in READS in tidy/clocks.rs",
            reads.len(),
        );
        findings.push(source.find(reads.last().copied().unwrap_or(0), what));
    }
    for (number, code) in source.test_lines() {
        if WAITS.iter().any(|wait| code.contains(wait))
            && seconds(code).is_some_and(|it| it < HANG_S_MIN)
            && !SHORT_WAITS.iter().any(|file| path == Path::new(file))
        {
            let what = format!(
                "it fails after less than {HANG_S_MIN} s: on a busy machine that is no fault"
            );
            findings.push(source.find(number, what));
        }
    }
}

fn is_of_the_gate(path: &Path) -> bool {
    // This folder names what it looks for.
    !path.starts_with("xtask/src/tidy") && !MEASURING.iter().any(|other| path.starts_with(other))
}

/// The first time that a line of Rust gives in seconds or milliseconds, in seconds.
fn seconds(code: &str) -> Option<u64> {
    let [secs, millis] = ["Duration::from_secs(", "Duration::from_millis("].map(|unit| {
        let (_, rest) = code.split_once(unit)?;
        let digits = rest
            .split(|it: char| !it.is_ascii_digit() && it != '_')
            .next()?;
        digits.replace('_', "").parse::<u64>().ok()
    });
    secs.or(millis.map(|it| it / 1_000))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn found(path: &str, text: &str) -> usize {
        super::super::found(check, path, text)
    }

    #[test]
    fn a_test_that_reads_the_clock_is_found() {
        let line = "let start = Instant::now();\n";
        assert_eq!(found("crates/x/src/a.rs", line), 0);
        assert_eq!(found("crates/x/tests/a.rs", line), 1);
        assert_eq!(found("crates/x/tests/a.rs", &format!("// {line}")), 0);
        let inside = format!("{line}#[cfg(test)]\nmod tests {{\n{line}}}\n");
        assert_eq!(found("crates/x/src/a.rs", &inside), 1);
        let script = "start = time.monotonic()\n";
        assert_eq!(found("tests/clients/nsq/python/a.py", script), 1);
        assert_eq!(found("tests/clients/doctor/python/a.py", script), 0);
    }

    #[test]
    fn a_file_has_the_readings_that_it_is_allowed_no_more_and_no_less() {
        let mut files = READS.iter().flat_map(|(_, files)| *files);
        let is_all_tests = |file: &str| file.starts_with("crates/broker/tests");
        let (file, allowed) = *files.find(|(file, _)| is_all_tests(file)).unwrap();
        let clock = "    let start = Instant::now();\n";
        assert_eq!(found(file, &clock.repeat(allowed)), 0);
        assert_eq!(found(file, &clock.repeat(allowed + 1)), 1);
        assert_eq!(found(file, ""), 1);
    }

    #[test]
    fn a_short_wait_is_found() {
        let wait = |duration: &str| format!("it.recv_timeout(Duration::{duration});\n");
        assert_eq!(found("crates/x/tests/a.rs", &wait("from_secs(59)")), 1);
        assert_eq!(found("crates/x/tests/a.rs", &wait("from_millis(1_500)")), 1);
        assert_eq!(found("crates/x/tests/a.rs", &wait("from_secs(60)")), 0);
        assert_eq!(found("crates/x/src/a.rs", &wait("from_secs(1)")), 0);
    }
}
