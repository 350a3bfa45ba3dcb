//! Kafka's clients, and Kafka itself.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{Clients, alone, module, module_copy, npm, pip, venv};
use crate::workspace::output;

const PYTHON_REQUIREMENTS: &str = locked!("kafka-python", "requirements.txt");
/// Its wheels are for Pythons that are gone: it is compiled against the librdkafka below.
const OLD_CONFLUENT_KAFKA: &str = "confluent-kafka==1.9.2";
/// Has librdkafka 1.9.2 in it as a header and a static library.
const OLD_LIBRDKAFKA_MODULE: &str = "github.com/confluentinc/confluent-kafka-go@v1.9.2";
/// Stands for the module that starts brokers in kafka-python's tests, where one runs already.
const SERVICE: &str = "\
class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    def close(self):
        pass


class SpawnedService:
    pass
";
/// The broker, its command line tools, and its client, which the tools need; a silent logger.
const JARS: &[&str] = &[
    "org.apache.kafka:kafka_2.13:4.3.1",
    "org.apache.kafka:kafka-tools:4.3.1",
    "org.apache.kafka:kafka-clients:4.3.1",
    "org.slf4j:slf4j-nop:1.7.36",
];
/// The version that `tests/clients/kafka/go` uses.
const FRANZ_GO_MODULE: &str = "github.com/twmb/franz-go@v1.20.6";
/// Has librdkafka's whole source in it, with its tests.
const LIBRDKAFKA_PACKAGE: &str = "node-rdkafka@3.6.1";

impl Clients {
    /// The interpreter that has confluent-kafka, kafka-python, aiokafka and pynsq.
    pub(crate) fn kafka_python_program(&self) -> PathBuf {
        self.folder.join("kafka-python/bin/python")
    }

    /// The interpreter that has confluent-kafka on librdkafka 1.9.2.
    pub(crate) fn old_librdkafka_program(&self) -> PathBuf {
        self.folder.join("librdkafka-1/bin/python")
    }

    /// The folder that has `node_modules` with KafkaJS.
    pub(crate) fn kafka_node_folder(&self) -> PathBuf {
        self.folder.join("kafka-node")
    }

    /// More packages beside the Kafka clients, for one's own test suite.
    pub(crate) fn kafka_pip(&self, packages: &[&str]) -> Result<()> {
        output(pip(&self.kafka_python_program()).args(packages)).map(drop)
    }

    pub(super) fn kafka_python(&self) -> Result<()> {
        self.once("kafka-python", &[PYTHON_REQUIREMENTS], || {
            self.python_environment("kafka-python", PYTHON_REQUIREMENTS)
        })
    }

    /// kafka-python's source with its tests, which its wheel has not.
    pub(crate) fn kafka_python_source(&self) -> Result<PathBuf> {
        let folder = self.folder.join("kafka-python-source");
        let mut packages = PYTHON_REQUIREMENTS.lines();
        let package = packages
            .find(|package| package.starts_with("kafka-python=="))
            .context("the requirements have no kafka-python")?;
        self.once("kafka-python-source", &[package], || {
            if folder.exists() {
                std::fs::remove_dir_all(&folder)?;
            }
            let mut download = Command::new(self.kafka_python_program());
            download.args(["-m", "pip", "download", "--quiet", "--no-deps"]);
            download.args([
                "--disable-pip-version-check",
                "--no-binary",
                ":all:",
                "--dest",
            ]);
            output(download.arg(&folder).arg(package))?;
            let archive = std::fs::read_dir(&folder)?.next();
            let archive = archive.context("pip has downloaded nothing")??.path();
            let mut tar = Command::new("tar");
            tar.arg("-xzf").arg(archive).arg("-C").arg(&folder);
            output(tar.arg("--strip-components=1"))?;
            // Both are left out of the archive. Without the first, Python's own package `test` is
            // found before this one.
            std::fs::write(folder.join("test/__init__.py"), "")?;
            std::fs::write(folder.join("test/service.py"), SERVICE).map_err(Into::into)
        })?;
        Ok(folder)
    }

    pub(super) fn old_librdkafka(&self) -> Result<()> {
        let what = [OLD_CONFLUENT_KAFKA, OLD_LIBRDKAFKA_MODULE];
        self.once("librdkafka-1", &what, || {
            let folder = self.folder.join("librdkafka-1");
            venv(&folder)?;
            let vendored = module(OLD_LIBRDKAFKA_MODULE)?.join("kafka/librdkafka_vendor");
            let (include, library) = (folder.join("c/include"), folder.join("c/lib"));
            copy_to(
                &vendored.join("rdkafka.h"),
                &include.join("librdkafka/rdkafka.h"),
            )?;
            let archive = vendored.join("librdkafka_glibc_linux.a");
            copy_to(&archive, &library.join("librdkafka.a"))?;
            let mut pip = pip(&self.old_librdkafka_program());
            pip.args(["--no-binary", "confluent-kafka", "--no-cache-dir"]);
            pip.arg(OLD_CONFLUENT_KAFKA)
                .env("C_INCLUDE_PATH", include)
                .env("LIBRARY_PATH", library)
                .env("LDFLAGS", "-lm -ldl -lpthread -lrt");
            output(&mut pip)
                .map(drop)
                .context("compiling it needs the headers of Python (python3-dev)")
        })
    }

