//! The original Apache Kafka: one KRaft node on the loopback device, with the options of its own
//! start script, a plain listener and a TLS listener. The client tests run against it too.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::broker::Options;
use crate::workspace::output;

/// Any UUID in Kafka's base 64: each data folder is a cluster of its own.
const CLUSTER_ID: &str = "MkU3OEVBNTcwNTJENDM2Qk";
/// As `bin/kafka-run-class.sh` and `bin/kafka-server-start.sh` start it.
const JVM_OPTIONS: &[&str] = &[
    "-server",
    "-Xmx1G",
    "-Xms1G",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
];
/// Not defaults: what one node needs, quicker background work, and no wait for more members.
const PROPERTIES: &str = "\
process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL
num.partitions=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.segment.delete.delay.ms=1000
log.cleaner.backoff.ms=500
";

/// A Java program from Kafka's jars, which lie in `jars`.
pub(crate) fn java(jars: &Path, options: &[&str], class: &str) -> Command {
    let mut java = Command::new("java");
    java.args(options).arg("-cp").arg(jars.join("*")).arg(class);
    java
}

/// The command that runs the broker; [`prepare`] has made its folder.
pub(crate) fn command(options: &Options) -> Command {
    let mut command = java(&options.binary, JVM_OPTIONS, "kafka.Kafka");
    command.arg(options.data.join("server.properties"));
    command
}

/// Writes the configuration and formats the data folder when it is new.
pub(crate) fn prepare(options: &Options) -> Result<()> {
    let file = options.data.join("server.properties");
    let log = options.data.join("log");
    let [plain, tls, controller] = [options.kafka, options.kafka_tls, options.admin];
    let mut listeners = format!("PLAINTEXT://{plain}");
    let mut text = PROPERTIES.to_owned();
    if let Some((certificate, key)) = &options.tls {
        write!(listeners, ",SSL://{tls}")?;
        // One PEM file with the key first.
        let store = options.data.join("server.keystore.pem");
        let mut pem = std::fs::read_to_string(key)?;
        pem.push_str(&std::fs::read_to_string(certificate)?);
        std::fs::write(&store, pem)?;
        writeln!(text, "ssl.keystore.type=PEM")?;
        writeln!(text, "ssl.keystore.location={}", store.display())?;
    }
    writeln!(text, "advertised.listeners={listeners}")?;
    writeln!(text, "listeners={listeners},CONTROLLER://{controller}")?;
    writeln!(text, "controller.quorum.voters=1@{controller}")?;
    writeln!(text, "log.dirs={}", log.display())?;
    for line in &options.more {
        writeln!(text, "{line}")?;
    }
    std::fs::write(&file, text)?;
    if log.join("meta.properties").exists() {
        return Ok(());
    }
    let mut format = java(&options.binary, &[], "kafka.tools.StorageTool");
    format.args(["format", "-t", CLUSTER_ID, "-c"]).arg(&file);
    output(&mut format)
        .map(drop)
        .context("cannot format Kafka's data folder")
}
