//! A broker that was opened: its client, and what is known of it.

use std::sync::Arc;

use super::BenchError;
use crate::driver::{Connect, DriverError, Promise};
use crate::network::Network;
use crate::url::Url;
use crate::usage::BrokerPlace;

/// A broker that can be measured.
pub struct Opened {
    /// Its client.
    pub connect: Box<dyn Connect>,
    /// Its name in tables.
    pub label: String,
    /// Where it is, as the user has said it.
    pub url: Url,
    /// Where it is: the same, but for an embedded one, which has an address here.
    pub reached: Url,
    /// Where its processes are.
    pub place: BrokerPlace,
    /// The network that it is in, if the kernel makes the distance.
    pub network: Option<Arc<Network>>,
    /// A topic that the user named.
    pub topic: Option<String>,
    /// Durability that its acknowledgements promise, if the user states it.
    pub claimed: Option<Promise>,
}

impl Opened {
    /// Does something from where its clients are: connections made elsewhere may not reach it.
    ///
    /// # Errors
    /// The system does not let it.
    pub fn at_client<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, DriverError> {
        match &self.network {
            Some(network) => {
                let done = network.at_client(work);
                done.map_err(|error| self.url.unreachable(error))
            }
            None => Ok(work()),
        }
    }
}

/// Numbers of processes: `1234,1235`.
pub(super) fn parse_pids(text: &str) -> Result<Vec<u32>, BenchError> {
    let pids = text.split(',').map(str::parse::<u32>);
    let pids: Result<Vec<u32>, _> = pids.collect();
    pids.map_err(|_| BenchError::Settings(format!("?pid={text} is no number of a process")))
}

/// One of the classes of durability.
pub(super) fn parse_promise(text: &str) -> Result<Promise, BenchError> {
    Promise::named(text).ok_or_else(|| {
        let text = format!("?durability={text} is none of none, memory, kernel, disk");
        BenchError::Settings(text)
    })
}
