//! The suites of Kafka's clients.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};

use super::{SuiteResult, run_suite};
use crate::broker::Kind;
use crate::clients::Context;
use crate::install::Tool;

/// Packages that kafka-python's tests need beside it.
const KAFKA_PYTHON_NEEDS: &[&str] = &[
    "pytest",
    "pytest-timeout",
    "pytest-mock",
    "python-snappy",
    "zstandard",
];

/// Records that each of franz-go's tests of groups sends through; half a million unless told.
const FRANZ_GO_RECORDS: &str = "100000";
/// Those of librdkafka's tests that are left out: transactions, SASL, and one that never ends.
const LIBRDKAFKA_LEFT_OUT: &str = "0098,0103,0105,0129,0142,0115,0119,0126,0128,0135,8000,8001";

/// kafka-python's tests against a broker, those that can be pointed at one that runs already.
pub(super) fn kafka_python(context: &Context) -> Result<SuiteResult> {
    context.clients.install(Tool::KafkaPython)?;
    context.clients.kafka_pip(KAFKA_PYTHON_NEEDS)?;
    let source = context.clients.kafka_python_source()?;
    let folder = context.workspace.temp_folder("kafka-python")?;
    let mut options = context.options(folder.path())?;
    // As the suite configures a broker that it starts itself.
    let settings: &[&str] = match options.kind {
        Kind::Kafka => &["num.partitions=4", "group.min.session.timeout.ms=1000"],
        Kind::Cloverleaf | Kind::Nsqd | Kind::RabbitMq => &[
            "--kafka-partitions-default=4",
            "--kafka-session-timeout-min=1s",
            "--kafka-node-id=0",
        ],
    };
    options
        .more
        .extend(settings.iter().map(|s| (*s).to_owned()));
    let broker = options.start()?;
    let mut test = Command::new(context.clients.kafka_python_program());
    let pytest = ["-m", "pytest", "-p", "no:cacheprovider", "-rA", "-q"];
    test.current_dir(source).args(pytest);
    test.args(["--timeout=60", "test/integration"]);
    test.env("KAFKA_VERSION", "4.3.0")
        // Where it would find a Kafka to start: it only looks whether the folder is there.
        .env("KAFKA_ROOT", folder.path())
        .env("KAFKA_URI", format!("kafka://{}", broker.kafka()));
    let log = context.workspace.target().join("kafka-python-suite.log");
    run_suite(&mut test, &log, "PASSED ", "FAILED ")
}

/// The tests of franz-go's client, without transactions.
pub(super) fn franz_go(context: &Context) -> Result<SuiteResult> {
    context.clients.install(Tool::KafkaGo)?;
    let source = context.clients.franz_go_source()?;
    let folder = context.workspace.temp_folder("franz-go")?;
    let broker = context.options(folder.path())?.start()?;
    let mut test = Command::new("go");
    test.current_dir(source)
        .args(["test", "-v", "-count=1", "-timeout", "20m"]);
    test.args(["-skip", "TestTxnEtl", "./pkg/kgo"]);
    test.env("KGO_SEEDS", broker.kafka().to_string())
        .env("KGO_TEST_RF", "1")
        .env("KGO_TEST_RECORDS", FRANZ_GO_RECORDS)
        .env("KGO_LOG_LEVEL", "none");
    let log = context.workspace.target().join("franz-go-suite.log");
    run_suite(&mut test, &log, "--- PASS: ", "--- FAIL: ")
}

/// librdkafka's tests, the quick form of each, those with a mock broker of its own too.
pub(super) fn librdkafka(context: &Context) -> Result<SuiteResult> {
    let tests = context.clients.librdkafka_tests()?;
    let folder = context.workspace.temp_folder("librdkafka")?;
    let mut options = context.options(folder.path())?;
    // A topic that makes itself has four partitions, as in its own cluster. 0089, 0102 and 0118
    // want a group's first members to come together: both have their default here.
    let more: &[&str] = match options.kind {
        Kind::Kafka => &["num.partitions=4", "group.initial.rebalance.delay.ms=3000"],
        Kind::Cloverleaf | Kind::Nsqd | Kind::RabbitMq => &["--kafka-partitions-default=4"],
    };
    options
        .more
        .extend(more.iter().map(|&word| word.to_owned()));
    let broker = options.start()?;
    let settings = folder.path().join("test.conf");
    std::fs::write(&settings, format!("bootstrap.servers={}\n", broker.kafka()))?;
    let mut test = Command::new("./test-runner");
    test.current_dir(tests).args(["-Q", "-E", "-p3"]);
    test.env("RDKAFKA_TEST_CONF", settings)
        .env("KAFKA_PATH", kafka_scripts(context, folder.path())?)
        .env("BROKERS", broker.kafka().to_string())
        .env("TEST_KAFKA_VERSION", "4.0.0")
        .env("TESTS_SKIP", LIBRDKAFKA_LEFT_OUT);
    let output = test.stdin(Stdio::null()).output();
    let output = output.context("cannot start the suite")?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    let log = context.workspace.target().join("librdkafka-suite.log");
    std::fs::write(&log, &text)?;
    let mut result = SuiteResult {
        passed: Vec::new(),
        failed: Vec::new(),
        log,
    };
    for line in text.lines() {
        if let Some(name) = librdkafka_pass(line) {
            result.passed.push(name.to_owned());
        } else if let Some(name) = librdkafka_failure(line)
            && !result.failed.iter().any(|known| known == name)
        {
            // A test of several parts fails several times.
            result.failed.push(name.to_owned());
        }
    }
    result.complete(output.status)
}

/// A folder with Kafka's own script for topics, which a few tests call.
fn kafka_scripts(context: &Context, folder: &Path) -> Result<PathBuf> {
    let jars = context.clients.kafka_jars()?.join("*");
    let home = folder.join("kafka");
    let script = home.join("bin/kafka-topics.sh");
    std::fs::create_dir_all(home.join("bin"))?;
    let text = format!(
        "#!/bin/sh\nexec java -cp '{}' org.apache.kafka.tools.TopicCommand \"$@\"\n",
        jars.display()
    );
    std::fs::write(&script, text)?;
    std::fs::set_permissions(&script, Permissions::from_mode(0o755))?;
    Ok(home)
}

/// `... ==== Test 0012_produce_consume PASSED ====`, with colours around it.
fn librdkafka_pass(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("= Test ")?;
    let (name, rest) = rest.split_once(' ')?;
    rest.starts_with("PASSED ====").then_some(name)
}

/// `### Test "0081_admin (one part of it)" failed at FILE:LINE...`. The runner as a whole counts as
/// `<MAIN>`: it fails when a failed test has left something running.
fn librdkafka_failure(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("### Test \"")?;
    let (name, rest) = rest.split_once('"')?;
    let name = name.split(' ').next()?;
    (rest.starts_with(" failed at") && name != "<MAIN>").then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_found_among_colours() {
        let pass = "\u{1b}[32m======= Test 0012_produce PASSED =======";
        assert_eq!(librdkafka_pass(pass), Some("0012_produce"));
        assert_eq!(librdkafka_pass("= Test 0082_max SKIPPED ===="), None);
        assert_eq!(librdkafka_pass("= Running test 0012_produce ===="), None);
        let failure = "\u{1b}[31m### Test \"0081_admin (a part)\" failed at admin.c:23:f() at Sat";
        assert_eq!(librdkafka_failure(failure), Some("0081_admin"));
        assert_eq!(
            librdkafka_failure("### Test \"<MAIN>\" failed at test.c:1:f()"),
            None
        );
    }
}
