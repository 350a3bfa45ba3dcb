//! The rights that an auth service grants a client: parses its answer and turns it into rules.
//!
//! ```json
//! {"ttl": 3600, "identity": "me", "identity_url": "http://…",
//!  "authorizations": [
//!    {"topic": "regexp", "channels": ["regexp"], "permissions": ["subscribe", "publish"]}]}
//! ```
//!
//! The server crate sends the request to the auth service: this crate has no socket. Source:
//! nsq.io/components/nsqd.html, "AUTH".

use cloverleaf_access::{
    Grants, Operation, Pattern, PatternError, Principal, ResourceKind, ResourceKinds, Rule,
    RuleEffect,
};
use serde::Deserialize;

/// The auth service's answer, checked.
#[derive(Clone, Debug)]
pub struct Authorizations {
    /// The client under the name that the auth service gives it.
    pub principal: Principal,
    /// URL of a page about that name; may be empty.
    pub identity_url: String,
    /// How long the answer is valid, in ms from its arrival.
    pub ttl_ms: u64,
    /// How many authorizations the answer has.
    pub count: usize,
    /// The client's rights.
    pub grants: Grants,
}

/// Why an answer of an auth service cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuthorizationsError {
    /// It is not JSON of the form above.
    #[error("not an answer of an auth service: {0}")]
    Json(#[from] serde_json::Error),
    /// A permission other than `subscribe` and `publish`.
    #[error("unknown permission {0}")]
    Permission(String),
    /// An expression that cannot be compiled.
    #[error(transparent)]
    Expression(#[from] PatternError),
    /// A TTL that is zero or negative.
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
        let count = rules.len();
        let rules = rules.into_iter().map(AnswerRule::rules);
        let rules = rules.collect::<Result<Vec<_>, _>>()?;
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
            count,
            grants: rules.into_iter().flatten().collect(),
        })
    }
}

impl AnswerRule {
    /// Publish is a right on the topic, subscribe a right on its channels. As in nsqd, publish is
    /// granted only if one of the channel expressions matches the empty channel name.
    fn rules(self) -> Result<Vec<Rule>, AuthorizationsError> {
        let topic = Pattern::regex(&self.topic)?;
        let channels = self.channels.unwrap_or_default();
        let channels = channels.iter().map(|channel| Pattern::regex(channel));
        let channels = channels.collect::<Result<Vec<_>, _>>()?;
        let may_publish = channels.iter().any(|channel| channel.matches(""));
        let rule = |operation, kind, topics, names| Rule {
            effect: RuleEffect::Allow,
            principals: Pattern::All,
            operations: [operation].into_iter().collect(),
            namespaces: Pattern::All,
            kinds: ResourceKinds::from_iter([kind]),
            topics,
            names,
        };
        let mut rules = Vec::new();
        for permission in self.permissions.unwrap_or_default() {
            match permission.as_str() {
                "subscribe" => {
                    let (topics, names) = (topic.clone(), channels.clone());
                    rules.push(rule(
                        Operation::Consume,
                        ResourceKind::Channel,
                        topics,
                        names,
                    ));
                }
                "publish" if may_publish => {
                    let names = vec![topic.clone()];
                    rules.push(rule(
                        Operation::Publish,
                        ResourceKind::Topic,
                        Pattern::All,
                        names,
                    ));
                }
                "publish" => {}
                _ => return Err(AuthorizationsError::Permission(permission)),
            }
        }
        Ok(rules)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use cloverleaf_access::Resource;

    use super::*;

    #[test]
    fn rules_allow_what_they_name() {
        let answer = Authorizations::parse(
            br#"{"ttl":10,"identity":"me","identity_url":null,"authorizations":[
                {"topic":"^t$","channels":["^c[0-9]$"],"permissions":["subscribe"]},
                {"topic":"^p","channels":[".*"],"permissions":["publish"]}]}"#,
        )
        .unwrap();
        assert_eq!((answer.count, answer.ttl_ms), (2, 10_000));
        let may = |operation, kind, topic, name| {
            let resource = Resource {
                namespace: "",
                kind,
                topic,
                name,
            };
            answer.grants.may(&answer.principal, operation, &resource)
        };
        let may_consume = |topic, name| may(Operation::Consume, ResourceKind::Channel, topic, name);
        let may_publish = |name| may(Operation::Publish, ResourceKind::Topic, "", name);
        assert!(may_consume("t", "c1"));
        assert!(!may_consume("t", "c12"));
        assert!(!may_consume("tt", "c1"));
        assert!(!may_publish("t"));
        assert!(may_publish("pub"));
        assert!(!may_consume("pub", "c1"));
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
        assert_eq!(none.count, 0);
    }
}
