//! SCRAM's messages.
//!
//! ```text
//! client-first   n,[a=NAME],n=NAME,r=NONCE[,extensions]      "y" for "n": the client could bind
//! server-first   r=NONCE SERVER-NONCE,s=SALT,i=ITERATIONS
//! client-final   c=BASE64(header of client-first),r=BOTH NONCES[,extensions],p=PROOF
//! server-final   v=SIGNATURE
//! ```
//!
//! Optional extensions are ignored. A mandatory one (`m=`) is refused, because it is in the place
//! of the name. Channel binding is not offered and is refused, too. Names and passwords are used
//! without SASLprep, as in Kafka. Source: RFC 5802, section 7.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

/// The client's first message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ClientFirst<'a> {
    /// The GS2 header, which the last message repeats.
    pub(crate) header: &'a str,
    /// The authorization identity; empty: the user itself.
    pub(crate) acts_for: String,
    /// The message without the header, which is signed.
    pub(crate) bare: &'a str,
    pub(crate) user: String,
    pub(crate) nonce: &'a str,
}

impl<'a> ClientFirst<'a> {
    pub(crate) fn read(message: &'a [u8]) -> Option<ClientFirst<'a>> {
        let message = std::str::from_utf8(message).ok()?;
        let (binding, rest) = message.split_once(',')?;
        let (acts_for, bare) = rest.split_once(',')?;
        if !matches!(binding, "n" | "y") {
            return None;
        }
        let acts_for = match acts_for {
            "" => String::new(),
            acts_for => name(acts_for.strip_prefix("a=")?)?,
        };
        let mut attributes = bare.split(',');
        let user = name(attributes.next()?.strip_prefix("n=")?)?;
        let nonce = attributes.next()?.strip_prefix("r=")?;
        let is_printable = nonce.bytes().all(|byte| byte.is_ascii_graphic());
        if nonce.is_empty() || !is_printable || !attributes.all(is_extension) {
            return None;
        }
        Some(ClientFirst {
            header: &message[..message.len() - bare.len()],
            acts_for,
            bare,
            user,
            nonce,
        })
    }
}

/// The client's last message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ClientFinal<'a> {
    /// The message without the proof, which is signed.
    pub(crate) without_proof: &'a str,
    /// The GS2 header of the first message.
    pub(crate) header: Vec<u8>,
    /// The client's and the server's nonce.
    pub(crate) nonce: &'a str,
    pub(crate) proof: Vec<u8>,
}

impl<'a> ClientFinal<'a> {
    pub(crate) fn read(message: &'a [u8]) -> Option<ClientFinal<'a>> {
        let message = std::str::from_utf8(message).ok()?;
        let (without_proof, proof) = message.rsplit_once(",p=")?;
        let mut attributes = without_proof.split(',');
        let header = attributes.next()?.strip_prefix("c=")?;
        let nonce = attributes.next()?.strip_prefix("r=")?;
        if !attributes.all(is_extension) {
            return None;
        }
        Some(ClientFinal {
            without_proof,
            header: BASE64_STANDARD.decode(header).ok()?,
            nonce,
            proof: BASE64_STANDARD.decode(proof).ok()?,
        })
    }
}

/// Whether this is an optional extension, which may follow the known attributes.
fn is_extension(attribute: &str) -> bool {
    let name = attribute.split_once('=').map_or("", |(name, _)| name);
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphabetic())
}

/// Decodes a name, in which a comma is `=2C` and an equals sign `=3D`.
fn name(text: &str) -> Option<String> {
    let mut parts = text.split('=');
    let mut name = parts.next()?.to_owned();
    for part in parts {
        let (sign, rest) = part.split_at_checked(2)?;
        name.push(match sign {
            "2C" => ',',
            "3D" => '=',
            _ => return None,
        });
        name.push_str(rest);
    }
    let is_name = !name.is_empty() && !name.contains('\0');
    is_name.then_some(name)
}

pub(crate) fn base64(bytes: impl AsRef<[u8]>) -> String {
    BASE64_STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn first_messages_are_read() {
        let read = |text: &'static str| ClientFirst::read(text.as_bytes());
        let first = read("n,,n=a=2Cb=3Dc,r=xyz,tokenauth=true").unwrap();
        assert_eq!((first.header, &*first.acts_for), ("n,,", ""));
        assert_eq!((&*first.user, first.nonce), ("a,b=c", "xyz"));
        assert_eq!(first.bare, "n=a=2Cb=3Dc,r=xyz,tokenauth=true");
        let first = read("y,a=bob,n=ann,r=1").unwrap();
        assert_eq!((first.header, &*first.acts_for), ("y,a=bob,", "bob"));
        for malformed in [
            "",
            "n",
            "n,,",
            "p=tls-unique,,n=ann,r=1",
            "n,bob,n=ann,r=1",
            "n,a=,n=ann,r=1",
            "n,,m=x,n=ann,r=1",
            "n,,n=ann",
            "n,,n=,r=1",
            "n,,n=ann,r=",
            "n,,n=ann,r=a b",
            "n,,n=a=b,r=1",
            "n,,n=a=2c,r=1",
            "n,,n=a=é,r=1",
            "n,,n=ann,r=1,",
            "n,,n=ann,r=1,x",
            "n,,n=a\0n,r=1",
        ] {
            assert_eq!(read(malformed), None, "{malformed}");
        }
        assert_eq!(ClientFirst::read(b"n,,n=\xff,r=1"), None);
    }

    #[test]
    fn last_messages_are_read() {
        let read = |text: &'static str| ClientFinal::read(text.as_bytes());
        let last = read("c=biws,r=12,x=y,p=AQI=").unwrap();
        assert_eq!(last.without_proof, "c=biws,r=12,x=y");
        assert_eq!((&*last.header, last.nonce), (&b"n,,"[..], "12"));
        assert_eq!(last.proof, [1, 2]);
        for malformed in [
            "",
            "c=biws,r=12",
            "r=12,p=AQI=",
            "c=biws,p=AQI=",
            "c=biw,r=12,p=AQI=",
            "c=biws,r=12,p=AQI",
            "c=biws,r=12,x,p=AQI=",
        ] {
            assert_eq!(read(malformed), None, "{malformed}");
        }
    }
}
