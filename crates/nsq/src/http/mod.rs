//! The parts that NSQ's two HTTP interfaces have in common: answers, errors and their bodies.
//!
//! [`nsqd`] answers as nsqd does (port 4151), [`lookup::http`](crate::lookup::http) as nsqlookupd
//! does (port 4161). Both get a request without its transport and return a [`Response`]: neither
//! knows sockets or an HTTP library. Sources: nsqd 1.3 `nsqd/http.go`, `internal/http_api`.
//!
//! Out of scope: `/debug/pprof` and the other `/debug/` pages of nsqd, which show the Go runtime.
//! They answer 404.

pub mod config;
pub mod mpub;
pub mod nsqd;
mod publish;
pub mod query;
pub mod routes;

use bytes::Bytes;
use serde::Serialize;

/// Name of the header by which NSQ's own programs recognise a version 1 answer.
pub const NSQ_CONTENT_TYPE_NAME: &str = "x-nsq-content-type";

/// Value of [`NSQ_CONTENT_TYPE_NAME`].
pub const NSQ_CONTENT_TYPE: &str = "nsq; version=1.0";

/// The kind of a body, which decides its headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Plain text without NSQ's header: `/ping` only.
    Plain,
    /// Text with NSQ's header.
    Text,
    /// JSON with NSQ's header.
    Json,
}

/// A response, which the owner of the connection writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// HTTP status code.
    pub status: u16,
    /// The kind of the body.
    pub content: Content,
    /// The body.
    pub body: Bytes,
    /// Methods for the `Allow` header of a 405, otherwise empty.
    pub allow: &'static str,
    /// The messages that the request has published.
    pub published: Option<Published>,
}

/// Messages that a request has published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// The topic's number in the broker.
    pub topic: u32,
    /// How many messages.
    pub messages: u64,
    /// Bytes of the request's body.
    pub bytes: u64,
}

impl Response {
    /// 200 with text: `OK`, or the text form of `/stats`.
    pub fn text(body: impl Into<Bytes>) -> Response {
        Response {
            status: 200,
            content: Content::Text,
            body: body.into(),
            allow: "",
            published: None,
        }
    }

    /// 200, for messages that were published.
    pub(crate) fn published(published: Published) -> Response {
        Response {
            published: Some(published),
            ..Response::text("OK")
        }
    }

    /// 200 with an empty body, nsqd's answer to a command.
    pub fn empty() -> Response {
        Response::text(Bytes::new())
    }

    /// 200 with JSON.
    pub fn json(value: &impl Serialize) -> Response {
        match serde_json::to_vec(value) {
            Ok(body) => Response {
                status: 200,
                content: Content::Json,
                body: body.into(),
                allow: "",
                published: None,
            },
            Err(_) => HttpError::Internal.response(),
        }
    }

    /// Text without NSQ's header, with this status.
    pub fn plain(status: u16, body: impl Into<Bytes>) -> Response {
        Response {
            status,
            content: Content::Plain,
            body: body.into(),
            allow: "",
            published: None,
        }
    }

    /// Value of the `Content-Type` header. An empty body has none.
    pub fn content_type(&self) -> Option<&'static str> {
        match self.content {
            Content::Json => Some("application/json; charset=utf-8"),
            Content::Text | Content::Plain if self.body.is_empty() => None,
            Content::Text | Content::Plain => Some("text/plain; charset=utf-8"),
        }
    }
}

