//! What `cloverleaf doctor` says about real clients: each plays a mistake that its library invites,
//! and beside it a well-configured program of the same library, a round trip away from the broker
//! (`cloverleaf lab run`). Each mistake has to be the one finding about that client, with the
//! library and version that it really has, and with that library's own setting.

mod healthy;
mod kafka;
mod lab;
mod patients;
mod play;
mod queues;
mod stories;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::{Context, Report};
use crate::workspace::{Workspace, output};
use lab::{Answer, Finding, Link};
use patients::{Expected, Patient, Program};
use play::play;

/// How far they are from the broker: far enough that what they do themselves is little, on a busy
/// machine, too.
const FAR: Link = Link::far("20ms");
/// The same for libraries that linger, for 5 ms: that has to be a good part of it.
const LINGER: Link = Link::far("5ms");
/// The same for programs that take much of 20 ms for a message on a busy machine: many clients in
/// Python, Node, Go and Java beside each other, and one that starts a program for each message.
const FARTHER: Link = Link::far("60ms");
/// The blog post's.
const SEED_001: Link = Link::far("1ms");
/// Less than each of the patients would send, who share it.
const NARROW: Link = Link {
    rtt: "10ms",
    bandwidth: Some("20Mbit"),
};

pub(crate) use healthy::watch as watch_healthy;

pub(super) fn librdkafka(context: &Context, report: &mut Report) -> Result<()> {
    let tls = lab::with_tls(context);
    play(context, report, FAR, kafka::LIBRDKAFKA, &tls)
}

pub(super) fn linger(context: &Context, report: &mut Report) -> Result<()> {
    play(context, report, LINGER, kafka::LINGER_BY_DEFAULT, &[])
}

pub(super) fn kafka(context: &Context, report: &mut Report) -> Result<()> {
    play(context, report, FARTHER, kafka::KAFKA, &[])
}

pub(super) fn nsq(context: &Context, report: &mut Report) -> Result<()> {
    play(context, report, FAR, queues::NSQ, &[])?;
    play(context, report, FARTHER, queues::HTTP, &[])
}

pub(super) fn amqp(context: &Context, report: &mut Report) -> Result<()> {
    play(context, report, FARTHER, queues::AMQP, &[])
}

/// Text over a link that is full of it.
pub(super) fn narrow(context: &Context, report: &mut Report) -> Result<()> {
    play(context, report, NARROW, queues::NARROW, &[])
}

/// The blog post's loop over a network of a millisecond, with a broker that acknowledges late, as
/// others do.
pub(super) fn seed_001(context: &Context, report: &mut Report) -> Result<()> {
    let mut settings = lab::with_tls(context);
    settings.push("quick-ack=false".to_owned());
    play(context, report, SEED_001, kafka::SEED_001, &settings)
}

/// Stories with what they change.
pub(super) fn stories(context: &Context, report: &mut Report) -> Result<()> {
    stories::play(context, report)
}

impl Expected {
    fn check(&self, finding: &Finding) -> Result<()> {
        if finding.rule != self.rule {
            bail!("{} is found, not {}", finding.rule, self.rule);
        }
        let Some(change) = finding.changes.first() else {
            bail!("it names no change");
        };
        if change.setting != self.setting || !change.client.contains(self.client) {
            bail!(
                "it says to change {:?} of {}, not {:?} of {}",
                change.setting,
                change.client,
                self.setting,
                self.client
            );
        }
        if !self.value.holds(change.value.as_deref()) {
            bail!("it sets {} to {:?}", change.setting, change.value);
        }
        if !self.code.is_empty() && !change.code.iter().any(|line| line.contains(self.code)) {
            bail!("no line of {:?} has {:?}", change.code, self.code);
        }
        Ok(())
    }
}

/// Where the patients' programs are.
struct Programs {
    go: PathBuf,
    java: PathBuf,
}

impl Programs {
    /// Compiles what of them has to be.
    fn build(context: &Context, patients: &[Patient]) -> Result<Programs> {
        let target = context.workspace.clients();
        let programs = Programs {
            go: target.join("doctor-go"),
            java: target.join("doctor-java"),
        };
        let has = |is: fn(&Program) -> bool| patients.iter().any(|it| is(&it.program));
        if has(|it| matches!(it, Program::Go(_))) {
            std::fs::create_dir_all(&programs.go)?;
            let mut go = Command::new("go");
            go.current_dir(source(&context.workspace).join("go"));
            go.args(["build", "-buildvcs=false", "-o"])
                .arg(&programs.go);
            output(go.arg("./..."))?;
        }
        if has(|it| matches!(it, Program::JavaKafka)) {
            programs.javac(context, &context.clients.kafka_jars()?, "KafkaClient")?;
        }
        if has(|it| matches!(it, Program::JavaAmqp)) {
            programs.javac(context, &context.clients.amqp_jars()?, "AmqpClient")?;
        }
        Ok(programs)
    }

    fn javac(&self, context: &Context, jars: &Path, class: &str) -> Result<()> {
        let classes = self.java.join(class);
        std::fs::create_dir_all(&classes)?;
        let folder = source(&context.workspace).join("java");
        let mut javac = Command::new("javac");
        javac.arg("-cp").arg(jars.join("*")).arg("-d").arg(&classes);
        javac.arg(folder.join("Kit.java"));
        output(javac.arg(folder.join(format!("{class}.java")))).map(drop)
    }

    fn command(&self, context: &Context, patient: &Patient) -> Result<Command> {
        let source = source(&context.workspace);
        let clients = &context.clients;
        let python = |interpreter: PathBuf, script: &str| {
            let mut command = Command::new(interpreter);
            command.arg(source.join("python").join(script));
            command
        };
        let node = |packages: PathBuf, script: &str| {
            let mut command = Command::new("node");
            command.arg(source.join("node").join(script));
            command.env("NODE_PATH", packages.join("node_modules"));
            command
        };
        let java = |jars: PathBuf, class: &str| -> Result<Command> {
            let path = std::env::join_paths([jars.join("*"), self.java.join(class)])?;
            let mut command = Command::new("java");
            // Many start at once.
            command.args(["-XX:TieredStopAtLevel=1", "-cp"]).arg(path);
            command.arg(class);
            Ok(command)
        };
        let mut command = match patient.program {
            Program::KafkaPython(script) => python(clients.kafka_python_program(), script),
            Program::OldLibrdkafka(script) => python(clients.old_librdkafka_program(), script),
            Program::AmqpPython(script) => python(clients.amqp_python_program(), script),
            Program::Python(script) => python(clients.python_program(), script),
            Program::KafkaNode(script) => node(clients.kafka_node_folder(), script),
            Program::AmqpNode(script) => node(clients.amqp_node_folder(), script),
            Program::Node(script) => node(clients.node_folder(), script),
            Program::Go(name) => Command::new(self.go.join(name)),
            Program::JavaKafka => java(clients.kafka_jars()?, "KafkaClient")?,
            Program::JavaAmqp => java(clients.amqp_jars()?, "AmqpClient")?,
        };
        command.arg(patient.story);
        Ok(command)
    }
}

/// The patients' sources.
fn source(workspace: &Workspace) -> PathBuf {
    workspace.client_tests().join("doctor")
}

/// What `lab run` prints, once it was understood.
impl Answer {
    fn of(text: &str) -> Result<Answer> {
        serde_json::from_str(text).with_context(|| format!("no report: {text}"))
    }
}
