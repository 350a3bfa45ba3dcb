//! `cloverleaf tail TOPIC`

use std::io::{self, Write};

use clap::Args;
use cloverleaf_server::admin_types::{Bytes, MessagePage, MessageView};

use crate::client::{Client, path_segment};

/// Maximum messages of one request.
const PAGE_MESSAGES_MAX: u64 = 500;
/// How long the broker waits for a message before it answers with none, in milliseconds.
const WAIT_MS: u64 = 20_000;

/// The arguments of `cloverleaf tail`.
#[derive(Debug, Args)]
pub(crate) struct TailArgs {
    /// Name of the topic
    topic: String,
    /// Where to start: earliest, latest or an offset [default: latest with --follow, else earliest]
    #[arg(long, value_name = "PLACE")]
    from: Option<String>,
    /// End after this many messages
    #[arg(long, value_name = "NUMBER")]
    count: Option<u64>,
    /// Wait for new messages at the end
    #[arg(long, short)]
    follow: bool,
    /// The partition to read
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    partition: u32,
    /// Print offset, time and key before each body, and headers below it
    #[arg(long)]
    meta: bool,
}

pub(crate) fn run(client: &Client, args: &TailArgs) -> anyhow::Result<()> {
    let start = if args.follow { "latest" } else { "earliest" };
    let mut from = args.from.clone().unwrap_or_else(|| start.to_owned());
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0 {
        let page: MessagePage = client.get(&format!(
            "/api/topics/{}/messages?partition={}&from={}&count={}&wait_ms={}",
            path_segment(&args.topic),
            args.partition,
            path_segment(&from),
            left.min(PAGE_MESSAGES_MAX),
            if args.follow { WAIT_MS } else { 0 },
        ))?;
        if page.messages.is_empty() && !args.follow {
            break;
        }
        let mut out = io::stdout().lock();
        for message in &page.messages {
            print(message, args.meta, &mut out)?;
        }
        out.flush()?;
        left -= page.messages.len() as u64;
        from = page.next_offset.to_string();
    }
    Ok(())
}

fn print(message: &MessageView, meta: bool, out: &mut impl Write) -> io::Result<()> {
    if meta {
        write!(out, "{} {} ", message.offset, message.timestamp_ms)?;
        write_bytes(message.key.as_ref(), out)?;
        out.write_all(b" ")?;
    }
    write_bytes(message.value.as_ref(), out)?;
    out.write_all(b"\n")?;
    if meta {
        for (name, value) in &message.headers {
            write!(out, "  {name}: ")?;
            write_bytes(value.as_ref(), out)?;
            out.write_all(b"\n")?;
        }
    }
    Ok(())
}

fn write_bytes(bytes: Option<&Bytes>, out: &mut impl Write) -> io::Result<()> {
    match bytes {
        Some(bytes) => out.write_all(&bytes.to_vec().unwrap_or_default()),
        None => out.write_all(b"-"),
    }
}
