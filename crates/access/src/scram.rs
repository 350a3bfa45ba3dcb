//! SCRAM: a client proves that it knows a password without sending it, and the server proves that
//! it has the verifier. Source: RFC 5802, RFC 7677.
//!
//! A verifier is stored as in PostgreSQL (`pg_authid.rolpassword`), base64 with padding:
//!
//! ```text
//! SCRAM-SHA-256$ITERATIONS:SALT$STORED-KEY:SERVER-KEY
//! SCRAM-SHA-512$ITERATIONS:SALT$STORED-KEY:SERVER-KEY
//! ```

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use base64::prelude::BASE64_STANDARD;
use ring::hmac::{self, Key, Tag};
use ring::{digest, pbkdf2};
use subtle::{Choice, ConstantTimeEq};

use crate::login::LoginError;
use crate::process_key::{process_hmac, random_bytes};
use crate::scram_messages::{ClientFinal, ClientFirst, base64};
use crate::stored::{VerifierError, bytes, check_salt, number, parse_text};
use crate::users::Users;

/// Minimum number of iterations, as RFC 7677 and Kafka require.
pub const ITERATIONS_MIN: u32 = 4096;
/// Maximum number of iterations. They are computed by the client, and by the program that creates
/// the verifier, not by the server at a login.
pub const ITERATIONS_MAX: u32 = 1 << 20;
/// Bytes of a salt that this crate creates.
const SALT_BYTES: usize = 16;
/// Minimum bytes of a salt from another program.
const SALT_BYTES_MIN: usize = 1;
const FORM: &str = "SCRAM-SHA-256 or SCRAM-SHA-512, then $ITERATIONS:SALT$STORED-KEY:SERVER-KEY";
/// Bytes of a server's nonce.
const NONCE_BYTES: usize = 24;

/// The hash of a SCRAM mechanism.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum ScramHash {
    /// SCRAM-SHA-256.
    Sha256,
    /// SCRAM-SHA-512.
    Sha512,
}

impl ScramHash {
    /// All hashes.
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

/// The number of iterations is outside the limits.
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
    /// Creates the verifier of a password, with a new salt.
    ///
    /// # Errors
    /// There are too few or too many iterations.
    pub fn of(hash: ScramHash, password: &[u8], iterations: u32) -> Result<Self, IterationsError> {
        let drawn = random_bytes();
        let salt = drawn.as_ref()[..SALT_BYTES].to_vec();
        check_iterations(iterations)?;
        let salted = hash.salted(password, &salt, iterations);
        Ok(Self::with_keys(hash, iterations, salt, &salted))
    }

    /// Creates the verifier of a password that another program has salted, as Kafka's tools do.
    ///
    /// # Errors
    /// There are too few or too many iterations or bytes of salt.
    pub fn of_salted(
        hash: ScramHash,
        iterations: u32,
        salt: Vec<u8>,
        salted_password: &[u8],
    ) -> Result<Self, VerifierError> {
        check_iterations(iterations)?;
        check_salt(&salt, SALT_BYTES_MIN)?;
        Ok(Self::with_keys(hash, iterations, salt, salted_password))
    }

    fn with_keys(hash: ScramHash, iterations: u32, salt: Vec<u8>, salted_password: &[u8]) -> Self {
        let client_key = hash.hmac(salted_password, b"Client Key");
        Self {
            hash,
            iterations,
            salt,
            stored_key: hash.digest(client_key.as_ref()).as_ref().to_vec(),
            server_key: hash.hmac(salted_password, b"Server Key").as_ref().to_vec(),
        }
    }

    /// The verifier that an unknown name seems to have: always the same one for a name, with the
    /// parameters of `like`. No input is known whose hash is its stored key, so no login succeeds
    /// with it.
    pub(crate) fn stand_in(hash: ScramHash, name: &str, like: Option<&Scram>) -> Scram {
        let mechanism = hash.mechanism().as_bytes();
        let parts: [&[u8]; 2] = [b"salt", b"more salt"];
        let salt = parts.map(|part| process_hmac(&[part, mechanism, name.as_bytes()]));
        let salt = salt.iter().flat_map(AsRef::as_ref).copied();
        let salt_bytes = like.map_or(SALT_BYTES, |like| like.salt.len());
        let hash_bytes = hash.digest(b"").as_ref().len();
        Scram {
            hash,
            iterations: like.map_or(ITERATIONS_MIN, |like| like.iterations),
            salt: salt.take(salt_bytes).collect(),
            stored_key: vec![0; hash_bytes],
            server_key: vec![0; hash_bytes],
        }
    }

    /// The hash of its mechanism.
    pub fn hash(&self) -> ScramHash {
        self.hash
    }
}

fn check_iterations(iterations: u32) -> Result<(), IterationsError> {
    if (ITERATIONS_MIN..=ITERATIONS_MAX).contains(&iterations) {
        Ok(())
    } else {
        Err(IterationsError(iterations))
    }
}

impl fmt::Display for Scram {
    /// The text form in which it is stored.
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mechanism, iterations) = (self.hash.mechanism(), self.iterations);
        let parts = [&self.salt, &self.stored_key, &self.server_key];
        let [salt, stored_key, server_key] = parts.map(base64);
        write!(
            to,
            "{mechanism}${iterations}:{salt}${stored_key}:{server_key}"
        )
    }
}

impl FromStr for Scram {
    type Err = VerifierError;

