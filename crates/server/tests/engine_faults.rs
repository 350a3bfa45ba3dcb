//! Faults planted in a broker in a process of its own: a fault of the engine ends the process, on
//! any thread, and the next start has all acknowledged messages; any other fault ends one
//! connection.

use std::backtrace::Backtrace;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::{env, thread};

use cloverleaf_broker::Clock;
use cloverleaf_log::{Disk, FaultyDisk, RealDisk, invariant};
use cloverleaf_server::{Server, SystemClock, end_with_engine};
use parking_lot::Mutex;

use crate::kafka_support::{Client, connect};
use crate::nsq_support::request;
use crate::support::config;

/// The variable with the data folder, for a broker in a process of its own.
const FOLDER: &str = "CLOVERLEAF_TEST_FAULTS_IN";
/// Minimum number of messages that are acknowledged before the fault.
const BEFORE: usize = 20;

/// A fault, and the connections in which it happens.
struct Fault {
    /// The type of these connections, as a backtrace names it: any connection may read the clock
    /// after its answer, so that the next read of the clock may not be that of the connection under
    /// test.
    within: &'static str,
    act: fn(),
}

/// The machine's clock, which runs the planted fault when a connection of the fault's type reads
/// it.
#[derive(Default)]
struct FaultyClock {
    real: SystemClock,
    fault: Mutex<Option<Fault>>,
}

impl Clock for FaultyClock {
    fn now_us(&self) -> u64 {
        if serves_connections() {
            let is_meant = |fault: &mut Fault| {
                let frames = Backtrace::force_capture().to_string();
                frames.contains(fault.within)
            };
            let fault = self.fault.lock().take_if(is_meant);
            fault.into_iter().for_each(|fault| (fault.act)());
        }
        self.real.now_us()
    }
}

fn serves_connections() -> bool {
    let thread = thread::current();
    thread.name().is_some_and(|name| name.starts_with("core-"))
}

/// A broker in which faults can be planted.
struct Planted {
    server: Server,
    disk: Arc<FaultyDisk>,
    clock: Arc<FaultyClock>,
}

impl Planted {
    fn start(data_dir: PathBuf) -> Planted {
        end_with_engine();
        let clock = Arc::new(FaultyClock::default());
        let mut faulty = None;
        let open = |folder: &Path| {
            let disk = FaultyDisk::new(RealDisk::open(folder)?);
            faulty = Some(disk.clone());
            Ok(disk as Arc<dyn Disk>)
        };
        let mut config = config(&tempfile::tempdir().unwrap());
        config.general.data_dir = data_dir;
        let server = Server::start_on(open, config, clock.clone(), None).unwrap();
        Planted {
            server,
            disk: faulty.unwrap(),
            clock,
        }
    }

    fn client(&self) -> Client<std::net::TcpStream> {
        let address = self.server.addresses().of("kafka.address").unwrap();
        Client::new(connect(address))
    }

    /// Publishes for ever, and prints the number of each acknowledged message.
    fn publish(&self, fault: impl FnOnce(&Planted)) -> ! {
        let mut client = self.client();
        client.make_topic("orders");
        let mut fault = Some(fault);
        for number in 0.. {
            if number == BEFORE
                && let Some(fault) = fault.take()
            {
                fault(self);
            }
            let body = body(number);
            assert_eq!(client.produce("orders", 1, &[body.as_bytes()]).0, 0);
            println!("acknowledged {number}");
        }
        unreachable!("a broker with a fault goes on");
    }
}

fn body(number: usize) -> String {
    format!("<order {number}>")
}

