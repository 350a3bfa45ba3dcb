//! Builds the advice files into the crate, so that a new one needs no code.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let folder =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("advice");
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|it| it == "toml") {
            println!("cargo::rerun-if-changed={}", path.display());
            paths.push(path);
        }
    }
    paths.sort();
    let mut code = String::from("pub(super) const FILES: &[(&str, &str)] = &[\n");
    for path in paths {
        let name = path.file_name().unwrap_or_default();
        // Debug strings are Rust's own.
        let _ = writeln!(code, "    ({name:?}, include_str!({path:?})),");
    }
    code.push_str("];\n");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    fs::write(out.join("advice_files.rs"), code)
}
