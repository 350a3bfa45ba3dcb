//! Checks that the broker knows real clients, and has the advice for each: library, version, and
//! the doctor's words about each mistake that its programs make, looked up by identity.

use anyhow::{Result, bail};
use serde::Deserialize;

use super::programs::ReportedLibrary;
use super::table::{Scenario, scenarios};
use super::{Change, Context, Programs, Report};
use crate::broker::Broker;
use crate::http;
use crate::process::Process;
use crate::wait::{self, HANG};

/// The broker's answer about its clients, of which only this is read.
#[derive(Debug, Deserialize)]
struct Known {
    clients: Vec<KnownClient>,
}

#[derive(Debug, Deserialize)]
struct KnownClient {
    client: Client,
    advice: Vec<RuleAdvice>,
}

#[derive(Debug, Deserialize)]
struct Client {
    protocol: String,
    library: String,
    version: String,
    client_id: String,
}

#[derive(Debug, Deserialize)]
struct RuleAdvice {
    rule: String,
    changes: Vec<Change>,
}

/// Each kind of client that the advice has a name for, once; scenarios of one kind are looked
/// up by the same identity.
pub(in crate::clients) fn check(context: &Context, report: &mut Report) -> Result<()> {
    let all: Vec<Scenario> = scenarios().filter(|it| !it.program.is_lab()).collect();
    let programs = Programs::build(context, &all)?;
    let mistakes: Vec<Scenario> = all.into_iter().filter(|it| it.expected.is_some()).collect();
    let folder = context.workspace.temp_folder("identity")?;
    let broker = context.plain_broker(folder.path())?;
    let mut seen: Vec<&Scenario> = Vec::new();
    for scenario in &mistakes {
        if seen.iter().any(|it| it.is_like(scenario)) {
            continue;
        }
        seen.push(scenario);
        let alike = mistakes.iter().filter(|it| it.is_like(scenario));
        let mut live = Err(anyhow::anyhow!("it was not asked"));
        report.check(&format!("{} is known", scenario.library()), || {
            live = ask(context, &programs, &broker, scenario);
            live.as_ref()
                .map(drop)
                .map_err(|error| anyhow::anyhow!("{error:#}"))
        });
        let Ok(client) = live else {
            continue;
        };
        for scenario in alike {
            report.check(scenario.name, || client.advises(scenario));
        }
    }
    Ok(())
}

impl Scenario {
    /// Whether both are one program of one library.
    fn is_like(&self, other: &Scenario) -> bool {
        self.program.name == other.program.name && self.library() == other.library()
    }

    fn library(&self) -> &'static str {
        self.expected.map_or("", |it| it.client)
    }
}

/// Starts a program, and waits until the broker knows the client that it says that it is.
fn ask(
    context: &Context,
    programs: &Programs,
    broker: &Broker,
    scenario: &Scenario,
) -> Result<KnownClient> {
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
        let Ok(says) = ReportedLibrary::read(&file) else {
            return Ok(false);
        };
        let answer = http::get(broker.admin(), "/api/doctor/clients")?.json()?;
        let known: Known = serde_json::from_value(answer)?;
        found = known.clients.into_iter().find(|it| it.is(scenario, &says));
        Ok(found.is_some())
    })
    .map_err(|error| match ReportedLibrary::read(&file) {
        Ok(says) => error.context(format!("the library says that it is {says:?}")),
        Err(_) => error,
    })?;
    match found {
        Some(client) => Ok(client),
        None => bail!("the broker does not know it"),
    }
}

impl KnownClient {
    fn is(&self, scenario: &Scenario, says: &ReportedLibrary) -> bool {
        self.client.protocol == scenario.program.protocol
            && self.client.library == says.library
            && self.client.version == says.version
            && self.client.client_id == scenario.client_id
    }

    fn advises(&self, scenario: &Scenario) -> Result<()> {
        let Some(expected) = &scenario.expected else {
            bail!("it does nothing wrong");
        };
        let of_rule = self.advice.iter().filter(|it| it.rule == expected.rule);
        let checks: Vec<Result<()>> = of_rule
            .map(|it| expected.check_advice(&it.changes))
            .collect();
        // Publishers and consumers are advised apart.
        if checks.iter().any(Result::is_ok) {
            return Ok(());
        }
        match checks.into_iter().next() {
            Some(error) => error,
            None => bail!("there is no advice for {}", expected.rule),
        }
    }
}
