//! A real broker on ports that the system chooses, and the ways in which a test waits for it.
#![allow(clippy::unwrap_used, clippy::expect_used, dead_code, unreachable_pub)]

use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cloverleaf_broker::ManualClock;
use cloverleaf_log::{Disk, FaultyDisk, RealDisk};
use cloverleaf_server::config_value::ListenAddress;
use cloverleaf_server::{Config, Server, SystemClock};
use tempfile::TempDir;

use crate::kafka_support::Client;
use crate::nsq_support::request;

/// Time limit of waits: only a failing test waits this long.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub struct Broker {
    pub server: Server,
    _folder: TempDir,
}

/// A configuration with free ports, on this folder.
pub fn config(folder: &TempDir) -> Config {
    let any_port = || ListenAddress("127.0.0.1:0".to_owned());
    let mut config = Config::default();
    config.general.data_dir = folder.path().join("data");
    config.general.admin_address = any_port();
    config.general.disk_free_bytes_min.0 = 0;
    config.general.cores = 1;
    config.nsq.tcp_address = any_port();
    config.nsq.http_address = any_port();
    config.nsq.https_address = any_port();
    config.nsq.lookup_http_address = any_port();
    config.nsq.broadcast_address = "127.0.0.1".to_owned();
    // Auth services and nsqlookupd use the machine's time, and the machine may be slow.
    config.nsq.http_client_connect_timeout = PATIENCE;
    config.nsq.http_client_request_timeout = PATIENCE;
    config.kafka.address = any_port();
    config.amqp.address = any_port();
    config
}

/// Starts a broker; `change` adjusts its configuration for the test.
pub fn start(change: impl FnOnce(&mut Config)) -> Broker {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(&folder);
    change(&mut config);
    Broker {
        server: Server::start(config).unwrap(),
        _folder: folder,
    }
}

/// Like [`start`], on a disk that reports all files as cached by the kernel. A real kernel may drop
/// them from memory at any time.
pub fn start_all_cached(change: impl FnOnce(&mut Config)) -> Broker {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(&folder);
    change(&mut config);
    let open = |folder: &Path| {
        let disk = FaultyDisk::new(RealDisk::open(folder)?);
        disk.set(|faults| faults.all_cached = true);
        Ok(disk as Arc<dyn Disk>)
    };
    let clock = Arc::new(SystemClock::default());
    Broker {
        server: Server::start_on(open, config, clock, None).unwrap(),
        _folder: folder,
    }
}

/// Starts a broker with a clock that only the test advances.
pub fn start_driven(change: impl FnOnce(&mut Config)) -> (Broker, Time) {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(&folder);
    // A member that joins would wait until the test advances the clock.
    config.kafka.initial_rebalance_delay = Duration::ZERO;
    change(&mut config);
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let clock = Arc::new(ManualClock::new(since_epoch.as_millis() as u64));
    let broker = Broker {
        server: Server::start_with(config, clock.clone(), None).unwrap(),
        _folder: folder,
    };
    let addresses = broker.server.addresses();
    let time = Time {
        clock,
        control: broker.client(),
        admin: addresses.of("admin_address").unwrap(),
    };
    (broker, time)
}

/// A broker's clock, and a Kafka connection by which the test waits for the broker.
pub struct Time {
    clock: Arc<ManualClock>,
    control: Client<TcpStream>,
    admin: std::net::SocketAddr,
}

impl Time {
    /// Waits until the broker has processed everything sent so far over connections that it has
    /// accepted (a connection is accepted once it has had an answer). The broker's only core and
    /// its HTTP thread serve their connections in turn, each until nothing moves: the first round
    /// trip starts after the bytes that were sent, the second one after the turn that processes
    /// them.
    pub fn settle(&mut self) {
        for _ in 0..2 {
            self.control.api_versions();
            assert_eq!(request(self.admin, "GET", "/healthz", b"").status, 200);
        }
    }

    /// Waits until the broker's only core has given each connection a turn.
    pub fn take_turn(&mut self) {
        for _ in 0..2 {
            self.control.api_versions();
        }
    }

    /// Waits until the broker has processed everything, advances the clock, and waits until the
    /// broker has done what is due then.
    pub fn pass(&mut self, time: Duration) {
        self.settle();
        self.clock.advance(u64::try_from(time.as_millis()).unwrap());
        self.settle();
    }

    /// Advances the clock in steps until `condition` is true.
    pub fn pass_until(&mut self, step: Duration, what: &str, mut condition: impl FnMut() -> bool) {
        eventually(what, || {
            self.pass(step);
            condition()
        });
    }
}

/// Waits until `condition` is true.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Shuts down a broker whose drain timeout is never reached; fails if that does not end.
pub fn expect_shutdown(broker: Broker) {
    let (sender, ended) = channel();
    let thread = std::thread::spawn(move || {
        broker.server.shutdown();
        let _ = sender.send(());
    });
    ended.recv_timeout(PATIENCE).expect("no end in time");
    thread.join().unwrap();
}

/// Bytes that were sent over this connection and are in a kernel buffer of either side.
fn unread_bytes(socket: &TcpStream) -> u64 {
    let port = |address: std::io::Result<std::net::SocketAddr>| address.unwrap().port();
    let (own, other) = (port(socket.local_addr()), port(socket.peer_addr()));
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let mut bytes = 0;
    for line in table.lines().skip(1) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let port = |field: &str| u16::from_str_radix(field.rsplit_once(':').unwrap().1, 16);
        let ends = (port(fields[1]).unwrap(), port(fields[2]).unwrap());
        let (to_send, to_read) = fields[4].split_once(':').unwrap();
        if ends == (own, other) {
            bytes += u64::from_str_radix(to_send, 16).unwrap();
        } else if ends == (other, own) {
            bytes += u64::from_str_radix(to_read, 16).unwrap();
        }
    }
    bytes
}

/// Waits until the broker has read all bytes that were sent over this connection.
pub fn expect_read(socket: &TcpStream) {
    // Checked twice: bytes may move from one buffer to the other between two lines of the table.
    eventually("all sent", || unread_bytes(socket) == 0);
    eventually("all read", || unread_bytes(socket) == 0);
}
