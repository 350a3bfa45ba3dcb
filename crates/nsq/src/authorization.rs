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

use cloverleaf_access::{
    Effect, Grants, Kind, Kinds, Operation, Pattern, PatternError, Principal, Resource, Rule,
};
use serde::Deserialize;

/// What the auth service answered, checked.
#[derive(Clone, Debug)]
pub struct Authorizations {
    /// The client, by its name at the auth service.
    pub principal: Principal,
    /// Where to read about that name.
    pub identity_url: String,
    /// For how long this holds, in ms from the answer.
    pub ttl_ms: u64,
    grants: Grants,
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
    #[error(transparent)]
    Expression(#[from] PatternError),
    /// A lifetime that is none.
    #[error("invalid TTL {0} (must be >0)")]
    Ttl(i64),
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
        let rules = rules.into_iter().map(AnswerRule::rule);
        let grants = rules.collect::<Result<_, _>>()?;
        let ttl_s = u64::try_from(answer.ttl).unwrap_or(0);
        if ttl_s == 0 {
            return Err(AuthorizationsError::Ttl(answer.ttl));
        }
        Ok(Authorizations {
            principal: Principal {
                name: answer.identity.unwrap_or_default(),
            },
            identity_url: answer.identity_url.unwrap_or_default(),
            ttl_ms: ttl_s.saturating_mul(1000),
            grants,
        })
    }

    /// How many authorizations there are.
    pub fn count(&self) -> usize {
        self.grants.count()
    }

    /// Whether one of them allows this with a channel. A publish asks for the channel without a
    /// name, which is nsqd's rule, too: one of the rule's channel expressions has to match it.
    pub fn allow(&self, operation: Operation, topic: &str, channel: &str) -> bool {
        let resource = Resource {
            namespace: "",
            kind: Kind::Channel,
            topic,
            name: channel,
        };
        self.grants.may(&self.principal, operation, &resource)
    }
}

impl AnswerRule {
    fn rule(self) -> Result<Rule, AuthorizationsError> {
        let operation = |permission: String| match permission.as_str() {
            "subscribe" => Ok(Operation::Consume),
            "publish" => Ok(Operation::Publish),
            _ => Err(AuthorizationsError::Permission(permission)),
        };
        let operations = self.permissions.unwrap_or_default().into_iter();
        let channels = self.channels.unwrap_or_default();
        let channels = channels.iter().map(|channel| Pattern::regex(channel));
        Ok(Rule {
            effect: Effect::Allow,
            principals: Pattern::All,
            operations: operations.map(operation).collect::<Result<_, _>>()?,
            namespaces: Pattern::All,
            kinds: Kinds::from_iter([Kind::Channel]),
            topics: Pattern::regex(&self.topic)?,
            names: channels.collect::<Result<_, _>>()?,
        })
    }
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
        assert!(answer.allow(Operation::Consume, "t", "c1"));
        assert!(!answer.allow(Operation::Consume, "t", "c12"));
        assert!(!answer.allow(Operation::Consume, "tt", "c1"));
        assert!(!answer.allow(Operation::Publish, "t", ""));
        assert!(answer.allow(Operation::Publish, "pub", ""));
        assert!(!answer.allow(Operation::Consume, "pub", "c1"));
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
