//! The client's side of SCRAM by the standard. Shares no code with the server's side.

#![allow(clippy::unwrap_used)]

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use cloverleaf_access::ScramHash;
use ring::{digest, hmac, pbkdf2};

/// A client that knows a password.
pub(crate) struct Client {
    hash: ScramHash,
    password: String,
    header: &'static str,
    bare: String,
}

/// The client's last message, and the answer that it expects.
pub(crate) struct Proof {
    pub(crate) message: String,
    pub(crate) expects: Vec<u8>,
}

impl Client {
    pub(crate) fn new(hash: ScramHash, user: &str, password: &str, header: &'static str) -> Self {
        let user = user.replace('=', "=3D").replace(',', "=2C");
        Self {
            hash,
            password: password.to_owned(),
            header,
            bare: format!("n={user},r=fyko+d2lbbFgONRv9qkxdawL"),
        }
    }

    pub(crate) fn first(&self) -> String {
        format!("{}{}", self.header, self.bare)
    }

    /// Answers a challenge.
    pub(crate) fn prove(&self, challenge: &[u8]) -> Proof {
        let challenge = std::str::from_utf8(challenge).unwrap();
        let attributes: Vec<&str> = challenge.split(',').collect();
        let nonce = attributes[0].strip_prefix("r=").unwrap();
        let salt = attributes[1].strip_prefix("s=").unwrap();
        let salt = BASE64_STANDARD.decode(salt).unwrap();
        let iterations = attributes[2].strip_prefix("i=").unwrap().parse().unwrap();
        let (hmac_by, digest_by, pbkdf2_by) = match self.hash {
            ScramHash::Sha256 => (
                hmac::HMAC_SHA256,
                &digest::SHA256,
                pbkdf2::PBKDF2_HMAC_SHA256,
            ),
            ScramHash::Sha512 => (
                hmac::HMAC_SHA512,
                &digest::SHA512,
                pbkdf2::PBKDF2_HMAC_SHA512,
            ),
        };
        let sign = |key: &[u8], message: &str| {
            let tag = hmac::sign(&hmac::Key::new(hmac_by, key), message.as_bytes());
            tag.as_ref().to_vec()
        };
        let mut salted = vec![0; digest_by.output_len()];
        let password = self.password.as_bytes();
        pbkdf2::derive(pbkdf2_by, iterations, &salt, password, &mut salted);
        let header = BASE64_STANDARD.encode(self.header);
        let without_proof = format!("c={header},r={nonce}");
        let signed = [&*self.bare, challenge, &*without_proof].join(",");
        let client_key = sign(&salted, "Client Key");
        let stored_key = digest::digest(digest_by, &client_key);
        let signature = sign(stored_key.as_ref(), &signed);
        let proof = client_key.iter().zip(signature);
        let proof: Vec<u8> = proof.map(|(key, signature)| key ^ signature).collect();
        let answer = sign(&sign(&salted, "Server Key"), &signed);
        Proof {
            message: format!("{without_proof},p={}", BASE64_STANDARD.encode(proof)),
            expects: format!("v={}", BASE64_STANDARD.encode(answer)).into_bytes(),
        }
    }
}
