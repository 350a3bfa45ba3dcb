//! The properties of this program that `cloverleaf` relies on when it starts it.

use std::process::Command;

use crate::support::BINARY;

fn said(args: &[&str]) -> String {
    let output = Command::new(BINARY).args(args).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    String::from_utf8(said).unwrap()
}

#[test]
fn it_tells_its_name_and_version() {
    let expected = concat!("cloverleaf-workbench ", env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!(said(&["--version"]), expected);
}

#[test]
fn it_speaks_of_the_program_that_the_user_has_called() {
    for (args, part) in [
        (
            &["bench", "--help"][..],
            "Usage: cloverleaf bench <COMMAND>",
        ),
        (&["help", "bench", "producer"], "cloverleaf bench producer"),
        (
            &["bench", "producer", "--nosuch"],
            "cloverleaf bench producer",
        ),
        (&["lab", "--help"], "Usage: cloverleaf lab"),
    ] {
        let said = said(args);
        assert!(said.contains(part), "{said}");
        assert!(!said.contains("workbench"), "{said}");
    }
}
