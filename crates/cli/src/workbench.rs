//! `cloverleaf bench` and `cloverleaf lab`: this process becomes another program (`exec`), which so
//! has its terminal, signals and exit status.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use cloverleaf_program::{BENCH, LAB, VERSION, WORKBENCH};

/// Exit status without the other program. Status 1 has a meaning: `lab` has findings, or `bench`
/// has losses.
const EXIT_NO_WORKBENCH: u8 = 2;

/// Whether the command line is for the other program.
pub(crate) fn is_workbench_command(words: &[OsString]) -> bool {
    let is = |at: usize, name: &str| words.get(at).is_some_and(|word| word == name);
    let at = usize::from(is(0, "help"));
    [BENCH, LAB].iter().any(|command| is(at, command.name))
}

/// Becomes the other program. Returns only if that fails, after it has printed why.
pub(crate) fn start(words: &[OsString]) -> ExitCode {
    eprintln!("cloverleaf: {}", exec_workbench(words));
    ExitCode::from(EXIT_NO_WORKBENCH)
}

/// Becomes the other program. Returns only if that fails: the reason, in a sentence or two.
fn exec_workbench(words: &[OsString]) -> String {
    let Some(path) = find() else {
        return format!(
            "bench and lab are a program of their own, {WORKBENCH}, which is neither beside this \
             one nor on the search path.\nIn a clone of the repository this builds it, with `make` \
             and a C++ compiler: cargo build --release -p {WORKBENCH}"
        );
    };
    let shown = path.display();
    let told = match Command::new(&path).arg("--version").output() {
        Ok(output) => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        Err(error) => return format!("cannot start {shown}: {error}"),
    };
    if told != format!("{WORKBENCH} {VERSION}") {
        let told = told.strip_prefix(WORKBENCH).unwrap_or(&told).trim();
        return format!(
            "{shown} is of version \"{told}\", this program of {VERSION}.\nIn a clone of the \
             repository this builds both anew: cargo build --release -p cloverleaf -p {WORKBENCH}"
        );
    }
    let mut command = Command::new(&path);
    // Reports show the command line, so the other program gets this program's name.
    if let Some(name) = env::args_os().next() {
        command.arg0(name);
    }
    let error = command.args(words).exec();
    format!("cannot start {shown}: {error}")
}

/// Finds the other program in this program's folder, or on the search path.
fn find() -> Option<PathBuf> {
    let here = env::current_exe().ok();
    let beside = here.as_deref().and_then(Path::parent).map(Path::to_owned);
    let path = env::var_os("PATH").unwrap_or_default();
    let mut folders = beside.into_iter().chain(env::split_paths(&path));
    folders.find_map(|folder| {
        let program = folder.join(WORKBENCH);
        program.is_file().then_some(program)
    })
}
