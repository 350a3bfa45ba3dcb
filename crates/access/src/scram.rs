//! SCRAM: a client proves that it knows a password without saying it, and is shown in turn that the
//! server has its verifier. Source: RFC 5802, RFC 7677.

use std::sync::Arc;

use ring::hmac::{self, Key, Tag};
use ring::{digest, pbkdf2};
use subtle::{Choice, ConstantTimeEq};

use crate::login::Refused;
use crate::process_key::{draw, keyed};
use crate::scram_messages::{ClientFinal, ClientFirst, base64};
use crate::users::Users;

/// Fewest turns of a verifier: RFC 7677 asks for them, and Kafka refuses fewer.
pub const ITERATIONS_MIN: u32 = 4096;
/// Most of them. The client takes them, not the server, but who makes a verifier does.
pub const ITERATIONS_MAX: u32 = 1 << 20;
/// Of a salt of ours.
const SALT_BYTES: usize = 16;
/// Of a server's nonce.
const NONCE_BYTES: usize = 24;

/// The hash that a SCRAM mechanism is named by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum ScramHash {
    /// SCRAM-SHA-256.
    Sha256,
    /// SCRAM-SHA-512.
    Sha512,
}

impl ScramHash {
    /// All there are.
    pub const ALL: [ScramHash; 2] = [ScramHash::Sha256, ScramHash::Sha512];

    /// The mechanism's name.
    pub const fn mechanism(self) -> &'static str {
        match self {
            ScramHash::Sha256 => "SCRAM-SHA-256",
            ScramHash::Sha512 => "SCRAM-SHA-512",
        }
    }

    fn hmac(self, key: &[u8], message: &[u8]) -> Tag {
        let algorithm = match self {
            ScramHash::Sha256 => hmac::HMAC_SHA256,
            ScramHash::Sha512 => hmac::HMAC_SHA512,
        };
        hmac::sign(&Key::new(algorithm, key), message)
    }

    fn digest(self, message: &[u8]) -> digest::Digest {
        let algorithm = match self {
            ScramHash::Sha256 => &digest::SHA256,
            ScramHash::Sha512 => &digest::SHA512,
        };
        digest::digest(algorithm, message)
    }

    fn salted(self, password: &[u8], salt: &[u8], iterations: u32) -> Vec<u8> {
        let (algorithm, bytes) = match self {
            ScramHash::Sha256 => (pbkdf2::PBKDF2_HMAC_SHA256, digest::SHA256_OUTPUT_LEN),
            ScramHash::Sha512 => (pbkdf2::PBKDF2_HMAC_SHA512, digest::SHA512_OUTPUT_LEN),
        };
        let mut salted = vec![0; bytes];
        let turns = std::num::NonZeroU32::MIN.saturating_add(iterations.saturating_sub(1));
        pbkdf2::derive(algorithm, turns, salt, password, &mut salted);
        salted
    }
}

/// So many iterations as no verifier may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} iterations: at least {ITERATIONS_MIN}, at most {ITERATIONS_MAX}")]
pub struct IterationsError(pub u32);

/// The verifier of one password, for one mechanism.
pub struct Scram {
    hash: ScramHash,
    iterations: u32,
    salt: Vec<u8>,
    stored_key: Vec<u8>,
    server_key: Vec<u8>,
}

impl Scram {
    /// The verifier of a password, with a salt of its own.
    ///
    /// # Errors
    /// Too few or too many iterations.
    pub fn of(hash: ScramHash, password: &[u8], iterations: u32) -> Result<Self, IterationsError> {
        let drawn = draw();
        let salt = &drawn.as_ref()[..SALT_BYTES];
        let salted = hash.salted(password, salt, iterations.min(ITERATIONS_MAX));
        Self::of_salted(hash, iterations, salt.to_vec(), &salted)
    }

    /// The verifier of a password that was salted elsewhere, as Kafka's tools do it.
    ///
    /// # Errors
    /// Too few or too many iterations.
    pub fn of_salted(
        hash: ScramHash,
        iterations: u32,
        salt: Vec<u8>,
        salted_password: &[u8],
    ) -> Result<Self, IterationsError> {
        if !(ITERATIONS_MIN..=ITERATIONS_MAX).contains(&iterations) {
            return Err(IterationsError(iterations));
        }
        let client_key = hash.hmac(salted_password, b"Client Key");
        Ok(Self {
            hash,
            iterations,
            salt,
            stored_key: hash.digest(client_key.as_ref()).as_ref().to_vec(),
            server_key: hash.hmac(salted_password, b"Server Key").as_ref().to_vec(),
        })
    }

    /// The one that a name without a user seems to have: always the same, and like another's.
    /// Nothing is found that has its stored key for a hash, so it lets nobody in.
    pub(crate) fn nobodys(hash: ScramHash, name: &str, like: Option<&Scram>) -> Scram {
        let salt = keyed(&[b"salt", hash.mechanism().as_bytes(), name.as_bytes()]);
        let salt_bytes = like.map_or(SALT_BYTES, |like| like.salt.len());
        let hash_bytes = hash.digest(b"").as_ref().len();
        Scram {
            hash,
            iterations: like.map_or(ITERATIONS_MIN, |like| like.iterations),
            salt: salt.as_ref().iter().copied().take(salt_bytes).collect(),
            stored_key: vec![0; hash_bytes],
            server_key: vec![0; hash_bytes],
        }
    }

    /// Its mechanism's hash.
    pub fn hash(&self) -> ScramHash {
        self.hash
    }
}

