//! The exceptions that close a channel or a connection: reply codes, and texts as RabbitMQ writes
//! them.
//!
//! Source: AMQP 0-9-1 specification, "reply codes"; the texts are RabbitMQ's, because client
//! programs parse them.

use std::fmt;

/// A reply code. A soft error closes a channel, a hard error the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum ReplyCode {
    /// An orderly close, without an error.
    ReplySuccess = 200,
    /// The content is larger than allowed.
    ContentTooLarge = 311,
    /// A mandatory message that no queue matches: used by `basic.return`, never by a close.
    NoRoute = 312,
    /// The operator closes the connection.
    ConnectionForced = 320,
    /// No such virtual host.
    InvalidPath = 402,
    /// Not allowed for this user, or for any user.
    AccessRefused = 403,
    /// No such queue or exchange.
    NotFound = 404,
    /// Another connection uses the queue exclusively.
    ResourceLocked = 405,
    /// The resource exists, but not with the properties that were asked for.
    PreconditionFailed = 406,
    /// Bytes that are not a frame.
    FrameError = 501,
    /// A malformed method.
    SyntaxError = 502,
    /// A method that is not allowed in this state.
    CommandInvalid = 503,
    /// A channel that cannot be used in this way.
    ChannelError = 504,
    /// A frame that is not allowed in this state.
    UnexpectedFrame = 505,
    /// The broker lacks a resource, such as memory.
    ResourceError = 506,
    /// Something that the negotiated limits or the configuration rule out.
    NotAllowed = 530,
    /// Something that this broker does not implement.
    NotImplemented = 540,
    /// A fault of the broker.
    InternalError = 541,
}

impl ReplyCode {
    /// Whether the error closes the connection: a soft error closes only the channel.
    pub fn is_hard(self) -> bool {
        match self {
            Self::ReplySuccess
            | Self::ContentTooLarge
            | Self::NoRoute
            | Self::AccessRefused
            | Self::NotFound
            | Self::ResourceLocked
            | Self::PreconditionFailed => false,
            Self::ConnectionForced
            | Self::InvalidPath
            | Self::FrameError
            | Self::SyntaxError
            | Self::CommandInvalid
            | Self::ChannelError
            | Self::UnexpectedFrame
            | Self::ResourceError
            | Self::NotAllowed
            | Self::NotImplemented
            | Self::InternalError => true,
        }
    }

    /// RabbitMQ's name of the code, which begins each reply text.
    pub fn word(self) -> &'static str {
        match self {
            Self::ReplySuccess => "REPLY_SUCCESS",
            Self::ContentTooLarge => "CONTENT_TOO_LARGE",
            Self::NoRoute => "NO_ROUTE",
            Self::ConnectionForced => "CONNECTION_FORCED",
            Self::InvalidPath => "INVALID_PATH",
            Self::AccessRefused => "ACCESS_REFUSED",
            Self::NotFound => "NOT_FOUND",
            Self::ResourceLocked => "RESOURCE_LOCKED",
            Self::PreconditionFailed => "PRECONDITION_FAILED",
            Self::FrameError => "FRAME_ERROR",
            Self::SyntaxError => "SYNTAX_ERROR",
            Self::CommandInvalid => "COMMAND_INVALID",
            Self::ChannelError => "CHANNEL_ERROR",
            Self::UnexpectedFrame => "UNEXPECTED_FRAME",
            Self::ResourceError => "RESOURCE_ERROR",
            Self::NotAllowed => "NOT_ALLOWED",
            Self::NotImplemented => "NOT_IMPLEMENTED",
            Self::InternalError => "INTERNAL_ERROR",
        }
    }
}

/// The error with which a channel or a connection is closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} - {explanation}", code.word())]
pub struct Exception {
    /// The reply code.
    pub code: ReplyCode,
    /// The reply text after the code's name.
    pub explanation: String,
}

impl Exception {
    /// An error with its explanation.
    pub fn new(code: ReplyCode, explanation: impl Into<String>) -> Self {
        Self {
            code,
            explanation: explanation.into(),
        }
    }

    /// 406 with an explanation.
    pub fn precondition(explanation: impl Into<String>) -> Self {
        Self::new(ReplyCode::PreconditionFailed, explanation)
    }

    /// 505 with an explanation.
    pub fn unexpected_frame(explanation: impl Into<String>) -> Self {
        Self::new(ReplyCode::UnexpectedFrame, explanation)
    }

    /// 404: there is no such queue or exchange.
    pub fn not_found(resource: &Resource<'_>) -> Self {
        Self::new(ReplyCode::NotFound, format!("no {resource}"))
    }

    /// 405: another connection uses the queue exclusively.
    pub fn exclusive_to_other(queue: &str) -> Self {
        let queue = Resource::queue(queue);
        Self::new(
            ReplyCode::ResourceLocked,
            format!(
                "cannot obtain exclusive access to locked {queue}. It could be originally declared \
                 on another connection or the exclusive property value does not match that of the \
                 original declaration."
            ),
        )
    }

    /// 406: the resource exists, but was declared with another value of this argument.
    pub fn inequivalent(
        argument: &str,
        resource: &Resource<'_>,
        received: &str,
        current: &str,
    ) -> Self {
        Self::precondition(format!(
            "inequivalent arg '{argument}' for {resource}: received {received} but current is \
             {current}"
        ))
    }
}

/// A queue or an exchange, as reply texts name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resource<'a> {
    kind: &'static str,
    name: &'a str,
}

impl<'a> Resource<'a> {
    /// A queue.
    pub fn queue(name: &'a str) -> Self {
        Self {
            kind: "queue",
            name,
        }
    }

    /// An exchange.
    pub fn exchange(name: &'a str) -> Self {
        Self {
            kind: "exchange",
            name,
        }
    }
}

impl fmt::Display for Resource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} '{}' in vhost '/'", self.kind, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_those_that_programs_know() {
        let queue = Resource::queue("jobs");
        let text = Exception::inequivalent("durable", &queue, "'false'", "'true'").to_string();
        assert_eq!(
            text,
            "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'jobs' in vhost '/': \
             received 'false' but current is 'true'"
        );
        let none = Exception::not_found(&Resource::exchange("logs"));
        assert_eq!(
            none.to_string(),
            "NOT_FOUND - no exchange 'logs' in vhost '/'"
        );
        assert!(!none.code.is_hard());
        assert!(ReplyCode::NotAllowed.is_hard());
    }
}
