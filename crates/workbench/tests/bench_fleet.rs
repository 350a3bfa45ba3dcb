//! `cloverleaf bench worker`: load from several processes, as from several machines.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use crate::support::BINARY;
use serde_json::{Value, json};

/// A worker process. It is killed when the test ends.
struct Worker {
    child: Child,
    address: String,
}

impl Worker {
    fn start(args: &[&str]) -> Worker {
        let mut command = Command::new(BINARY);
        command
            .args(["bench", "worker", "--listen=127.0.0.1:0"])
            .args(args);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.as_mut().unwrap());
        out.read_line(&mut line).unwrap();
        let address = line
            .trim()
            .strip_prefix("worker ")
            .expect("its first line")
            .to_owned();
        Worker { child, address }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn bench(args: &[&str]) -> Output {
    Command::new(BINARY)
        .arg("bench")
        .args(args)
        .output()
        .unwrap()
}

#[test]
fn two_workers_measure_one_plan() {
    let workers = [Worker::start(&["--token=t"]), Worker::start(&["--token=t"])];
    let addresses = format!("--workers={},{}", workers[0].address, workers[1].address);
    let output = bench(&[
        "end-to-end",
        "--producers=3",
        "--consumers=4",
        "--count=9000",
        "--warm-up=0",
        "--token=t",
        &addresses,
        "--json",
        "--quiet",
    ]);
    let errors = String::from_utf8_lossy(&output.stderr);
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {errors}"));
    assert!(output.status.success(), "{report:#}");
    let run = &report["rows"][0]["runs"][0];
    assert_eq!(run["produced"]["messages"], 9_000, "{run:#}");
    assert_eq!(run["consumed"]["messages"], 9_000, "{run:#}");
    assert_eq!(
        run["findings"]["lost"], 0,
        "numbers are unique over workers: {run:#}"
    );
    assert_eq!(run["findings"]["duplicates"], 0, "{run:#}");
    assert!(
        run["usage"]["client_cpu_s"].as_f64().unwrap() > 0.0,
        "{run:#}"
    );
    let notes = report["notes"].to_string();
    assert_eq!(notes.matches("its clock is").count(), 2, "{notes}");
    assert_eq!(notes.matches("may be wrong by").count(), 1, "{notes}");
    // A second measurement with the same workers, and a topic that is filled before.
    let output = bench(&[
        "consumer",
        "--count=3000",
        "--consumers=2",
        "--warm-up=0",
        "--token=t",
        &addresses,
        "--json",
        "--quiet",
    ]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success(), "{report:#}");
    assert_eq!(report["rows"][0]["runs"][0]["consumed"]["messages"], 3_000);
}

/// Workers consume what the coordinator has put in, with protocols that keep consumed messages and
/// with those that do not.
#[test]
fn workers_empty_what_was_filled_with_any_protocol() {
    let workers = [Worker::start(&[]), Worker::start(&[])];
    let addresses = format!("--workers={},{}", workers[0].address, workers[1].address);
    for url in [
        "embedded:kafka",
        "embedded:kafka?client=raw",
        "embedded:amqp",
    ] {
        let args = [
            "consumer",
            "--count=3000",
            "--consumers=2",
            "--partitions=3",
            "--warm-up=0",
            &format!("--url={url}"),
            &addresses,
            "--json",
            "--quiet",
        ];
        let is_amqp = url.contains("amqp");
        let args = args
            .iter()
            .filter(|it| !(is_amqp && it.contains("partitions")));
        let output = bench(&args.copied().collect::<Vec<_>>());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{url} {errors}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let run = &report["rows"][0]["runs"][0];
        assert_eq!(run["consumed"]["messages"], 3_000, "{url} {run:#}");
        assert_eq!(run["findings"]["lost"], 0, "{url} {run:#}");
    }
}

#[test]
fn a_worker_does_the_work_of_each_sub_command_with_each_protocol() {
    let worker = Worker::start(&[]);
    let workers = format!("--workers={}", worker.address);
    let every: &[&[&str]] = &[
        &["producer"],
        &["consumer"],
        &["end-to-end"],
        &["latency", "--rate=2k"],
        &["compare", "--runs=1", "--url=other=embedded:nsq"],
        &["sweep", "--over=connections", "--values=1,2"],
    ];
    let both = &every[1..3];
    let protocols = [("nsq", every), ("amqp", both), ("kafka", both)];
    for (protocol, commands) in protocols {
        let url = format!("--url=embedded:{protocol}");
        for command in commands {
            let folder = tempfile::tempdir().unwrap();
            let page = folder.path().join("a.html");
            let report = format!("--report={}", page.display());
            // Several requests: with one request all messages come at one moment, which is no rate.
            let more = ["--count=200", "--batch-size=10", "--in-flight=50"];
            let more = [&more[..], &["--warm-up=0", "--json", "--quiet"]].concat();
            let output = bench(&[*command, &[&url, &workers, &report], &more].concat());
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{command:?} {url}: {errors}");
            let json: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert!(
                json["notes"].to_string().contains("its clock is"),
                "{json:#}"
            );
            for run in json["rows"]
                .as_array()
                .unwrap()
                .iter()
                .map(|row| &row["runs"][0])
            {
                let side = if run["kind"] == "produce" {
                    "produced"
                } else {
                    "consumed"
                };
                assert_eq!(run[side]["messages"], 200, "{command:?}: {run:#}");
            }
            let page = std::fs::read_to_string(page).unwrap();
            assert!(page.contains("its clock is"), "{command:?}");
            // A topic that is emptied within a second has neither latency nor figures by second.
            let has_charts = page.contains("<svg");
            assert_eq!(has_charts, command[0] != "consumer", "{command:?}");
        }
    }
}

#[test]
fn a_worker_works_for_nobody_without_its_token() {
    let worker = Worker::start(&["--token=right"]);
    let addresses = format!("--workers={}", worker.address);
    let output = bench(&["producer", "--count=10", "--token=wrong", &addresses]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(
        errors.contains("it refuses: its token is another one"),
        "{errors}"
    );
    let mut command = Command::new(BINARY);
    command.args(["bench", "worker", "--listen=0.0.0.0:0"]);
    let output = command
        .env_remove("CLOVERLEAF_BENCH_TOKEN")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(errors.contains("give it a --token"), "{errors}");
}

#[test]
fn hostile_peers_disturb_nobody() {
    let worker = Worker::start(&[]);
    let hostile: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xff\xff\xff",
        b"\0\0\0\x02{}",
        b"\0\0\0\x05\"End\"",
        b"",
    ];
    for bytes in hostile {
        let mut stream = TcpStream::connect(&worker.address).unwrap();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        // The worker closes the connection, with or without an error message.
        let _ = stream.read_to_end(&mut answer);
    }
    let addresses = format!("--workers={}", worker.address);
    let output = bench(&[
        "producer",
        "--count=100",
        "--warm-up=0",
        "--quiet",
        &addresses,
    ]);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Speaks as a worker until the measurement begins, and then closes the connection.
fn deserter() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let conditions = json!({
            "processor": "", "cores": 1, "memory_bytes": 1, "kernel": "", "version": "0",
            "is_release": false,
        });
        loop {
            let mut length = [0; 4];
            if stream.read_exact(&mut length).is_err() {
                return;
            }
            let mut said = vec![0; u32::from_be_bytes(length) as usize];
            stream.read_exact(&mut said).unwrap();
            let said: Value = serde_json::from_slice(&said).unwrap();
            let answer = if said.get("Hello").is_some() {
                json!({ "Welcome": { "conditions": conditions } })
            } else if let Some(time) = said.get("Time") {
                json!({ "Time": { "number": time["number"], "unix_ns": 1 } })
            } else if said.get("Prepare").is_some() {
                json!("Ready")
            } else {
                return;
            };
            let answer = answer.to_string();
            stream
                .write_all(&(answer.len() as u32).to_be_bytes())
                .unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    address
}

#[test]
fn a_worker_that_dies_is_said_and_the_others_report() {
    let worker = Worker::start(&[]);
    let addresses = format!("--workers={},{}", worker.address, deserter());
    let output = bench(&[
        "producer",
        "--producers=2",
        "--duration=3s",
        "--warm-up=0",
        &addresses,
        "--json",
        "--quiet",
    ]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{report:#}");
    let run = &report["rows"][0]["runs"][0];
    let cut = run["cut"].as_str().unwrap();
    assert!(cut.contains("went away"), "{cut}");
    assert!(run["produced"]["sent"].as_u64().is_some(), "{run:#}");
}
