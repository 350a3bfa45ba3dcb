//! Whether this machine lets anybody make networks, asked without what is tested.

use std::process::Command;

/// For a test that makes one itself: it has many threads, and so cannot get more rights.
#[allow(dead_code, reason = "each test file uses one of them")]
pub(crate) const IN_PROCESS: &[&[&str]] = &[&["--net"]];
/// For a test that starts a program.
#[allow(dead_code, reason = "each test file uses one of them")]
pub(crate) const IN_PROGRAM: &[&[&str]] = &[&["--net"], &["--map-root-user", "--net"]];

/// Says it, and gives `true`, if none of these arguments of `unshare` is allowed here: a test that
/// needs it has nothing to show then. Where one is allowed the test has to pass.
pub(crate) fn is_forbidden(ways: &[&[&str]]) -> bool {
    for way in ways {
        let device = ["sh", "-c", ": <>/dev/net/tun"];
        match Command::new("unshare").args(*way).args(device).output() {
            Ok(output) if output.status.success() => return false,
            Ok(output) => {
                let words = String::from_utf8_lossy(&output.stderr);
                eprintln!("skipped, if no other way works: {way:?}: {}", words.trim());
            }
            Err(error) => {
                let is_ci = std::env::var_os("CI").is_some();
                assert!(
                    !is_ci,
                    "CI has util-linux, to know what is forbidden: {error}"
                );
                eprintln!("skipped: without unshare (util-linux) it is not known: {error}");
            }
        }
    }
    true
}