/// Why a request failed. The texts are nsqd's and nsqlookupd's and are part of the interface:
/// clients compare them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HttpError {
    /// The query string is malformed.
    #[error("INVALID_REQUEST")]
    InvalidRequest,
    /// No `topic=` in the query.
    #[error("MISSING_ARG_TOPIC")]
    MissingTopic,
    /// Invalid topic name, in `/pub`, `/mpub`, `/topic/create` and `/topic/empty` of nsqd.
    #[error("INVALID_TOPIC")]
    InvalidTopic,
    /// Invalid topic name, in the channel commands and in nsqlookupd.
    #[error("INVALID_ARG_TOPIC")]
    InvalidArgTopic,
    /// No `channel=` in the query.
    #[error("MISSING_ARG_CHANNEL")]
    MissingChannel,
    /// Invalid channel name.
    #[error("INVALID_ARG_CHANNEL")]
    InvalidArgChannel,
    /// No `node=` in the query.
    #[error("MISSING_ARG_NODE")]
    MissingNode,
    /// No such topic.
    #[error("TOPIC_NOT_FOUND")]
    TopicNotFound,
    /// No such channel.
    #[error("CHANNEL_NOT_FOUND")]
    ChannelNotFound,
    /// A message is longer than `max_msg_size`.
    #[error("MSG_TOO_BIG")]
    MsgTooBig,
    /// The body is longer than `max_body_size`.
    #[error("BODY_TOO_BIG")]
    BodyTooBig,
    /// `/pub` without a body.
    #[error("MSG_EMPTY")]
    MsgEmpty,
    /// The message count of a binary `/mpub` is missing, not positive, or more than `max_body_size`
    /// can hold.
    #[error("BAD_BODY")]
    BadBody,
    /// A message of a binary `/mpub` is cut short, empty, or longer than `max_msg_size`.
    #[error("BAD_MESSAGE")]
    BadMessage,
    /// `defer=` is no number, negative, or above `max_req_timeout`.
    #[error("INVALID_DEFER")]
    InvalidDefer,
    /// `/config/` of an option that does not exist or cannot be changed.
    #[error("INVALID_OPTION")]
    InvalidOption,
    /// `PUT /config/` with a value of the wrong form.
    #[error("INVALID_VALUE")]
    InvalidValue,
    /// `PUT /config/` with an empty or far too long value.
    #[error("INVALID_VALUE")]
    ValueTooBig,
    /// The broker is shutting down, or the topic was deleted meanwhile.
    #[error("EXITING")]
    Exiting,
    /// The disk is full. nsqd's text is EXITING here too; ours has the same status and names the
    /// cause.
    #[error("STORAGE_FULL")]
    StorageFull,
    /// A limit on waiting messages is reached. nsqd has no such limit.
    #[error("LIMIT_REACHED")]
    LimitReached,
    /// The messages could not be stored. nsqd's text is EXITING here too.
    #[error("PUB_FAILED")]
    PubFailed,
    /// Reading the request or doing the work failed.
    #[error("INTERNAL_ERROR")]
    Internal,
    /// No such path.
    #[error("NOT_FOUND")]
    NotFound,
    /// The path does not allow this method. Has the allowed methods, for the `Allow` header.
    #[error("METHOD_NOT_ALLOWED")]
    MethodNotAllowed(&'static str),
    /// The request comes from a web page in a browser. nsqd would execute it.
    #[error("FORBIDDEN_ORIGIN")]
    WebPage,
    /// The request is plain HTTP, and the configuration demands TLS.
    #[error("TLS_REQUIRED")]
    TlsRequired {
        /// Port of the HTTPS listener.
        https_port: u16,
    },
}

impl HttpError {
    /// The HTTP status that nsqd or nsqlookupd gives with this error.
    pub fn status(&self) -> u16 {
        match self {
            HttpError::InvalidRequest
            | HttpError::MissingTopic
            | HttpError::InvalidTopic
            | HttpError::InvalidArgTopic
            | HttpError::MissingChannel
            | HttpError::InvalidArgChannel
            | HttpError::MissingNode
            | HttpError::MsgEmpty
            | HttpError::InvalidDefer
            | HttpError::InvalidOption
            | HttpError::InvalidValue => 400,
            HttpError::TlsRequired { .. } | HttpError::WebPage => 403,
            HttpError::TopicNotFound | HttpError::ChannelNotFound | HttpError::NotFound => 404,
            HttpError::MethodNotAllowed(_) => 405,
            HttpError::MsgTooBig
            | HttpError::BodyTooBig
            | HttpError::BadBody
            | HttpError::BadMessage
            | HttpError::ValueTooBig => 413,
            HttpError::Internal => 500,
            HttpError::Exiting
            | HttpError::StorageFull
            | HttpError::LimitReached
            | HttpError::PubFailed => 503,
        }
    }

