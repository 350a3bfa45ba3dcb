//! Where things are: the checkout, its target folder, the folder of the third-party clients.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use jiff::Timestamp;

/// The tests of the workspace, in the profile in which all that is tested is built.
pub(crate) const WORKSPACE_TESTS: [&str; 5] =
    ["test", "--profile", "ci", "--workspace", "--locked"];

/// The checkout that this program was compiled from.
#[derive(Clone)]
pub(crate) struct Workspace {
    root: PathBuf,
    target: PathBuf,
}

impl Workspace {
    /// Finds the checkout; `CARGO_TARGET_DIR` moves the target folder as it does for cargo.
    pub(crate) fn find() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .context("xtask has no parent folder")?
            .to_path_buf();
        let target = match std::env::var_os("CARGO_TARGET_DIR") {
            Some(folder) => root.join(folder),
            None => root.join("target"),
        };
        Ok(Self { root, target })
    }

    /// The folder with the root `Cargo.toml`.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Everything that tooling writes lies below this folder, benchmark results apart.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Third-party clients, installed once and kept.
    pub(crate) fn clients(&self) -> PathBuf {
        self.target.join("clients")
    }

    /// The sources of the client tests.
    pub(crate) fn client_tests(&self) -> PathBuf {
        self.root.join("tests/clients")
    }

    /// A new empty folder below target, removed when the value is dropped. Brokers keep their
    /// data there, so that all of them use the same disk.
    pub(crate) fn temp_folder(&self, name: &str) -> Result<tempfile::TempDir> {
        let parent = self.target.join("tmp");
        std::fs::create_dir_all(&parent)?;
        let prefix = format!("{name}-");
        tempfile::Builder::new()
            .prefix(&prefix)
            .tempdir_in(&parent)
            .with_context(|| format!("cannot make a folder in {}", parent.display()))
    }

    /// Builds `cloverleaf` and, beside it, the program that it starts for `bench` and `lab`, as
    /// they are released, for a measurement; returns the path of the first. `CLOVERLEAF_BIN` names
    /// one that is there already.
    pub(crate) fn release_binary(&self) -> Result<PathBuf> {
        let packages = ["--package=cloverleaf", "--package=cloverleaf-workbench"];
        self.binary(
            "release",
            &[&["build", "--release"], &packages[..]].concat(),
        )
    }

    /// Builds the same programs as the tests of the workspace do: any other choice of packages
    /// would compile the engine once more, with other features.
    pub(crate) fn test_binary(&self) -> Result<PathBuf> {
        self.binary("ci", &[&WORKSPACE_TESTS[..], &["--no-run"]].concat())
    }

    fn binary(&self, folder: &str, build: &[&str]) -> Result<PathBuf> {
        if let Some(path) = std::env::var_os("CLOVERLEAF_BIN") {
            return Ok(self.root.join(path));
        }
        run(self.cargo().args(build))?;
        Ok(self.target.join(folder).join("cloverleaf"))
    }

    /// `cargo` in the root of the checkout.
    pub(crate) fn cargo(&self) -> Command {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo
            .current_dir(&self.root)
            .env("CARGO_TARGET_DIR", &self.target);
        // `cargo run` tells xtask which package it is. Passed on, that would be a change of the
        // environment for `ring`, which is compiled anew then, and all that needs it.
        for (name, _) in std::env::vars_os() {
            let of_package = ["CARGO_PKG_", "CARGO_MANIFEST_"];
            let name_text = name.to_string_lossy();
            if of_package.iter().any(|start| name_text.starts_with(start)) {
                cargo.env_remove(&name);
            }
        }
        cargo
    }
}

/// Runs a command with its output shown; an exit status other than 0 is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let shown = describe(command);
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("cannot start {shown}"))?;
    if !status.success() {
        bail!("{shown}: {status}");
    }
    Ok(())
}

/// Runs a command and returns what it printed on stdout; on failure the error has its stderr.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let shown = describe(command);
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {shown}"))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{shown}: {}\n{}{}",
            output.status,
            tail(&stdout, 40),
            tail(&stderr, 40)
        );
    }
    Ok(stdout)
}

/// The last lines of a text, for error messages.
pub(crate) fn tail(text: &str, lines_max: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let start = lines.len().saturating_sub(lines_max);
    lines[start..]
        .iter()
        .flat_map(|line| [*line, "\n"])
        .collect()
}

/// Whether a program of this name is on the search path.
pub(crate) fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Today as `YYYY-MM-DD`, in UTC.
pub(crate) fn today() -> String {
    Timestamp::now().strftime("%Y-%m-%d").to_string()
}

fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ")
}
