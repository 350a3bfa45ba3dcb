//! A lapin connection and the Tokio runtime that it works on.

use std::future::Future;
use std::thread;
use std::time::Duration;

use lapin::types::ReplyCode;
use lapin::uri::{AMQPAuthority, AMQPScheme, AMQPUri, AMQPUserInfo};
use lapin::{Channel, Connection, ConnectionProperties, ErrorKind};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::driver::DriverError;
use crate::url::Url;
use crate::usage::GENERATOR_THREADS;
use crate::wait::block_on;

/// Time limit for an answer of the broker.
const ANSWER: Duration = Duration::from_secs(10);
/// Reply code "not-found" of AMQP 0-9-1.
const NOT_FOUND: ReplyCode = 404;

/// A connection. lapin reads and writes on a thread of its own. Its other tasks run on this
/// connection's runtime, which has one thread.
pub(super) struct AmqpConnection {
    connection: Connection,
    url: Url,
    runtime: Runtime,
}

impl AmqpConnection {
    /// Opens connection number `number`. If the URL has several hosts, connections use them in
    /// turn.
    ///
    /// # Errors The broker does not answer, or it refuses the login.
    pub(super) fn open(url: &Url, number: u32) -> Result<AmqpConnection, DriverError> {
        let runtime = Runtime::start().map_err(|error| url.unreachable(error))?;
        let connecting = {
            // lapin uses the runtime whose context it is called in.
            let _inside = runtime.handle.enter();
            let properties = ConnectionProperties::default();
            let properties = properties.with_connection_name("cloverleaf-bench".into());
            block_on(
                Connection::connect_uri(uri(url, number), properties),
                ANSWER,
            )
        };
        let connection = match connecting {
            None => return Err(url.unreachable("no answer")),
            Some(Ok(connection)) => connection,
            Some(Err(error)) => {
                let words = words(&error);
                return Err(match error.kind() {
                    ErrorKind::ProtocolError(_) => url.refused(words),
                    _ => url.unreachable(words),
                });
            }
        };
        Ok(AmqpConnection {
            connection,
            url: url.clone(),
            runtime,
        })
    }

    /// Opens a channel.
    ///
    /// # Errors
    /// The connection has ended.
    pub(super) fn channel(&self) -> Result<Channel, DriverError> {
        let channel = self.wait(self.connection.create_channel())?;
        channel.map_err(|error| self.url.gone(words(&error)))
    }

    /// Waits for an answer of the broker.
    ///
    /// # Errors The answer takes longer than [`ANSWER`].
    pub(super) fn wait<T>(&self, asked: impl Future<Output = T>) -> Result<T, DriverError> {
        let _inside = self.runtime.handle.enter();
        block_on(asked, ANSWER).ok_or_else(|| self.url.gone("it does not answer"))
    }
}

impl Drop for AmqpConnection {
    fn drop(&mut self) {
        if self.connection.status().connected() {
            // Nothing later depends on the answer to the close.
            let _ = self.wait(self.connection.close(200, "done".into()));
        }
    }
}

/// The URL in lapin's form. Without a path, or with an empty path after the slash, the virtual host
/// is `/`: no virtual host has an empty name.
fn uri(url: &Url, number: u32) -> AMQPUri {
    let hosts = url.places().len().max(1);
    let (host, port) = match url.places().get(number as usize % hosts) {
        Some((host, port)) => (host.as_str(), *port),
        None => ("127.0.0.1", 5672),
    };
    let vhost = url.path.as_deref().filter(|path| !path.is_empty());
    AMQPUri {
        scheme: AMQPScheme::AMQP,
        authority: AMQPAuthority {
            userinfo: AMQPUserInfo {
                username: url.user.clone().unwrap_or_else(|| "guest".to_owned()),
                password: url.password.clone().unwrap_or_else(|| "guest".to_owned()),
            },
            host: host
                .trim_start_matches('[')
                .trim_end_matches(']')
                .to_owned(),
            port,
        },
        vhost: vhost.unwrap_or("/").to_owned(),
        ..AMQPUri::default()
    }
}

/// The broker's error text, without the words that lapin adds.
pub(super) fn words(error: &lapin::Error) -> String {
    match error.kind() {
        ErrorKind::ProtocolError(error) => error.get_message().to_string(),
        ErrorKind::IOError(error) => error.to_string(),
        _ => error.to_string(),
    }
}

/// Whether the broker answered "not-found".
pub(super) fn is_absent(error: &lapin::Error) -> bool {
    matches!(error.kind(), ErrorKind::ProtocolError(error) if error.get_id() == NOT_FOUND)
}

/// A thread that runs lapin's tasks until this is dropped.
struct Runtime {
    handle: Handle,
    _end: oneshot::Sender<()>,
}

impl Runtime {
    fn start() -> std::io::Result<Runtime> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel();
        thread::Builder::new()
            .name(format!("{GENERATOR_THREADS}lapin"))
            .spawn(move || {
                // Nothing is ever sent: an error, which says that the sender was dropped, ends the
                // thread.
                let _ = runtime.block_on(ended);
            })?;
        Ok(Runtime { handle, _end: end })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_url_becomes_lapins() {
        let url: Url = "amqp://me:x%2Fy@one:1,[::1]:2/%2Fprod".parse().unwrap();
        let second = uri(&url, 3);
        assert_eq!(
            (second.authority.host.as_str(), second.authority.port),
            ("::1", 2)
        );
        assert_eq!(second.authority.userinfo.password, "x/y");
        assert_eq!(second.vhost, "/prod");
        for plain in ["amqp://a", "amqp://a/"] {
            let first = uri(&plain.parse().unwrap(), 0);
            assert_eq!(first.vhost, "/");
            assert_eq!(first.authority.userinfo.username, "guest");
        }
    }
}
