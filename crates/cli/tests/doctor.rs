//! `cloverleaf doctor`: the binary itself, with clients that are slow, and clients with hostile
//! names.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::{BINARY, Broker};
use cloverleaf_doctor::{Report, Rule};

/// Time limit of waits: only a failing test waits this long.
const PATIENCE: Duration = Duration::from_secs(120);

/// Characters in a client's names that must not reach a terminal or the log.
const HOSTILE: &str = "\u{1b}]0;gotcha\u{7}\u{1b}[2J\u{9b}31m\r\nfake line\u{202e}";

/// A consumer that has taken 400 messages and works on one at a time.
struct Hoarder {
    stream: TcpStream,
    received: Vec<u8>,
    messages: VecDeque<Vec<u8>>,
}

fn consumer(broker: &Broker, client_id: &str, user_agent: &str, ready: u32) -> TcpStream {
    let mut stream = TcpStream::connect(broker.nsq_tcp()).unwrap();
    stream.set_nodelay(true).unwrap();
    let identify = serde_json::json!({ "client_id": client_id, "user_agent": user_agent });
    let identify = identify.to_string();
    let size = u32::try_from(identify.len()).unwrap().to_be_bytes();
    let hello = [b"  V2IDENTIFY\n", &size[..], identify.as_bytes()].concat();
    stream.write_all(&hello).unwrap();
    write!(stream, "SUB jobs work\nRDY {ready}\n").unwrap();
    stream
}

fn publish(broker: &Broker, count: usize) {
    let body = vec!["job"; count].join("\n");
    let mut stream = TcpStream::connect(broker.nsq_http()).unwrap();
    let head = "POST /mpub?topic=jobs HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
    write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

impl Hoarder {
    fn start(broker: &Broker, client_id: &str, user_agent: &str) -> Hoarder {
        broker.ok(&["topic", "create", "jobs"]);
        broker.ok(&["subscription", "create", "jobs", "work"]);
        let mut hoarder = Hoarder {
            stream: consumer(broker, client_id, user_agent, 400),
            received: Vec::new(),
            messages: VecDeque::new(),
        };
        publish(broker, 400);
        let deadline = Instant::now() + PATIENCE;
        while hoarder.messages.len() < 400 {
            assert!(Instant::now() < deadline, "the messages do not come");
            hoarder.receive(Duration::from_millis(50));
        }
        hoarder
    }

    fn receive(&mut self, time: Duration) {
        let until = Instant::now() + time;
        let mut buffer = [0; 65536];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.stream.set_read_timeout(Some(left)).unwrap();
            match self.stream.read(&mut buffer) {
                Ok(0) => panic!("the broker has closed the connection"),
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
                Err(error) => {
                    let kinds = [ErrorKind::WouldBlock, ErrorKind::TimedOut];
                    assert!(kinds.contains(&error.kind()), "{error}");
                }
            }
            while let Some(size) = self.received.first_chunk() {
                let size = 4 + u32::from_be_bytes(*size) as usize;
                if self.received.len() < size {
                    break;
                }
                let frame: Vec<u8> = self.received.drain(..size).collect();
                if frame[7] == 2 {
                    self.messages.push_back(frame[18..34].to_vec());
                }
            }
        }
    }

    /// Works on its messages until `condition` returns a value.
    fn work_until<T>(&mut self, what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            for _ in 0..4 {
                self.receive(Duration::from_millis(40));
                let id = self.messages.pop_front().expect("no message is left");
                let finish = [b"FIN ", &id[..], b"\n"].concat();
                self.stream.write_all(&finish).unwrap();
            }
            if let Some(value) = condition() {
                return value;
            }
            assert!(Instant::now() < deadline, "never: {what}");
        }
    }
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A broker whose log is written to a file.
fn with_log(folder: &Path, log: &Path) -> Broker {
    let mut command = Command::new("sh");
    let script = format!("exec \"$@\" 2>{}", log.display());
    command.args(["-c", &script, "sh", BINARY]);
    Broker::start_as(command, folder)
}

fn assert_harmless(text: &str) {
    let is_bad = |it: char| (it.is_control() && it != '\n') || it == '\u{202e}';
    assert!(!text.contains(is_bad), "{text:?}");
    assert!(
        !text
            .lines()
            .any(|line| line.trim_start().starts_with("fake line")),
        "{text}"
    );
}

