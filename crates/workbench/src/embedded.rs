//! A broker in this process, on a temporary folder.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cloverleaf_doctor::{Query, Report};
use cloverleaf_server::{Config, ConfigSources, Observer, Server, SystemClock, end_with_engine};
use tempfile::TempDir;

/// A running broker and its folder. Dropping it ends the broker and removes the folder.
pub(crate) struct Embedded {
    server: Option<Server>,
    folder: TempDir,
}

impl Embedded {
    /// Starts a broker with these options. It reads neither a configuration file nor the
    /// environment. `name` is a part of the folder's name. The observer gets what the broker's
    /// doctor observes.
    pub(crate) fn start(
        name: &str,
        mut flags: BTreeMap<String, Vec<String>>,
        observer: Option<Observer>,
    ) -> anyhow::Result<Embedded> {
        end_with_engine();
        let folder = tempfile::Builder::new()
            .prefix(&format!("cloverleaf-{name}-"))
            .tempdir()?;
        let data: PathBuf = folder.path().join("data");
        flags.insert("data-dir".to_owned(), vec![data.display().to_string()]);
        let sources = ConfigSources {
            file: None,
            variables: BTreeMap::new(),
            flags,
        };
        let clock = Arc::new(SystemClock::default());
        let server = Server::start_with(Config::load(&sources)?, clock, observer)?;
        Ok(Embedded {
            server: Some(server),
            folder,
        })
    }

    /// The broker.
    pub(crate) fn server(&self) -> anyhow::Result<&Server> {
        let server = self.server.as_ref();
        server.ok_or_else(|| anyhow::anyhow!("the broker has ended"))
    }

    /// The report of the broker's doctor; `None` after the broker has ended.
    pub(crate) fn doctor(&self, query: &Query) -> Option<Report> {
        Some(self.server.as_ref()?.doctor(query))
    }

    /// The folder with the broker's data.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        // Before the folder is removed.
        if let Some(server) = self.server.take() {
            server.shutdown();
        }
    }
}

/// The address of a listener that was configured.
pub(crate) fn there(address: Option<SocketAddr>) -> anyhow::Result<SocketAddr> {
    address.ok_or_else(|| anyhow::anyhow!("it does not listen for one of its protocols"))
}
