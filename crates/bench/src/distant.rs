//! A client with a distance between it and its broker.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use crate::clients::client_of;
use crate::driver::{Connect, Consume, DriverError, Produce, Promise};
use crate::histogram::Histogram;
use crate::network::Network;
use crate::plan::Plan;
use crate::proxy::{Link, Proxy};
use crate::url::{Url, connect};
use crate::words;

/// How long a connection to the broker is waited for before a proxy is started.
const REACH: Duration = Duration::from_secs(5);

/// A remark says so if the distance was longer than asked for by more than this.
const LATE_NS: u64 = 1_000_000;

/// A client on the client's side of a network, for a broker on its other side.
///
/// # Errors
/// As [`connect`].
pub fn connect_across(url: &Url, network: &Arc<Network>) -> Result<Box<dyn Connect>, DriverError> {
    Ok(Box::new(DistantClient {
        inner: connect(url)?,
        url: url.clone(),
        link: *network.link(),
        made_by: MadeBy::Network(Arc::clone(network)),
    }))
}

/// A client for the broker at this URL, at a distance that proxies make: one for each host.
///
/// # Errors
/// As [`connect`], or a host refuses connections.
pub fn connect_over(url: &Url, link: &Link) -> Result<Box<dyn Connect>, DriverError> {
    if link.is_none() {
        return connect(url);
    }
    let client = client_of(url.protocol)?;
    let mut near = url.clone();
    let (mut proxies, mut doors) = (Vec::new(), Vec::new());
    for host in &url.hosts {
        let mut one = url.clone();
        one.hosts = vec![host.clone()];
        let upstream = answering(&one)?;
        if client.has_http {
            // The default is the port after the broker's, not the one after the proxy's.
            if let Some(port) = upstream.port().checked_add(1) {
                near.set_default("http", SocketAddr::new(upstream.ip(), port).to_string());
            }
        }
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let proxy = Proxy::start(*link, client.carries, listen, upstream);
        let proxy = proxy.map_err(|error| url.unreachable(error))?;
        doors.push(("127.0.0.1".to_owned(), proxy.address().port()));
        proxies.push(proxy);
    }
    near.pass_through(doors);
    Ok(Box::new(DistantClient {
        inner: connect(&near)?,
        url: url.clone(),
        link: *link,
        made_by: MadeBy::Proxies(proxies),
    }))
}

/// The first address of a host that accepts a connection. Without this check, clients would see a
/// refusal only as a connection that the proxy resets.
fn answering(url: &Url) -> Result<SocketAddr, DriverError> {
    let mut refusal = url.unreachable("its name has no address");
    for address in url.addresses()? {
        match TcpStream::connect_timeout(&address, REACH) {
            Ok(_) => return Ok(address),
            Err(error) => refusal = url.unreachable(error),
        }
    }
    Err(refusal)
}

/// The client, and what makes its distance.
struct DistantClient {
    inner: Box<dyn Connect>,
    url: Url,
    link: Link,
    // After `inner` in order of drops: the client ends first.
    made_by: MadeBy,
}

enum MadeBy {
    Proxies(Vec<Proxy>),
    Network(Arc<Network>),
}

impl DistantClient {
    /// Makes a client's sockets and threads on the client's side of a network. They may be used
    /// from any thread afterwards.
    fn there<T: Send>(
        &self,
        work: impl FnOnce(&dyn Connect) -> Result<T, DriverError> + Send,
    ) -> Result<T, DriverError> {
        match &self.made_by {
            MadeBy::Proxies(_) => work(&*self.inner),
            MadeBy::Network(network) => {
                let done = network.at_client(|| work(&*self.inner));
                done.unwrap_or_else(|error| Err(self.url.unreachable(error)))
            }
        }
    }
}

impl Connect for DistantClient {
    fn prepare(&self, plan: &Plan) -> Result<(), DriverError> {
        self.there(|client| client.prepare(plan))?;
        let MadeBy::Proxies(proxies) = &self.made_by else {
            return Ok(());
        };
        if proxies.iter().any(Proxy::is_passed_by) {
            return Err(DriverError::Unsupported {
                what: format!(
                    "{} tells an address that cannot be put at a distance, so clients would be \
                     near it",
                    self.url
                ),
            });
        }
        // Forgets the lateness of the preparation.
        let _ = self.remarks();
        Ok(())
    }

    fn remarks(&self) -> Vec<String> {
        let mut remarks = self.inner.remarks();
        let MadeBy::Proxies(proxies) = &self.made_by else {
            return remarks;
        };
        let mut late = Histogram::default();
        let each = proxies.iter();
        each.for_each(|proxy| late.add(&proxy.take_late()));
        let late_ns = late.quantile_ns(0.99);
        if late_ns > LATE_NS {
            remarks.push(format!(
                "the distance was longer than it was to be, because the proxy had too little CPU \
                 time: what was due was sent on {} later or more once in a hundred times",
                words::time(late_ns as f64)
            ));
        }
        remarks
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
        let by_link = self.link.quiet(plan.size_bytes, plan.consumers);
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

    fn may_reorder(&self, plan: &Plan) -> Option<String> {
        self.inner.may_reorder(plan)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::net::TcpListener;

    use super::*;

    #[test]
    fn nobody_there_is_said_at_once() {
        let gone = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let url: Url = format!("nsq://{gone}").parse().unwrap();
        let link = Link {
            rtt: Duration::from_millis(10),
            ..Link::default()
        };
        let error = connect_over(&url, &link).err().unwrap().to_string();
        assert!(
            error.starts_with(&format!("cannot connect to nsq://{gone}: ")),
            "{error}"
        );
    }
}
