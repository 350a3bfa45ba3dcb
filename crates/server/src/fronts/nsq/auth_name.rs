//! The common name of a certificate's subject, which is sent to the auth service.
//!
//! ```text
//! Certificate ::= SEQUENCE { tbsCertificate SEQUENCE { [0] version OPTIONAL, serial, signature,
//!                            issuer, validity, subject, .. }, .. }
//! subject     ::= SEQUENCE OF SET OF SEQUENCE { OBJECT IDENTIFIER, string }
//! ```
//!
//! Source: RFC 5280, section 4.1; the encoding is DER (X.690). TLS has verified the certificate
//! already, so this only has to find the name, and must never panic.

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
const VERSION: u8 = 0xa0;

/// `id-at-commonName`, 2.5.4.3.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// The subject's common name, empty if there is none.
pub(crate) fn common_name(certificate: &[u8]) -> String {
    find_common_name(certificate).unwrap_or_default()
}

fn find_common_name(certificate: &[u8]) -> Option<String> {
    let (_, certificate, _) = element(certificate)?;
    let (_, mut rest, _) = element(certificate)?;
    if let Some((VERSION, _, behind)) = element(rest) {
        rest = behind;
    }
    // Serial number, signature algorithm, issuer, validity.
    for _ in 0..4 {
        rest = element(rest)?.2;
    }
    let (SEQUENCE, mut names, _) = element(rest)? else {
        return None;
    };
    let mut found = None;
    while let Some((SET, mut set, behind)) = element(names) {
        names = behind;
        while let Some((SEQUENCE, attribute, behind)) = element(set) {
            set = behind;
            let (kind, name, value) = element(attribute)?;
            if kind == OBJECT_IDENTIFIER && name == COMMON_NAME {
                // The last one counts, as in Go's library.
                let (_, text, _) = element(value)?;
                found = Some(String::from_utf8_lossy(text).into_owned());
            }
        }
    }
    found
}

/// The tag and contents of the element at the start, and the bytes after it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let add = |sum: usize, byte: &u8| sum << 8 | usize::from(*byte);
            (length.iter().fold(0, add), rest)
        }
        _ => return None,
    };
    let (contents, rest) = rest.split_at_checked(length)?;
    Some((tag, contents, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
        let contents = parts.concat();
        assert!(contents.len() < 128);
        [&[tag, contents.len() as u8][..], &contents].concat()
    }

    fn certificate(version: &[u8]) -> Vec<u8> {
        let name = |identifier: &[u8], text: &str| {
            let parts = [der(6, &[identifier]), der(12, &[text.as_bytes()])];
            der(SET, &[&der(SEQUENCE, &[&parts[0], &parts[1]])])
        };
        let issuer = der(SEQUENCE, &[&name(COMMON_NAME, "ca")]);
        let (country, common) = (name(&[0x55, 4, 6], "DE"), name(COMMON_NAME, "test.local"));
        let subject = der(SEQUENCE, &[&country, &common]);
        let (serial, empty) = (der(2, &[&[1]]), der(SEQUENCE, &[]));
        let tbs = der(
            SEQUENCE,
            &[version, &serial, &empty, &issuer, &empty, &subject],
        );
        der(SEQUENCE, &[&tbs])
    }

    #[test]
    fn the_subjects_name_is_found() {
        assert_eq!(
            common_name(&certificate(&der(VERSION, &[&[2, 1, 2]]))),
            "test.local"
        );
        assert_eq!(common_name(&certificate(&[])), "test.local");
    }

    #[test]
    fn other_bytes_have_no_common_name() {
        let whole = certificate(&[]);
        for end in 0..whole.len() {
            assert_eq!(common_name(&whole[..end]), "");
        }
        assert_eq!(common_name(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]), "");
    }
}
