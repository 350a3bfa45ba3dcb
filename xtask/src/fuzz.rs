//! `cargo xtask fuzz`: runs the fuzz targets, or says what is missing for that.

use std::process::Command;

use anyhow::{Result, bail};

use crate::workspace::{Workspace, on_path, output, run};

/// Run the fuzz targets. They need a nightly toolchain and cargo-fuzz; CI relies on the property
/// tests, which need neither, and compiles the targets (`--check`).
#[derive(clap::Args)]
pub(crate) struct Args {
    /// One target; all of them without it.
    target: Option<String>,
    /// Seconds for each target.
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Only compile the targets, with the stable toolchain.
    #[arg(long)]
    check: bool,
}

pub(crate) fn main(workspace: &Workspace, args: &Args) -> Result<bool> {
    let folder = workspace.root().join("fuzz");
    if args.check {
        let mut cargo = workspace.cargo();
        run(cargo
            .current_dir(&folder)
            .args(["check", "--bins", "--locked"]))?;
        return Ok(true);
    }
    if !on_path("cargo-fuzz") {
        bail!("cargo-fuzz is missing: `cargo install cargo-fuzz` installs it");
    }
    let toolchains = output(Command::new("rustup").args(["toolchain", "list"]))?;
    if !toolchains.lines().any(|line| line.starts_with("nightly")) {
        bail!("a nightly toolchain is missing: `rustup toolchain install nightly` installs it");
    }
    let mut targets: Vec<String> = Vec::new();
    for entry in std::fs::read_dir(folder.join("fuzz_targets"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        targets.extend(name.strip_suffix(".rs").map(str::to_owned));
    }
    targets.sort();
    if let Some(only) = &args.target {
        targets.retain(|target| target == only);
    }
    if targets.is_empty() {
        bail!("there is no such fuzz target");
    }
    for target in targets {
        println!("{target}: {} s", args.seconds);
        let limit = format!("-max_total_time={}", args.seconds);
        let mut fuzz = Command::new("cargo");
        fuzz.current_dir(workspace.root())
            .args(["+nightly", "fuzz", "run", &target, "--", &limit]);
        run(&mut fuzz)?;
    }
    Ok(true)
}
