//! Clients of many libraries that do nothing wrong, for as long as somebody likes to wait: beside
//! each other at one broker, and those in Rust, which `cloverleaf lab healthy` has, at another one.

use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context as _, Result, anyhow, bail};

use super::lab::{self, Link, Outcome};
use super::patients::{Patient, Program};
use super::{Context, Programs, kafka, queues};
use crate::install::Tool;
use crate::workspace::tail;

/// As in `cloverleaf lab healthy`.
const FAR: Link = Link::far("10ms");

const TOOLS: &[Tool] = &[
    Tool::KafkaPython,
    Tool::KafkaNode,
    Tool::KafkaGo,
    Tool::Java,
    Tool::Node,
    Tool::AmqpPython,
    Tool::AmqpNode,
    Tool::AmqpJava,
];

/// Steady ones, unless their names say something else.
const CLIENTS: &[Patient] = &[
    Patient::well("confluent-kafka over TLS", kafka::CONFLUENT).playing("good-tls"),
    Patient::well("kafka-python", kafka::KAFKA_PYTHON),
    Patient::well("KafkaJS", kafka::KAFKAJS),
    Patient::well("franz-go in bursts", kafka::FRANZ_GO).playing("bursts"),
    Patient::well("Java for Kafka", Program::JavaKafka),
    Patient::well("go-nsq", queues::GO_NSQ),
    Patient::well("nsqjs", queues::NSQJS),
    Patient::well("pika that is idle", queues::PIKA).playing("idle"),
    Patient::well("amqplib with a slow handler", queues::AMQPLIB).playing("slow-handler"),
    Patient::well("Java for AMQP", Program::JavaAmqp),
];

/// What came of it.
pub(crate) struct Watched {
    /// Who was watched.
    pub(crate) clients: Vec<String>,
    /// What was found of anybody.
    pub(crate) found: Vec<String>,
    /// What the two labs have printed.
    pub(crate) said: String,
}

/// Watches all of them for so many seconds.
pub(crate) fn watch(context: &Context, seconds: u32) -> Result<Watched> {
    for tool in TOOLS {
        if let Some(program) = tool.missing() {
            bail!("{program} is missing");
        }
        context.clients.install(*tool)?;
    }
    let programs = Programs::build(context, CLIENTS)?;
    let commands = CLIENTS
        .iter()
        .map(|client| Ok((client, programs.command(context, client)?)))
        .collect::<Result<Vec<_>>>()?;
    let (others, in_rust) = thread::scope(|scope| {
        let in_rust = scope.spawn(|| watch_rust(context, seconds));
        let settings = lab::with_tls(context);
        let others = lab::play(context, FAR, &settings, &commands, &seconds.to_string());
        let panicked = |_| Err(anyhow!("the thread has panicked"));
        (others, in_rust.join().unwrap_or_else(panicked))
    });
    let played = match others? {
        Outcome::Played(played) => played,
        Outcome::NoNetwork(reason) => bail!("{reason}"),
    };
    let (is_good, said) = in_rust?;
    let mut clients = Vec::new();
    for client in CLIENTS {
        played.is_whole(client).context(client.name)?;
        let says = played.says(client)?;
        clients.push(format!(
            "{}: {} {}",
            client.name, says.library, says.version
        ));
    }
    clients.push("lapin and librdkafka: the ten clients of `cloverleaf lab healthy`".to_owned());
    let findings = played.answer.findings.iter();
    let mut found: Vec<String> = findings.map(|it| lab::shown(&[it])).collect();
    if !is_good {
        found.push("`cloverleaf lab healthy` has found something".to_owned());
    }
    let said = format!("{}\n{}\n{said}", clients.join("\n"), found.join("\n"));
    Ok(Watched {
        clients,
        found,
        said,
    })
}

/// Those in Rust: whether nothing was found, and what was said.
fn watch_rust(context: &Context, seconds: u32) -> Result<(bool, String)> {
    let mut lab = Command::new(&context.binary);
    lab.args(["lab", "healthy", "--rtt-by", "kernel"])
        .arg(format!("--time={seconds}s"))
        .stdin(Stdio::null());
    let output = lab.output().context("cannot start the lab")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.code() {
        Some(0) => Ok((true, said)),
        Some(1) => Ok((false, said)),
        _ => bail!(
            "{}\n{}",
            output.status,
            tail(&String::from_utf8_lossy(&output.stderr), 30)
        ),
    }
}
