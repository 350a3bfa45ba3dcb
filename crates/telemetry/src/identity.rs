//! The identity of the client at the other end of a connection.

use serde::{Deserialize, Serialize};

/// The identity of the client at the other end, as it declares it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Identity {
    /// Client library, e.g. `go-nsq`; empty when unknown.
    pub library: String,
    /// Version of the client library; empty when unknown.
    pub version: String,
    /// The name that the client gave itself; empty when none.
    pub client_id: String,
    /// The platform that the client declares; empty when none.
    pub platform: String,
}

/// Maximum bytes of each text of an [`Identity`]: it is kept for closed connections too.
const TEXT_BYTES_MAX: usize = 128;

impl Identity {
    /// The identity with long texts cut off.
    pub fn shortened(mut self) -> Identity {
        let Identity {
            library,
            version,
            client_id,
            platform,
        } = &mut self;
        for text in [library, version, client_id, platform] {
            text.truncate(short(text).len());
            text.shrink_to_fit();
        }
        self
    }
}

/// The part of a text that is kept, at most [`TEXT_BYTES_MAX`] bytes.
pub(crate) fn short(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}
