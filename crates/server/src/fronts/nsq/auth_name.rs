//! The common name of a certificate's subject, which is sent to the auth service.
//!
//! ```text
//! subject ::= SEQUENCE OF SET OF SEQUENCE { OBJECT IDENTIFIER, string }
//! ```
//!
//! Source: RFC 5280, section 4.1; the encoding is DER (X.690). The subject is found by the library
//! by which TLS has verified the certificate; it does not parse the names in it.

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;

/// `id-at-commonName`, 2.5.4.3.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// The subject's common name, empty if there is none.
pub(crate) fn common_name(certificate: &CertificateDer<'_>) -> String {
    let certificate = EndEntityCert::try_from(certificate).ok();
    let name = certificate.and_then(|it| last_common_name(it.subject()));
    name.unwrap_or_default()
}

/// The last common name of a subject without its outer SEQUENCE: the last one counts, as in Go's
/// library.
fn last_common_name(mut subject: &[u8]) -> Option<String> {
    let mut found = None;
    while let Some((SET, mut set, rest)) = element(subject) {
        subject = rest;
        while let Some((SEQUENCE, attribute, rest)) = element(set) {
            set = rest;
            let (kind, name, value) = element(attribute)?;
            if kind == OBJECT_IDENTIFIER && name == COMMON_NAME {
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
    #![allow(clippy::unwrap_used)]
    use rcgen::{CertificateParams, DistinguishedName, DnType, Issuer, KeyPair};

    use super::*;

    fn params(names: &[(DnType, &str)]) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        for (kind, text) in names {
            params.distinguished_name.push(kind.clone(), *text);
        }
        params
    }

    fn certificate() -> CertificateDer<'static> {
        let authority = params(&[(DnType::CommonName, "ca")]);
        let issuer = Issuer::new(authority, KeyPair::generate().unwrap());
        let (country, name) = (DnType::CountryName, DnType::CommonName);
        let params = params(&[(country, "DE"), (name, "test.local")]);
        let key = KeyPair::generate().unwrap();
        params.signed_by(&key, &issuer).unwrap().into()
    }

    #[test]
    fn the_subjects_name_is_found() {
        assert_eq!(common_name(&certificate()), "test.local");
    }

    #[test]
    fn other_bytes_have_no_common_name() {
        let whole = certificate();
        for end in 0..whole.len() {
            assert_eq!(common_name(&whole[..end].into()), "");
        }
        let whole = EndEntityCert::try_from(&whole).unwrap();
        let subject = whole.subject();
        for end in 0..subject.len() {
            assert_eq!(last_common_name(&subject[..end]), None);
        }
        assert_eq!(last_common_name(&[SET, 0x84, 0xff, 0xff, 0xff, 0xff]), None);
    }
}
