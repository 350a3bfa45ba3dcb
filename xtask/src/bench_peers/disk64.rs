//! The group commit: 64 connections that each publish one message and wait for its answer, which
//! follows a sync, beside one sync after the other on the same disk.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::epoll;

use super::subject::Subject;
use super::{Args, Bench, Outcome, machine};
use crate::nsq::{Connection, publish_command};

const CONNECTIONS: usize = 64;
const BODY: &[u8] = &[b'x'; 100];
const OK: &[u8; 10] = b"\0\0\0\x06\0\0\0\0OK";
/// What one append writes where a disk is measured without a broker.
const BLOCK_BYTES: usize = 4096;
/// More blocks than any disk syncs in the time.
const FILE_BYTES: u64 = 1 << 30;
/// Long enough for some ten thousand syncs.
const FDATASYNC_TIME: Duration = Duration::from_secs(3);

pub(super) fn measure(bench: &Bench, args: &Args) -> Result<()> {
    let (runs, seconds) = if args.quick {
        (1, 2)
    } else {
        (args.runs, args.seconds)
    };
    for run in 1..=runs {
        println!("run {run} of {runs}");
        for topics in [1, CONNECTIONS] {
            fdatasync(bench)?;
            for subject in [Subject::OursDisk, Subject::NsqdSync] {
                if args.includes(subject) {
                    one(bench, subject, topics, Duration::from_secs(seconds.into()))?;
                }
            }
        }
    }
    Ok(())
}

fn one(bench: &Bench, subject: Subject, topics: usize, time: Duration) -> Result<()> {
    machine::wait_quiet()?;
    let folder = tempfile::tempdir_in(&bench.data)?;
    let mut running = subject.start(bench, folder.path())?;
    let mut record = bench
        .results
        .blank("disk64", subject.name(), subject.durability());
    record.size_bytes = BODY.len() as u32;
    record.clients = CONNECTIONS as u32;
    record.topics = topics as u32;
    // Topics and their first segments are made before the clock runs.
    publish_and_wait(running.tcp(), topics, Duration::from_millis(200))?;
    let before = running.usage()?;
    let outcome = publish_and_wait(running.tcp(), topics, time)?;
    let after = running.usage()?;
    record.messages = outcome.messages;
    record.seconds = outcome.seconds;
    record.broker_cpu_s = after.cpu_s - before.cpu_s;
    record.rss_peak_bytes = after.rss_peak_bytes;
    bench.results.add(&record)
}

/// A connection with one message on its way.
struct Publisher {
    stream: TcpStream,
    command: Vec<u8>,
    /// How much of its answer has come.
    answered: usize,
}

fn publish_and_wait(address: SocketAddr, topics: usize, time: Duration) -> Result<Outcome> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut publishers = Vec::with_capacity(CONNECTIONS);
    for n in 0..CONNECTIONS {
        let mut connection = Connection::open(address)?;
        let identify = br#"{"heartbeat_interval":-1}"#;
        let mut command = b"IDENTIFY\n".to_vec();
        command.extend((identify.len() as u32).to_be_bytes());
        command.extend(identify);
        connection.ask(&command)?;
        let stream = connection.stream().try_clone()?;
        stream.set_nonblocking(true)?;
        let data = epoll::EventData::new_u64(n as u64);
        epoll::add(&poll, &stream, data, epoll::EventFlags::IN)?;
        let command = publish_command(&format!("sync-{}", n % topics), BODY);
        publishers.push(Publisher {
            stream,
            command,
            answered: 0,
        });
    }
    let start = Instant::now();
    for publisher in &mut publishers {
        publisher.stream.write_all(&publisher.command)?;
    }
    let mut events = Vec::with_capacity(CONNECTIONS);
    let (mut waiting, mut messages) = (CONNECTIONS, 0);
    while waiting > 0 {
        events.clear();
        epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), None)?;
        for event in &events {
            let publisher = &mut publishers[event.data.u64() as usize];
            if !publisher.is_answered()? {
                continue;
            }
            messages += 1;
            if start.elapsed() < time {
                publisher.stream.write_all(&publisher.command)?;
            } else {
                waiting -= 1;
            }
        }
    }
    Ok(Outcome {
        messages,
        seconds: start.elapsed().as_secs_f64(),
    })
}

impl Publisher {
    /// Reads what is there; true when the answer is whole.
    fn is_answered(&mut self) -> Result<bool> {
        let mut buffer = [0; OK.len()];
        let rest = OK.len() - self.answered;
        match self.stream.read(&mut buffer[..rest]) {
            Ok(0) => bail!("the broker closed the connection"),
            Ok(read) => {
                if buffer[..read] != OK[self.answered..self.answered + read] {
                    bail!("an answer to PUB that is not OK");
                }
                self.answered = (self.answered + read) % OK.len();
                Ok(self.answered == 0)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// One `fdatasync` after the other, each after an append into a file whose size is set.
pub(super) fn fdatasync(bench: &Bench) -> Result<()> {
    let path = bench.data.join("fdatasync");
    let outcome = append_and_sync(&path);
    std::fs::remove_file(&path)?;
    let (messages, seconds) = outcome.context("cannot measure the disk")?;
    let mut record = bench
        .results
        .blank("fdatasync", "one fdatasync after the other", "disk");
    record.size_bytes = BLOCK_BYTES as u32;
    record.messages = messages;
    record.seconds = seconds;
    bench.results.add(&record)
}

fn append_and_sync(path: &Path) -> Result<(u64, f64)> {
    let file = File::create(path)?;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, FILE_BYTES)?;
    file.sync_all()?;
    let block = [7; BLOCK_BYTES];
    let start = Instant::now();
    let mut syncs = 0;
    while start.elapsed() < FDATASYNC_TIME && syncs < FILE_BYTES / BLOCK_BYTES as u64 {
        file.write_all_at(&block, syncs * BLOCK_BYTES as u64)?;
        file.sync_data()?;
        syncs += 1;
    }
    Ok((syncs, start.elapsed().as_secs_f64()))
}
