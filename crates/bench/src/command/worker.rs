//! `cloverleaf bench worker`.

use std::net::SocketAddr;

use clap::Args;

use super::{BenchError, Session};
use crate::fleet::Worker;

/// Where a worker listens, and to whom.
#[derive(Debug, Clone, Args)]
pub struct WorkerArgs {
    /// The address on which the coordinator finds it
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:4190")]
    pub listen: SocketAddr,
    /// What a coordinator has to know. Nothing is encrypted: it keeps strangers from using this
    /// machine, not from listening
    #[arg(
        long,
        value_name = "SECRET",
        env = "CLOVERLEAF_BENCH_TOKEN",
        hide_env_values = true
    )]
    pub token: Option<String>,
}

impl WorkerArgs {
    /// Works until it is stopped.
    ///
    /// # Errors
    /// The address needs a token, or cannot be listened on.
    pub(super) fn run(&self, session: &Session<'_>) -> Result<bool, BenchError> {
        let worker = Worker::bind(self.listen, self.token.as_deref())?;
        let failed = |error| BenchError::file((self.listen.to_string().into(), error));
        // The first line, for whoever started it with port 0.
        println!("worker {}", worker.address().map_err(failed)?);
        worker
            .run(session.stop(), &|words| eprintln!("{words}"))
            .map_err(failed)?;
        Ok(true)
    }
}
