//! The error that an NSQ client gets: one of nsqd's codes, a blank, a text.

use std::fmt;

/// nsqd's error codes. Client libraries compare these words, so they never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// A command in the wrong state, with wrong parameters, or unknown.
    Invalid,
    /// A topic name that is not valid.
    BadTopic,
    /// A channel name that is not valid.
    BadChannel,
    /// A body of IDENTIFY, AUTH or MPUB that is too big, empty, or malformed.
    BadBody,
    /// A message that is too big or empty.
    BadMessage,
    /// IDENTIFY could not be completed.
    IdentifyFailed,
    /// PUB was not stored.
    PubFailed,
    /// MPUB was not stored.
    MpubFailed,
    /// DPUB was not stored.
    DpubFailed,
    /// SUB was refused.
    SubFailed,
    /// FIN of a message that is not in flight to this client.
    FinFailed,
    /// REQ of a message that is not in flight to this client.
    ReqFailed,
    /// TOUCH of a message that is not in flight to this client.
    TouchFailed,
    /// A command that needs authorization came before AUTH.
    AuthFirst,
    /// AUTH, but no auth service is configured.
    AuthDisabled,
    /// The auth service could not be asked.
    AuthFailed,
    /// The auth service does not allow this client this operation.
    Unauthorized,
}

impl Code {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Code::Invalid => "E_INVALID",
            Code::BadTopic => "E_BAD_TOPIC",
            Code::BadChannel => "E_BAD_CHANNEL",
            Code::BadBody => "E_BAD_BODY",
            Code::BadMessage => "E_BAD_MESSAGE",
            Code::IdentifyFailed => "E_IDENTIFY_FAILED",
            Code::PubFailed => "E_PUB_FAILED",
            Code::MpubFailed => "E_MPUB_FAILED",
            Code::DpubFailed => "E_DPUB_FAILED",
            Code::SubFailed => "E_SUB_FAILED",
            Code::FinFailed => "E_FIN_FAILED",
            Code::ReqFailed => "E_REQ_FAILED",
            Code::TouchFailed => "E_TOUCH_FAILED",
            Code::AuthFirst => "E_AUTH_FIRST",
            Code::AuthDisabled => "E_AUTH_DISABLED",
            Code::AuthFailed => "E_AUTH_FAILED",
            Code::Unauthorized => "E_UNAUTHORIZED",
        }
    }

    /// Whether the connection is closed after the error, as after nsqd's `FatalClientErr`. Only
    /// FIN, REQ and TOUCH of a message that is not in flight leave the connection open.
    pub fn is_fatal(self) -> bool {
        !matches!(self, Code::FinFailed | Code::ReqFailed | Code::TouchFailed)
    }
}

/// The content of an error frame: code and text. The text is bytes rather than a string, because
/// nsqd quotes some of the client's own bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ProtocolError {
    /// Which error.
    pub code: Code,
    /// The text after the code.
    pub text: Vec<u8>,
}

impl ProtocolError {
    /// An error with a text.
    pub fn new(code: Code, text: impl Into<Vec<u8>>) -> ProtocolError {
        let text = text.into();
        ProtocolError { code, text }
    }

    /// The body of the error frame.
    pub fn body(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(self.code.as_str().len() + 1 + self.text.len());
        body.extend_from_slice(self.code.as_str().as_bytes());
        body.push(b' ');
        body.extend_from_slice(&self.text);
        body
    }
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Bounded, since this goes to the log and the bytes are the peer's.
        let shown = &self.text[..self.text.len().min(200)];
        write!(formatter, "{} {}", self.code.as_str(), shown.escape_ascii())
    }
}
