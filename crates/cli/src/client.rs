//! A client of the admin interface of a running broker.

use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::ArgMatches;
use cloverleaf_server::admin_types::Problem;
use cloverleaf_server::percent_encoded;
use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::http::{Method, StatusCode};
use ureq::{Agent, Body};

/// Maximum length of an answer: one message of the largest configurable size, in hexadecimal
/// digits. A usual page is far shorter.
const ANSWER_BYTES_MAX: u64 = 5 << 30;

/// The admin interface of one broker.
pub(crate) struct Client {
    address: String,
    agent: Agent,
}

impl Client {
    /// The client for the address given by `--admin`.
    pub(crate) fn from_matches(matches: &ArgMatches) -> Self {
        let address = matches.get_one::<String>("admin");
        Self {
            address: address.map_or("", |it| host_and_port(it)).to_owned(),
            agent: agent(None),
        }
    }

    /// The same client with a time limit for each answer.
    pub(crate) fn within(self, time: Duration) -> Self {
        Self {
            agent: agent(Some(time)),
            ..self
        }
    }

    /// Gets the JSON at a path.
    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        read(self.call(Method::GET, path, None::<&()>)?)
    }

    /// Sends JSON and parses the answer.
    pub(crate) fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> anyhow::Result<T> {
        read(self.call(Method::POST, path, Some(body))?)
    }

    /// Sends a change and parses the answer.
    pub(crate) fn patch<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> anyhow::Result<T> {
        read(self.call(Method::PATCH, path, Some(body))?)
    }

    /// Deletes the resource at a path.
    pub(crate) fn delete(&self, path: &str) -> anyhow::Result<()> {
        self.call(Method::DELETE, path, None::<&()>).map(|_| ())
    }

    fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> anyhow::Result<Body> {
        let bytes = body.map(serde_json::to_vec).transpose()?;
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address))
            .header("content-type", "application/json");
        let answer = match bytes {
            Some(bytes) => self.agent.run(request.body(bytes)?),
            None => self.agent.run(request.body(())?),
        };
        let mut answer = answer.with_context(|| {
            format!(
                "no broker answers at {}; is `cloverleaf serve` running? (--admin says where)",
                self.address
            )
        })?;
        if !answer.status().is_success() {
            let text = answer.body_mut().read_to_string().unwrap_or_default();
            match serde_json::from_str::<Problem>(&text) {
                Ok(problem) => bail!("{}", problem.error),
                Err(_) => {
                    let is_nsq = answer.headers().contains_key("x-nsq-content-type");
                    let (at, status, text) = (&self.address, answer.status(), text.trim());
                    match answer.status() {
                        StatusCode::NOT_FOUND => {
                            bail!("{at} answers {status}: {text}. {}", guess(is_nsq, text))
                        }
                        _ => bail!("{at} answers {status}: {text}"),
                    }
                }
            }
        }
        Ok(answer.into_body())
    }
}

/// Host and port of an address as people copy it from a browser: `http://127.0.0.1:8080/`.
fn host_and_port(text: &str) -> &str {
    let text = text.trim();
    let text = text.strip_prefix("http://").unwrap_or(text);
    text.trim_end_matches('/')
}

/// Guesses which server answered, when it was no admin interface.
fn guess(is_nsq: bool, answer: &str) -> &'static str {
    // The error of nsqd, or of this broker's own NSQ interface.
    if is_nsq || answer.contains("\"message\"") && answer.contains("NOT_FOUND") {
        "That is an HTTP interface of NSQ's; the admin address is another one (--admin)"
    } else {
        "It is not the admin address of a broker of this version (--admin)"
    }
}

fn agent(timeout: Option<Duration>) -> Agent {
    // No proxy: the broker is reached directly, whatever proxy the environment names.
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .proxy(None)
        .timeout_global(timeout)
        .build();
    config.into()
}

fn read<T: DeserializeOwned>(mut body: Body) -> anyhow::Result<T> {
    body.with_config()
        .limit(ANSWER_BYTES_MAX)
        .read_json()
        .context("the broker's answer is not understood; is it another version?")
}

/// A name as one segment of a path.
pub(crate) fn path_segment(name: &str) -> String {
    percent_encoded(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_be_one_that_a_browser_takes() {
        for text in [
            "127.0.0.1:8080",
            "http://127.0.0.1:8080",
            " http://127.0.0.1:8080/ ",
        ] {
            assert_eq!(host_and_port(text), "127.0.0.1:8080");
        }
        assert_eq!(host_and_port("[::1]:8080"), "[::1]:8080");
    }

    #[test]
    fn names_become_one_segment() {
        assert_eq!(path_segment("orders.v1-a_b"), "orders.v1-a_b");
        assert_eq!(path_segment("a/b #ephemeral"), "a%2Fb%20%23ephemeral");
        assert_eq!(path_segment("ö"), "%C3%B6");
    }
}
