//! The exceptions that end a channel or a connection: codes, and texts as RabbitMQ writes them.
//!
//! Source: AMQP 0-9-1 specification, "reply codes"; texts from RabbitMQ's behaviour, because
//! programs look into them.

use std::fmt;

/// A reply code. Soft ones end a channel, hard ones the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum ReplyCode {
    /// The other side is content with the end.
    ReplySuccess = 200,
    /// A content is larger than is allowed.
    ContentTooLarge = 311,
    /// No queue for a mandatory message: the code of a return, and never of an end.
    NoRoute = 312,
    /// The operator ends the connection.
    ConnectionForced = 320,
    /// No such virtual host.
    InvalidPath = 402,
    /// Not allowed for this user, or for anybody.
    AccessRefused = 403,
    /// No such queue or exchange.
    NotFound = 404,
    /// In exclusive use of another connection.
    ResourceLocked = 405,
    /// It is, but not as it was asked for.
    PreconditionFailed = 406,
    /// Bytes that are no frame.
    FrameError = 501,
    /// A malformed method.
    SyntaxError = 502,
    /// A method that may not come now.
    CommandInvalid = 503,
    /// A channel that may not be used like this.
    ChannelError = 504,
    /// A frame that may not come now.
    UnexpectedFrame = 505,
    /// The broker lacks something.
    ResourceError = 506,
    /// Something that was ruled out at the start.
    NotAllowed = 530,
    /// Something that we do not do.
    NotImplemented = 540,
    /// The broker's fault.
    InternalError = 541,
}

impl ReplyCode {
    /// Whether the connection ends, and not only the channel.
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

    /// The word in front of a text.
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

/// Why a channel or a connection ends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} - {explanation}", code.word())]
pub struct Exception {
    /// The kind of fault.
    pub code: ReplyCode,
    /// The rest of the text.
    pub explanation: String,
}

impl Exception {
    /// A fault with its explanation.
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
    pub fn no(resource: &Resource<'_>) -> Self {
        Self::new(ReplyCode::NotFound, format!("no {resource}"))
    }

    /// 405: another connection has the queue for itself.
    pub fn locked(queue: &str) -> Self {
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

    /// 406: it is there, but declared otherwise.
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

/// A queue or an exchange, as texts name it.
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
        let none = Exception::no(&Resource::exchange("logs"));
        assert_eq!(
            none.to_string(),
            "NOT_FOUND - no exchange 'logs' in vhost '/'"
        );
        assert!(!none.code.is_hard());
        assert!(ReplyCode::NotAllowed.is_hard());
    }
}
