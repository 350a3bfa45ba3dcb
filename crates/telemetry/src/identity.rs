//! The identity of the client at the other end of a connection.

use serde::{Deserialize, Serialize};

/// The identity of the client at the other end, as far as it says so itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Identity {
    /// Client library, e.g. `go-nsq`; empty when unknown.
    pub library: String,
    /// Version of the client library; empty when unknown.
    pub version: String,
    /// The name that the client gave itself; empty when none.
    pub client_id: String,
    /// The platform that the client says it runs on; empty when it does not say.
    pub platform: String,
}

/// Most bytes of each text of an [`Identity`]: it is kept for closed connections too.
const TEXT_BYTES_MAX: usize = 128;

impl Identity {
    /// The same with long texts cut off, as it is kept.
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

/// As much of a text as is kept of it.
pub(crate) fn short(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}
