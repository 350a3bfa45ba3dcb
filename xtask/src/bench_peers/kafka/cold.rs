//! A consumer reads a log that is in no cache, beside `cat` of the same files to a socket.

use std::fs::File;
use std::io::Read;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::super::{Args, Bench, machine};
use super::Cell;
use super::programs::Programs;
use super::subject::Subject;

const SIZE_BYTES: u32 = 5120;

pub(super) fn measure(bench: &Bench, args: &Args, subjects: &[Subject]) -> Result<()> {
    let programs = Programs::new(bench)?;
    for subject in subjects.iter().filter(|s| **s != Subject::Floor) {
        one(bench, args, &programs, *subject)?;
    }
    Ok(())
}

fn one(bench: &Bench, args: &Args, programs: &Programs<'_>, subject: Subject) -> Result<()> {
    let gigabytes = if args.quick { 1 } else { args.cold_gb };
    let cell = Cell {
        size_bytes: SIZE_BYTES,
        acks: "1".to_owned(),
        partitions: 1,
        messages: (gigabytes << 30) / u64::from(SIZE_BYTES),
    };
    let folder = tempfile::tempdir_in(&bench.data)?;
    let options = subject.options(bench, folder.path())?;
    let mut broker = options.start()?;
    programs.create(broker.kafka(), "cold", 1)?;
    programs.rdkafka_produce(broker.kafka(), "cold", &cell)?;
    broker.terminate()?;
    drop(broker);
    let files = segments(&options.data)?;
    for kind in ["cat", "cold-read"] {
        let mut broker = options.start()?;
        evict(&files)?;
        machine::wait_quiet()?;
        let mut record = bench.results.blank(kind, subject.name(), "kernel");
        record.size_bytes = SIZE_BYTES;
        record.partitions = Some(1);
        if kind == "cat" {
            let start = Instant::now();
            let bytes = cat(&files)?;
            record.seconds = start.elapsed().as_secs_f64();
            record.messages = bytes / u64::from(SIZE_BYTES);
        } else {
            let before = broker.process().usage()?;
            let outcome = programs.rdkafka_consume(broker.kafka(), "cold", &cell)?;
            let after = broker.process().usage()?;
            outcome.write_to(&mut record);
            record.broker_cpu_s = after.cpu_s - before.cpu_s;
            record.rss_peak_bytes = after.rss_peak_bytes;
        }
        bench.results.add(&record)?;
        broker.terminate()?;
    }
    Ok(())
}

/// The files that hold messages, oldest first.
fn segments(data: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![data.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                // Kafka's own topics are small, but no part of it.
                if !entry.file_name().to_string_lossy().starts_with("__") {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|e| e == "log") {
                found.push(path);
            }
        }
    }
    found.sort();
    if found.is_empty() {
        bail!("no segment below {}", data.display());
    }
    Ok(found)
}

/// Takes the files out of the page cache.
fn evict(files: &[PathBuf]) -> Result<()> {
    for path in files {
        let file = File::open(path)?;
        // What is dirty stays.
        file.sync_all()?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    }
    Ok(())
}

/// `cat FILES` into a socket, and how many bytes have come out of it.
fn cat(files: &[PathBuf]) -> Result<u64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let stream = std::net::TcpStream::connect(listener.local_addr()?)?;
    let reader = std::thread::spawn(move || -> Result<u64> {
        let (mut from, _) = listener.accept()?;
        let mut buffer = vec![0; 1 << 20];
        let mut bytes = 0;
        loop {
            match from.read(&mut buffer)? {
                0 => return Ok(bytes),
                read => bytes += read as u64,
            }
        }
    });
    let mut cat = Command::new("cat");
    let status = cat
        .args(files)
        .stdin(Stdio::null())
        .stdout(Stdio::from(OwnedFd::from(stream)))
        .status()?;
    // The command holds the socket too.
    drop(cat);
    if !status.success() {
        bail!("cat: {status}");
    }
    let joined = reader.join();
    joined.ok().context("the reading thread has panicked")?
}
