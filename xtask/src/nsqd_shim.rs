//! `nsqd` as a name for our broker: the test suites of client libraries start a program called
//! nsqd from the search path, with nsqd's flags. A link of that name to this program is put there,
//! which translates the flags and becomes `cloverleaf serve`.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::broker::{Kind, Options};

/// Tells the shim where our binary is.
pub(crate) const BINARY_VARIABLE: &str = "NSQD_SHIM_BINARY";

/// nsqd's flags that take no value.
const SWITCHES: &[&str] = &["verbose", "snappy", "deflate"];

/// Makes a folder for the search path with `nsqd` in it.
pub(crate) fn install(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let link = folder.join("nsqd");
    if link.symlink_metadata().is_ok() {
        std::fs::remove_file(&link)?;
    }
    std::os::unix::fs::symlink(std::env::current_exe()?, link)?;
    Ok(())
}

/// Whether this program was started by the name of nsqd.
pub(crate) fn is_asked_for() -> bool {
    let name = std::env::args_os().next();
    name.is_some_and(|name| {
        Path::new(&name)
            .file_name()
            .is_some_and(|name| name == "nsqd")
    })
}

/// Becomes our broker; returns only on failure.
pub(crate) fn main() -> Result<bool> {
    let binary = std::env::var_os(BINARY_VARIABLE)
        .with_context(|| format!("{BINARY_VARIABLE} is not set"))?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // Without --data-path nsqd uses the current folder; a suite's source is no place for data.
    let data = std::env::temp_dir().join(format!("nsqd-shim-{}", std::process::id()));
    let options = translate(Path::new(&binary), &data, &arguments)?;
    Err(options.command().exec().into())
}

fn translate(binary: &Path, data: &Path, arguments: &[String]) -> Result<Options> {
    let mut options = Options::new(Kind::Cloverleaf, binary, data)?;
    options.tcp = SocketAddr::from(([127, 0, 0, 1], 4150));
    options.http = SocketAddr::from(([127, 0, 0, 1], 4151));
    let mut certificate = None;
    let mut key = None;
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let name = word.trim_start_matches('-');
        let (name, value) = match name.split_once('=') {
            Some((name, value)) => (name, value),
            None if SWITCHES.contains(&name) => (name, ""),
            None => (
                name,
                words
                    .next()
                    .with_context(|| format!("{word} has no value"))?
                    .as_str(),
            ),
        };
        match name {
            "tcp-address" => options.tcp = value.parse()?,
            "http-address" => options.http = value.parse()?,
            "data-path" => options.data = PathBuf::from(value),
            "lookupd-tcp-address" => options.lookupd_tcp.push(value.parse()?),
            "auth-http-address" => options.auth_http = Some(value.parse()?),
            "tls-cert" => certificate = Some(PathBuf::from(value)),
            "tls-key" => key = Some(PathBuf::from(value)),
            // Ours are always on, or have no meaning here: no suite asks for client certificates.
            "broadcast-address" | "tls-root-ca-file" | "verbose" | "snappy" | "deflate" => {}
            _ => bail!("the nsqd shim does not know --{name}"),
        }
    }
    options.tls = certificate.zip(key);
    Ok(options)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn both_spellings_of_a_flag_are_understood() {
        let arguments = [
            "-tcp-address",
            "127.0.0.1:5000",
            "--verbose",
            "--data-path=there",
        ];
        let arguments = arguments.map(str::to_owned);
        let options = translate(Path::new("x"), Path::new("y"), &arguments).unwrap();
        assert_eq!(options.tcp, "127.0.0.1:5000".parse().unwrap());
        assert_eq!(options.data, Path::new("there"));
    }

    #[test]
    fn an_unknown_flag_is_refused() {
        assert!(translate(Path::new("x"), Path::new("y"), &["--sure=1".to_owned()]).is_err());
    }
}
