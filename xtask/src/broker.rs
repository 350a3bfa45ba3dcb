//! A broker under test: ours, or an original, with the same options in each one's own words.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};

use crate::http;
use crate::kafka_server;
use crate::process::Process;
use crate::rabbitmq_server;
use crate::wait;

/// How far the first ports of processes are apart whose numbers follow each other.
const PORTS_OF_PROCESS: u32 = 101;

/// At most this many lines of a broker's log are printed at its end: a full disk is the reason for
/// many.
const LOGGED_ERRORS_MAX: usize = 10;

/// Which program is under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Cloverleaf,
    /// The original. The client tests run against it too, which is what shows that they are right.
    Nsqd,
    /// Apache Kafka, for the same reason; its `binary` is the folder with its jars.
    Kafka,
    /// RabbitMQ, for the same reason; its `binary` is the folder with a Debian that has it.
    RabbitMq,
}

/// How to start a broker. Addresses are free ports of the loopback device unless they are set.
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) kind: Kind,
    pub(crate) binary: PathBuf,
    pub(crate) data: PathBuf,
    pub(crate) tcp: SocketAddr,
    pub(crate) http: SocketAddr,
    /// The lookup HTTP API; ours only, nsqd has nsqlookupd for it.
    pub(crate) lookup_http: SocketAddr,
    /// nsqd opens its HTTPS port even without a certificate; ours is turned off.
    https: SocketAddr,
    /// The admin address with `/metrics` of ours, the controller's of Kafka.
    pub(crate) admin: SocketAddr,
    /// The Kafka protocol, of ours and of Kafka.
    pub(crate) kafka: SocketAddr,
    /// And over TLS, where `tls` is set.
    pub(crate) kafka_tls: SocketAddr,
    /// AMQP 0-9-1, of ours and of RabbitMQ.
    pub(crate) amqp: SocketAddr,
    /// And over TLS, where `tls` is set.
    pub(crate) amqp_tls: SocketAddr,
    /// Existing nsqlookupd processes to register with.
    pub(crate) lookupd_tcp: Vec<SocketAddr>,
    pub(crate) auth_http: Option<SocketAddr>,
    /// Certificate and key, PEM.
    pub(crate) tls: Option<(PathBuf, PathBuf)>,
    /// `kernel`, `disk` or `protocol`; ours only.
    pub(crate) durability: Option<&'static str>,
    /// More flags, in the words of the program.
    pub(crate) more: Vec<String>,
}

impl Options {
    /// Free ports, no TLS, no authentication, the program's own durability.
    pub(crate) fn new(kind: Kind, binary: &Path, data: &Path) -> Result<Self> {
        let addresses = free_addresses()?;
        let [
            tcp,
            http,
            lookup_http,
            https,
            admin,
            kafka,
            kafka_tls,
            amqp,
            amqp_tls,
        ] = addresses;
        Ok(Self {
            kind,
            binary: binary.to_path_buf(),
            data: data.to_path_buf(),
            tcp,
            http,
            lookup_http,
            https,
            admin,
            kafka,
            kafka_tls,
            amqp,
            amqp_tls,
            lookupd_tcp: Vec::new(),
            auth_http: None,
            tls: None,
            durability: None,
            more: Vec::new(),
        })
    }

