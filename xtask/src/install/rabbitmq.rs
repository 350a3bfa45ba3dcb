//! RabbitMQ itself, which no package registry has: a Debian with its package, in a folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::Clients;
use crate::workspace::output;

const PACKAGE: &str = "rabbitmq-server";
/// `$1` is the folder. `/proc` is mounted in a namespace of its own and goes with it.
const INSTALL: &str = "mount -t proc proc \"$1/proc\"; \
                       exec chroot \"$1\" sh -ec 'export DEBIAN_FRONTEND=noninteractive; \
                       apt-get update -qq; \
                       apt-get install -y -qq --no-install-recommends rabbitmq-server; \
                       apt-get clean'";

impl Clients {
    /// A folder with a Debian that has RabbitMQ: `debian` itself if that is one, or the release of
    /// this name, which debootstrap installs. `DEBIAN_MIRROR` names another mirror than
    /// debootstrap's own. Needs root.
    pub(crate) fn rabbitmq(&self, debian: &str) -> Result<PathBuf> {
        if debian.contains('/') {
            return Ok(PathBuf::from(debian));
        }
        if debian.is_empty() || !debian.bytes().all(|b| b.is_ascii_lowercase()) {
            bail!("{debian:?} is neither a folder nor a release of Debian");
        }
        let name = format!("rabbitmq-{debian}");
        let folder = self.folder.join(&name);
        self.once(&name, &[PACKAGE], || install(debian, &folder))
            .with_context(|| format!("RabbitMQ of Debian {debian} could not be installed"))?;
        Ok(folder)
    }
}

fn install(release: &str, folder: &Path) -> Result<()> {
    // The remains of an attempt that failed.
    if folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    // The mounts of debootstrap go with its namespace, whatever comes of it.
    let mut debootstrap = Command::new("unshare");
    debootstrap.args(["--mount", "debootstrap", "--variant=minbase", release]);
    debootstrap.arg(folder);
    if let Some(mirror) = std::env::var_os("DEBIAN_MIRROR") {
        debootstrap.arg(mirror);
    }
    output(&mut debootstrap)?;
    // No service starts on installation.
    let policy = folder.join("usr/sbin/policy-rc.d");
    std::fs::write(&policy, "#!/bin/sh\nexit 101\n")?;
    output(Command::new("chmod").arg("+x").arg(policy))?;
    std::fs::write(folder.join("etc/hosts"), "127.0.0.1 localhost\n")?;
    let mut inside = Command::new("unshare");
    inside.args(["--mount", "sh", "-ec", INSTALL, "sh"]);
    output(inside.arg(folder)).map(drop)
}

/// The version of RabbitMQ in such a folder, and of the Erlang/OTP that it runs on.
pub(crate) fn versions(debian: &Path) -> Result<(String, String)> {
    let packages = debian.join("usr/lib/rabbitmq/lib");
    let version = entry_after(&packages, "rabbitmq_server-")
        .with_context(|| format!("no {PACKAGE} in {}", debian.display()))?;
    let releases = debian.join("usr/lib/erlang/releases");
    let erlang = std::fs::read_dir(&releases)
        .with_context(|| releases.display().to_string())?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .find(|name| name.bytes().all(|b| b.is_ascii_digit()))
        .with_context(|| format!("no release in {}", releases.display()))?;
    Ok((version, erlang))
}

/// The rest of the name of the entry that begins so.
fn entry_after(folder: &Path, start: &str) -> Result<String> {
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let name = entry?.file_name();
        if let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(start)) {
            return Ok(rest.to_owned());
        }
    }
    bail!("{} has no {start}…", folder.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_versions_in_a_folder_are_found() -> Result<()> {
        let debian = tempfile::tempdir()?;
        let make = |path: &str| std::fs::create_dir_all(debian.path().join(path));
        assert!(versions(debian.path()).is_err());
        make("usr/lib/rabbitmq/lib/rabbitmq_server-4.0.5/sbin")?;
        make("usr/lib/erlang/releases/27")?;
        std::fs::write(debian.path().join("usr/lib/erlang/releases/RELEASES"), "")?;
        let found = versions(debian.path())?;
        assert_eq!(found, ("4.0.5".to_owned(), "27".to_owned()));
        Ok(())
    }
}