/// Runs a test in a process of its own on this data folder, and returns its output; in that
/// process, returns the folder.
fn in_process_of_its_own(test: &str, folder: &Path) -> Result<PathBuf, Output> {
    if let Some(folder) = env::var_os(FOLDER) {
        return Ok(folder.into());
    }
    let output = Command::new(env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(FOLDER, folder)
        .output();
    Err(output.unwrap())
}

/// Starts a broker in a process of its own, plants a fault, and publishes until the process has
/// ended with a report that has these lines; then starts another broker on the same folder.
fn expect_end(test: &str, fault: impl FnOnce(&Planted), lines: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let output = match in_process_of_its_own(test, folder.path()) {
        Ok(folder) => Planted::start(folder).publish(fault),
        Err(output) => output,
    };
    let report = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{report}");
    let version = format!("cloverleaf {} ends", env!("CARGO_PKG_VERSION"));
    for line in lines.iter().chain([&version.as_str(), &"  thread  core-0"]) {
        assert!(report.contains(line), "{line} is missing in\n{report}");
    }
    let told = String::from_utf8_lossy(&output.stdout);
    let acknowledged = told.matches("acknowledged ").count();
    assert!(acknowledged >= BEFORE, "{told}");

    let mut config = config(&folder);
    config.general.data_dir = folder.path().to_owned();
    let server = Server::start(config).unwrap();
    let mut client = Client::new(connect(server.addresses().of("kafka.address").unwrap()));
    let (error, fetched) = client.fetch("orders", 0, 1 << 20);
    assert_eq!(error, 0);
    let fetched = String::from_utf8_lossy(&fetched);
    for number in 0..acknowledged {
        assert!(fetched.contains(&body(number)), "{number} is lost");
    }
    assert_eq!(client.produce("orders", 1, &[b"next"]).0, 0);
    server.shutdown();
}

#[test]
fn an_invariant_that_does_not_hold_within_a_write_ends_the_process() {
    expect_end(
        "engine_faults::an_invariant_that_does_not_hold_within_a_write_ends_the_process",
        |broker| {
            broker.disk.set(|faults| {
                faults.on_write = Some(|path| {
                    let is_planted = path.ends_with(".log") && serves_connections();
                    invariant!(!is_planted, "planted within a write");
                });
            });
        },
        &["fault   planted within a write", "place   crates/server"],
    );
}

#[test]
fn any_panic_within_a_write_ends_the_process() {
    expect_end(
        "engine_faults::any_panic_within_a_write_ends_the_process",
        |broker| {
            broker.disk.set(|faults| {
                faults.on_write = Some(|path| {
                    let is_planted = path.ends_with(".log") && serves_connections();
                    assert!(!is_planted, "planted within a write");
                });
            });
        },
        &["fault   planted within a write", "place   crates/server"],
    );
}

#[test]
fn an_invariant_that_does_not_hold_for_a_connection_ends_the_process() {
    expect_end(
        "engine_faults::an_invariant_that_does_not_hold_for_a_connection_ends_the_process",
        |broker| {
            *broker.clock.fault.lock() = Some(Fault {
                within: "KafkaLink",
                act: || invariant!(1 > 2, "{} is more than {}", 1, 2),
            });
        },
        &["fault   1 is more than 2", "in memory contradicts itself"],
    );
}

#[test]
fn any_other_panic_ends_only_its_connection() {
    let test = "engine_faults::any_other_panic_ends_only_its_connection";
    let folder = tempfile::tempdir().unwrap();
    let broker = match in_process_of_its_own(test, folder.path()) {
        Ok(folder) => Planted::start(folder),
        Err(output) => {
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{errors}");
            assert!(errors.contains("planted in a session"), "{errors}");
            return;
        }
    };
    let mut other = broker.client();
    other.make_topic("orders");
    assert_eq!(other.produce("orders", 1, &[b"before"]), (0, 0));
    let mut ended = connect(broker.server.addresses().of("nsq.tcp_address").unwrap());
    *broker.clock.fault.lock() = Some(Fault {
        within: "NsqLink",
        act: || panic!("planted in a session"),
    });
    std::io::Write::write_all(&mut ended, b"  V2").unwrap();
    let mut left = Vec::new();
    // The connection ends, with or without a reset.
    let _ = ended.read_to_end(&mut left);
    assert!(broker.clock.fault.lock().is_none(), "fault not run");
    assert_eq!(other.produce("orders", 1, &[b"after"]), (0, 1));
    assert_eq!(broker.client().produce("orders", 1, &[b"new"]), (0, 2));
    let admin = broker.server.addresses().of("admin_address").unwrap();
    assert_eq!(request(admin, "GET", "/healthz", b"").status, 200);
    broker.server.shutdown();
}
