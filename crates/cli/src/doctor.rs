//! `cloverleaf doctor`: which clients are slow, why, and what to change.
//!
//! Exit status: 0 without findings, 1 with some, 2 when the broker cannot be asked.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{ArgMatches, Args, FromArgMatches as _, Subcommand};
use cloverleaf_doctor::{Detail, Report, findings_text, one_line};
use cloverleaf_page::Terminal;
use cloverleaf_server::config_value::OptionValue;
use cloverleaf_server::percent_encoded;

use crate::client::Client;
use crate::doctor_pages;

/// How often `--watch` asks. The doctor checks once a second.
const INTERVAL: Duration = Duration::from_secs(2);

/// How long the broker may take for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// After this time, a client's behaviour is known, except for jobs that take longer.
const WATCHED_US_MIN: u64 = 15_000_000;

/// Moves the cursor to the upper left and clears the screen.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

/// The arguments of `cloverleaf doctor`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct DoctorArgs {
    /// Go on looking, until Ctrl-C
    #[arg(long, short)]
    watch: bool,
    /// All that is known: other changes, all numbers, what cannot be seen from the broker
    #[arg(long, short)]
    details: bool,
    /// Print JSON, for scripts; with --watch a line each time
    #[arg(long)]
    json: bool,
    /// Also findings that have ended within this time: 90s, 10m, 1h
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    since: Option<Duration>,
    /// Only clients whose address, library or name has this in it
    #[arg(long, value_name = "TEXT")]
    client: Option<String>,
    #[command(subcommand)]
    command: Option<DoctorCommand>,
}

/// The subcommands of `cloverleaf doctor`.
#[derive(Debug, Subcommand)]
enum DoctorCommand {
    /// The page of a rule: how it is seen, why it costs, how to fix it, how to check that
    Explain {
        /// Name of the rule, or what --details prints beside a finding; without one, all rules are
        /// listed
        rule: Option<String>,
    },
}

fn duration(text: &str) -> Result<Duration, String> {
    <Duration as OptionValue>::parse(text)
}

/// Runs the command.
pub(crate) fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let args = DoctorArgs::from_arg_matches(matches)?;
    if let Some(DoctorCommand::Explain { rule }) = &args.command {
        return Ok(if doctor_pages::explain(rule.as_deref())? {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(2)
        });
    }
    let client = Client::from_matches(matches).within(PATIENCE);
    let answer = if args.watch {
        WatchLoop::new(&args, &client).run()
    } else {
        args.report_once(&client)
    };
    match answer {
        Err(error) if !cloverleaf_program::is_closed_pipe(&error) => {
            eprintln!("cloverleaf: {error:#}");
            Ok(ExitCode::from(2))
        }
        answer => answer,
    }
}

