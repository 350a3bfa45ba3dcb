//! A client on its side of a network.

use std::sync::Arc;
use std::time::Duration;

use super::Network;
use crate::driver::{Connect, Consume, DriverError, Produce, Promise};
use crate::plan::Plan;
use crate::url::{Url, connect};

/// A client, on the client's side, for a broker on the broker's side.
///
/// # Errors
/// As [`connect`].
pub fn connect_across(url: &Url, network: &Arc<Network>) -> Result<Box<dyn Connect>, DriverError> {
    Ok(Box::new(Across {
        inner: connect(url)?,
        url: url.clone(),
        network: Arc::clone(network),
    }))
}

/// Sockets and threads of a client are made on its side; who uses a connection afterwards may be
/// anywhere.
struct Across {
    inner: Box<dyn Connect>,
    url: Url,
    // Behind the client, so that it ends after it.
    network: Arc<Network>,
}

impl Across {
    fn there<T: Send>(
        &self,
        work: impl FnOnce(&dyn Connect) -> Result<T, DriverError> + Send,
    ) -> Result<T, DriverError> {
        let done = self.network.at_client(|| work(&*self.inner));
        done.unwrap_or_else(|error| Err(self.url.unreachable(error)))
    }
}

impl Connect for Across {
    fn prepare(&self, plan: &Plan) -> Result<(), DriverError> {
        self.there(|client| client.prepare(plan))
    }

    fn producer(&self, plan: &Plan, number: u32) -> Result<Box<dyn Produce>, DriverError> {
        self.there(|client| client.producer(plan, number))
    }

    fn consumer(&self, plan: &Plan, number: u32) -> Result<Box<dyn Consume>, DriverError> {
        self.there(|client| client.consumer(plan, number))
    }

    fn starts(&self) -> Vec<i64> {
        self.inner.starts()
    }

    fn begin_at(&self, starts: Vec<i64>) {
        self.inner.begin_at(starts);
    }

    fn quiet(&self, plan: &Plan) -> Duration {
        let by_link = self.network.link.quiet(plan.size_bytes, plan.consumers);
        self.inner.quiet(plan).max(by_link)
    }

    fn clean_up(&self, plan: &Plan) -> Result<(), DriverError> {
        self.there(|client| client.clean_up(plan))
    }

    fn versions(&self) -> Vec<(String, String)> {
        self.inner.versions()
    }

    fn promise(&self, plan: &Plan) -> Promise {
        self.inner.promise(plan)
    }

    fn remarks(&self) -> Vec<String> {
        self.inner.remarks()
    }

    fn may_reorder(&self, plan: &Plan) -> Option<String> {
        self.inner.may_reorder(plan)
    }
}