    /// The command that starts the broker.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.binary);
        match self.kind {
            Kind::Cloverleaf => self.cloverleaf(&mut command),
            Kind::Nsqd => self.nsqd(&mut command),
            Kind::Kafka => return kafka_server::command(self),
            Kind::RabbitMq => return rabbitmq_server::command(self),
        }
        command.args(&self.more);
        command
    }

    fn cloverleaf(&self, command: &mut Command) {
        command
            .arg("serve")
            .arg(flag("data-dir", self.data.display()));
        command.arg(flag("nsq-tcp-address", self.tcp));
        command.arg(flag("nsq-http-address", self.http));
        command.arg(flag("nsq-lookup-http-address", self.lookup_http));
        command.arg(flag("admin-address", self.admin));
        command.arg(flag("nsq-https-address", ""));
        command.arg(flag("nsq-broadcast-address", "127.0.0.1"));
        command.arg(flag("kafka-address", self.kafka));
        command.arg(flag("amqp-address", self.amqp));
        for address in &self.lookupd_tcp {
            command.arg(flag("nsq-lookupd-tcp-address", address));
        }
        if let Some(address) = self.auth_http {
            command.arg(flag("nsq-auth-http-address", address));
        }
        if let Some((certificate, key)) = &self.tls {
            command.arg(flag("nsq-tls-cert", certificate.display()));
            command.arg(flag("nsq-tls-key", key.display()));
            command.arg(flag("kafka-tls-address", self.kafka_tls));
            command.arg(flag("kafka-tls-cert", certificate.display()));
            command.arg(flag("kafka-tls-key", key.display()));
            command.arg(flag("amqp-tls-address", self.amqp_tls));
            command.arg(flag("amqp-tls-cert", certificate.display()));
            command.arg(flag("amqp-tls-key", key.display()));
        }
        if let Some(durability) = self.durability {
            command.arg(flag("durability", durability));
        }
    }

    fn nsqd(&self, command: &mut Command) {
        command.arg(flag("data-path", self.data.display()));
        command.arg(flag("tcp-address", self.tcp));
        command.arg(flag("http-address", self.http));
        command.arg(flag("https-address", self.https));
        command.arg(flag("broadcast-address", "127.0.0.1"));
        for address in &self.lookupd_tcp {
            command.arg(flag("lookupd-tcp-address", address));
        }
        if let Some(address) = self.auth_http {
            command.arg(flag("auth-http-address", address));
        }
        if let Some((certificate, key)) = &self.tls {
            command.arg(flag("tls-cert", certificate.display()));
            command.arg(flag("tls-key", key.display()));
        }
    }

    /// Starts the broker and waits until it serves.
    pub(crate) fn start(&self) -> Result<Broker> {
        let mut broker = self.spawn()?;
        broker.wait_ready()?;
        Ok(broker)
    }

    /// Starts the broker without waiting for anything.
    pub(crate) fn spawn(&self) -> Result<Broker> {
        self.prepare()?;
        self.spawn_as(self.command())
    }

    /// Makes the data folder, and in it what the program cannot do without.
    pub(crate) fn prepare(&self) -> Result<()> {
        std::fs::create_dir_all(&self.data)?;
        match self.kind {
            Kind::Cloverleaf | Kind::Nsqd => Ok(()),
            Kind::Kafka => kafka_server::prepare(self),
            Kind::RabbitMq => rabbitmq_server::prepare(self),
        }
    }

    /// Starts `command`, which ends up running this broker (under a tracer, for example).
    pub(crate) fn spawn_as(&self, mut command: Command) -> Result<Broker> {
        // Beside the data folder: that one may be full or read-only.
        let log = self.data.with_extension("out");
        Ok(Broker {
            process: Process::start(&mut command, &log)?,
            options: self.clone(),
        })
    }
}

/// A running broker. Dropped, it is killed.
pub(crate) struct Broker {
    process: Process,
    options: Options,
}

impl Drop for Broker {
    /// Prints the errors that the broker has logged, beside the checks that they may explain: its
    /// log goes with the folder of its group.
    fn drop(&mut self) {
        let log = self.process.log();
        let errors = log.lines().filter(|line| line.contains(" ERROR "));
        for line in errors.take(LOGGED_ERRORS_MAX) {
            println!("        the broker logged: {line}");
        }
    }
}

impl Broker {
    pub(crate) fn tcp(&self) -> SocketAddr {
        self.options.tcp
    }

    pub(crate) fn http(&self) -> SocketAddr {
        self.options.http
    }

