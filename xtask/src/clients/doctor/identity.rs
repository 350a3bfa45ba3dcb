//! Checks that the broker recognises real clients by library and version, and that the doctor has
//! the advice for each mistake that the programs of a client make.

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::table::{Scenario, scenarios};
use super::{Context, Programs, Report, programs};
use crate::broker::Broker;
use crate::http;
use crate::process::Process;
use crate::wait::{self, HANG};

/// Starts each kind of client once: a program, and a name that the advice gives the client. All
/// scenarios of that kind are then checked against the advice for it.
pub(in crate::clients) fn check(context: &Context, report: &mut Report) -> Result<()> {
    let all: Vec<Scenario> = scenarios().filter(|it| !it.program.is_lab()).collect();
    let programs = Programs::build(context, &all)?;
    let folder = context.workspace.temp_folder("identity")?;
    let broker = context.plain_broker(folder.path())?;
    let kind = |it: &Scenario| Some((it.program.name, it.expected?.client));
    let mut left: Vec<Scenario> = all.into_iter().filter(|it| kind(it).is_some()).collect();
    while let Some(first) = left.first().copied() {
        let alike: Vec<Scenario> = left.extract_if(.., |it| kind(it) == kind(&first)).collect();
        let library = first.expected.map_or("", |it| it.client);
        let mut client = None;
        report.check(&format!("{library} is known"), || {
            client = Some(ask(context, &programs, &broker, &first)?);
            Ok(())
        });
        let Some(client) = client else {
            continue;
        };
        for scenario in alike {
            report.check(scenario.name, || advises(&client, &scenario));
        }
    }
    Ok(())
}

/// Starts a scenario's program, and waits until the broker knows its client. Returns what
/// `/api/doctor/clients` has about the client.
fn ask(
    context: &Context,
    programs: &Programs,
    broker: &Broker,
    scenario: &Scenario,
) -> Result<Value> {
    let folder = context.workspace.temp_folder("identity")?;
    let file = folder.path().join("identity.json");
    let mut command = programs.command(context, scenario, HANG.as_secs(), &file)?;
    let url = format!("amqp://guest:guest@{}/%2f", broker.amqp());
    command
        .env("CLOVERLEAF_KAFKA", broker.kafka().to_string())
        .env("CLOVERLEAF_KAFKA_TLS", broker.kafka_tls().to_string())
        .env("CLOVERLEAF_AMQP_URL", url)
        .env("CLOVERLEAF_NSQD", broker.tcp().to_string())
        .env("CLOVERLEAF_NSQD_HTTP", broker.http().to_string());
    let log = folder.path().join("log");
    let mut program = Process::start(&mut command, &log)?;
    let mut found = None;
    wait::until("the broker knows the client", HANG, || {
        if let Some(status) = program.exit_status()? {
            bail!("it has ended with {status}\n{}", program.log());
        }
        let Ok(reported) = programs::reported_library(&file) else {
            return Ok(false);
        };
        let known = http::get(broker.admin(), "/api/doctor/clients")?.json()?;
        let mut clients = known["clients"].as_array().into_iter().flatten();
        found = clients
            .find(|it| scenario.is_client(&it["client"], &reported))
            .cloned();
        Ok(found.is_some())
    })
    .map_err(|error| match programs::reported_library(&file) {
        Ok(reported) => error.context(format!("the library says that it is {reported}")),
        Err(_) => error,
    })?;
    found.context("the broker does not know it")
}

/// Whether the advice for this client is what the scenario expects.
fn advises(client: &Value, scenario: &Scenario) -> Result<()> {
    let expected = scenario.expected.context("it does nothing wrong")?;
    let advice = client["advice"].as_array().into_iter().flatten();
    let of_rule = advice.filter(|it| it["rule"] == expected.rule);
    let checks: Vec<Result<()>> = of_rule.map(|it| expected.check_advice(it)).collect();
    // A rule may have one advice for publishers and one for consumers.
    if checks.iter().any(Result::is_ok) {
        return Ok(());
    }
    let none = || Err(anyhow::anyhow!("there is no advice for {}", expected.rule));
    checks.into_iter().next().unwrap_or_else(none)
}
