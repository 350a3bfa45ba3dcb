//! nsqadmin: its pages and its API answer, by the broker's address and by a lookup address.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};
use serde_json::Value;

use super::lookup::Lookupd;
use super::{Context, Report};
use crate::broker::{Broker, Kind, free_addresses};
use crate::http;
use crate::nsq::{Connection, publish_command};
use crate::process::Process;
use crate::wait;

pub(super) fn run(context: &Context, report: &mut Report) -> Result<()> {
    let folder = context.workspace.temp_folder("admin")?;
    // Ours serves the lookup API itself; the original needs an nsqlookupd.
    let lookupd = match context.kind {
        Kind::Cloverleaf => None,
        Kind::Nsqd | Kind::Kafka | Kind::RabbitMq => Some(Lookupd::start(context, folder.path())?),
    };
    let mut options = context.options(folder.path())?;
    options
        .lookupd_tcp
        .extend(lookupd.as_ref().map(|lookupd| lookupd.tcp));
    let broker = options.start()?;
    let lookup = lookupd
        .as_ref()
        .map_or(options.lookup_http, |lookupd| lookupd.http);
    broker.create("orders", "billing")?;
    let mut client = Connection::open(broker.tcp())?;
    client.publish("orders", b"one")?;
    // A consumer with a message in flight, which the channel's page then shows.
    let mut consumer = Connection::consumer(broker.tcp(), "orders", "billing", 1)?;
    consumer.message()?;
    client.send(&publish_command("orders", b"two"))?;
    client.frame()?;

    let by_broker = format!("--nsqd-http-address={}", broker.http());
    let by_lookup = format!("--lookupd-http-address={lookup}");
    for (name, flag) in [("by broker", by_broker), ("by lookup", by_lookup)] {
        let (_nsqadmin, address) = start(context, folder.path(), &flag)?;
        let node = broker.http();
        for page in [
            "/",
            "/topics",
            "/topics/orders",
            "/topics/orders/billing",
            "/nodes",
            &format!("/nodes/{node}"),
            "/counter",
        ] {
            report.check(&format!("{name}: {page}"), || {
                let answer = http::get(address, page)?;
                if answer.status != 200 || !answer.text().contains("<html") {
                    bail!("status {}: {}", answer.status, answer.text());
                }
                Ok(())
            });
        }
        report.check(&format!("{name}: API"), || api(address, &broker));
        report.check(&format!("{name}: pause and unpause"), || {
            pause(address, &broker)
        });
    }
    Ok(())
}

fn start(context: &Context, folder: &Path, flag: &str) -> Result<(Process, SocketAddr)> {
    let [address] = free_addresses()?;
    let mut command = Command::new(context.clients.nsq_program("nsqadmin"));
    command.arg(format!("--http-address={address}")).arg(flag);
    let process = Process::start(&mut command, &folder.join("nsqadmin.out"))?;
    wait::until("nsqadmin listens", wait::HANG, || {
        Ok(TcpStream::connect(address).is_ok())
    })?;
    Ok((process, address))
}

fn api(address: SocketAddr, broker: &Broker) -> Result<()> {
    let expect = |path: &str, pointer: &str, value: Value| -> Result<()> {
        let answer = http::get(address, path)?.json()?;
        if answer.pointer(pointer) != Some(&value) {
            bail!("{path}: {pointer} is not {value} in {answer}");
        }
        Ok(())
    };
    expect("/api/topics", "/topics/0", "orders".into())?;
    expect("/api/topics/orders", "/message_count", 2.into())?;
    expect(
        "/api/topics/orders",
        "/channels/0/channel_name",
        "billing".into(),
    )?;
    expect("/api/topics/orders/billing", "/in_flight_count", 1.into())?;
    expect("/api/topics/orders/billing", "/depth", 1.into())?;
    expect(
        "/api/topics/orders/billing",
        "/clients/0/ready_count",
        1.into(),
    )?;
    expect(
        "/api/nodes",
        "/nodes/0/tcp_port",
        broker.tcp().port().into(),
    )?;
    let node = format!("/api/nodes/{}", broker.http());
    expect(&node, "/topics/0/topic_name", "orders".into())?;
    let counter = http::get(address, "/api/counter")?.json()?;
    if !counter["stats"].is_object() {
        bail!("/api/counter: {counter}");
    }
    Ok(())
}

/// The buttons of the topic's page.
fn pause(address: SocketAddr, broker: &Broker) -> Result<()> {
    for (action, paused) in [("pause", true), ("unpause", false)] {
        let body = format!("{{\"action\":\"{action}\"}}");
        let answer = http::post(address, "/api/topics/orders", body.as_bytes())?;
        if answer.status != 200 {
            bail!("{action}: status {}: {}", answer.status, answer.text());
        }
        let stats = http::get(broker.http(), "/stats?format=json&topic=orders")?.json()?;
        if stats["topics"][0]["paused"] != paused {
            bail!("after {action}: {stats}");
        }
    }
    Ok(())
}
