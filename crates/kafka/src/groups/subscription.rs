//! The topics in a consumer's metadata. All versions begin alike.
//!
//! ```text
//! version i16, topics: i32 count { i16 length, UTF-8 }, user data: i32 length, ...
//! ```
//!
//! Source: Kafka's `ConsumerProtocolSubscription.json`.

use crate::wire::Reader;

/// The topics; `None`: these are not a consumer's metadata. The broker needs them to know which
/// offsets are in use, and for nothing else.
pub(super) fn topics(metadata: &[u8]) -> Option<Vec<String>> {
    let mut reader = Reader::new(metadata, false);
    if reader.i16().ok()? < 0 {
        return None;
    }
    reader.array(|topic| topic.string().map(str::to_owned)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_found_whatever_follows() {
        let metadata = b"\0\x01\0\0\0\x02\0\x01a\0\x02bc\xff\xff\xff\xff";
        assert_eq!(
            topics(metadata),
            Some(vec!["a".to_owned(), "bc".to_owned()])
        );
        assert_eq!(topics(b""), None);
        assert_eq!(topics(b"\0\0\x7f\xff\xff\xff"), None);
    }
}
