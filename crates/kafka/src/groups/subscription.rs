//! Decodes the topics in a consumer's metadata, and the partitions in its assignment. All versions
//! begin with the same fields.
//!
//! ```text
//! metadata    version i16, topics: i32 count { i16 length, UTF-8 }, user data: i32 length, ...
//! assignment  version i16, topics: i32 count { i16 length, UTF-8; i32 count { i32 partition } },
//!             user data: i32 length, ...
//! ```
//!
//! Source: Kafka's `ConsumerProtocolSubscription.json`, `ConsumerProtocolAssignment.json`.

use crate::wire::Reader;

/// The subscribed topics; `None`: these bytes are not a consumer's metadata. Offsets of subscribed
/// topics do not expire, and the doctor reports on them.
pub(super) fn topics(metadata: &[u8]) -> Option<Vec<String>> {
    let mut reader = Reader::new(metadata, false);
    if reader.i16().ok()? < 0 {
        return None;
    }
    reader.array(|topic| topic.string().map(str::to_owned)).ok()
}

/// The assigned partitions by topic; `None`: these bytes are not a consumer's assignment.
pub(super) fn assigned(assignment: &[u8]) -> Option<Vec<(String, Vec<u32>)>> {
    let mut reader = Reader::new(assignment, false);
    if reader.i16().ok()? < 0 {
        return None;
    }
    let topics = reader.array(|reader| {
        let name = reader.string()?.to_owned();
        let partitions = reader.array(Reader::i32)?;
        let partitions = partitions
            .into_iter()
            .filter_map(|it| u32::try_from(it).ok());
        Ok((name, partitions.collect()))
    });
    topics.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_found_whatever_follows() {
        let assignment = b"\0\x01\0\0\0\x01\0\x01a\0\0\0\x02\0\0\0\0\0\0\0\x07\xff\xff\xff\xff";
        assert_eq!(
            assigned(assignment),
            Some(vec![("a".to_owned(), vec![0, 7])])
        );
        assert_eq!(assigned(b""), None);
        assert_eq!(assigned(b"\0\0\0\0\0\x01\0\x01a\x7f\xff\xff\xff"), None);
    }

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