#[test]
fn a_slow_client_with_a_hostile_name_is_reported_with_its_setting() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let broker = with_log(&folder.path().join("data"), &log);
    let quiet = broker.run(&["doctor"]);
    assert_eq!(code(&quiet), Some(0));
    let quiet = text(&quiet.stdout);
    assert!(
        quiet.contains("No findings") && quiet.contains("15 s"),
        "{quiet}"
    );

    let name = format!("{HOSTILE}{}", "x".repeat(64 << 10));
    let mut hoarder = Hoarder::start(&broker, &name, "go-nsq/1.1.0");
    let idle = consumer(&broker, "idle", "pynsq/0.9.1", 10);
    let mut watch = Command::new(BINARY)
        .args(["doctor", "--watch", "--admin", &broker.admin()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let found = hoarder.work_until("a finding", || {
        let output = broker.run(&["doctor"]);
        (code(&output) != Some(0)).then_some(output)
    });
    assert_eq!(code(&found), Some(1), "{found:?}");
    let page = text(&found.stdout);
    assert!(page.starts_with("HOARDING"), "{page}");
    for part in [
        "go-nsq 1.1.0",
        "MaxInFlight",
        "jobs, work",
        "doctor explain hoarding",
    ] {
        assert!(page.contains(part), "{part} is missing in\n{page}");
    }
    assert_harmless(&page);
    assert!(
        page.lines().all(|line| line.chars().count() <= 120),
        "{page}"
    );

    // All details; with the address in the form in which the broker prints it.
    let url = format!("http://{}/", broker.admin());
    let details = ["doctor", "--details", "--admin", &url];
    let details = hoarder.work_until("details", || {
        Some(Command::new(BINARY).args(details).output().unwrap())
    });
    let details = text(&details.stdout);
    assert!(details.lines().count() > page.lines().count(), "{details}");
    assert_harmless(&details);
    let beside = details.rsplit_once("(hoarding-").unwrap().1;
    let id = format!("hoarding-{}", &beside[..8]);
    assert_eq!(
        code(&broker.run(&["doctor", "explain", &id])),
        Some(0),
        "{id}"
    );
    let args = ["doctor", "--admin", &broker.nsq_http()];
    let wrong = Command::new(BINARY).args(args).output().unwrap();
    assert_eq!(code(&wrong), Some(2));
    let errors = text(&wrong.stderr);
    assert!(errors.contains("an HTTP interface of NSQ's"), "{errors}");

    // The same for scripts: in ASCII, with escapes from which the names can be read back.
    let json = hoarder.work_until("JSON", || Some(broker.run(&["doctor", "--json"])));
    assert_eq!(code(&json), Some(1));
    assert!(
        json.stdout
            .iter()
            .all(|it| it.is_ascii_graphic() || b" \n".contains(it))
    );
    let report: Report = serde_json::from_slice(&json.stdout).unwrap();
    let [finding] = &report.findings[..] else {
        panic!("one finding is expected: {report:?}");
    };
    assert_eq!(finding.rule, Rule::Hoarding);
    assert!(
        HOSTILE.starts_with(&finding.client.client_id[..8]),
        "{finding:?}"
    );
    assert_eq!(code(&broker.run(&["doctor", "--client", "pynsq"])), Some(0));
    assert_eq!(
        code(&broker.run(&["doctor", "--client", "GO-NSQ"])),
        Some(1)
    );

    // With --watch and without a terminal, the command prints changes, a line each.
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let line = lines.next().unwrap().unwrap();
    assert!(line.contains(" UTC found hoarding: go-nsq 1.1.0"), "{line}");
    assert_harmless(&line);
    drop((hoarder, idle));
    let line = lines.next().unwrap().unwrap();
    assert!(line.contains(" UTC over hoarding"), "{line}");
    watch.kill().unwrap();
    watch.wait().unwrap();
    assert_eq!(code(&broker.run(&["doctor"])), Some(0));
    let since = broker.run(&["doctor", "--since", "10m"]);
    assert_eq!(code(&since), Some(1));
    assert!(
        text(&since.stdout).contains(", over"),
        "{}",
        text(&since.stdout)
    );

    let log = std::fs::read_to_string(&log).unwrap();
    let told = log.lines().filter(|line| line.contains("doctor: hoarding"));
    assert_eq!(told.count(), 1, "{log}");
    assert_harmless(&log);
}

#[test]
fn an_unreachable_broker_is_exit_status_2() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap().to_string();
    // For example, a broker of a version without the doctor.
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    let answers = std::thread::spawn(move || {
        let (mut stream, _) = other.accept().unwrap();
        let mut request = [0; 1024];
        let _some = stream.read(&mut request).unwrap();
        let head = "HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\nconnection: close\r\n\r\n";
        write!(stream, "{head}no").unwrap();
    });
    for (address, part) in [
        ("127.0.0.1:1", "no broker answers"),
        (silent.as_str(), "no broker answers"),
        (address.as_str(), "404"),
    ] {
        let args = ["doctor", "--json", "--admin", address];
        let output = Command::new(BINARY).args(args).output().unwrap();
        assert_eq!(code(&output), Some(2), "{address}");
        assert_eq!(text(&output.stdout), "");
        let errors = text(&output.stderr);
        assert!(errors.contains(part), "{errors}");
    }
    answers.join().unwrap();
    let args = ["doctor", "--watch", "--admin", "127.0.0.1:1"];
    let output = Command::new(BINARY).args(args).output().unwrap();
    assert_eq!(code(&output), Some(2));
}

#[test]
fn rules_are_explained_and_listed() {
    let run = |args: &[&str]| {
        Command::new(BINARY)
            .arg("doctor")
            .args(args)
            .output()
            .unwrap()
    };
    for rule in Rule::ALL {
        let output = run(&["explain", rule.name()]);
        assert_eq!(code(&output), Some(0));
        let page = text(&output.stdout);
        assert!(page.starts_with(&format!("# {rule}: ")), "{page}");
    }
    let list = text(&run(&["explain"]).stdout);
    assert_eq!(list.lines().count(), Rule::ALL.len());
    let unknown = run(&["explain", "slowness"]);
    assert_eq!(code(&unknown), Some(2));
    let errors = text(&unknown.stderr);
    assert!(
        errors.contains("\"slowness\"") && errors.contains("window-too-small"),
        "{errors}"
    );
}
