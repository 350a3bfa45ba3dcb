//! A broker in a process of its own: this test binary once more, so that no other program has to be
//! built for these tests.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use cloverleaf_server::{Config, ConfigSources, Server};

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_cloverleaf-workbench");

/// The environment variable that makes the test below a broker: its options, `name=value` a line.
const OPTIONS: &str = "CLOVERLEAF_WORKBENCH_TEST_BROKER";
const TEST: &str = "support::a_broker_in_a_process_of_its_own_answers";

/// A broker in this process.
pub(crate) fn embedded(folder: &Path, options: &[(&str, &str)]) -> Server {
    let listeners = [
        "admin",
        "nsq-tcp",
        "nsq-http",
        "nsq-lookup-http",
        "kafka",
        "amqp",
    ];
    let mut flags: BTreeMap<String, Vec<String>> = listeners
        .iter()
        .map(|it| (format!("{it}-address"), vec!["127.0.0.1:0".to_owned()]))
        .collect();
    let folder = folder.display().to_string();
    let more = [("data-dir", &*folder), ("disk-free-bytes-min", "0")];
    for (name, value) in more.iter().chain(options) {
        flags.insert((*name).to_owned(), vec![(*value).to_owned()]);
    }
    let sources = ConfigSources {
        flags,
        ..ConfigSources::default()
    };
    Server::start(Config::load(&sources).unwrap()).unwrap()
}

pub(crate) struct Broker {
    pub(crate) child: Child,
    addresses: BTreeMap<String, String>,
}

impl Broker {
    pub(crate) fn start(folder: &Path) -> Broker {
        Broker::with(folder, &[])
    }

    /// Starts a broker with these options of `cloverleaf serve`.
    pub(crate) fn with(folder: &Path, options: &[(&str, &str)]) -> Broker {
        let folder = ("data-dir", folder.to_str().unwrap());
        let options = options.iter().chain([&folder]);
        let options: Vec<String> = options.map(|(name, it)| format!("{name}={it}")).collect();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", TEST, "--nocapture"])
            .env(OPTIONS, options.join("\n"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let lines = lines.map(Result::unwrap).take_while(|line| line != "ready");
        let addresses = lines
            .filter_map(|line| Some(line.strip_prefix("listens ")?.to_owned()))
            .filter_map(|line| line.split_once(' ').map(|(a, b)| (a.into(), b.into())))
            .collect();
        Broker { child, addresses }
    }

    /// `host:port` for `nsq`, `nsq-http`, `kafka` or `amqp`.
    pub(crate) fn address(&self, protocol: &str) -> &str {
        &self.addresses[protocol]
    }

    /// The URL of the NSQ listener for `bench`.
    pub(crate) fn nsq(&self) -> String {
        let [tcp, http] = ["nsq", "nsq-http"].map(|it| self.address(it));
        format!("nsq://{tcp}?http={http}")
    }

    /// The answer of its HTTP interface for NSQ.
    pub(crate) fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.address("nsq-http")).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    pub(crate) fn end_by(&mut self, signal: &str) -> ExitStatus {
        self.signal(signal);
        self.child.wait().unwrap()
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        Command::new("kill").args([signal, &pid]).status().unwrap();
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_broker_in_a_process_of_its_own_answers() {
    let Ok(options) = std::env::var(OPTIONS) else {
        let folder = tempfile::tempdir().unwrap();
        let broker = Broker::start(folder.path());
        assert_ne!(broker.child.id(), std::process::id());
        assert!(broker.get("/ping").ends_with("OK"));
        return;
    };
    let options: Vec<_> = options
        .lines()
        .map(|it| it.split_once('=').unwrap())
        .collect();
    let server = embedded(Path::new("set below"), &options);
    let addresses = server.addresses();
    // The test harness has printed the begin of a line.
    println!();
    let tell = |name: &str, at: Option<SocketAddr>| println!("listens {name} {}", at.unwrap());
    tell("nsq", addresses.of("nsq.tcp_address"));
    tell("nsq-http", addresses.of("nsq.http_address"));
    tell("kafka", addresses.of("kafka.address"));
    tell("amqp", addresses.of("amqp.address"));
    println!("ready");
    loop {
        std::thread::park();
    }
}
