//! Third-party clients, from their package registries into `target/clients`.
//!
//! Clients are pinned with all that they need: by lock files in `tests/clients/locks`, by versions
//! here, and by the `go.sum` of the programs. Each is installed once: a file `NAME.installed` says
//! by which lock, and another lock has it installed again.
//! Several processes may want the same at once: one installs it, the others wait.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::workspace::{Workspace, on_path, output};

/// Compiled code, which is not to be had for each Python on each machine.
const PYTHON_SNAPPY: &str = "python-snappy==0.7.3";
const NSQ_MODULE: &str = "github.com/nsqio/nsq@v1.3.0";
const NSQ_PROGRAMS: &[&str] = &[
    "bench/bench_writer",
    "bench/bench_reader",
    "apps/nsqd",
    "apps/nsqlookupd",
    "apps/nsqadmin",
    "apps/nsq_tail",
    "apps/nsq_to_file",
    "apps/nsq_stat",
    "apps/to_nsq",
];
const GO_NSQ_MODULE: &str = "github.com/nsqio/go-nsq@v1.1.0";

/// The lock file of the environment of this name.
macro_rules! locked {
    ($name:literal, $file:literal) => {
        include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../tests/clients/locks/",
            $name,
            "/",
            $file
        ))
    };
}

mod amqp;
mod kafka;
pub(crate) mod rabbitmq;

/// A program or library that has to be on the machine for a group of client tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tool {
    Python,
    Node,
    Go,
    Strace,
    /// confluent-kafka, kafka-python and aiokafka.
    KafkaPython,
    /// confluent-kafka on a librdkafka of 2022, which is compiled here.
    OldLibrdkafka,
    KafkaNode,
    KafkaGo,
    /// Kafka's Java client, its tools, and the broker itself.
    Java,
    /// pika, aio-pika and Celery, and clients of the other protocols beside them.
    AmqpPython,
    AmqpNode,
    AmqpGo,
    /// RabbitMQ's Java client.
    AmqpJava,
}

impl Tool {
    /// The programs that make it up.
    fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Python | Self::KafkaPython | Self::AmqpPython => &["python3"],
            Self::OldLibrdkafka => &["python3", "go", "cc"],
            Self::Node | Self::KafkaNode | Self::AmqpNode => &["node", "npm"],
            Self::Go | Self::KafkaGo | Self::AmqpGo => &["go"],
            Self::Java | Self::AmqpJava => &["java", "javac", "mvn"],
            Self::Strace => &["strace"],
        }
    }

    /// The first of its programs that is missing.
    pub(crate) fn missing(self) -> Option<&'static str> {
        self.programs()
            .iter()
            .find(|program| !on_path(program))
            .copied()
    }
}

/// Where the clients go.
pub(crate) struct Clients {
    folder: PathBuf,
}

impl Clients {
    pub(crate) fn new(workspace: &Workspace) -> Self {
        Self {
            folder: workspace.clients(),
        }
    }

    /// Installs what the tests with this tool need; does nothing when it is there.
    pub(crate) fn install(&self, tool: Tool) -> Result<()> {
        match tool {
            Tool::Python => self.python(),
            Tool::Node => self.node(),
            Tool::Go => self.nsq_programs(),
            // Go fetches the modules itself when it builds our programs.
            Tool::Strace | Tool::KafkaGo | Tool::AmqpGo => Ok(()),
            Tool::KafkaPython => self.kafka_python(),
            Tool::OldLibrdkafka => self.old_librdkafka(),
            Tool::KafkaNode => self.kafka_node(),
            Tool::Java => self.kafka_jars().map(drop),
            Tool::AmqpPython => self.amqp_python(),
            Tool::AmqpNode => self.amqp_node(),
            Tool::AmqpJava => self.amqp_jars().map(drop),
        }
        .with_context(|| format!("{tool:?} clients could not be installed (is there a network?)"))
    }

    /// The interpreter that has pynsq.
    pub(crate) fn python_program(&self) -> PathBuf {
        self.folder.join("python/bin/python")
    }

    /// The folder that has `node_modules`.
    pub(crate) fn node_folder(&self) -> PathBuf {
        self.folder.join("node")
    }

    /// One of NSQ's own programs.
    pub(crate) fn nsq_program(&self, name: &str) -> PathBuf {
        self.folder.join("nsq/bin").join(name)
    }

    /// A copy of go-nsq's source with its tests.
    pub(crate) fn go_nsq_source(&self) -> Result<PathBuf> {
        let source = self.folder.join("go-nsq");
        self.once("go-nsq", &[GO_NSQ_MODULE], || {
            module_copy(GO_NSQ_MODULE, &source)
        })?;
        Ok(source)
    }

    /// More packages beside pynsq, for its own test suite.
    pub(crate) fn pip(&self, packages: &[&str]) -> Result<()> {
        output(pip(&self.python_program()).args(packages)).map(drop)
    }

