//! ApiVersions: the requests and versions that the broker serves, and the name and version of the
//! client's software (KIP-511).
//!
//! ```text
//! request   [3+: software name, software version, tags]
//! answer    error i16, array of { api key i16, min i16, max i16, [3+: tags] },
//!           [1+: throttle time i32], [3+: tags]
//! ```
//!
//! Source: <https://kafka.apache.org/protocol#The_Messages_ApiVersions>.

use crate::apis::APIS;
use crate::error_code::ErrorCode;
use crate::wire::{Malformed, Reader};
use crate::wire_out::Writer;

/// The client's software, which the request names from version 3 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Software<'a> {
    pub(crate) name: &'a str,
    pub(crate) version: &'a str,
}

impl Software<'_> {
    /// Kafka's rule: ASCII letters, digits, dots and dashes; the first and the last character are a
    /// letter or a digit.
    pub(crate) fn is_valid(&self) -> bool {
        [self.name, self.version].into_iter().all(|text| {
            let ends = [text.bytes().next(), text.bytes().next_back()];
            ends.into_iter()
                .all(|end| end.is_some_and(|byte| byte.is_ascii_alphanumeric()))
                && text
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'))
        })
    }
}

/// Reads a request; `None` before version 3.
pub(crate) fn read<'a>(
    mut body: Reader<'a>,
    version: i16,
) -> Result<Option<Software<'a>>, Malformed> {
    if version < 3 {
        return Ok(None);
    }
    let (name, version) = (body.string()?, body.string()?);
    body.skip_tagged()?;
    Ok(Some(Software { name, version }))
}

/// The body of an answer.
pub(crate) fn body(version: i16, error: ErrorCode) -> Vec<u8> {
    let mut out = Vec::with_capacity(8 * APIS.len() + 16);
    let flexible = version >= 3;
    let mut writer = Writer::new(&mut out, flexible);
    writer.i16(error.code());
    let apis = match error {
        ErrorCode::None | ErrorCode::UnsupportedVersion => APIS,
        _ => &[],
    };
    writer.len(apis.len());
    for known in apis {
        writer.i16(known.api as i16);
        writer.i16(known.advertised_min());
        writer.i16(known.max);
        writer.no_tags();
    }
    if version >= 1 {
        writer.i32(0);
    }
    writer.no_tags();
    out
}
