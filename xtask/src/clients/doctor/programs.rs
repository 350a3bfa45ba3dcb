//! The client programs in `tests/clients/doctor`: how each is compiled and started.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::Context;
use super::table::Scenario;
use crate::clients::toolchains;
use crate::install::Tool;
use crate::workspace::Workspace;

/// A program in `tests/clients/doctor`.
#[derive(Debug)]
pub(super) struct Program {
    /// Its name in the table of scenarios.
    pub(super) name: &'static str,
    /// The library that it needs, which also tells the interpreter.
    pub(super) tool: Tool,
    /// The protocol that it speaks, as the doctor names it.
    pub(super) protocol: &'static str,
}

const fn program(name: &'static str, tool: Tool, protocol: &'static str) -> Program {
    Program {
        name,
        tool,
        protocol,
    }
}

pub(super) const PROGRAMS: &[Program] = &[
    program("old confluent.py", Tool::OldLibrdkafka, "kafka"),
    program("confluent.py", Tool::KafkaPython, "kafka"),
    program("kafka_python.py", Tool::KafkaPython, "kafka"),
    program("aiokafka_client.py", Tool::KafkaPython, "kafka"),
    program("kafkajs_client.js", Tool::KafkaNode, "kafka"),
    program("franzgo", Tool::KafkaGo, "kafka"),
    program("kafkago", Tool::KafkaGo, "kafka"),
    program("KafkaClient", Tool::Java, "kafka"),
    program("gonsq", Tool::KafkaGo, "nsq"),
    program("pynsq_client.py", Tool::Python, "nsq"),
    program("nsqjs_client.js", Tool::Node, "nsq"),
    program("http_client.py", Tool::Python, "http"),
    program("pika_client.py", Tool::AmqpPython, "amqp"),
    program("aio_pika_client.py", Tool::AmqpPython, "amqp"),
    program("kombu_client.py", Tool::AmqpPython, "amqp"),
    program("amqplib_client.js", Tool::AmqpNode, "amqp"),
    program("amqp091", Tool::KafkaGo, "amqp"),
    program("AmqpClient", Tool::AmqpJava, "amqp"),
    // Some of the lab's scenarios run Python with libraries of Kafka and NSQ.
    program(LAB, Tool::KafkaPython, ""),
];

const LAB: &str = "lab";

impl Program {
    /// Whether it is no program, but a scenario of `cloverleaf lab`.
    pub(super) fn is_lab(&self) -> bool {
        self.name == LAB
    }

    /// Its file, or the folder or class that it is compiled from.
    fn file(&self) -> &'static str {
        self.name.strip_prefix("old ").unwrap_or(self.name)
    }
}

/// The folders of the compiled programs.
pub(super) struct Programs {
    go: PathBuf,
    java: PathBuf,
}

impl Programs {
    /// Installs the libraries that these scenarios need, and compiles their programs.
    pub(super) fn build(context: &Context, scenarios: &[Scenario]) -> Result<Programs> {
        let has = |tool| scenarios.iter().any(|it| it.program.tool == tool);
        for scenario in scenarios {
            context.clients.install(scenario.program.tool)?;
        }
        let target = context.workspace.clients();
        let programs = Programs {
            go: target.join("doctor-go"),
            java: target.join("doctor-java"),
        };
        let source = source(&context.workspace);
        if has(Tool::KafkaGo) {
            toolchains::go_build(&source.join("go"), &programs.go)?;
        }
        let javac = |jars: PathBuf, class: &str| {
            let sources = ["Kit", class].map(|it| source.join(format!("java/{it}.java")));
            toolchains::javac(&jars, &sources, &programs.java.join(class))
        };
        if has(Tool::Java) {
            javac(context.clients.kafka_jars()?, "KafkaClient")?;
        }
        if has(Tool::AmqpJava) {
            javac(context.clients.amqp_jars()?, "AmqpClient")?;
        }
        Ok(programs)
    }

    /// The command that runs a scenario's program for this many seconds. The program writes its
    /// library and version into the file `identity`.
    pub(super) fn command(
        &self,
        context: &Context,
        scenario: &Scenario,
        seconds: u64,
        identity: &Path,
    ) -> Result<Command> {
        let (source, clients) = (source(&context.workspace), &context.clients);
        let file = scenario.program.file();
        let python = |interpreter: PathBuf| {
            let mut command = Command::new(interpreter);
            command.arg(source.join("python").join(file));
            command
        };
        let node = |packages: PathBuf| toolchains::node(&packages, &source.join("node").join(file));
        // Several virtual machines start at once: they are to compile less.
        let java = |jars: PathBuf| {
            let options = ["-XX:TieredStopAtLevel=1"];
            toolchains::java(&options, &jars, &self.java.join(file), file)
        };
        let mut command = match scenario.program.tool {
            Tool::KafkaPython => python(clients.kafka_python_program()),
            Tool::OldLibrdkafka => python(clients.old_librdkafka_program()),
            Tool::AmqpPython => python(clients.amqp_python_program()),
            Tool::Python => python(clients.python_program()),
            Tool::KafkaNode => node(clients.kafka_node_folder()),
            Tool::AmqpNode => node(clients.amqp_node_folder()),
            Tool::Node => node(clients.node_folder()),
            Tool::KafkaGo => Command::new(self.go.join(file)),
            Tool::Java => java(clients.kafka_jars()?)?,
            Tool::AmqpJava => java(clients.amqp_jars()?)?,
            other => bail!("no program runs with {other:?}"),
        };
        command
            .arg(scenario.behaviour)
            .env("SECONDS", seconds.to_string())
            .env("IDENTITY", identity)
            .env("CLOVERLEAF_TLS_CA", context.tls_authority());
        Ok(command)
    }
}

/// The `library` and `version` that a client program has written into this file.
pub(super) fn reported_library(file: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(file).context("it has not said who it is")?;
    Ok(serde_json::from_str(&text)?)
}

/// The programs' sources.
fn source(workspace: &Workspace) -> PathBuf {
    workspace.client_tests().join("doctor")
}
