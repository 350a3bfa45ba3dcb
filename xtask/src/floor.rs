//! The floor under the measurements: a server that reads MPUB, writes its body to a file and
//! answers OK, and nothing else. No broker that keeps messages in a file can do less.
//!
//! One thread and one file per connection, blocking calls, no parsing of what is in the body.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::floor_kafka;

/// nsqd's limit for the body of a command.
const BODY_BYTES_MAX: usize = 5 << 20;
const OK: &[u8] = b"\0\0\0\x06\0\0\0\0OK";

/// Take messages without being a broker (started by `bench-peers`).
#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    address: SocketAddr,
    #[arg(long)]
    data: PathBuf,
    /// Speak Kafka, with topics of so many partitions, and not NSQ.
    #[arg(long, value_name = "PARTITIONS")]
    kafka: Option<u32>,
}

pub(crate) fn main(args: &Args) -> Result<bool> {
    if let Some(partitions) = args.kafka {
        return floor_kafka::main(args.address, &args.data, partitions);
    }
    std::fs::create_dir_all(&args.data)?;
    let listener = TcpListener::bind(args.address)?;
    for (number, stream) in listener.incoming().enumerate() {
        let (stream, data) = (stream?, args.data.clone());
        std::thread::spawn(move || {
            if let Err(error) = serve(stream, &data.join(number.to_string())) {
                eprintln!("connection {number}: {error:#}");
            }
        });
    }
    Ok(true)
}

fn serve(stream: TcpStream, path: &Path) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut file = File::create(path)?;
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::with_capacity(64 << 10, stream);
    let mut body = Vec::new();
    let mut line = Vec::new();
    reader.read_exact(&mut [0; 4]).context("no magic")?;
    loop {
        line.clear();
        if reader.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        let mut size = [0; 4];
        reader.read_exact(&mut size)?;
        let size = u32::from_be_bytes(size) as usize;
        if size > BODY_BYTES_MAX {
            bail!("a body of {size} bytes");
        }
        body.resize(size, 0);
        reader.read_exact(&mut body)?;
        // IDENTIFY has a body too, which is nothing to keep.
        if line.starts_with(b"MPUB") {
            file.write_all(&body)?;
        }
        writer.write_all(OK)?;
    }
}