/// Between the client's two messages.
pub(crate) struct Exchange {
    user: String,
    verifier: Arc<Scram>,
    /// As the client's last message has to repeat it.
    header: String,
    nonce: String,
    /// All that is signed, but for the last message.
    signed: String,
}

impl Exchange {
    /// Takes the client's first message, and says what to answer.
    pub(crate) fn begin(
        users: &Users,
        hash: ScramHash,
        message: &[u8],
    ) -> Result<(Exchange, Vec<u8>), Refused> {
        let nonce = base64(&draw().as_ref()[..NONCE_BYTES]);
        Self::begin_with(users, hash, message, &nonce)
    }

    fn begin_with(
        users: &Users,
        hash: ScramHash,
        message: &[u8],
        server_nonce: &str,
    ) -> Result<(Exchange, Vec<u8>), Refused> {
        let first = ClientFirst::read(message).ok_or(Refused::Malformed)?;
        if !first.acts_for.is_empty() && first.acts_for != first.user {
            return Err(Refused::ActsFor { user: first.user });
        }
        let verifier = users.scram(&first.user, hash);
        let nonce = [first.nonce, server_nonce].concat();
        let salt = base64(&verifier.salt);
        let answer = format!("r={nonce},s={salt},i={}", verifier.iterations);
        let exchange = Exchange {
            signed: [first.bare, ",", &answer, ","].concat(),
            header: first.header.to_owned(),
            user: first.user,
            verifier,
            nonce,
        };
        Ok((exchange, answer.into_bytes()))
    }

    /// Takes the client's last message, and says what to answer.
    pub(crate) fn finish(&self, message: &[u8]) -> Result<Vec<u8>, Refused> {
        let last = ClientFinal::read(message).ok_or(Refused::Malformed)?;
        if last.header != self.header.as_bytes() || last.nonce != self.nonce {
            return Err(Refused::Malformed);
        }
        let Scram {
            hash,
            stored_key,
            server_key,
            ..
        } = &*self.verifier;
        let signed = [&*self.signed, last.without_proof].concat();
        let signature = hash.hmac(stored_key, signed.as_bytes());
        let signature = signature.as_ref();
        // Another length is another password's, too.
        let mut client_key = vec![0; signature.len()];
        let bytes = client_key.iter_mut().zip(signature).zip(&last.proof);
        bytes.for_each(|((key, signature), proof)| *key = signature ^ proof);
        let is_right = hash.digest(&client_key).as_ref().ct_eq(stored_key)
            & Choice::from(u8::from(last.proof.len() == signature.len()));
        let answer = hash.hmac(server_key, signed.as_bytes());
        if !bool::from(is_right) {
            let user = self.user.clone();
            return Err(Refused::Credentials { user });
        }
        Ok(format!("v={}", base64(answer)).into_bytes())
    }

    pub(crate) fn user(&self) -> &str {
        &self.user
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;

    use super::*;
    use crate::users::User;

    /// Has a user who knows "pencil" log in with these messages.
    fn exchange(
        hash: ScramHash,
        (salt, iterations): (&[u8], u32),
        (client_nonce, server_nonce): (&str, &str),
        proof: &str,
    ) -> (String, String) {
        let salted = hash.salted(b"pencil", salt, iterations);
        let verifier = Scram::of_salted(hash, iterations, salt.to_vec(), &salted).unwrap();
        let users = Users::from_iter([User::new("user").with_scram(verifier)]);
        let first = format!("n,,n=user,r={client_nonce}");
        let begun = Exchange::begin_with(&users, hash, first.as_bytes(), server_nonce);
        let (exchange, challenge) = begun.unwrap();
        let last = format!("c=biws,r={client_nonce}{server_nonce},p={proof}");
        let answer = exchange.finish(last.as_bytes()).unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (text(challenge), text(answer))
    }

    /// RFC 7677, section 3.
    #[test]
    fn the_example_of_the_standard_is_reproduced() {
        let salt = BASE64_STANDARD.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        let nonces = ("rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0");
        let proof = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
        let (challenge, answer) = exchange(ScramHash::Sha256, (&salt, 4096), nonces, proof);
        assert_eq!(
            challenge,
            "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
        );
        assert_eq!(answer, "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
    }

    /// The other hash has no example in a standard: these were computed by Python's `hashlib`.
    #[test]
    fn the_other_hash_is_as_another_program_computes_it() {
        let salt: Vec<u8> = (0..16).collect();
        let proof = "1UMF9X2EIKdugDFgg+E0knUjLLwAYSR8jft0eCB435cnVCG0rm+x3HTYN7Rn6QpdcpD3lskDO4Nm\
                     XrGjG1oSUQ==";
        let nonces = ("client", "server");
        let (challenge, answer) = exchange(ScramHash::Sha512, (&salt, 8192), nonces, proof);
        let expected = "r=clientserver,s=AAECAwQFBgcICQoLDA0ODw==,i=8192";
        assert_eq!(challenge, expected);
        assert_eq!(
            answer,
            "v=o/clVUSoi3ivQVI1O/YfXd5w9Y0YTU3pkiC0wUq0uOdOgCCuaI3u2cGb5fRL6n111B7tl0Wb497HG5Yy1s\
             xxuQ=="
        );
    }

    #[test]
    fn iterations_are_bounded() {
        for (iterations, is_taken) in [(0, false), (4095, false), (4096, true), (u32::MAX, false)] {
            let salted = [7; 32];
            let made = Scram::of_salted(ScramHash::Sha256, iterations, vec![1], &salted);
            assert_eq!(made.is_ok(), is_taken, "{iterations}");
        }
    }
}
