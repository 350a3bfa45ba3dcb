//! `cloverleaf bench` over a real round trip, and what it says where there is none.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Output};
use std::time::Duration;

use crate::network_support::{IN_PROCESS, IN_PROGRAM, is_forbidden};
use crate::support::{BINARY, Broker, embedded};
use cloverleaf_bench::{Link, Network};
use serde_json::Value;

const SYNCHRONOUS: [&str; 5] = [
    "producer",
    "--in-flight=1",
    "--batch-size=1",
    "--count=25",
    "--warm-up=0",
];
/// Of the note that the kernel makes the distance, and that the proxy does.
const BY_KERNEL: &str = "made of packets by the kernel";
const BY_PROXY: &str = "by a proxy in this program";

fn report(mut command: Command, args: &[&str]) -> Value {
    let output = command
        .args(["bench"])
        .args(args)
        .args(["--quiet", "--json"])
        .output();
    let output = output.unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn notes(report: &Value) -> String {
    report["notes"].to_string().replace('\u{a0}', " ")
}

/// Each message waits for one round trip, and the notes say who makes it.
fn is_far(report: &Value, rtt_ms: f64, by: &str) {
    let run = &report["rows"][0]["runs"][0];
    let p50_ms = run["produced"]["service_us"]["p50"].as_f64().unwrap() / 1e3;
    // No upper bound: how much longer it takes depends on how busy the machine is.
    assert!(p50_ms >= rtt_ms, "{p50_ms} ms: {report:#}");
    assert!(notes(report).contains(by), "{report:#}");
}

fn over_the_kernel(protocol: &str) {
    if is_forbidden(IN_PROGRAM) {
        return;
    }
    let far = [
        "--rtt=30ms",
        "--rtt-by=kernel",
        &format!("--protocol={protocol}"),
    ];
    let report = report(Command::new(BINARY), &[&SYNCHRONOUS[..], &far].concat());
    is_far(&report, 30.0, BY_KERNEL);
}

#[test]
fn a_producer_of_nsq_waits_for_a_round_trip() {
    over_the_kernel("nsq");
}

#[test]
fn a_producer_of_kafka_waits_for_a_round_trip() {
    over_the_kernel("kafka");
}

#[test]
fn a_producer_of_amqp_waits_for_a_round_trip() {
    over_the_kernel("amqp");
}

#[test]
fn consumers_are_as_far_away() {
    if is_forbidden(IN_PROGRAM) {
        return;
    }
    let args = [
        "end-to-end",
        "--rtt=30ms",
        "--rate=50",
        "--count=25",
        "--warm-up=0",
    ];
    let report = report(Command::new(BINARY), &args);
    let run = &report["rows"][0]["runs"][0];
    let p50_ms = run["consumed"]["response_us"]["p50"].as_f64().unwrap() / 1e3;
    // There by one half of it, and back by the other.
    assert!(p50_ms >= 30.0, "{report:#}");
    // By default the kernel makes the distance, if it can.
    assert!(notes(&report).contains(BY_KERNEL), "{report:#}");
}

#[test]
fn who_is_not_root_has_a_network_too() {
    let [folder, devices] = [0, 1].map(|_| tempfile::tempdir().unwrap());
    let nobody = fs::metadata("/proc/self").unwrap().uid() == 0;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(devices.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // Root becomes the user nobody, who may use devices, as on most systems.
    let tun = devices.path().join("tun").display().to_string();
    let script = format!(
        "rm -f {tun} && mknod -m 666 {tun} c 10 200 && mount --bind {tun} /dev/net/tun && \
         exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$0\" \"$@\""
    );
    let becomes = ["--mount", "sh", "-c", &script];
    let own_users = ["unshare", "--map-root-user", "--net"];
    let forbidden = if nobody {
        is_forbidden(&[&[&becomes[..], &own_users].concat()])
    } else {
        is_forbidden(&IN_PROGRAM[1..])
    };
    if forbidden {
        return;
    }
    let mut command = Command::new(if nobody { "unshare" } else { BINARY });
    if nobody {
        command.args(becomes).arg(BINARY);
    }
    command.env("TMPDIR", folder.path());
    let args = [&SYNCHRONOUS[..], &["--rtt=30ms", "--rtt-by=kernel"]].concat();
    is_far(&report(command, &args), 30.0, BY_KERNEL);
    let left = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 0, "the broker's folder is gone");
}

/// A shell that hides a part of the system and then becomes the program.
fn robbed(how: &str) -> Option<Command> {
    let mut command = Command::new("unshare");
    let script = format!("{how} && exec \"$0\" \"$@\"");
    let robbed = ["--map-root-user", "--mount", "sh", "-c", &script];
    command.args(robbed).arg(BINARY);
    (!is_forbidden(&[&robbed])).then_some(command)
}

/// `auto` falls back to the proxy and says why; `kernel` does not.
fn falls_back(how: &str, reason: &str) {
    let Some(command) = robbed(how) else { return };
    let args = [&SYNCHRONOUS[..], &["--rtt=30ms"]].concat();
    let report = report(command, &args);
    is_far(&report, 30.0, BY_PROXY);
    assert!(notes(&report).contains(reason), "{report:#}");
    let args = [&SYNCHRONOUS[..], &["--rtt=30ms", "--rtt-by=kernel"]].concat();
    let output = robbed(how)
        .unwrap()
        .arg("bench")
        .args(args)
        .output()
        .unwrap();
    let errors = said(&output);
    assert!(
        errors.contains("no --rtt-by kernel") && errors.contains(reason),
        "{errors}"
    );
}

fn said(output: &Output) -> String {
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn where_namespaces_are_forbidden_it_is_the_proxy() {
    falls_back(
        "echo 0 > /proc/sys/user/max_net_namespaces",
        "lets it make no network namespace",
    );
}

#[test]
fn where_there_are_no_devices_it_is_the_proxy() {
    falls_back("mount --bind /dev/null /dev/net/tun", "/dev/net/tun");
}

#[test]
fn a_proxy_may_be_chosen() {
    let args = [&SYNCHRONOUS[..], &["--rtt=30ms", "--rtt-by=proxy"]].concat();
    let report = report(Command::new(BINARY), &args);
    is_far(&report, 30.0, BY_PROXY);
    assert!(!notes(&report).contains("Not by the kernel"), "{report:#}");
}

#[test]
fn brokers_elsewhere_are_behind_the_proxy() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(folder.path());
    let url = format!("--url={}", broker.nsq());
    let args = [&SYNCHRONOUS[..], &[&url, "--rtt=30ms"]].concat();
    let report = report(Command::new(BINARY), &args);
    is_far(&report, 30.0, BY_PROXY);
    assert!(
        notes(&report).contains("that is for embedded brokers"),
        "{report:#}"
    );
    let mut command = Command::new(BINARY);
    let output = command
        .arg("bench")
        .args(args)
        .arg("--rtt-by=kernel")
        .output();
    let errors = said(&output.unwrap());
    assert!(
        errors.contains("no --rtt-by kernel: that is for embedded brokers"),
        "{errors}"
    );
}

#[test]
fn clients_that_would_pass_the_proxy_have_no_distance_and_it_is_said() {
    // Over that distance the measurement would take a day.
    let args = ["story", "001", "--rtt=10m", "--rtt-by=proxy"];
    let story = report(Command::new(BINARY), &args);
    assert!(
        notes(&story).contains("Without the distance (round trip 600s)"),
        "{story:#}"
    );
}

/// The broker's own telemetry asks the kernel for each connection.
#[test]
fn the_broker_sees_how_far_away_its_client_is() {
    if is_forbidden(IN_PROCESS) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let rtt = Duration::from_millis(30);
    let network = Network::open(&Link {
        rtt,
        ..Link::default()
    });
    let network = network.unwrap();
    let server = network.at_broker(|| embedded(folder.path(), &[])).unwrap();
    let addresses = server.addresses();
    let (nsq, admin) = (
        addresses.of("nsq.tcp_address").unwrap(),
        addresses.of("admin_address").unwrap(),
    );
    let mut client = network
        .at_client(|| TcpStream::connect(nsq))
        .unwrap()
        .unwrap();
    client.write_all(b"  V2").unwrap();
    for _ in 0..5 {
        client.write_all(b"PUB t\n\0\0\0\x01x").unwrap();
        // The frame of an OK.
        client.read_exact(&mut [0; 10]).unwrap();
    }
    let mut admin = network
        .at_broker(|| TcpStream::connect(admin))
        .unwrap()
        .unwrap();
    let request = "GET /debug/connections HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    admin.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    admin.read_to_string(&mut answer).unwrap();
    // The client's address is the only one on its side.
    let (_, far) = answer.split_once("\"peer\":\"127.0.0.2:").expect(&answer);
    let (_, far) = far.split_once("\"rtt_us\":").expect(&answer);
    let digits = far.split(|it: char| !it.is_ascii_digit()).next();
    let rtt_us: u64 = digits.unwrap().parse().unwrap();
    assert!(rtt_us >= 30_000, "{answer}");
    drop(client);
    server.shutdown();
}
