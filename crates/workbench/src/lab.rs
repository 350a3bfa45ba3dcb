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
use cloverleaf_lab::{
    Addresses, BrokerListener, BrokerOptions, LabArgs, LabBroker, LabOutcome, OutputPage,
};
use cloverleaf_page::Terminal;
use cloverleaf_program::VERSION;
use cloverleaf_server::Observer;

use crate::embedded::{Embedded, there};
use crate::stop;

/// Runs the command.
pub(crate) fn run(args: &LabArgs) -> anyhow::Result<ExitCode> {
    if args.wants_networks() {
        // A refusal is not reported here: the command reports it if it needs a network.
        let _ = allow_networks();
    }
    let stop = stop::by_signals()?;
    let terminal = Terminal::here();
    let page = OutputPage {
        width: terminal.width,
        with_colours: terminal.with_colours,
    };
    let outcome = match args.run(&start, &stop, &page) {
        Ok(outcome) => outcome,
        Err(error) => {
            eprintln!("cloverleaf: {error}");
            LabOutcome::Failed
        }
    };
    Ok(ExitCode::from(match outcome {
        LabOutcome::Good => 0,
        LabOutcome::Found => 1,
        LabOutcome::Failed => 2,
    }))
}

/// Records what a doctor observes in this file.
fn recorder(path: &Path) -> anyhow::Result<Observer> {
    let file = File::create(path).with_context(|| path.display().to_string())?;
    let mut recorder = Some(Recorder::new(BufWriter::new(file), VERSION)?);
    let path = path.to_path_buf();
    Ok(Box::new(move |seen| {
        let outcome = recorder.as_mut().map(|it| it.record(seen));
        if let Some(Err(error)) = outcome {
            // Reported once: the recording ends here.
            eprintln!("cloverleaf: {} is not complete: {error}", path.display());
            recorder = None;
        }
    }))
}

fn start(options: &BrokerOptions) -> Result<LabBroker, String> {
    begin(options).map_err(|error| format!("{error:#}"))
}

fn begin(options: &BrokerOptions) -> anyhow::Result<LabBroker> {
    let mut flags: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut set = |name: &str, value: String| flags.insert(name.to_owned(), vec![value]);
    let has_certificate = options.certificate.is_some();
    for (listener, port) in BrokerListener::ALL.into_iter().zip(options.ports) {
        if has_certificate || !listener.is_tls() {
            let flag = listener.setting().replace(['.', '_'], "-");
            set(&flag, format!("127.0.0.1:{port}"));
        }
    }
    if let Some(it) = &options.certificate {
        for protocol in ["kafka", "amqp"] {
            let certificate = it.certificate.display().to_string();
            set(&format!("{protocol}-tls-cert"), certificate);
            set(&format!("{protocol}-tls-key"), it.key.display().to_string());
        }
    }
    for (name, value) in &options.settings {
        set(name, value.clone());
    }
    let observer = options.record.as_deref().map(recorder).transpose()?;
    let broker = Arc::new(Embedded::start("lab", flags, observer)?);
    let addresses = broker.server()?.addresses();
    let needed = |it: &BrokerListener| !it.is_tls() && *it != BrokerListener::NsqLookup;
    for listener in BrokerListener::ALL.into_iter().filter(needed) {
        there(addresses.of(listener.setting()))?;
    }
    let asked = Arc::clone(&broker);
    Ok(LabBroker {
        addresses: Addresses::new(|listener| addresses.of(listener.setting())),
        doctor: Box::new(move |query| asked.doctor(query)),
        guard: Box::new(broker),
    })
}
