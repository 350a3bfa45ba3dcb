//! `cloverleaf bench` and `cloverleaf lab` become another program. A script stands in for it, so
//! that it need not be built; `cargo xtask test` runs the real one.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::support::BINARY;

const NAME: &str = "cloverleaf-workbench";
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A folder with a hard link to `cloverleaf`, so on the same file system.
fn installed() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir_in(Path::new(BINARY).parent().unwrap()).unwrap();
    let program = folder.path().join("cloverleaf");
    fs::hard_link(BINARY, &program).unwrap();
    (folder, program)
}

/// Writes a script to the folder that stands in for the other program, with this version.
fn pretend(folder: &Path, version: &str) {
    let script = format!(
        "#!/bin/sh\n\
         if [ \"$1\" = --version ]; then echo {NAME} {version}; exit; fi\n\
         echo \"$$ $0: $*\"; cat; exit 7\n"
    );
    // Written by another process: a file that this process has open for writing could not be
    // executed.
    let status = Command::new("sh")
        .args(["-c", "printf %s \"$1\" >\"$0\" && chmod 755 \"$0\""])
        .arg(folder.join(NAME))
        .arg(script)
        .status();
    assert!(status.unwrap().success());
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Checks that the command failed with a status that means neither findings nor losses, and returns
/// its error text.
fn refused(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    text(&output.stderr)
}

#[test]
fn the_other_program_gets_words_input_and_process() {
    let (folder, program) = installed();
    pretend(folder.path(), VERSION);
    let given = folder.path().join(NAME).display().to_string();
    for words in [
        &["bench", "producer", "--url=a b", "--help"][..],
        &["lab", "run", "--", "sh", "-c", ":"],
        &["help", "bench", "sweep"],
        &["bench"],
    ] {
        let mut child = Command::new(&program)
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id();
        child.stdin.take().unwrap().write_all(b"input").unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(7));
        // It is the same process, so signals reach the other program, and it has the terminal.
        let expected = format!("{pid} {given}: {}\ninput", words.join(" "));
        assert_eq!(text(&output.stdout), expected);
    }
}

#[test]
fn the_other_program_may_be_on_the_search_path() {
    let (_folder, program) = installed();
    let elsewhere = tempfile::tempdir().unwrap();
    pretend(elsewhere.path(), VERSION);
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", elsewhere.path().display());
    let mut command = Command::new(&program);
    let output = command.args(["lab", "--list"]).env("PATH", path).output();
    assert_eq!(output.unwrap().status.code(), Some(7));
}

#[test]
fn a_missing_workbench_is_explained() {
    let (_folder, program) = installed();
    for words in [&["bench", "--help"][..], &["lab"]] {
        let mut command = Command::new(&program);
        let said = refused(&command.args(words).env("PATH", "").output().unwrap());
        assert!(
            said.contains("cargo build --release -p cloverleaf-workbench"),
            "{said}"
        );
    }
}

#[test]
fn another_version_is_reported_and_not_started() {
    let (folder, program) = installed();
    pretend(folder.path(), "0.0.7");
    let mut command = Command::new(&program);
    let said = refused(&command.args(["bench", "producer"]).output().unwrap());
    let versions = format!("is of version \"0.0.7\", this program of {VERSION}");
    assert!(said.contains(&versions), "{said}");
    assert!(
        said.contains("cargo build --release -p cloverleaf -p cloverleaf-workbench"),
        "{said}"
    );
}

#[test]
fn a_program_that_cannot_be_started_is_reported() {
    let (folder, program) = installed();
    fs::write(folder.path().join(NAME), "").unwrap();
    let mut command = Command::new(&program);
    let said = refused(&command.args(["bench", "producer"]).output().unwrap());
    assert!(said.contains("cannot start"), "{said}");
}

#[test]
fn the_help_names_all_commands_and_errors_hide_passwords() {
    let mut command = Command::new(BINARY);
    let help = text(&command.arg("--help").output().unwrap().stdout);
    assert!(
        help.contains("bench         Measure this broker or another"),
        "{help}"
    );
    assert!(
        help.contains("lab           Slow clients on purpose"),
        "{help}"
    );
    let mut command = Command::new(BINARY);
    let wrong = ["tail", "orders", "--url=amqp://me:t0ps3cret@127.0.0.1:1"];
    let output = command.args(wrong).output().unwrap();
    let said = text(&output.stderr);
    assert!(!output.status.success() && !said.is_empty());
    assert!(!said.contains("t0ps3cret"), "{said}");
    let mut command = Command::new(BINARY);
    let wrong = ["tail", "orders", "amqp://me:t0ps3cret@127.0.0.1:1"];
    let said = text(&command.args(wrong).output().unwrap().stderr);
    assert!(said.contains("amqp://me:***@127.0.0.1:1"), "{said}");
}
