//! HTTP as the tests need it: an answer whatever its status.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use ureq::{Agent, Body, http};

use crate::wait;

/// An answer without its headers.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON; any status but 200 is an error.
    pub(crate) fn json(&self) -> Result<serde_json::Value> {
        if self.status != 200 {
            bail!("status {}: {}", self.status, self.text());
        }
        serde_json::from_slice(&self.body).with_context(|| format!("no JSON: {}", self.text()))
    }
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Result<Answer> {
    answer(agent().get(format!("http://{address}{path}")).call())
        .with_context(|| format!("GET {path} at {address}"))
}

pub(crate) fn post(address: SocketAddr, path: &str, body: &[u8]) -> Result<Answer> {
    answer(agent().post(format!("http://{address}{path}")).send(body))
        .with_context(|| format!("POST {path} at {address}"))
}

/// A connection of its own for each request, and no proxy.
fn agent() -> Agent {
    let config = Agent::config_builder();
    let config = config.timeout_global(Some(wait::HANG));
    config
        .http_status_as_error(false)
        .proxy(None)
        .build()
        .new_agent()
}

fn answer(answer: Result<http::Response<Body>, ureq::Error>) -> Result<Answer> {
    let mut answer = answer?;
    let body = answer.body_mut().with_config().limit(u64::MAX);
    Ok(Answer {
        body: body.read_to_vec()?,
        status: answer.status().as_u16(),
    })
}