    /// More packages beside nsqjs, for its own test suite.
    pub(crate) fn npm(&self, packages: &[&str]) -> Result<()> {
        npm("install", &self.node_folder(), packages)
    }

    fn python(&self) -> Result<()> {
        let requirements = locked!("python", "requirements.txt");
        self.once("python", &[requirements, PYTHON_SNAPPY], || {
            self.python_environment("python", requirements)?;
            if let Err(error) = self.pip(&[PYTHON_SNAPPY]) {
                println!("SKIPPED nsq/python: ****** snappy: {error:#} ******");
            }
            Ok(())
        })
    }

    fn node(&self) -> Result<()> {
        let manifest = locked!("node", "package.json");
        self.node_packages("node", manifest, locked!("node", "package-lock.json"))
    }

    /// A new Python environment with just these packages.
    fn python_environment(&self, name: &str, requirements: &str) -> Result<()> {
        let folder = self.folder.join(name);
        venv(&folder)?;
        let file = folder.join("requirements.txt");
        std::fs::write(&file, requirements)?;
        output(pip(&folder.join("bin/python")).arg("-r").arg(file)).map(drop)
    }

    /// A folder with a manifest of npm and just what its lock file says.
    fn node_packages(&self, name: &str, manifest: &str, lock: &str) -> Result<()> {
        self.once(name, &[lock], || {
            let folder = self.folder.join(name);
            std::fs::create_dir_all(&folder)?;
            std::fs::write(folder.join("package.json"), manifest)?;
            std::fs::write(folder.join("package-lock.json"), lock)?;
            npm("ci", &folder, &[])
        })
    }

    /// `go install` would ask the module proxy for a list of versions, which some refuse; so the
    /// module is downloaded by its version and built from a copy.
    fn nsq_programs(&self) -> Result<()> {
        self.once("nsq", &[NSQ_MODULE], || {
            let source = self.folder.join("nsq/source");
            module_copy(NSQ_MODULE, &source)?;
            for package in NSQ_PROGRAMS {
                let name = Path::new(package)
                    .file_name()
                    .context("a package has a name")?;
                let program = self.folder.join("nsq/bin").join(name);
                let mut go = Command::new("go");
                go.current_dir(&source)
                    .args(["build", "-buildvcs=false", "-o"])
                    .arg(program);
                output(go.arg(format!("./{package}")))?;
            }
            Ok(())
        })
    }

    /// Runs `install` unless it has succeeded before for just this lock.
    fn once(&self, name: &str, lock: &[&str], install: impl Fn() -> Result<()>) -> Result<()> {
        std::fs::create_dir_all(&self.folder)?;
        let _alone = alone(&self.folder.join(format!("{name}.lock")))?;
        let done = self.folder.join(format!("{name}.installed"));
        let lock = lock.join("\n");
        if std::fs::read_to_string(&done).is_ok_and(|text| text == lock) {
            return Ok(());
        }
        println!("installing {name}");
        install()?;
        std::fs::write(&done, lock)?;
        Ok(())
    }
}

/// Waits until no other process has locked this file; it is locked until the answer is dropped.
fn alone(path: &Path) -> Result<File> {
    let file = File::create(path)?;
    file.lock()?;
    Ok(file)
}

/// A new, empty Python environment.
fn venv(folder: &Path) -> Result<()> {
    let mut python = Command::new("python3");
    output(python.args(["-m", "venv", "--clear"]).arg(folder)).map(drop)
}

/// `pip install` of the environment with this interpreter.
fn pip(python: &Path) -> Command {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "install", "--quiet"]);
    pip.arg("--disable-pip-version-check");
    pip
}

/// `npm install` of these packages, or `npm ci` of what the folder's lock file says.
fn npm(command: &str, folder: &Path, packages: &[&str]) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut npm = Command::new("npm");
    npm.args([command, "--no-audit", "--no-fund", "--loglevel=error"]);
    output(npm.arg("--prefix").arg(folder).args(packages)).map(drop)
}

/// Downloads a Go module and returns its folder in the module cache, which is read-only.
fn module(module: &str) -> Result<PathBuf> {
    let mut go = Command::new("go");
    let description = output(go.args(["mod", "download", "-json", module]))?;
    let description: serde_json::Value = serde_json::from_str(&description)?;
    let folder = description["Dir"].as_str();
    Ok(folder.context("go names no folder for the module")?.into())
}

/// Downloads a Go module and copies it, writable, to `to`.
fn module_copy(name: &str, to: &Path) -> Result<()> {
    let from = module(name)?;
    if to.exists() {
        std::fs::remove_dir_all(to)?;
    }
    copy_folder(&from, to)
}

/// Copies files and folders but not their modes: a module cache is read-only.
fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            std::fs::write(&target, std::fs::read(entry.path())?)?;
        }
    }
    Ok(())
}
