//! A client with the proxy between it and its broker.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::{Link, Proxy};
use crate::book::Book;
use crate::clients::client_of;
use crate::driver::{Connect, Consume, DriverError, Produce, Promise, Stop};
use crate::feed::Feed;
use crate::histogram::Histogram;
use crate::plan::Plan;
use crate::url::{Url, connect};
use crate::words;

/// How long the proxy waits for the broker to answer at all.
const REACH: Duration = Duration::from_secs(5);

/// A distance that is longer than it should be by more than this is told of.
const LATE_NS: u64 = 1_000_000;

/// A client for the broker there, over this distance.
///
/// # Errors
/// As [`connect`]; or nothing answers there.
pub fn connect_over(url: &Url, link: &Link) -> Result<Box<dyn Connect>, DriverError> {
    if link.is_none() {
        return connect(url);
    }
    let client = client_of(url.protocol)?;
    let mut near = url.clone();
    let (mut proxies, mut defaults) = (Vec::new(), Vec::new());
    for host in &mut near.hosts {
        let mut one = url.clone();
        one.hosts = vec![host.clone()];
        let upstream = answering(&one)?;
        if client.has_http {
            // Beside the broker's own port, not beside the proxy's.
            let beside = upstream.port().checked_add(1);
            let http = beside.map(|port| SocketAddr::new(upstream.ip(), port).to_string());
            http.into_iter()
                .for_each(|http| defaults.push(("http", http)));
        }
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let proxy = Proxy::start(*link, client.carries, listen, upstream);
        let proxy = proxy.map_err(|error| url.unreachable(error))?;
        *host = ("127.0.0.1".to_owned(), proxy.address().port());
        proxies.push(proxy);
    }
    for (name, value) in defaults {
        near.set_default(name, value);
    }
    let inner = connect(&near)?;
    let (near, url) = (near.to_string(), url.to_string());
    Ok(Box::new(Distant {
        inner,
        link: *link,
        names: Names { near, url },
        proxies,
    }))
}

/// The address of a host at which somebody answers: clients see a refusal only later otherwise.
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

/// The client, and what carries it.
struct Distant {
    inner: Box<dyn Connect>,
    link: Link,
    names: Names,
    // Behind the client, so that they end after it.
    proxies: Vec<Proxy>,
}

/// Errors name the broker, not the proxy.
#[derive(Clone)]
struct Names {
    near: String,
    url: String,
}

impl Names {
    fn told(&self, mut error: DriverError) -> DriverError {
        match &mut error {
            DriverError::Connect { url, .. }
            | DriverError::Refused { url, .. }
            | DriverError::Gone { url, .. } => {
                if *url == self.near {
                    url.clone_from(&self.url);
                }
            }
            DriverError::Unsupported { .. } => {}
        }
        error
    }
}

impl Connect for Distant {
    fn prepare(&self, plan: &Plan) -> Result<(), DriverError> {
        let prepared = self.inner.prepare(plan);
        prepared.map_err(|error| self.names.told(error))?;
        if self.proxies.iter().any(Proxy::is_passed_by) {
            return Err(DriverError::Unsupported {
                what: format!(
                    "{} tells an address that cannot be put at a distance, so clients would be \
                     near it",
                    self.names.url
                ),
            });
        }
        // Delays from before do not count.
        let _ = self.remarks();
        Ok(())
    }

    fn remarks(&self) -> Vec<String> {
        let mut late = Histogram::default();
        self.proxies
            .iter()
            .for_each(|proxy| late.add(&proxy.take_late()));
        let late_ns = late.quantile_ns(0.99);
        let mut remarks = self.inner.remarks();
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
        let inner = self.inner.producer(plan, number);
        let inner = inner.map_err(|error| self.names.told(error))?;
        Ok(Box::new(DistantProduce(inner, self.names.clone())))
    }

    fn consumer(&self, plan: &Plan, number: u32) -> Result<Box<dyn Consume>, DriverError> {
        let inner = self.inner.consumer(plan, number);
        let inner = inner.map_err(|error| self.names.told(error))?;
        Ok(Box::new(DistantConsume(inner, self.names.clone())))
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
        self.inner
            .clean_up(plan)
            .map_err(|error| self.names.told(error))
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

struct DistantProduce(Box<dyn Produce>, Names);

impl Produce for DistantProduce {
    fn run(&mut self, feed: &mut Feed, book: &mut Book, stop: &Stop) -> Result<(), DriverError> {
        let done = self.0.run(feed, book, stop);
        done.map_err(|error| self.1.told(error))
    }
}

struct DistantConsume(Box<dyn Consume>, Names);

impl Consume for DistantConsume {
    fn run(&mut self, book: &mut Book, stop: &Stop) -> Result<(), DriverError> {
        let done = self.0.run(book, stop);
        done.map_err(|error| self.1.told(error))
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

    #[test]
    fn errors_name_the_broker() {
        let names = Names {
            near: "nsq://127.0.0.1:1".to_owned(),
            url: "nsq://far:4150".to_owned(),
        };
        let near: Url = "nsq://127.0.0.1:1".parse().unwrap();
        let told = names.told(near.gone("it was closed")).to_string();
        assert_eq!(told, "nsq://far:4150 went away: it was closed");
    }
}
