//! The doctor of a broker with ten thousand connections under full load: one check and one answer
//! together take less than a second of CPU time, and the broker goes on working.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::Broker;
use cloverleaf_doctor::Report;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const CONNECTIONS: usize = 10_000;

/// Number of connections that publish as fast as they can.
const PUBLISHERS: usize = 4;

/// Number of threads that make all other connections, and process their messages.
const WORKERS: usize = 4;

/// Maximum CPU time of a check of the doctor and of an answer, together.
const CPU_MAX: Duration = Duration::from_secs(1);

/// Ticks of CPU time in a second, as `/proc` counts them.
const TICKS: u64 = 100;

/// Time limit until all connections are seen: only a failing test waits this long.
const PATIENCE: Duration = Duration::from_secs(600);

/// How often a worker checks whether the test has ended.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// Open files that the test needs: its connections, and some more.
const FILES: u64 = CONNECTIONS as u64 + 200;

fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < FILES) {
        let wanted = Rlimit {
            current: limit.maximum.map(|most| most.max(FILES)).or(Some(FILES)),
            maximum: limit.maximum,
        };
        setrlimit(Resource::Nofile, wanted).expect("10,200 open files are needed (ulimit -Hn)");
    }
}

/// Consumers of one channel, each with a client ID of its own.
fn connect(address: &str, numbers: std::ops::Range<usize>) -> Vec<TcpStream> {
    let one = |number: usize| {
        let mut stream = TcpStream::connect(address).unwrap();
        let identify = format!(r#"{{"client_id":"{number}","user_agent":"go-nsq/1.1.0"}}"#);
        let size = (identify.len() as u32).to_be_bytes();
        let hello = [b"  V2IDENTIFY\n", &size[..], identify.as_bytes()].concat();
        stream.write_all(&hello).unwrap();
        stream.write_all(b"SUB jobs work\nRDY 1\n").unwrap();
        stream
    };
    numbers.map(one).collect()
}

/// Receives messages on all of these connections, finishes each, and counts them.
fn work(streams: &mut [TcpStream], ends: &AtomicBool, finished: &AtomicU64) {
    let mut received = vec![Vec::new(); streams.len()];
    let mut buffer = [0; 4096];
    while !ends.load(Ordering::Relaxed) {
        // The broker needs the cores, so a thread without input must not spin.
        for number in readable(streams) {
            let (stream, received) = (&mut streams[number], &mut received[number]);
            let count = stream.read(&mut buffer).unwrap();
            assert!(count > 0, "the broker has closed a consumer's connection");
            received.extend_from_slice(&buffer[..count]);
            while let Some(frame) = take_frame(received) {
                // Size, type (2 is a message), time, attempts, id.
                if frame[7] == 2 {
                    let command = [b"FIN ", &frame[18..34], b"\n"].concat();
                    stream.write_all(&command).unwrap();
                    finished.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }
}

/// The indexes of the connections that have input. Waits for some for a while; may return none.
fn readable(streams: &[TcpStream]) -> Vec<usize> {
    let wait = |stream| PollFd::new(stream, PollFlags::IN);
    let mut waiting: Vec<PollFd<'_>> = streams.iter().map(wait).collect();
    poll(&mut waiting, Some(&LOOK)).unwrap();
    let waiting = waiting.iter().enumerate();
    let are_there = waiting.filter(|(_, it)| !it.revents().is_empty());
    are_there.map(|(number, _)| number).collect()
}

/// A whole frame, if one has come: its size, and as many bytes.
fn take_frame(received: &mut Vec<u8>) -> Option<Vec<u8>> {
    let size = u32::from_be_bytes(received.get(..4)?.try_into().unwrap()) as usize;
    (received.len() >= 4 + size).then(|| received.drain(..4 + size).collect())
}

/// Publishes fifty messages at a time, as fast as the answers come, and counts them.
fn publish(address: &str, ends: &AtomicBool, published: &AtomicU64) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"  V2").unwrap();
    let commands = b"PUB jobs\n\0\0\0\x01x".repeat(50);
    let mut answers = vec![0; 50 * 10];
    while !ends.load(Ordering::Relaxed) {
        stream.write_all(&commands).unwrap();
        stream.read_exact(&mut answers).unwrap();
        published.fetch_add(50, Ordering::Relaxed);
    }
}

/// CPU time so far of the broker's threads that run checks and answer.
fn cpu_time(broker: u32) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{broker}/task")).unwrap();
    let ticks = tasks.flatten().filter_map(|task| {
        let stat = fs::read_to_string(task.path().join("stat")).ok()?;
        let (head, rest) = stat.rsplit_once(") ")?;
        let (_, name) = head.split_once('(')?;
        let mut times = rest.split(' ').skip(11).map(str::parse::<u64>);
        let (user, system) = (times.next()?.ok()?, times.next()?.ok()?);
        ["doctor", "http"].contains(&name).then_some(user + system)
    });
    Duration::from_millis(ticks.sum::<u64>() * 1_000 / TICKS)
}

fn ask(address: &str) -> Report {
    let mut stream = TcpStream::connect(address).unwrap();
    let head = "GET /api/doctor?since=600 HTTP/1.1\r\nconnection: close\r\n";
    write!(stream, "{head}host: {address}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap()
}

#[test]
fn the_doctor_answers_with_ten_thousand_connections_at_full_load() {
    raise_open_files();
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(folder.path());
    broker.ok(&["topic", "create", "jobs"]);
    let (nsq, admin) = (broker.nsq_tcp(), broker.admin());
    let ends = AtomicBool::new(false);
    let (published, finished) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for part in 0..WORKERS {
            let (nsq, ends, finished) = (&nsq, &ends, &finished);
            let size = CONNECTIONS / WORKERS;
            scope.spawn(move || {
                let mut streams = connect(nsq, part * size..(part + 1) * size);
                work(&mut streams, ends, finished);
            });
        }
        for _ in 0..PUBLISHERS {
            scope.spawn(|| publish(&nsq, &ends, &published));
        }
        // The threads have to end even if a check below fails.
        let result = std::panic::catch_unwind(|| {
            let deadline = Instant::now() + PATIENCE;
            while ask(&admin).connections < (CONNECTIONS + PUBLISHERS) as u64 {
                assert!(Instant::now() < deadline, "not all connections are seen");
            }
            let counts = || [&published, &finished].map(|it| it.load(Ordering::Relaxed));
            let before = counts();
            // Some checks have to complete, so that some answers come while one runs.
            let (mut looked_us, cpu_before) = (ask(&admin).watched_us, cpu_time(broker.child.id()));
            let mut looks = 0;
            while looks < 5 {
                assert!(Instant::now() < deadline, "no check any more");
                let report = ask(&admin);
                assert!(report.findings.len() <= 200);
                looks += u32::from(report.watched_us > looked_us);
                looked_us = report.watched_us;
            }
            let each = (cpu_time(broker.child.id()) - cpu_before) / looks;
            println!("{each:?} of CPU time for a look and its answers");
            assert!(each < CPU_MAX, "{each:?}");
            let text = String::from_utf8(broker.run(&["doctor"]).stdout).unwrap();
            assert!(text.contains("10,00"), "{text}");
            let after = counts();
            println!("published and finished meanwhile: {before:?} to {after:?}");
            assert!(after[0] > before[0], "nothing was published meanwhile");
            assert!(after[1] > before[1], "nothing was finished meanwhile");
        });
        ends.store(true, Ordering::Relaxed);
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
}
