//! Asks the configured auth services for the rights of an NSQ client, like nsqd.
//!
//! ```text
//! GET  http://<address>/auth?common_name=..&remote_ip=..&secret=..&tls=true|false
//! POST http://<address>/auth   {"common_name":[..],"remote_ip":[..],"secret":[..],"tls":[..]}
//! ```
//!
//! An address with a scheme is the whole endpoint. The services are tried in turn, from a random
//! one; the first that answers decides.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cloverleaf_nsq::authorization::{Authorizations, AuthorizationsError};
use cloverleaf_nsq::http::query::escape;
use serde::Deserialize;
use thiserror::Error;
use tokio::time::timeout;

use super::NsqFront;
use super::auth_http::{self, Endpoint, HttpError, Method};
use crate::config::value::AuthMethod;
use crate::context::ServerContext;

/// Maximum changes to https, to a port that a service's 403 answer names, as nsqd's services do.
const HTTPS_REDIRECTS_MAX: usize = 1;

/// The facts about a client that the auth service decides on.
pub(crate) struct AuthRequest {
    pub(crate) remote_ip: IpAddr,
    pub(crate) tls: bool,
    /// The common name of the client's certificate; empty without one.
    pub(crate) common_name: String,
    pub(crate) secret: String,
}

/// Why one auth service gave no usable answer.
#[derive(Debug, Error)]
enum AuthError {
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    #[error("got response {status} {body:?}")]
    Status { status: u16, body: String },
    #[error(transparent)]
    Answer(#[from] AuthorizationsError),
}

#[derive(Deserialize)]
struct ForbiddenAnswer {
    https_port: u16,
}

/// Asks the services; `None` if none gave a usable answer, which is logged.
pub(crate) async fn ask(
    front: Arc<NsqFront>,
    context: Arc<ServerContext>,
    request: AuthRequest,
    peer: std::net::SocketAddr,
) -> Option<Authorizations> {
    /// Spreads the questions over the services.
    static TURN: AtomicUsize = AtomicUsize::new(0);

    let addresses = &context.config.nsq.auth_http_address;
    let start = TURN.fetch_add(1, Ordering::Relaxed);
    for step in 0..addresses.len() {
        let address = &addresses[start.wrapping_add(step) % addresses.len()];
        match ask_one(&front, &context, address, &request).await {
            Ok(authorizations) => return Some(authorizations),
            Err(error) => {
                let due = front.auth_throttle.lock().count();
                match due {
                    Some(times) => tracing::warn!(
                        %peer, service = %address, %error, times, "the auth service failed"
                    ),
                    None => tracing::debug!(
                        %peer, service = %address, %error, "the auth service failed"
                    ),
                }
            }
        }
    }
    None
}

async fn ask_one(
    front: &NsqFront,
    context: &ServerContext,
    address: &str,
    request: &AuthRequest,
) -> Result<Authorizations, AuthError> {
    let nsq = &context.config.nsq;
    let url = if address.contains("://") {
        address.to_owned()
    } else {
        format!("http://{address}/auth")
    };
    let mut endpoint = Endpoint::parse(&url)?;
    for _ in 0..=HTTPS_REDIRECTS_MAX {
        let method = match nsq.auth_http_request_method {
            AuthMethod::Get => Method::Get(request.query()),
            AuthMethod::Post => Method::Post(request.json()),
        };
        let limit = nsq.http_client_request_timeout;
        let answer = auth_http::ask(&endpoint, method, nsq, &front.auth_tls);
        let Ok(answer) = timeout(limit, answer).await else {
            return Err(AuthError::TimedOut(limit));
        };
        let (status, body) = answer?;
        if status == 200 {
            return Ok(Authorizations::parse(&body)?);
        }
        let forbidden = serde_json::from_slice::<ForbiddenAnswer>(&body);
        match forbidden {
            Ok(forbidden) if status == 403 && !endpoint.is_https() => {
                endpoint = endpoint.with_https(forbidden.https_port);
            }
            _ => return Err(AuthError::status(status, &body)),
        }
    }
    Err(AuthError::status(403, b""))
}

impl AuthError {
    fn status(status: u16, body: &[u8]) -> AuthError {
        let shown = &body[..body.len().min(200)];
        let body = String::from_utf8_lossy(shown).into_owned();
        AuthError::Status { status, body }
    }
}

impl AuthRequest {
    /// Names and values in the order of Go's `url.Values.Encode`.
    fn values(&self) -> [(&'static str, String); 4] {
        [
            ("common_name", self.common_name.clone()),
            ("remote_ip", self.remote_ip.to_string()),
            ("secret", self.secret.clone()),
            ("tls", self.tls.to_string()),
        ]
    }

    /// The query of a GET; a space is encoded as a plus.
    fn query(&self) -> String {
        let value = |text: &str| escape(text).replace("%20", "+");
        let pairs = self
            .values()
            .map(|(name, text)| format!("{name}={}", value(&text)));
        pairs.join("&")
    }

    fn json(&self) -> String {
        let values = self
            .values()
            .map(|(name, value)| (name.to_owned(), vec![value]));
        let values = std::collections::BTreeMap::from(values);
        serde_json::json!(values).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_have_nsqds_form() {
        let request = AuthRequest {
            remote_ip: IpAddr::from([127, 0, 0, 1]),
            tls: true,
            common_name: "test.local".into(),
            secret: "a b&c=ü".into(),
        };
        assert_eq!(
            request.query(),
            "common_name=test.local&remote_ip=127.0.0.1&secret=a+b%26c%3D%C3%BC&tls=true"
        );
        let values: serde_json::Value = serde_json::from_str(&request.json()).unwrap_or_default();
        assert_eq!(values["secret"], serde_json::json!(["a b&c=ü"]));
        assert_eq!(values["tls"], serde_json::json!(["true"]));
        assert_eq!(values["remote_ip"], serde_json::json!(["127.0.0.1"]));
        assert_eq!(values["common_name"], serde_json::json!(["test.local"]));
    }
}