    /// The answer: `{"message":"..."}` with the status above.
    pub fn response(&self) -> Response {
        let body = match self {
            HttpError::TlsRequired { https_port } => {
                format!(r#"{{"message": "TLS_REQUIRED", "https_port": {https_port}}}"#)
            }
            other => format!(r#"{{"message":"{other}"}}"#),
        };
        let allow = match self {
            HttpError::MethodNotAllowed(allow) => allow,
            _ => "",
        };
        Response {
            status: self.status(),
            content: Content::Json,
            body: body.into(),
            allow,
            published: None,
        }
    }
}

impl From<HttpError> for Response {
    fn from(error: HttpError) -> Response {
        error.response()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn every_error_has_the_status_and_text_of_the_original() {
        let table = [
            (HttpError::InvalidRequest, 400, "INVALID_REQUEST"),
            (HttpError::MissingTopic, 400, "MISSING_ARG_TOPIC"),
            (HttpError::InvalidTopic, 400, "INVALID_TOPIC"),
            (HttpError::InvalidArgTopic, 400, "INVALID_ARG_TOPIC"),
            (HttpError::MissingChannel, 400, "MISSING_ARG_CHANNEL"),
            (HttpError::InvalidArgChannel, 400, "INVALID_ARG_CHANNEL"),
            (HttpError::MissingNode, 400, "MISSING_ARG_NODE"),
            (HttpError::TopicNotFound, 404, "TOPIC_NOT_FOUND"),
            (HttpError::ChannelNotFound, 404, "CHANNEL_NOT_FOUND"),
            (HttpError::MsgTooBig, 413, "MSG_TOO_BIG"),
            (HttpError::BodyTooBig, 413, "BODY_TOO_BIG"),
            (HttpError::MsgEmpty, 400, "MSG_EMPTY"),
            (HttpError::BadBody, 413, "BAD_BODY"),
            (HttpError::BadMessage, 413, "BAD_MESSAGE"),
            (HttpError::InvalidDefer, 400, "INVALID_DEFER"),
            (HttpError::InvalidOption, 400, "INVALID_OPTION"),
            (HttpError::InvalidValue, 400, "INVALID_VALUE"),
            (HttpError::ValueTooBig, 413, "INVALID_VALUE"),
            (HttpError::Exiting, 503, "EXITING"),
            (HttpError::StorageFull, 503, "STORAGE_FULL"),
            (HttpError::LimitReached, 503, "LIMIT_REACHED"),
            (HttpError::PubFailed, 503, "PUB_FAILED"),
            (HttpError::Internal, 500, "INTERNAL_ERROR"),
            (HttpError::NotFound, 404, "NOT_FOUND"),
            (HttpError::WebPage, 403, "FORBIDDEN_ORIGIN"),
            (
                HttpError::MethodNotAllowed("GET"),
                405,
                "METHOD_NOT_ALLOWED",
            ),
        ];
        for (error, status, text) in table {
            let response = error.response();
            assert_eq!(response.status, status, "{text}");
            assert_eq!(
                response.body,
                format!(r#"{{"message":"{text}"}}"#),
                "{text}"
            );
            assert_eq!(
                response.content_type(),
                Some("application/json; charset=utf-8")
            );
        }
    }

    #[test]
    fn tls_required_names_the_port() {
        let response = HttpError::TlsRequired { https_port: 4152 }.response();
        assert_eq!(response.status, 403);
        assert_eq!(
            response.body,
            r#"{"message": "TLS_REQUIRED", "https_port": 4152}"#
        );
    }

    #[test]
    fn a_405_says_what_is_allowed() {
        assert_eq!(HttpError::MethodNotAllowed("GET").response().allow, "GET");
        assert_eq!(HttpError::NotFound.response().allow, "");
    }

    #[test]
    fn an_empty_answer_has_no_content_type() {
        assert_eq!(Response::empty().content_type(), None);
        assert_eq!(
            Response::text("OK").content_type(),
            Some("text/plain; charset=utf-8")
        );
        assert_eq!(Response::json(&[1]).body, "[1]");
    }
}
