//! `cloverleaf lab`: the command line of the lab crate, with brokers in this process.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use cloverleaf_bench::allow_networks;
use cloverleaf_doctor::Recorder;
use cloverleaf_lab::{Addresses, BrokerOptions, LabArgs, LabBroker, Outcome, Page};
use cloverleaf_page::Terminal;
use cloverleaf_program::VERSION;
use cloverleaf_server::Observer;

use crate::embedded::{Embedded, there};
use crate::stop;

/// Does what the arguments say.
pub(crate) fn run(args: &LabArgs) -> anyhow::Result<ExitCode> {
    if args.wants_networks() {
        // Where it is refused, making one says so, or nobody needs it.
        let _ = allow_networks();
    }
    let stop = stop::by_signals()?;
    let terminal = Terminal::here();
    let page = Page {
        width: terminal.width,
        with_colours: terminal.with_colours,
    };
    let outcome = match args.run(&start, &stop, &page) {
        Ok(outcome) => outcome,
        Err(error) => {
            eprintln!("cloverleaf: {error}");
            Outcome::Failed
        }
    };
    Ok(ExitCode::from(match outcome {
        Outcome::Good => 0,
        Outcome::Found => 1,
        Outcome::Failed => 2,
    }))
}

/// Writes what a doctor looks at into this file.
fn recorder(path: &Path) -> anyhow::Result<Observer> {
    let file = File::create(path).with_context(|| path.display().to_string())?;
    let mut recorder = Some(Recorder::new(BufWriter::new(file), VERSION)?);
    let path = path.to_path_buf();
    Ok(Box::new(move |seen| {
        let outcome = recorder.as_mut().map(|it| it.record(seen));
        if let Some(Err(error)) = outcome {
            // Once: it is not tried again.
            eprintln!("cloverleaf: {} is not complete: {error}", path.display());
            recorder = None;
        }
    }))
}

fn start(options: &BrokerOptions) -> Result<LabBroker, String> {
    begin(options).map_err(|error| format!("{error:#}"))
}

fn begin(options: &BrokerOptions) -> anyhow::Result<LabBroker> {
    let ports = &options.ports;
    let mut flags: BTreeMap<String, Vec<String>> = [
        ("kafka", ports.kafka),
        ("amqp", ports.amqp),
        ("nsq-tcp", ports.nsq),
        ("nsq-http", ports.nsq_http),
        ("nsq-lookup-http", ports.nsq_lookup),
        ("admin", ports.admin),
    ]
    .into_iter()
    .map(|(name, port)| (format!("{name}-address"), vec![format!("127.0.0.1:{port}")]))
    .collect();
    if let Some(it) = &options.certificate {
        let protocols = [("kafka", ports.kafka_tls), ("amqp", ports.amqp_tls)];
        for (protocol, port) in protocols {
            let mut set = |name: &str, value: String| {
                flags.insert(format!("{protocol}-tls-{name}"), vec![value]);
            };
            set("address", format!("127.0.0.1:{port}"));
            set("cert", it.certificate.display().to_string());
            set("key", it.key.display().to_string());
        }
    }
    for (name, value) in &options.settings {
        flags.insert(name.clone(), vec![value.clone()]);
    }
    let observer = options.record.as_deref().map(recorder).transpose()?;
    let broker = Arc::new(Embedded::start("lab", flags, observer)?);
    let addresses = broker.server()?.addresses();
    let asked = Arc::clone(&broker);
    Ok(LabBroker {
        addresses: Addresses {
            kafka: there(addresses.of("kafka.address"))?,
            kafka_tls: addresses.of("kafka.tls_address"),
            amqp: there(addresses.of("amqp.address"))?,
            amqp_tls: addresses.of("amqp.tls_address"),
            nsq: there(addresses.of("nsq.tcp_address"))?,
            nsq_http: there(addresses.of("nsq.http_address"))?,
            nsq_lookup: addresses.of("nsq.lookup_http_address"),
            admin: there(addresses.of("admin_address"))?,
        },
        doctor: Box::new(move |query| asked.doctor(query)),
        guard: Box::new(broker),
    })
}
