//! The query string of a request, read as Go's `net/url` reads it, since that is what NSQ's
//! clients have been written against.
//!
//! `key=value` pairs between `&`; `+` is a space; `%XX` is a byte. A semicolon or a broken escape
//! makes the whole query invalid. If a key comes several times, its first value counts.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::http::HttpError;

/// The decoded parameters of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    pairs: Vec<(String, String)>,
}

impl Query {
    /// Decodes the part after the `?`.
    ///
    /// # Errors
    /// [`HttpError::InvalidRequest`] if it is malformed.
    pub fn parse(query: &str) -> Result<Query, HttpError> {
        let is_code = |text: &str| {
            let digits = text.as_bytes().get(..2);
            digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
        };
        if query.contains(';') || !query.split('%').skip(1).all(is_code) {
            return Err(HttpError::InvalidRequest);
        }
        // Bytes that are not UTF-8 become replacement characters, which no valid name contains, so
        // that such a name is refused as invalid.
        let pairs = form_urlencoded::parse(query.as_bytes());
        Ok(Query {
            pairs: pairs.into_owned().collect(),
        })
    }

    /// The first value of `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.pairs
            .iter()
            .find(|(k, _)| k == key)
            .map(|(_, v)| v.as_str())
    }

    /// The value of `key` as one of nsqd's booleans: `true`, `1`, `false`, `0`. Anything else is
    /// `None`, which each command interprets in its own way.
    pub fn get_bool(&self, key: &str) -> Option<bool> {
        match self.get(key)? {
            "true" | "1" => Some(true),
            "false" | "0" => Some(false),
            _ => None,
        }
    }
}

/// All bytes except those that RFC 3986 calls unreserved.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// Encodes `text` as a value in a query string or as a segment of a path.
pub fn escape(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_value_counts() {
        let query = Query::parse("topic=a&topic=b&x&y=").unwrap();
        assert_eq!(query.get("topic"), Some("a"));
        assert_eq!(query.get("x"), Some(""));
        assert_eq!(query.get("y"), Some(""));
        assert_eq!(query.get("z"), None);
    }

    #[test]
    fn escapes_are_undone() {
        let query = Query::parse("channel=c%23ephemeral&a+b=%41+").unwrap();
        assert_eq!(query.get("channel"), Some("c#ephemeral"));
        assert_eq!(query.get("a b"), Some("A "));
        let query = Query::parse("&&a=%2B%C3%BC&b=%ff=&").unwrap();
        assert_eq!(
            (query.get("a"), query.get("b")),
            (Some("+ü"), Some("\u{fffd}="))
        );
    }

    #[test]
    fn queries_that_go_refuses_are_refused() {
        for bad in ["a=%", "a=%4", "a=%zz", "a=%4&b=1", "a=%%41", "a;b=1", "%"] {
            assert_eq!(Query::parse(bad), Err(HttpError::InvalidRequest), "{bad}");
        }
    }

    #[test]
    fn booleans_are_those_of_nsqd() {
        let query = Query::parse("a=true&b=0&c=yes").unwrap();
        assert_eq!(query.get_bool("a"), Some(true));
        assert_eq!(query.get_bool("b"), Some(false));
        assert_eq!(query.get_bool("c"), None);
        assert_eq!(query.get_bool("d"), None);
    }

    proptest! {
        #[test]
        fn any_query_is_parsed_or_refused(query in ".{0,200}") {
            let _ = Query::parse(&query);
        }

        #[test]
        fn escape_and_parse_are_inverse(value in ".{0,40}") {
            let query = Query::parse(&format!("k={}", escape(&value))).unwrap();
            prop_assert_eq!(query.get("k"), Some(value.as_str()));
        }
    }
}