    pub(super) fn kafka_node(&self) -> Result<()> {
        let manifest = locked!("kafka-node", "package.json");
        let lock = locked!("kafka-node", "package-lock.json");
        self.node_packages("kafka-node", manifest, lock)
    }

    /// The folder with Kafka's jars and all that they need.
    pub(crate) fn kafka_jars(&self) -> Result<PathBuf> {
        let folder = self.folder.join("kafka-jars");
        self.once("kafka-jars", JARS, || maven(JARS, &folder))?;
        Ok(folder)
    }

    /// The folder with librdkafka's own source, its library compiled.
    fn librdkafka(&self) -> Result<PathBuf> {
        let folder = self.folder.join("librdkafka");
        let source = folder.join("node_modules/node-rdkafka/deps/librdkafka");
        self.once("librdkafka", &[LIBRDKAFKA_PACKAGE], || {
            // Without its scripts npm would only unpack it.
            npm(
                "install",
                &folder,
                &["--ignore-scripts", LIBRDKAFKA_PACKAGE],
            )?;
            let mut configure = Command::new("bash");
            configure
                .current_dir(&source)
                .args(["configure", "--disable-gssapi"]);
            configure.args(["--disable-curl", "--disable-ssl", "--disable-sasl"]);
            output(&mut configure)?;
            let mut make = Command::new("make");
            output(
                make.current_dir(&source)
                    .args(["-j2", "-C", "src", "librdkafka.a"]),
            )
            .map(drop)
        })?;
        Ok(source)
    }

    /// The folder with librdkafka's own tests, compiled.
    pub(crate) fn librdkafka_tests(&self) -> Result<PathBuf> {
        let source = self.librdkafka()?;
        self.once("librdkafka-tests", &[LIBRDKAFKA_PACKAGE], || {
            for (folder, what) in [("src-cpp", "librdkafka++.a"), ("tests", "test-runner")] {
                let mut make = Command::new("make");
                make.current_dir(&source).args(["-j2", "-C", folder, what]);
                output(&mut make)?;
            }
            Ok(())
        })?;
        Ok(source.join("tests"))
    }

    /// A copy of franz-go's source with its tests.
    pub(crate) fn franz_go_source(&self) -> Result<PathBuf> {
        let source = self.folder.join("franz-go");
        self.once("franz-go", &[FRANZ_GO_MODULE], || {
            module_copy(FRANZ_GO_MODULE, &source)
        })?;
        Ok(source)
    }
}

/// Downloads Java packages, `GROUP:ARTIFACT:VERSION`, and what they need.
pub(super) fn maven(packages: &[&str], to: &Path) -> Result<()> {
    let mut text = "<project><modelVersion>4.0.0</modelVersion><groupId>clients</groupId>\
                    <artifactId>jars</artifactId><version>1</version><packaging>pom</packaging>\
                    <dependencies>"
        .to_owned();
    for package in packages {
        let mut words = package.split(':');
        text.push_str("<dependency>");
        for element in ["groupId", "artifactId", "version"] {
            let word = words.next().context("GROUP:ARTIFACT:VERSION")?;
            text.push_str(&format!("<{element}>{word}</{element}>"));
        }
        text.push_str("</dependency>");
    }
    text.push_str("</dependencies></project>");
    std::fs::create_dir_all(to)?;
    // Two that fill its repository at once would damage it.
    let _alone = alone(&to.with_file_name("maven.lock"))?;
    let pom = to.with_extension("pom.xml");
    std::fs::write(&pom, text)?;
    let mut maven = Command::new("mvn");
    maven.args(["--quiet", "--batch-mode", "--file"]).arg(pom);
    maven.args(["dependency:copy-dependencies", "-DincludeScope=runtime"]);
    output(maven.arg(format!("-DoutputDirectory={}", to.display()))).map(drop)
}

/// Copies a file into a folder that is made for it.
fn copy_to(from: &Path, to: &Path) -> Result<()> {
    if let Some(folder) = to.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::copy(from, to)
        .map(drop)
        .with_context(|| format!("cannot copy {}", from.display()))
}