    pub(crate) fn kafka(&self) -> SocketAddr {
        self.options.kafka
    }

    pub(crate) fn kafka_tls(&self) -> SocketAddr {
        self.options.kafka_tls
    }

    pub(crate) fn amqp(&self) -> SocketAddr {
        self.options.amqp
    }

    pub(crate) fn amqp_tls(&self) -> SocketAddr {
        self.options.amqp_tls
    }

    pub(crate) fn admin(&self) -> SocketAddr {
        self.options.admin
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    pub(crate) fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Waits until the broker serves all its protocols.
    pub(crate) fn wait_ready(&mut self) -> Result<()> {
        let Options {
            kind,
            tcp,
            http,
            kafka,
            amqp,
            ..
        } = self.options;
        let open = |address| TcpStream::connect(address).is_ok();
        let pings = || http::get(http, "/ping").is_ok_and(|answer| answer.status == 200);
        let process = &mut self.process;
        wait::until("the broker serves", wait::HANG, || {
            if let Some(status) = process.exit_status()? {
                bail!("the broker ended ({status}):\n{}", process.log());
            }
            Ok(match kind {
                Kind::Cloverleaf => open(tcp) && pings() && open(kafka) && open(amqp),
                Kind::Nsqd => open(tcp) && pings(),
                Kind::Kafka => open(kafka),
                Kind::RabbitMq => open(amqp),
            })
        })
        .with_context(|| process.log())
    }

    /// SIGKILL, then a new process on the same data and addresses.
    pub(crate) fn crash_and_restart(&mut self) -> Result<()> {
        self.process.kill()?;
        *self = self.options.start()?;
        Ok(())
    }

    /// SIGTERM; returns how it ended.
    pub(crate) fn terminate(&mut self) -> Result<ExitStatus> {
        self.process.terminate(wait::HANG)
    }

    /// Creates a topic and, unless it is empty, a channel on it.
    pub(crate) fn create(&self, topic: &str, channel: &str) -> Result<()> {
        let mut paths = vec![format!("/topic/create?topic={topic}")];
        if !channel.is_empty() {
            paths.push(format!("/channel/create?topic={topic}&channel={channel}"));
        }
        for path in paths {
            let answer = http::post(self.http(), &path, b"")?;
            if answer.status != 200 {
                bail!("{path}: status {}: {}", answer.status, answer.text());
            }
        }
        Ok(())
    }

    /// The depth of a channel, from `/stats`.
    pub(crate) fn depth(&self, topic: &str, channel: &str) -> Result<u64> {
        let path = format!("/stats?format=json&topic={topic}&channel={channel}");
        let stats = http::get(self.http(), &path)?.json()?;
        let channel = &stats["topics"][0]["channels"][0];
        channel["depth"]
            .as_u64()
            .with_context(|| format!("no depth in {stats}"))
    }
}

/// As many different free ports on the loopback device as asked for: below those that the kernel
/// gives to whoever asks for any, which a client's connection could take before the broker does, or
/// between its end and its next start. Each process of ours begins elsewhere, because groups run
/// side by side.
pub(crate) fn free_addresses<const N: usize>() -> Result<[SocketAddr; N]> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    const PORTS: Range<u16> = 10_000..32_000;
    let many = u32::from(PORTS.end - PORTS.start);
    let first = std::process::id().wrapping_mul(PORTS_OF_PROCESS);
    let mut free = (0..many).filter_map(|_| {
        let next = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % many;
        let port = PORTS.start + u16::try_from(next).ok()?;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        TcpListener::bind(address).is_ok().then_some(address)
    });
    let mut addresses = [SocketAddr::from(([127, 0, 0, 1], 0)); N];
    for address in &mut addresses {
        *address = free.next().context("no port is free")?;
    }
    Ok(addresses)
}

fn flag(name: &str, value: impl std::fmt::Display) -> String {
    format!("--{name}={value}")
}
