//! Patients that play some at a time, and those of whom it was not as it should be once more.

use anyhow::{Result, bail};

use super::lab::{self, Finding, Link, Outcome, Played};
use super::patients::Patient;
use super::{Context, Programs, Report};

/// How long patients play: what a rule needs to see, and the start of a Java machine. Longer would
/// not be better: what waits for messages that have come again waits longer and longer.
const SECONDS: &str = "15";

/// Patients that play at once: so many leave a small machine time for each.
const AT_ONCE_MAX: usize = 6;

/// Starts the patients beside a broker, some at a time, and checks what is found of each of them.
/// Those of whom it is not what it should be play once more, each alone, and the results of the
/// others stand: rates are measured, on a machine that may be busy. Where nobody may make a network
/// it says so: that is not for a tool to mend.
pub(super) fn play(
    context: &Context,
    report: &mut Report,
    link: Link,
    patients: &[Patient],
    settings: &[String],
) -> Result<()> {
    let ward = Ward {
        context,
        link,
        settings,
        programs: Programs::build(context, patients)?,
    };
    for patients in patients.chunks(AT_ONCE_MAX) {
        let patients: Vec<&Patient> = patients.iter().collect();
        if let Err(reason) = ward.check(report, &patients) {
            println!("SKIPPED {}: ****** {} ******", report.group, reason.0);
            return Ok(());
        }
    }
    Ok(())
}

/// What patients play with.
struct Ward<'a> {
    context: &'a Context,
    link: Link,
    settings: &'a [String],
    programs: Programs,
}

/// Why there is no network.
struct NoNetwork(String);

/// What is to be said of each that has played, in their order, and of what was found beside.
struct Checks {
    each: Vec<Result<()>>,
    rest: Result<()>,
}

impl Ward<'_> {
    fn check(&self, report: &mut Report, patients: &[&Patient]) -> Result<(), NoNetwork> {
        let first = self.play(patients)?;
        // Nobody knows whose fault it is if something else is found.
        let is_alone = first.rest.is_ok();
        let mut again = Vec::new();
        for (patient, outcome) in patients.iter().zip(first.each) {
            match outcome {
                Ok(()) if is_alone => report.check(patient.name, || Ok(())),
                Ok(()) => again.push(*patient),
                Err(error) => {
                    println!("        {}: {error:#}", patient.name);
                    again.push(patient);
                }
            }
        }
        match first.rest {
            Ok(()) => report.check(&beside(patients), || Ok(())),
            Err(error) => println!("        {}: {error:#}", beside(patients)),
        }
        if again.is_empty() {
            return Ok(());
        }
        println!(
            "        once more: {}: the machine may have had other things to do",
            names(&again)
        );
        let rounds: Vec<&[&Patient]> = match self.link.bandwidth {
            None => again.chunks(1).collect(),
            // Who shares a link with others has it for itself without them.
            Some(_) => vec![patients],
        };
        for patients in rounds {
            let second = self.play(patients)?;
            for (patient, outcome) in patients.iter().zip(second.each) {
                if again.iter().any(|it| it.name == patient.name) {
                    report.check(&twice(patient.name), || outcome);
                }
            }
            report.check(&twice(&beside(patients)), || second.rest);
        }
        Ok(())
    }

    fn play(&self, patients: &[&Patient]) -> Result<Checks, NoNetwork> {
        match self.played(patients) {
            Ok(Outcome::Played(played)) => Ok(Checks {
                each: patients.iter().map(|it| played.check(it)).collect(),
                rest: played.check_rest(patients),
            }),
            Ok(Outcome::NoNetwork(reason)) => Err(NoNetwork(reason)),
            Err(error) => Ok(Checks {
                each: patients.iter().map(|_| bail!("{error:#}")).collect(),
                rest: Err(error),
            }),
        }
    }

    fn played(&self, patients: &[&Patient]) -> Result<Outcome> {
        let patients = patients.iter().copied();
        let commands = patients
            .map(|patient| Ok((patient, self.programs.command(self.context, patient)?)))
            .collect::<Result<Vec<_>>>()?;
        lab::play(self.context, self.link, self.settings, &commands, SECONDS)
    }
}

/// The name of the check that there is nothing more.
fn beside(patients: &[&Patient]) -> String {
    format!("nothing else is found beside {}", names(patients))
}

fn names(patients: &[&Patient]) -> String {
    let names: Vec<&str> = patients.iter().map(|it| it.name).collect();
    names.join(", ")
}

/// The name of a check whose first outcome did not count.
fn twice(name: &str) -> String {
    format!("{name} (played twice)")
}

impl Played {
    /// Whether a patient has what it should have, and nothing else.
    fn check(&self, patient: &Patient) -> Result<()> {
        self.is_whole(patient)?;
        let found: Vec<&Finding> = self.findings_of(patient)?;
        match (&patient.expected, found.as_slice()) {
            (None, []) => Ok(()),
            (Some(expected), [finding]) => expected.check(finding),
            (None, found) => bail!("it is well, but there is {}", lab::shown(found)),
            (Some(expected), found) => bail!(
                "{} is expected, and there is {}; the library says that it is {:?}",
                expected.rule,
                lab::shown(found),
                self.says(patient)?
            ),
        }
    }

    /// Whether each finding is about one of them.
    fn check_rest(&self, patients: &[&Patient]) -> Result<()> {
        let mut rest: Vec<&Finding> = self.answer.findings.iter().collect();
        for patient in patients {
            // Who has not said who it is has failed by that.
            let found = self.findings_of(patient).unwrap_or_default();
            rest.retain(|finding| !found.iter().any(|it| std::ptr::eq(*it, *finding)));
        }
        match rest.as_slice() {
            [] => Ok(()),
            rest => bail!("{}", lab::shown(rest)),
        }
    }

    /// The findings about clients with the patient's name, library and version.
    fn findings_of(&self, patient: &Patient) -> Result<Vec<&Finding>> {
        let says = self.says(patient)?;
        let findings = self.answer.findings.iter();
        let found = findings.filter(|finding| {
            let client = &finding.client;
            client.client_id == patient.client_id
                && client.library == says.library
                && client.version == says.version
        });
        Ok(found.collect())
    }
}
