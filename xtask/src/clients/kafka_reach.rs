//! Clients that reach a Kafka listener by another address than the one it listens on: through a
//! forwarded port, from another machine, or in a container.
//!
//! A network namespace takes the place of the other machine and of the container. It has a loopback
//! device and an address of its own, and is connected to ours by a pair of virtual devices.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::{Context, Report};
use crate::broker::{Kind, Options, free_addresses};
use crate::workspace::output;

/// The port of the broker in the container.
const CONTAINER_PORT: u16 = 9092;

/// A forwarded port on this machine.
pub(super) fn forward(context: &Context, report: &mut Report) -> Result<()> {
    let folder = context.workspace.temp_folder("kafka-forward")?;
    let [forward] = free_addresses()?;
    let mut options = context.options(folder.path())?;
    options.more.push(match options.kind {
        Kind::Kafka => format!("advertised.listeners=PLAINTEXT://{forward}"),
        Kind::Cloverleaf | Kind::Nsqd | Kind::RabbitMq => {
            format!("--kafka-advertised-address={forward}")
        }
    });
    let broker = options.start()?;
    let command = script(context, Command::new(python(context)), "forward_test.py");
    let mut command = context.with_addresses(command, &broker);
    report.program(command.env("FORWARD", forward.to_string()))
}

pub(super) fn namespace(context: &Context, report: &mut Report) -> Result<()> {
    let other = match Namespace::new() {
        Ok(other) => other,
        Err(error) => {
            report.skip("network namespace", &format!("{error:#}"));
            return Ok(());
        }
    };
    elsewhere(context, report, &other)?;
    container(context, report, &other)
}

/// The clients are on another machine. The broker listens on all addresses, and no address is set
/// that it advertises.
fn elsewhere(context: &Context, report: &mut Report, other: &Namespace) -> Result<()> {
    let folder = context.workspace.temp_folder("kafka-elsewhere")?;
    let mut options = context.options(folder.path())?;
    options.kafka.set_ip(Ipv4Addr::UNSPECIFIED.into());
    options.more.push("--allow-anonymous-remote".into());
    let broker = options.start()?;
    let address = SocketAddr::from((other.ours, broker.kafka().port()));
    let mut command = script(context, other.command(python(context)), "elsewhere_test.py");
    report.program(command.env("KAFKA", address.to_string()))
}

/// The broker is in a container with its own loopback device. A port of this machine is forwarded
/// to it.
fn container(context: &Context, report: &mut Report, other: &Namespace) -> Result<()> {
    let folder = context.workspace.temp_folder("kafka-container")?;
    let [forward] = free_addresses()?;
    let mut options = context.options(folder.path())?;
    let Options {
        tcp,
        http,
        kafka,
        amqp,
        ..
    } = &mut options;
    for address in [tcp, http, kafka, amqp] {
        address.set_ip(other.its.into());
    }
    options.kafka.set_port(CONTAINER_PORT);
    options.more.push("--allow-anonymous-remote".into());
    options.more.push(format!(
        "--kafka-advertised-address=localhost:{}",
        forward.port()
    ));
    options.prepare()?;
    let serve = options.command();
    let mut command = other.command(serve.get_program().into());
    command.args(serve.get_args());
    let mut broker = options.spawn_as(command)?;
    broker.wait_ready()?;
    let command = script(context, Command::new(python(context)), "forward_test.py");
    let mut command = context.with_addresses(command, &broker);
    report.program(command.env("FORWARD", format!("localhost:{}", forward.port())))
}

fn python(context: &Context) -> PathBuf {
    context.clients.kafka_python_program()
}

fn script(context: &Context, mut command: Command, name: &str) -> Command {
    let folder = context.workspace.client_tests().join("kafka/python");
    command.arg(folder.join(name));
    command
}

/// A network namespace, connected to ours by a pair of virtual devices.
struct Namespace {
    name: String,
    /// The address of our device.
    ours: Ipv4Addr,
    /// The address of the device in the namespace.
    its: Ipv4Addr,
}

impl Namespace {
    fn new() -> Result<Self> {
        let number = std::process::id();
        // Four addresses below 10.213 for each run, so that two runs do not collide.
        let at = u32::from(Ipv4Addr::new(10, 213, 0, 0)) + (number % (1 << 14)) * 4;
        let namespace = Self {
            name: format!("cloverleaf-{number}"),
            ours: Ipv4Addr::from(at + 1),
            its: Ipv4Addr::from(at + 2),
        };
        let (name, near, far) = (
            &namespace.name,
            format!("cln{number}"),
            format!("clf{number}"),
        );
        ip(&format!("netns add {name}"))?;
        ip(&format!(
            "link add {near} type veth peer name {far} netns {name}"
        ))?;
        ip(&format!("address add {}/30 dev {near}", namespace.ours))?;
        ip(&format!("link set {near} up"))?;
        ip(&format!(
            "-n {name} address add {}/30 dev {far}",
            namespace.its
        ))?;
        ip(&format!("-n {name} link set {far} up"))?;
        ip(&format!("-n {name} link set lo up"))?;
        Ok(namespace)
    }

    /// A command that runs in this network.
    fn command(&self, program: PathBuf) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // The devices are removed with the namespace. An error cannot be reported from here.
        let _ = ip(&format!("netns delete {}", self.name));
    }
}

/// One command of iproute2.
fn ip(words: &str) -> Result<()> {
    output(Command::new("ip").args(words.split(' '))).map(drop)
}
