//! What an auth service allows a client: its answer to our question, and the checks against it.
//!
//! ```json
//! {"ttl": 3600, "identity": "me", "identity_url": "http://…",
//!  "authorizations": [
//!    {"topic": "regexp", "channels": ["regexp"], "permissions": ["subscribe", "publish"]}]}
//! ```
//!
//! The question itself is asked by the server crate: this one has no socket.
//! Source: nsq.io/components/nsqd.html, "AUTH".

use regex::{Regex, RegexBuilder};
use serde::Deserialize;

/// Most memory that one expression of the auth service may compile to.
const REGEX_BYTES_MAX: usize = 1024 * 1024;

/// What the auth service answered, checked.
#[derive(Clone, Debug)]
pub struct Authorizations {
    /// The client's name at the auth service.
    pub identity: String,
    /// Where to read about that name.
    pub identity_url: String,
    /// For how long this holds, in ms from the answer.
    pub ttl_ms: u64,
    rules: Vec<Rule>,
}

/// Why an answer of an auth service cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuthorizationsError {
    /// It is not the JSON that it should be.
    #[error("not an answer of an auth service: {0}")]
    Json(#[from] serde_json::Error),
    /// A permission other than `subscribe` and `publish`.
    #[error("unknown permission {0}")]
    Permission(String),
    /// An expression that cannot be compiled.
    #[error("unable to compile {expression:?}: {cause}")]
    Expression {
        /// The expression.
        expression: String,
        /// What is wrong with it.
        cause: regex::Error,
    },
    /// A lifetime that is none.
    #[error("invalid TTL {0} (must be >0)")]
    Ttl(i64),
}

/// What is to be allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access<'a> {
    /// Publishing to a topic.
    Publish,
    /// Consuming from this channel of a topic.
    Subscribe(&'a str),
}

#[derive(Clone, Debug)]
struct Rule {
    topic: Regex,
    channels: Vec<Regex>,
    subscribe: bool,
    publish: bool,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    ttl: i64,
    #[serde(default)]
    authorizations: Option<Vec<AnswerRule>>,
    #[serde(default)]
    identity: Option<String>,
    #[serde(default)]
    identity_url: Option<String>,
}

#[derive(Deserialize)]
struct AnswerRule {
    #[serde(default)]
    topic: String,
    #[serde(default)]
    channels: Option<Vec<String>>,
    #[serde(default)]
    permissions: Option<Vec<String>>,
}

impl Authorizations {
    /// Reads and checks an answer.
    pub fn parse(body: &[u8]) -> Result<Authorizations, AuthorizationsError> {
        let answer: Answer = serde_json::from_slice(body)?;
        let rules = answer.authorizations.unwrap_or_default();
        let rules = rules.into_iter().map(Rule::of);
        let rules = rules.collect::<Result<_, _>>()?;
        let ttl_s = u64::try_from(answer.ttl).unwrap_or(0);
        if ttl_s == 0 {
            return Err(AuthorizationsError::Ttl(answer.ttl));
        }
        Ok(Authorizations {
            identity: answer.identity.unwrap_or_default(),
            identity_url: answer.identity_url.unwrap_or_default(),
            ttl_ms: ttl_s.saturating_mul(1000),
            rules,
        })
    }

    /// How many authorizations there are.
    pub fn count(&self) -> usize {
        self.rules.len()
    }

    /// Whether one of them allows this. A publisher's rule needs a channel expression that
    /// matches the empty name, which is nsqd's rule too.
    pub fn allow(&self, topic: &str, access: Access<'_>) -> bool {
        self.rules.iter().any(|rule| rule.allows(topic, access))
    }
}

impl Rule {
    fn of(answer: AnswerRule) -> Result<Rule, AuthorizationsError> {
        let (mut subscribe, mut publish) = (false, false);
        for permission in answer.permissions.unwrap_or_default() {
            match permission.as_str() {
                "subscribe" => subscribe = true,
                "publish" => publish = true,
                _ => return Err(AuthorizationsError::Permission(permission)),
            }
        }
        let channels = answer.channels.unwrap_or_default();
        Ok(Rule {
            topic: compile(&answer.topic)?,
            channels: channels
                .iter()
                .map(|channel| compile(channel))
                .collect::<Result<_, _>>()?,
            subscribe,
            publish,
        })
    }

    fn allows(&self, topic: &str, access: Access<'_>) -> bool {
        let (permitted, channel) = match access {
            Access::Publish => (self.publish, ""),
            Access::Subscribe(channel) => (self.subscribe, channel),
        };
        permitted
            && self.topic.is_match(topic)
            && self.channels.iter().any(|rule| rule.is_match(channel))
    }
}

fn compile(expression: &str) -> Result<Regex, AuthorizationsError> {
    RegexBuilder::new(expression)
        .size_limit(REGEX_BYTES_MAX)
        .build()
        .map_err(|cause| AuthorizationsError::Expression {
            expression: expression.to_owned(),
            cause,
        })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn rules_allow_what_they_name() {
        let answer = Authorizations::parse(
            br#"{"ttl":10,"identity":"me","identity_url":null,"authorizations":[
                {"topic":"^t$","channels":["^c[0-9]$"],"permissions":["subscribe"]},
                {"topic":"^p","channels":[".*"],"permissions":["publish"]}]}"#,
        )
        .unwrap();
        assert_eq!((answer.count(), answer.ttl_ms), (2, 10_000));
        assert!(answer.allow("t", Access::Subscribe("c1")));
        assert!(!answer.allow("t", Access::Subscribe("c12")));
        assert!(!answer.allow("tt", Access::Subscribe("c1")));
        assert!(!answer.allow("t", Access::Publish));
        assert!(answer.allow("pub", Access::Publish));
        assert!(!answer.allow("pub", Access::Subscribe("c1")));
    }

    #[test]
    fn bad_answers_are_refused() {
        for (body, expect) in [
            (r#"{"ttl":0}"#, "invalid TTL 0 (must be >0)"),
            (r#"{"ttl":-1}"#, "invalid TTL -1 (must be >0)"),
            (
                r#"{"ttl":1,"authorizations":[{"topic":"t","permissions":["own"]}]}"#,
                "unknown permission own",
            ),
            (
                r#"{"ttl":1,"authorizations":[{"topic":"("}]}"#,
                "unable to compile \"(\"",
            ),
            ("<html>", "not an answer of an auth service"),
        ] {
            let error = Authorizations::parse(body.as_bytes()).unwrap_err();
            assert!(error.to_string().starts_with(expect), "{error}");
        }
        let none = Authorizations::parse(br#"{"ttl":1,"authorizations":null}"#).unwrap();
        assert_eq!(none.count(), 0);
    }
}
