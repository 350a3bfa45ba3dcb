//! Registration with a real nsqlookupd, and the broker's own lookup API.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use super::{Context, Report};
use crate::broker::{Broker, Kind, free_addresses};
use crate::http;
use crate::process::Process;
use crate::wait;

pub(super) fn run(context: &Context, report: &mut Report) -> Result<()> {
    let folder = context.workspace.temp_folder("lookup")?;
    let lookupd = Lookupd::start(context, folder.path())?;
    let mut options = context.options(folder.path())?;
    options.lookupd_tcp.push(lookupd.tcp);
    let mut broker = options.start()?;
    let port = broker.tcp().port();
    report.check("a topic is registered", || {
        broker.create("registered", "ch")?;
        until_found(lookupd.http, "registered", Some(port))
    });
    report.check("a channel is registered", || {
        wait::until("the channel is registered", wait::HANG, || {
            let answer = http::get(lookupd.http, "/channels?topic=registered")?.json()?;
            Ok(answer["channels"][0] == "ch")
        })
    });
    report.check("a deleted topic is unregistered", || {
        broker.create("short-lived", "")?;
        until_found(lookupd.http, "short-lived", Some(port))?;
        http::post(broker.http(), "/topic/delete?topic=short-lived", b"")?;
        until_found(lookupd.http, "short-lived", None)
    });
    report.check("a restarted broker registers what it has", || {
        broker.terminate()?;
        broker = broker.options().start()?;
        until_found(lookupd.http, "registered", Some(port))
    });
    if context.kind == Kind::Cloverleaf {
        report.check("the lookup API of our own", || own_api(&broker));
    }
    Ok(())
}

/// A real nsqlookupd on free ports.
pub(super) struct Lookupd {
    pub(super) tcp: SocketAddr,
    pub(super) http: SocketAddr,
    _process: Process,
}

impl Lookupd {
    pub(super) fn start(context: &Context, folder: &Path) -> Result<Self> {
        let [tcp, http] = free_addresses()?;
        let mut command = Command::new(context.clients.nsq_program("nsqlookupd"));
        command
            .arg(format!("--tcp-address={tcp}"))
            .arg(format!("--http-address={http}"));
        let process = Process::start(&mut command, &folder.join("nsqlookupd.out"))?;
        wait::until("nsqlookupd listens", wait::HANG, || {
            Ok(TcpStream::connect(tcp).is_ok() && TcpStream::connect(http).is_ok())
        })?;
        Ok(Self {
            tcp,
            http,
            _process: process,
        })
    }
}

/// Waits until a lookup finds the topic at this TCP port, or at none.
fn until_found(lookup: SocketAddr, topic: &str, port: Option<u16>) -> Result<()> {
    let what = format!("a lookup of {topic} finds port {port:?}");
    wait::until(&what, wait::HANG, || {
        let answer = http::get(lookup, &format!("/lookup?topic={topic}"))?;
        if answer.status == 404 {
            return Ok(port.is_none());
        }
        let found = answer.json()?["producers"][0]["tcp_port"].as_u64();
        Ok(found == port.map(u64::from))
    })
}

fn own_api(broker: &Broker) -> Result<()> {
    let address = broker.options().lookup_http;
    let port = broker.tcp().port();
    until_found(address, "registered", Some(port))?;
    until_found(address, "nobody-knows-it", None)?;
    let topics = http::get(address, "/topics")?.json()?;
    if !topics["topics"]
        .as_array()
        .is_some_and(|list| list.iter().any(|t| t == "registered"))
    {
        bail!("/topics: {topics}");
    }
    let channels = http::get(address, "/channels?topic=registered")?.json()?;
    if channels["channels"] != serde_json::json!(["ch"]) {
        bail!("/channels: {channels}");
    }
    let nodes = http::get(address, "/nodes")?.json()?;
    if nodes["producers"][0]["tcp_port"] != port {
        bail!("/nodes: {nodes}");
    }
    let ping = http::get(address, "/ping")?;
    if ping.body != b"OK" {
        bail!("/ping: {}", ping.text());
    }
    http::get(address, "/info")?.json()?;
    Ok(())
}
