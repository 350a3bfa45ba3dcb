//! `cloverleaf timeline`: asks the broker for its record of the last seconds, and draws it.
//!
//! ```text
//! the broker's answer ──▶ lanes (what is shown, in rows) ──▶ picture (SVG) ──▶ page (HTML)
//! ```

mod lanes;
mod page;
mod picture;
mod rows;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{ArgGroup, Args, ValueHint};
use cloverleaf_server::config_value::OptionValue as _;
use cloverleaf_server::percent_encoded;
use cloverleaf_server::timeline_types::Timeline;

use crate::client::Client;
use crate::table;

/// The arguments of `cloverleaf timeline`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("where").required(true).multiple(true))]
pub(crate) struct TimelineArgs {
    /// Name of a topic (an AMQP queue is one); several of them share the picture
    #[arg(long = "topic", value_name = "TOPIC", required = true)]
    topics: Vec<String>,
    /// Only this subscription (NSQ's channel, Kafka's consumer group) [default: all]
    #[arg(long = "subscription", value_name = "NAME")]
    subscriptions: Vec<String>,
    /// How much of the time until now, at most 15m
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    last: Duration,
    /// The file to write: .svg for a picture, .html for a page with numbers under the pointer
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, group = "where")]
    out: Option<PathBuf>,
    /// Print what would be drawn as JSON, for scripts
    #[arg(long, group = "where")]
    json: bool,
}

fn duration(text: &str) -> Result<Duration, String> {
    let duration = Duration::parse(text)?;
    if duration.is_zero() {
        Err("there is nothing to see in no time".to_owned())
    } else {
        Ok(duration)
    }
}

/// The format of the output file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileFormat {
    Svg,
    Html,
}

pub(crate) fn run(client: &Client, args: &TimelineArgs) -> anyhow::Result<()> {
    // Before the request, so that a wrong file name is reported even without a broker.
    let file_format = args.out.as_deref().map(format_of).transpose()?;
    let timeline: Timeline = client.get(&path(args))?;
    if args.json {
        table::print_json(&timeline)?;
    }
    let (Some(out), Some(file_format)) = (&args.out, file_format) else {
        return Ok(());
    };
    let lanes = lanes::of(&timeline);
    let text = match file_format {
        FileFormat::Svg => picture::file(&timeline, &lanes),
        FileFormat::Html => page::html(&timeline, &lanes),
    };
    std::fs::write(out, text).with_context(|| format!("cannot write {}", out.display()))?;
    if !args.json {
        let mut output = io::stdout().lock();
        writeln!(output, "{}: {}", out.display(), lanes::summary(&lanes))?;
        for note in &timeline.notes {
            writeln!(output, "{note}")?;
        }
    }
    Ok(())
}

fn format_of(path: &std::path::Path) -> anyhow::Result<FileFormat> {
    match path.extension().and_then(OsStr::to_str) {
        Some("svg") => Ok(FileFormat::Svg),
        Some("html" | "htm") => Ok(FileFormat::Html),
        _ => bail!("{}: the name ends with .svg or .html", path.display()),
    }
}

fn path(args: &TimelineArgs) -> String {
    let mut path = format!("/api/timeline?last={}", args.last.as_secs_f64());
    for (key, values) in [
        ("topic", &args.topics),
        ("subscription", &args.subscriptions),
    ] {
        for value in values {
            // Writing to a string cannot fail.
            let _ = write!(path, "&{key}={}", percent_encoded(value));
        }
    }
    path
}

#[cfg(test)]
mod argument_tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;

    use super::*;

    #[test]
    fn the_file_name_gives_the_format() {
        assert_eq!(format_of(Path::new("a/b.svg")).unwrap(), FileFormat::Svg);
        assert_eq!(format_of(Path::new("b.x.html")).unwrap(), FileFormat::Html);
        for name in ["a", "a.png", ".svg"] {
            assert!(format_of(Path::new(name)).is_err(), "{name}");
        }
    }

    #[test]
    fn names_are_escaped_in_the_query() {
        let args = TimelineArgs {
            topics: vec!["a b".to_owned(), "c&d=e".to_owned()],
            subscriptions: vec!["s#ephemeral".to_owned()],
            last: Duration::from_millis(1_500),
            out: None,
            json: true,
        };
        let expected =
            "/api/timeline?last=1.5&topic=a%20b&topic=c%26d%3De&subscription=s%23ephemeral";
        assert_eq!(path(&args), expected);
        assert!(duration("0s").is_err() && duration("half").is_err());
    }
}
