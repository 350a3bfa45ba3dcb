//! `cargo xtask suites NAME`: a third-party client's whole own test suite against our binary.

mod amqp;
mod kafka;

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;

use crate::clients::{Context, Original};
use crate::install::Tool;
use crate::nsqd_shim;
use crate::process::Process;
use crate::rot;
use crate::wait;
use crate::workspace::Workspace;

/// Run a third-party client's own test suite against the release binary.
#[derive(clap::Args)]
pub(crate) struct Args {
    suite: Suite,
    /// A checkout of the client with its tests, where its package has none (pynsq).
    #[arg(long, value_name = "FOLDER")]
    source: Option<PathBuf>,
    /// Rounds of `rot` [default: 400]
    #[arg(long, value_name = "NUMBER", default_value_t = rot::ROUNDS, hide_default_value = true)]
    rounds: u64,
    /// What `rot` begins with; each round prints its own
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Some rounds of `rot` damage the state journal
    #[arg(long)]
    state: bool,
    /// Against the original broker: what fails there too is not our fault (Kafka's clients).
    #[arg(long)]
    against_original: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Suite {
    GoNsq,
    Pynsq,
    Nsqjs,
    KafkaPython,
    FranzGo,
    Librdkafka,
    Amqp091Go,
    WatermillAmqp,
    /// No client's: damages of a stopped data folder.
    Rot,
    /// No client's: threads of the log in thousands of orders.
    Races,
}

/// The result of a suite.
pub(crate) struct SuiteResult {
    pub(crate) passed: Vec<String>,
    pub(crate) failed: Vec<String>,
    /// Where its whole output is.
    pub(crate) log: PathBuf,
}

impl SuiteResult {
    /// A suite that ends badly has failed, whatever its tests said; one without a test, too.
    fn complete(mut self, status: ExitStatus) -> Result<Self> {
        if !status.success() && self.failed.is_empty() {
            self.failed.push(format!("the suite as a whole: {status}"));
        }
        if self.passed.is_empty() && self.failed.is_empty() {
            bail!("the suite ran no test; see {}", self.log.display());
        }
        Ok(self)
    }
}

pub(crate) fn main(workspace: &Workspace, args: &Args) -> Result<bool> {
    let original = if args.against_original {
        Original::kafka()
    } else {
        Original::default()
    };
    let context = Context::with(workspace, &original)?;
    let result = match args.suite {
        Suite::GoNsq => go_nsq(&context)?,
        Suite::Pynsq => match &args.source {
            Some(source) => pynsq(&context, source)?,
            None => {
                println!(
                    "pynsq's package on PyPI has no tests; --source names a checkout that has them"
                );
                return Ok(false);
            }
        },
        Suite::Nsqjs => nsqjs(&context)?,
        Suite::KafkaPython => kafka::kafka_python(&context)?,
        Suite::FranzGo => kafka::franz_go(&context)?,
        Suite::Librdkafka => kafka::librdkafka(&context)?,
        Suite::Amqp091Go => amqp::amqp091_go(&context)?,
        Suite::WatermillAmqp => amqp::watermill_amqp(&context)?,
        Suite::Races => return races(workspace),
        Suite::Rot => {
            let findings = rot::run(&context, args.seed, args.rounds, args.state)?;
            for finding in &findings {
                println!("FAILED --seed {}: {}", finding.seed, finding.text);
            }
            let failed = findings.len() as u64;
            println!("{} passed, {failed} failed", args.rounds - failed);
            return Ok(failed == 0);
        }
    };
    for name in &result.failed {
        println!("FAILED {name}");
    }
    println!("output: {}", result.log.display());
    println!(
        "{} passed, {} failed",
        result.passed.len(),
        result.failed.len()
    );
    Ok(result.failed.is_empty())
}

/// Threads of the log, scheduled by a test (`crates/log/tests/races.rs`).
fn races(workspace: &Workspace) -> Result<bool> {
    let mut test = workspace.cargo();
    test.args([
        "test",
        "--profile",
        "ci",
        "-p",
        "cloverleaf-log",
        "--locked",
    ]);
    test.args(["--features", "races", "--test", "all", "races::"]);
    Ok(test.status()?.success())
}

/// go-nsq's suite, as its `test.sh` runs it: on nsqd's own ports, with its own certificates and a
/// real nsqlookupd.
pub(crate) fn go_nsq(context: &Context) -> Result<SuiteResult> {
    context.clients.install(Tool::Go)?;
    let source = context.clients.go_nsq_source()?;
    let folder = context.workspace.temp_folder("go-nsq")?;
    let mut options = context.options(folder.path())?;
    options.tcp = fixed_port(4150)?;
    options.http = fixed_port(4151)?;
    let lookupd_tcp = fixed_port(4160)?;
    let lookupd_http = fixed_port(4161)?;
    options.lookupd_tcp.push(lookupd_tcp);
    options.tls = Some((
        source.join("test/server.pem"),
        source.join("test/server.key"),
    ));
    let mut lookupd = Command::new(context.clients.nsq_program("nsqlookupd"));
    lookupd.arg(format!("--tcp-address={lookupd_tcp}"));
    lookupd.arg(format!("--http-address={lookupd_http}"));
    let _lookupd = Process::start(&mut lookupd, &folder.path().join("nsqlookupd.out"))?;
    wait::until("nsqlookupd listens", wait::HANG, || {
        Ok(std::net::TcpStream::connect(lookupd_tcp).is_ok())
    })?;
    let _broker = options.start()?;
    let mut test = Command::new("go");
    test.current_dir(&source)
        .args(["test", "-v", "-count=1", "-timeout", "120s"]);
    let log = context.workspace.target().join("go-nsq-suite.log");
    run_suite(&mut test, &log, "--- PASS: ", "--- FAIL: ")
}

fn pynsq(context: &Context, source: &Path) -> Result<SuiteResult> {
    context.clients.install(Tool::Python)?;
    context.clients.install(Tool::Go)?;
    context.clients.pip(&["pytest", "mock"])?;
    let mut test = Command::new(context.clients.python_program());
    test.current_dir(source).args([
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-rA",
        "-q",
        "tests",
    ]);
    with_shim(context, &mut test)?;
    run_suite(
        &mut test,
        &context.workspace.target().join("pynsq-suite.log"),
        "PASSED ",
        "FAILED ",
    )
}

fn nsqjs(context: &Context) -> Result<SuiteResult> {
    context.clients.install(Tool::Node)?;
    context.clients.npm(&[
        "mocha@10",
        "should@13",
        "sinon@17",
        "nock@13",
        "p-event@4",
        "async-retry@1",
        "temp@0.9",
        "debug@4",
    ])?;
    let modules = context.clients.node_folder().join("node_modules");
    let mut test = Command::new("node");
    test.current_dir(modules.join("nsqjs"))
        .arg(modules.join("mocha/bin/mocha.js"));
    test.args(["--reporter", "tap", "--exit"]);
    with_shim(context, &mut test)?;
    run_suite(
        &mut test,
        &context.workspace.target().join("nsqjs-suite.log"),
        "ok ",
        "not ok ",
    )
}

/// Puts our binary on the search path by the name of nsqd, and the real nsqlookupd.
fn with_shim(context: &Context, command: &mut Command) -> Result<()> {
    let folder = context.workspace.target().join("shim");
    nsqd_shim::install(&folder)?;
    let mut folders = vec![folder];
    let nsq_programs = context.clients.nsq_program("");
    if nsq_programs.is_dir() {
        folders.push(nsq_programs);
    }
    let path: OsString = std::env::var_os("PATH").unwrap_or_default();
    folders.extend(std::env::split_paths(&path));
    command.env("PATH", std::env::join_paths(folders)?);
    command.env(nsqd_shim::BINARY_VARIABLE, &context.binary);
    Ok(())
}

fn run_suite(command: &mut Command, log: &Path, pass: &str, fail: &str) -> Result<SuiteResult> {
    // Some say hundreds of megabytes.
    let file = File::create(log)?;
    let status = command
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .status()
        .context("cannot start the suite")?;
    let mut result = SuiteResult {
        passed: Vec::new(),
        failed: Vec::new(),
        log: log.to_path_buf(),
    };
    for line in BufReader::new(File::open(log)?).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        // Go's tests within a test are indented.
        let line = line.trim_start();
        for (prefix, names) in [(pass, &mut result.passed), (fail, &mut result.failed)] {
            names.extend(line.strip_prefix(prefix).map(without_time));
        }
    }
    result.complete(status)
}

/// One of the ports that the suites have built in, if nobody has it.
fn fixed_port(port: u16) -> Result<SocketAddr> {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    std::net::TcpListener::bind(address)
        .with_context(|| format!("the suite needs {address}, which is taken"))?;
    Ok(address)
}

/// Go adds to the name how long the test took: `TestThis (0.11s)`.
fn without_time(name: &str) -> String {
    match name.rsplit_once(" (") {
        Some((name, time)) if time.ends_with("s)") && time.starts_with(char::is_numeric) => {
            name.to_owned()
        }
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_time_is_taken_off() {
        assert_eq!(without_time("TestThis (0.11s)"), "TestThis");
        assert_eq!(
            without_time("compression (deflate)"),
            "compression (deflate)"
        );
    }
}
