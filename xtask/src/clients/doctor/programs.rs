//! The patients' programs: `tests/clients/doctor`, compiled where they have to be.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::Context;
use super::patients::{Patient, Program};
use crate::install::Tool;
use crate::workspace::{Workspace, output};

/// Where the patients' programs are.
pub(super) struct Programs {
    go: PathBuf,
    java: PathBuf,
}

impl Program {
    /// The clients that have to be installed for it.
    pub(super) fn tool(self) -> Tool {
        match self {
            Program::KafkaPython(_) => Tool::KafkaPython,
            Program::OldLibrdkafka(_) => Tool::OldLibrdkafka,
            Program::AmqpPython(_) => Tool::AmqpPython,
            Program::Python(_) => Tool::Python,
            Program::KafkaNode(_) => Tool::KafkaNode,
            Program::AmqpNode(_) => Tool::AmqpNode,
            Program::Node(_) => Tool::Node,
            Program::Go(_) => Tool::KafkaGo,
            Program::JavaKafka => Tool::Java,
            Program::JavaAmqp => Tool::AmqpJava,
        }
    }
}

impl Programs {
    /// Installs the libraries of these patients, and compiles what has to be.
    pub(super) fn build<'a>(
        context: &Context,
        patients: impl Iterator<Item = &'a Patient> + Clone,
    ) -> Result<Programs> {
        for patient in patients.clone() {
            context.clients.install(patient.program.tool())?;
        }
        let target = context.workspace.clients();
        let programs = Programs {
            go: target.join("doctor-go"),
            java: target.join("doctor-java"),
        };
        let has = |is: fn(&Program) -> bool| patients.clone().any(|it| is(&it.program));
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

    /// The command that plays a patient's story for so many seconds, and writes who it is into
    /// `says`.
    pub(super) fn command(
        &self,
        context: &Context,
        patient: &Patient,
        seconds: u64,
        says: &Path,
    ) -> Result<Command> {
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
        let folder = says.parent().context("a file in a folder")?;
        let name = says.file_name().context("a file with a name")?;
        command
            .arg(patient.story)
            .env("SECONDS", seconds.to_string())
            .env("SAYS", folder)
            .env("PATIENT", name)
            .env("CLOVERLEAF_TLS_CA", context.tls_authority());
        Ok(command)
    }
}

/// The library that a patient (a client program under test) reports, and its version.
#[derive(Debug, Default, serde::Deserialize)]
pub(super) struct Says {
    pub(super) library: String,
    pub(super) version: String,
}

impl Says {
    /// Reads the report that the patient has written into this file.
    pub(super) fn read(file: &Path) -> Result<Says> {
        let text = std::fs::read_to_string(file).context("it has not said who it is")?;
        Ok(serde_json::from_str(&text)?)
    }
}

/// The patients' sources.
fn source(workspace: &Workspace) -> PathBuf {
    workspace.client_tests().join("doctor")
}
