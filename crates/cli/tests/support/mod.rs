//! A broker in a process of its own.

#![allow(dead_code, reason = "each test file uses a part")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_cloverleaf");

pub(crate) struct Broker {
    pub(crate) child: Child,
    pub(crate) lines: Vec<String>,
}

impl Broker {
    pub(crate) fn start(folder: &Path) -> Broker {
        Broker::start_as(Command::new(BINARY), folder)
    }

    pub(crate) fn start_as(command: Command, folder: &Path) -> Broker {
        Broker::spawn(with_flags(command, folder))
    }

    pub(crate) fn start_with(folder: &Path, flags: &[&str]) -> Broker {
        let mut command = serve(folder);
        command.args(flags);
        Broker::spawn(command)
    }

    fn spawn(mut command: Command) -> Broker {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = Vec::new();
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            lines.push(line.unwrap());
            if lines.last().is_some_and(|line| line.contains("admin")) {
                break;
            }
        }
        Broker { child, lines }
    }

    pub(crate) fn admin(&self) -> String {
        let line = self.lines.last().unwrap();
        let address = line.split("http://").nth(1).unwrap();
        address.split('/').next().unwrap().to_owned()
    }

    pub(crate) fn nsq_tcp(&self) -> String {
        let mut lines = self.lines.iter();
        let line = lines.find(|line| line.contains("NSQ ")).unwrap();
        let address = line.split("NSQ ").nth(1).unwrap();
        address.trim().split(',').next().unwrap().to_owned()
    }

    pub(crate) fn nsq_http(&self) -> String {
        let mut lines = self.lines.iter();
        let line = lines.find(|line| line.contains("HTTP ")).unwrap();
        let address = line.split("HTTP ").nth(1).unwrap();
        address.split(',').next().unwrap().to_owned()
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        Command::new(BINARY)
            .args(args)
            .args(["--admin", &self.admin()])
            .output()
            .unwrap()
    }

    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn terminate(&mut self) -> bool {
        self.end_by("-TERM").success()
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
        // It fails if the broker has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn serve(folder: &Path) -> Command {
    with_flags(Command::new(BINARY), folder)
}

pub(crate) fn with_flags(mut command: Command, folder: &Path) -> Command {
    command
        .arg("serve")
        .arg("--data-dir")
        .arg(folder)
        .stderr(Stdio::null());
    for flag in [
        "admin",
        "nsq-tcp",
        "nsq-http",
        "nsq-lookup-http",
        "kafka",
        "amqp",
    ] {
        command.arg(format!("--{flag}-address")).arg("127.0.0.1:0");
    }
    command.arg("--disk-free-bytes-min=0");
    command
}