    /// Parses the text form, also from another program.
    fn from_str(text: &str) -> Result<Self, VerifierError> {
        let verifier = parse_text(text, FORM, |text| {
            let (mechanism, text) = text.split_once('$')?;
            let mut hashes = ScramHash::ALL.into_iter();
            let hash = hashes.find(|hash| hash.mechanism() == mechanism)?;
            let (iterations, text) = text.split_once(':')?;
            let (salt, text) = text.split_once('$')?;
            let (stored_key, server_key) = text.split_once(':')?;
            let parts = [salt, stored_key, server_key];
            let [salt, stored_key, server_key] = parts.map(|text| bytes(&BASE64_STANDARD, text));
            let keys = [stored_key?, server_key?];
            let is_key = |key: &Vec<u8>| key.len() == hash.digest(b"").as_ref().len();
            let [stored_key, server_key] = keys.iter().all(is_key).then_some(keys)?;
            Some(Self {
                hash,
                iterations: number(iterations)?,
                salt: salt?,
                stored_key,
                server_key,
            })
        })?;
        check_iterations(verifier.iterations)?;
        check_salt(&verifier.salt, SALT_BYTES_MIN)?;
        Ok(verifier)
    }
}

impl fmt::Debug for Scram {
    /// Shows the parameters that clients get, without the salt.
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mechanism, iterations) = (self.hash.mechanism(), self.iterations);
        write!(to, "Scram({mechanism}, {iterations} iterations)")
    }
}

/// The state between the client's two messages.
pub(crate) struct ScramExchange {
    user: String,
    verifier: Arc<Scram>,
    /// The GS2 header, which the client's last message has to repeat.
    header: String,
    nonce: String,
    /// The signed text, without the client's last message.
    signed: String,
}

impl ScramExchange {
    /// Handles the client's first message; returns the challenge.
    pub(crate) fn begin(
        users: &Users,
        hash: ScramHash,
        message: &[u8],
    ) -> Result<(ScramExchange, Vec<u8>), LoginError> {
        let nonce = base64(&random_bytes().as_ref()[..NONCE_BYTES]);
        Self::begin_with(users, hash, message, &nonce)
    }

    fn begin_with(
        users: &Users,
        hash: ScramHash,
        message: &[u8],
        server_nonce: &str,
    ) -> Result<(ScramExchange, Vec<u8>), LoginError> {
        let first = ClientFirst::read(message).ok_or(LoginError::Malformed)?;
        if !first.acts_for.is_empty() && first.acts_for != first.user {
            return Err(LoginError::ActsFor { user: first.user });
        }
        let verifier = users.scram(&first.user, hash);
        let nonce = [first.nonce, server_nonce].concat();
        let salt = base64(&verifier.salt);
        let answer = format!("r={nonce},s={salt},i={}", verifier.iterations);
        let exchange = ScramExchange {
            signed: [first.bare, ",", &answer, ","].concat(),
            header: first.header.to_owned(),
            user: first.user,
            verifier,
            nonce,
        };
        Ok((exchange, answer.into_bytes()))
    }

    /// Handles the client's last message; returns the server's last one.
    pub(crate) fn finish(&self, message: &[u8]) -> Result<Vec<u8>, LoginError> {
        let last = ClientFinal::read(message).ok_or(LoginError::Malformed)?;
        if last.header != self.header.as_bytes() || last.nonce != self.nonce {
            return Err(LoginError::Malformed);
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
        // A proof of another length is wrong, too.
        let mut client_key = vec![0; signature.len()];
        let bytes = client_key.iter_mut().zip(signature).zip(&last.proof);
        bytes.for_each(|((key, signature), proof)| *key = signature ^ proof);
        let is_right = hash.digest(&client_key).as_ref().ct_eq(stored_key)
            & Choice::from(u8::from(last.proof.len() == signature.len()));
        let answer = hash.hmac(server_key, signed.as_bytes());
        if !bool::from(is_right) {
            let user = self.user.clone();
            return Err(LoginError::Credentials { user });
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

    /// Logs in a user whose password is "pencil", with these nonces and this proof.
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
        let begun = ScramExchange::begin_with(&users, hash, first.as_bytes(), server_nonce);
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

    /// No standard has an example for SHA-512: these values were computed by Python's `hashlib`.
    #[test]
    fn sha_512_is_as_another_program_computes_it() {
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

    /// A salt of unusual length, such as the 64 bytes of librdkafka, must not reveal which names
    /// exist.
    #[test]
    fn a_name_without_a_user_has_as_much_salt_as_a_user() {
        for bytes in [1, 16, 33, 64] {
            let like = Scram::of_salted(ScramHash::Sha256, 4096, vec![7; bytes], b"").unwrap();
            let stand_in = Scram::stand_in(ScramHash::Sha256, "eve", Some(&like));
            assert_eq!(stand_in.salt.len(), bytes);
        }
    }

    /// RFC 7677's example as PostgreSQL stores it, and one that was computed by Python's `hashlib`.
    #[test]
    fn verifiers_are_stored_as_another_program_stores_them() {
        let salt = BASE64_STANDARD.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        let stored = |hash: ScramHash, salt: Vec<u8>, iterations| {
            let salted = hash.salted(b"pencil", &salt, iterations);
            let made = Scram::of_salted(hash, iterations, salt, &salted);
            made.unwrap().to_string()
        };
        assert_eq!(
            stored(ScramHash::Sha256, salt, 4096),
            "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$\
             WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:\
             wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
        );
        assert_eq!(
            stored(ScramHash::Sha512, (0..16).collect(), 8192),
            "SCRAM-SHA-512$8192:AAECAwQFBgcICQoLDA0ODw==$\
             jbHEfxiSwbbmT7abOLvAeEEL+gbm/xcPhqwpLSBjeDV6XKbAWdiMIYYKc/kB2nI4\
             BZAnoxcbQNUfkIed92anvg==:\
             0q0e50laox9XH/MkEyDPVbqLunfThK8sG8ed6Q+k+ZJUARpoM1jOdCWgenCF4G8V\
             dEb6VTooVbk8v0s+/5Kktg=="
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
