//! `cloverleaf serve`

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::ArgMatches;
use clap::parser::ValueSource;
use cloverleaf_server::config_value::{DurabilityMode, OptionValue};
use cloverleaf_server::{Config, ConfigSources, OPTIONS, Server, Signals, end_with_engine};
use tracing_subscriber::filter::LevelFilter;

use crate::args::REPAIR;
use crate::logging;

/// Exit status when a second signal ends the shutdown early, the same as after an unhandled Ctrl-C.
const EXIT_SECOND_SIGNAL: i32 = 130;

/// Runs a broker until a signal ends it.
pub(crate) fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    let mut config = Config::load(&sources(matches))?;
    config.repair = matches.get_flag(REPAIR);
    let level = logging::init(config.general.log_level);
    end_with_engine();
    let signals = Signals::listen(|| {
        tracing::warn!("told to end twice: ending at once");
        std::process::exit(EXIT_SECOND_SIGNAL);
    })?;
    let server = Server::start(config)?;
    server.on_log_level(move |wanted| {
        // It fails only if the subscriber is gone, and then there is nothing to filter.
        let _ = level.modify(|filter| *filter = LevelFilter::from_level(wanted));
    });
    announce(&server, &mut io::stdout().lock())?;
    for line in server.recovery() {
        tracing::info!("recovery: {line}");
    }
    signals.wait();
    tracing::info!("shutting down: clients may finish what is pending");
    server.shutdown();
    tracing::info!("all is written down");
    Ok(())
}

fn sources(matches: &ArgMatches) -> ConfigSources {
    let mut flags = BTreeMap::new();
    for flag in OPTIONS.iter().map(cloverleaf_server::OptionDef::flag) {
        if matches.value_source(&flag) == Some(ValueSource::CommandLine)
            && let Some(values) = matches.get_many::<String>(&flag)
        {
            flags.insert(flag, values.cloned().collect());
        }
    }
    ConfigSources {
        file: matches.get_one::<PathBuf>("config").cloned(),
        // The broker's own variables are always text, so others are skipped.
        variables: std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect(),
        flags,
    }
}

/// Prints the broker's addresses and what it promises.
fn announce(server: &Server, out: &mut impl Write) -> io::Result<()> {
    let config = &server.context().config;
    let addresses = server.addresses();
    let promise = match config.general.durability {
        DurabilityMode::Protocol => {
            "Kafka's acks=all, AMQP's confirms of persistent messages: synced to disk, survives \
             power loss; acks=1 and NSQ's OK: handed to the kernel, survives kill -9"
        }
        DurabilityMode::Disk => "an answer means synced to disk, survives power loss",
        DurabilityMode::Kernel => "an answer means handed to the kernel, survives kill -9",
    };
    let show = |address: Option<SocketAddr>| address.map_or("off".to_owned(), |a| a.to_string());
    writeln!(out, "cloverleaf {}", env!("CARGO_PKG_VERSION"))?;
    writeln!(out, "  data        {}", config.general.data_dir.display())?;
    writeln!(
        out,
        "  durability  {} ({promise})",
        config.general.durability
    )?;
    write!(
        out,
        "  NSQ         {}",
        show(addresses.of("nsq.tcp_address"))
    )?;
    write!(out, ", HTTP {}", show(addresses.of("nsq.http_address")))?;
    if let Some(https) = addresses.of("nsq.https_address") {
        write!(out, ", HTTPS {https}")?;
    }
    writeln!(
        out,
        ", lookup {}",
        show(addresses.of("nsq.lookup_http_address"))
    )?;
    write!(out, "  Kafka       {}", show(addresses.of("kafka.address")))?;
    if let Some(tls) = addresses.of("kafka.tls_address") {
        write!(out, ", TLS {tls}")?;
    }
    if let Some(advertised) = &config.kafka.advertised_address {
        write!(out, ", clients are told {}", advertised.text())?;
    }
    if let Some(advertised) = &config.kafka.advertised_tls_address {
        write!(out, ", over TLS {}", advertised.text())?;
    }
    writeln!(out)?;
    write!(out, "  AMQP        {}", show(addresses.of("amqp.address")))?;
    if let Some(tls) = addresses.of("amqp.tls_address") {
        write!(out, ", TLS {tls}")?;
    }
    writeln!(out)?;
    if let Some(admin) = addresses.of("admin_address") {
        writeln!(out, "  admin       http://{admin}/metrics, /healthz")?;
    }
    out.flush()
}
