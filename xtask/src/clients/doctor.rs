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

use super::{Context, Report};
use programs::Programs;
use table::Expectation;

pub(super) use identity::check as identity;
pub(crate) use plays::{Args as PlaysArgs, main as plays};

/// A change that a finding or the advice for a client names.
#[derive(Debug, serde::Deserialize)]
struct Change {
    client: String,
    setting: String,
    value: Option<String>,
    code: Vec<String>,
}

impl Expectation {
    /// Whether advice of this rule names first what it should. Values depend on what was measured.
    fn check_advice(&self, changes: &[Change]) -> Result<()> {
        let Some(change) = changes.first() else {
            bail!("{} names no change", self.rule);
        };
        if change.setting != self.setting || !change.client.contains(self.client) {
            bail!(
                "{} says to change {:?} of {}, not {:?} of {}",
                self.rule,
                change.setting,
                change.client,
                self.setting,
                self.client
            );
        }
        if !self.code.is_empty() && !change.code.iter().any(|line| line.contains(self.code)) {
            bail!("no line of {:?} has {:?}", change.code, self.code);
        }
        Ok(())
    }

    /// Whether a finding of this rule says what it should.
    fn check(&self, rule: &str, changes: &[Change]) -> Result<()> {
        if rule != self.rule {
            bail!("{rule} is found, not {}", self.rule);
        }
        self.check_advice(changes)?;
        match changes.first() {
            Some(change) if !self.has_value(change.value.as_deref()) => {
                bail!("it sets {} to {:?}", change.setting, change.value)
            }
            _ => Ok(()),
        }
    }
}
