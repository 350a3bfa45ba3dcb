//! The doctor's findings about real clients. A scenario is a client program that makes a mistake
//! which its library invites, or a well-configured program of the same library.
//!
//! The gate asks what needs a live client: that the broker recognises library and version of each,
//! and that the doctor has the advice for it (`identity`). Whether the mistake is found is replayed
//! from recordings (`crates/doctor/tests/recorded.rs`) and played live by hand (`plays`).

mod identity;
mod plays;
mod programs;
mod runner;
mod table;

use anyhow::{Result, bail};
use serde_json::Value;

use super::{Context, Report};
use programs::Programs;
use table::{Expectation, Scenario};

pub(super) use identity::check as identity;
pub(crate) use plays::{Args as PlaysArgs, main as plays};

impl Scenario {
    /// Whether the doctor's `client` is the scenario's program, whose library reports `library` and
    /// `version` in `reported`.
    fn is_client(&self, client: &Value, reported: &Value) -> bool {
        client["protocol"] == self.program.protocol
            && client["client_id"] == self.client_id
            && ["library", "version"]
                .iter()
                .all(|it| reported[it].is_string() && client[it] == reported[it])
    }
}

impl Expectation {
    /// Whether the first change of a finding, or of the advice for its rule, is the expected one.
    /// Values are not compared: advice has none before something is measured.
    fn check_advice(&self, advice: &Value) -> Result<()> {
        let change = &advice["changes"][0];
        let client = change["client"].as_str().unwrap_or_default();
        if change["setting"] != self.setting || !client.contains(self.client) {
            let (rule, setting) = (self.rule, self.setting);
            bail!(
                "{rule} says to make {change}, not to change {setting:?} of {}",
                self.client
            );
        }
        let mut code = change["code"].as_array().into_iter().flatten();
        let has_code = code.any(|line| line.as_str().is_some_and(|it| it.contains(self.code)));
        if !self.code.is_empty() && !has_code {
            bail!("no line of {} has {:?}", change["code"], self.code);
        }
        Ok(())
    }

    /// Whether a finding is of the expected rule and names the expected change with its value.
    fn check(&self, finding: &Value) -> Result<()> {
        if finding["rule"] != self.rule {
            bail!("{} is found, not {}", finding["rule"], self.rule);
        }
        self.check_advice(finding)?;
        let change = &finding["changes"][0];
        if !self.has_value(change["value"].as_str()) {
            bail!("it sets {} to {}", change["setting"], change["value"]);
        }
        Ok(())
    }
}
