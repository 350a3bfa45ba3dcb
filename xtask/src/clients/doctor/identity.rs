//! Checks that the broker knows real clients, and has the advice for each: library, version, and
//! the doctor's words about each mistake that its patients play, looked up by identity.

use anyhow::{Result, bail};
use serde::Deserialize;

use super::patients::Patient;
use super::programs::Says;
use super::wards::WARDS;
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

/// Each kind of client that the advice has a name for, once; patients of the same kind are looked
/// up by the same identity.
pub(in crate::clients) fn check(context: &Context, report: &mut Report) -> Result<()> {
    let all: Vec<&Patient> = WARDS.iter().flat_map(|ward| ward.patients).collect();
    let ill: Vec<&Patient> = all
        .iter()
        .copied()
        .filter(|it| it.expected.is_some())
        .collect();
    let programs = Programs::build(context, all.iter().copied())?;
    let folder = context.workspace.temp_folder("identity")?;
    let broker = context.plain_broker(folder.path())?;
    let mut seen: Vec<&Patient> = Vec::new();
    for patient in &ill {
        if seen.iter().any(|it| it.is_like(patient)) {
            continue;
        }
        seen.push(patient);
        let alike = ill.iter().filter(|it| it.is_like(patient));
        let mut live = Err(anyhow::anyhow!("it was not asked"));
        report.check(&format!("{} is known", patient.library()), || {
            live = ask(context, &programs, &broker, patient);
            live.as_ref()
                .map(drop)
                .map_err(|error| anyhow::anyhow!("{error:#}"))
        });
        let Ok(client) = live else {
            continue;
        };
        for patient in alike {
            report.check(patient.name, || client.advises(patient));
        }
    }
    Ok(())
}

impl Patient {
    /// Whether both are one program of one library.
    fn is_like(&self, other: &Patient) -> bool {
        self.program == other.program && self.library() == other.library()
    }

    fn library(&self) -> &'static str {
        self.expected.map_or("", |it| it.client)
    }
}

/// Starts a patient, and waits until the broker knows the client that it says that it is.
fn ask(
    context: &Context,
    programs: &Programs,
    broker: &Broker,
    patient: &Patient,
) -> Result<KnownClient> {
    let folder = context.workspace.temp_folder("identity")?;
    let file = folder.path().join("says.json");
    let mut command = programs.command(context, patient, HANG.as_secs(), &file)?;
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
        let Ok(says) = Says::read(&file) else {
            return Ok(false);
        };
        let answer = http::get(broker.admin(), "/api/doctor/clients")?.json()?;
        let known: Known = serde_json::from_value(answer)?;
        found = known.clients.into_iter().find(|it| it.is(patient, &says));
        Ok(found.is_some())
    })
    .map_err(|error| match Says::read(&file) {
        Ok(says) => error.context(format!("the library says that it is {says:?}")),
        Err(_) => error,
    })?;
    match found {
        Some(client) => Ok(client),
        None => bail!("the broker does not know it"),
    }
}

impl KnownClient {
    fn is(&self, patient: &Patient, says: &Says) -> bool {
        self.client.protocol == patient.program.protocol()
            && self.client.library == says.library
            && self.client.version == says.version
            && self.client.client_id == patient.client_id
    }

    fn advises(&self, patient: &Patient) -> Result<()> {
        let Some(expected) = &patient.expected else {
            bail!("it is well");
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