impl DoctorArgs {
    fn report_once(&self, client: &Client) -> anyhow::Result<ExitCode> {
        let report = self.ask(client)?;
        let mut out = io::stdout().lock();
        if self.json {
            writeln!(out, "{}", json(&report, true)?)?;
        } else {
            out.write_all(self.page(&report, Terminal::here()).as_bytes())?;
        }
        out.flush()?;
        Ok(if report.findings.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }

    /// The findings as text for people.
    fn page(&self, report: &Report, terminal: Terminal) -> String {
        let detail = if self.details {
            Detail::Full
        } else {
            Detail::Short {
                more: "cloverleaf doctor --details",
            }
        };
        let mut text = findings_text(report, terminal.width, terminal.with_colours, detail);
        text.push_str(&age_note(report));
        text
    }

    fn ask(&self, client: &Client) -> anyhow::Result<Report> {
        client.get(&self.path())
    }

    fn path(&self) -> String {
        let since = self.since.map(|since| {
            // Rounded up to whole seconds.
            let seconds = since.as_millis().div_ceil(1000);
            format!("since={seconds}")
        });
        let client = self.client.as_deref();
        let client = client.map(|text| format!("client={}", percent_encoded(text)));
        let query: Vec<String> = since.into_iter().chain(client).collect();
        if query.is_empty() {
            "/api/doctor".to_owned()
        } else {
            format!("/api/doctor?{}", query.join("&"))
        }
    }
}

/// A note for a doctor that has started a short time ago.
fn age_note(report: &Report) -> String {
    let seconds = report.watched_us / 1_000_000;
    match report.watched_us {
        0 => "  Clients are not watched yet; ask again in 15 seconds.\n".to_owned(),
        us if us < WATCHED_US_MIN => {
            format!("  Clients are watched for {seconds} s only; a finding needs up to 15 s.\n")
        }
        _ => String::new(),
    }
}

/// The report as JSON, for programs.
fn json(report: &Report, is_pretty: bool) -> anyhow::Result<String> {
    let text = if is_pretty {
        serde_json::to_string_pretty(report)?
    } else {
        serde_json::to_string(report)?
    };
    Ok(escape(&text))
}

/// JSON in ASCII only: no text from a client can move the cursor of a terminal.
fn escape(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for letter in json.chars() {
        // A line break can only be part of the layout: within texts it is escaped already.
        if letter.is_ascii_graphic() || matches!(letter, ' ' | '\n') {
            escaped.push(letter);
        } else {
            let mut units = [0; 2];
            for unit in letter.encode_utf16(&mut units) {
                escaped.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    escaped
}

/// The loop of `--watch`.
struct WatchLoop<'a> {
    args: &'a DoctorArgs,
    client: &'a Client,
    /// The findings of the last report, for output that has only the changes.
    known: BTreeMap<String, String>,
    is_lost: bool,
}

impl WatchLoop<'_> {
    fn new<'a>(args: &'a DoctorArgs, client: &'a Client) -> WatchLoop<'a> {
        WatchLoop {
            args,
            client,
            known: BTreeMap::new(),
            is_lost: false,
        }
    }

    fn run(&mut self) -> anyhow::Result<ExitCode> {
        // An error in the first answer ends the command, so that a wrong address is reported at
        // once.
        let mut answer = Ok(self.args.ask(self.client)?);
        loop {
            match answer {
                Ok(report) => self.show(&report)?,
                Err(error) => self.report_error(&error)?,
            }
            thread::sleep(INTERVAL);
            answer = self.args.ask(self.client);
        }
    }

    fn show(&mut self, report: &Report) -> anyhow::Result<()> {
        let terminal = Terminal::here();
        let text = match (self.args.json, terminal.is_terminal) {
            (true, _) => json(report, false)? + "\n",
            (false, true) => {
                let (page, at) = (self.args.page(report, terminal), clock(report.unix_us));
                format!("{CLEAR}{page}  {at}\n")
            }
            (false, false) => self.changes(report),
        };
        self.is_lost = false;
        print(&text)
    }

    /// The findings that appeared or ended since the last report, a line each.
    fn changes(&mut self, report: &Report) -> String {
        let mut text = String::new();
        let at = clock(report.unix_us);
        if self.is_lost {
            text.push_str(&format!("{at} the broker answers again\n"));
        }
        let now: BTreeMap<String, String> = report
            .findings
            .iter()
            .filter(|finding| finding.is_active)
            .map(|finding| (finding.id.clone(), one_line(finding)))
            .collect();
        for (id, line) in &now {
            if !self.known.contains_key(id) {
                text.push_str(&format!("{at} found {line}\n"));
            }
        }
        for (id, line) in &self.known {
            if !now.contains_key(id) {
                text.push_str(&format!("{at} over {line}\n"));
            }
        }
        self.known = now;
        text
    }

    fn report_error(&mut self, error: &anyhow::Error) -> anyhow::Result<()> {
        let terminal = Terminal::here();
        if terminal.is_terminal && !self.args.json {
            print(&format!("{CLEAR}  {error:#}\n  Asking again.\n"))?;
        } else if !self.is_lost {
            let since_1970 = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            let at = clock(u64::try_from(since_1970.as_micros()).unwrap_or_default());
            eprintln!("{at} cloverleaf: {error:#}; asking again");
        }
        self.is_lost = true;
        Ok(())
    }
}

/// The time of day in UTC, as in the log.
fn clock(unix_us: u64) -> String {
    let second = unix_us / 1_000_000 % 86_400;
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{hour:02}:{minute:02}:{:02} UTC", second % 60)
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn args(since: Option<Duration>, client: Option<&str>) -> DoctorArgs {
        DoctorArgs {
            watch: false,
            details: false,
            json: false,
            since,
            client: client.map(str::to_owned),
            command: None,
        }
    }

    fn report(watched_us: u64) -> Report {
        Report {
            unix_us: 1,
            watched_us,
            connections: 3,
            connections_opened: 3,
            findings: Vec::new(),
            more: 0,
        }
    }

    #[test]
    fn the_query_has_all_arguments() {
        assert_eq!(args(None, None).path(), "/api/doctor");
        let since = duration("1m30s").unwrap();
        let path = args(Some(since), Some("a b&c")).path();
        assert_eq!(path, "/api/doctor?since=90&client=a%20b%26c");
        assert_eq!(
            args(Some(duration("10ms").unwrap()), None).path(),
            "/api/doctor?since=1"
        );
        assert!(duration("soon").is_err());
    }

    #[test]
    fn a_new_doctor_is_noted() {
        let terminal = Terminal {
            width: 100,
            with_colours: false,
            is_terminal: false,
        };
        let page = |watched_us| args(None, None).page(&report(watched_us), terminal);
        assert!(page(0).contains("ask again in 15 seconds"));
        assert!(page(7_200_000).contains("watched for 7 s only"));
        let text = page(WATCHED_US_MIN);
        assert_eq!(text, "  No findings: 3 connections, watched for 15.0 s.\n");
    }

    #[test]
    fn the_time_is_that_of_the_day() {
        assert_eq!(clock(0), "00:00:00 UTC");
        assert_eq!(
            clock((20_000 * 86_400 + 86_399) * 1_000_000 + 7),
            "23:59:59 UTC"
        );
    }

    #[test]
    fn json_is_ascii_and_reads_back() {
        let text = "\u{1b}[2J \u{9b}2J \u{202e} \u{7f} ö 😀 \"\n";
        let said = report(5);
        for is_pretty in [true, false] {
            let json = json(&said, is_pretty).unwrap();
            assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), said);
        }
        let escaped = escape(&serde_json::to_string(text).unwrap());
        assert!(
            escaped
                .bytes()
                .all(|it| it.is_ascii_graphic() || it == b' '),
            "{escaped}"
        );
        assert_eq!(serde_json::from_str::<String>(&escaped).unwrap(), text);
    }
}
