//! Faults of the data folder: full, read-only, damaged, or in use by another broker.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::{Context, Report};
use crate::broker::{Broker, Options};
use crate::nsq::{Connection, Frame, multi_publish_command};
use crate::rot;
use crate::wait;
use crate::workspace::output;

/// Size of the small disk.
const DISK_BYTES: usize = 64 << 20;
/// Bytes of a file on the small disk, which is deleted to make space when the disk is full.
const BALLAST_BYTES: usize = 16 << 20;

pub(super) fn run(context: &Context, report: &mut Report) -> Result<()> {
    let folder = context.workspace.temp_folder("disk")?;
    report.check("a second broker on the same folder", || {
        second_broker(context, folder.path())
    });
    if !may_mount(report) {
        return Ok(());
    }
    report.check("a read-only folder", || read_only(context, folder.path()));
    report.check("a full disk", || full(context, folder.path()));
    Ok(())
}

/// Some damages of a stopped broker's folder; `cargo xtask suites rot` makes more.
pub(super) fn rot(context: &Context, report: &mut Report) -> Result<()> {
    for finding in rot::run(context, 1, rot::ROUNDS_SHORT, false)? {
        report.fail(&format!("--seed {}", finding.seed), &finding.text);
    }
    report.check("damages of a stopped folder", || Ok(()));
    Ok(())
}

fn second_broker(context: &Context, folder: &Path) -> Result<()> {
    let mut first = context.options(&folder.join("second"))?.start()?;
    let holder = first.process().pid().to_string();
    let mut options = context.options(&folder.join("second"))?;
    options.data = first.options().data.clone();
    let text = refused_start(&options)?;
    if !text.contains(&holder) {
        bail!("the second broker does not name process {holder}:\n{text}");
    }
    Connection::open(first.tcp())?.publish("t", b"the first serves on")
}

fn read_only(context: &Context, folder: &Path) -> Result<()> {
    let disk = Mount::new(&folder.join("read-only"), "ro,size=1m")?;
    let mut options = context.options(&folder.join("any"))?;
    options.data = disk.folder.join("data");
    let log = folder.join("read-only.out");
    let text = refused_start_logged(&options, &log)?;
    if !text.contains(&options.data.display().to_string()) {
        bail!("the broker does not name the folder:\n{text}");
    }
    Ok(())
}

/// Starts a broker that must refuse to start, and returns its error.
fn refused_start(options: &Options) -> Result<String> {
    let log = options.data.with_extension("refused");
    refused_start_logged(options, &log)
}

fn refused_start_logged(options: &Options, log: &Path) -> Result<String> {
    let mut process = crate::process::Process::start(&mut options.command(), log)?;
    let status = process.wait(wait::HANG)?;
    if status.success() {
        bail!("the broker ended with {status}");
    }
    Ok(process.log())
}

fn full(context: &Context, folder: &Path) -> Result<()> {
    let disk = SmallDisk::new(folder)?;
    let mut broker = disk.options(context)?.start()?;
    broker.create("full", "ch")?;

    let mut left = fill(&mut Connection::open(broker.tcp())?)?;
    let half = left / 2;
    consume(&broker, half).context("consumers are served while the disk is full")?;
    left -= half;

    std::fs::remove_file(disk.ballast())?;
    wait::until("publishing works again", wait::HANG, || {
        // A refused MPUB closes its connection, as it does with nsqd.
        let mut producer = Connection::open(broker.tcp())?;
        producer.send(&batch(0))?;
        Ok(matches!(producer.frame()?, Frame::Response(_)))
    })?;
    left += BATCH;
    broker.crash_and_restart()?;
    consume(&broker, left).context("all that was answered OK comes after a crash")
}

/// Messages per MPUB, of a kilobyte each.
const BATCH: usize = 64;

fn batch(first: usize) -> Vec<u8> {
    let body = |n: usize| format!("{n:01000}").into_bytes();
    multi_publish_command(
        "full",
        &(first..first + BATCH).map(body).collect::<Vec<_>>(),
    )
}

/// Publishes until the broker refuses, and returns the number of accepted messages.
fn fill(producer: &mut Connection) -> Result<usize> {
    let mut published = 0;
    loop {
        producer.send(&batch(published))?;
        match producer.frame()? {
            Frame::Response(_) => published += BATCH,
            Frame::Error(text) if text.starts_with("E_MPUB_FAILED") => return Ok(published),
            other => bail!("{other:?} from a full disk"),
        }
        if published * 1000 > DISK_BYTES {
            bail!(
                "{published} kB were taken by a disk of {} MB",
                DISK_BYTES >> 20
            );
        }
    }
}

/// Consumes this many messages.
fn consume(broker: &Broker, messages: usize) -> Result<()> {
    let mut consumer = Connection::consumer(broker.tcp(), "full", "ch", 1)?;
    for _ in 0..messages {
        let message = consumer.message()?;
        consumer.finish(&message.id)?;
    }
    // The answer to the next command shows that the last FIN has arrived. RDY is 1, so at most one
    // more message comes before that answer.
    consumer.send(b"CLS\n")?;
    while !matches!(consumer.frame()?, Frame::Response(_)) {}
    Ok(())
}

/// Whether small disks can be mounted; if not, the group is skipped, or has failed in CI.
fn may_mount(report: &mut Report) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        report.skip("a full disk", "only root can mount a small disk");
    }
    is_root
}

/// A disk that is soon full, with a file on it that can be deleted to make space.
pub(super) struct SmallDisk {
    disk: Mount,
    ballast: PathBuf,
}

impl SmallDisk {
    /// Mounts a disk in `folder`. Returns `None` and reports it where none can be mounted.
    pub(super) fn for_group(report: &mut Report, folder: &Path) -> Result<Option<Self>> {
        may_mount(report).then(|| Self::new(folder)).transpose()
    }

    fn new(folder: &Path) -> Result<Self> {
        let disk = Mount::new(&folder.join("disk"), &format!("size={DISK_BYTES}"))?;
        let ballast = disk.folder.join("ballast");
        std::fs::write(&ballast, vec![0; BALLAST_BYTES])?;
        Ok(Self { disk, ballast })
    }

    /// The file that is deleted to make space.
    pub(super) fn ballast(&self) -> &Path {
        &self.ballast
    }

    /// Options of a broker with its data on the disk, in segments small enough to be removed.
    pub(super) fn options(&self, context: &Context) -> Result<Options> {
        let mut options = context.options(&self.disk.folder)?;
        options.more = vec![
            "--segment-bytes=4MiB".into(),
            "--disk-free-bytes-min=8MiB".into(),
        ];
        Ok(options)
    }
}

/// A small file system in memory, unmounted when dropped.
struct Mount {
    folder: PathBuf,
}

impl Mount {
    fn new(folder: &Path, options: &str) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let mut mount = Command::new("mount");
        output(
            mount
                .args(["-t", "tmpfs", "-o", options, "tmpfs"])
                .arg(folder),
        )?;
        Ok(Self {
            folder: folder.to_path_buf(),
        })
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Lazily: the broker's log file may still be open, and after a failure the broker may run.
        let _ = Command::new("umount")
            .arg("--lazy")
            .arg(&self.folder)
            .status();
    }
}
