//! The verifier for passwords that are sent in clear: argon2id, which is slow and takes memory on
//! purpose, so that a thief of verifiers can try only few passwords.
//!
//! It is stored as a PHC string, base64 without padding:
//!
//! ```text
//! $argon2id$v=19$m=MEMORY-KIB,t=PASSES,p=LANES$SALT$HASH
//! ```
//!
//! Sources: RFC 9106; the PHC string format, https://github.com/P-H-C/phc-string-format.

use std::fmt;
use std::str::FromStr;

use argon2::{Algorithm, Argon2, Block, Params, Version};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use subtle::ConstantTimeEq;

use crate::process_key::random_bytes;
use crate::stored::{VerifierError, bytes, check_salt, number, parse_text};

/// Bytes of salt and hash, as RFC 9106 recommends.
const SALT_BYTES: usize = 16;
const HASH_BYTES: usize = 32;
/// Minimum salt of a verifier from another program, in bytes (RFC 9106).
const SALT_BYTES_MIN: usize = 8;
/// Maximum memory of one verification, in KiB.
const MEMORY_KIB_MAX: u32 = 256 << 10;
/// Maximum number of passes over that memory.
const PASSES_MAX: u32 = 16;
const FORM: &str =
    "$argon2id$v=19$m=MEMORY-KIB,t=PASSES,p=LANES$SALT$HASH, with a hash of 32 bytes";

/// The cost of a verification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Argon2Cost {
    /// Memory, in KiB.
    pub memory_kib: u32,
    /// Number of passes over that memory.
    pub passes: u32,
}

impl Default for Argon2Cost {
    /// OWASP's password storage cheat sheet recommends 19 MiB and two passes.
    fn default() -> Self {
        Self {
            memory_kib: 19 << 10,
            passes: 2,
        }
    }
}

/// The cost is outside the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "argon2id with {} KiB and {} passes: at least 8 KiB (a lane) and one pass, at most \
     {MEMORY_KIB_MAX} KiB and {PASSES_MAX} passes",
    .0.memory_kib, .0.passes
)]
pub struct CostError(pub Argon2Cost);

/// The verifier of one password.
#[derive(Clone)]
pub struct Argon2id {
    params: Params,
    salt: Vec<u8>,
    hash: [u8; HASH_BYTES],
}

impl Argon2id {
    /// Creates the verifier of a password, with a new salt. Takes as long as a verification.
    ///
    /// # Errors
    /// The cost is outside the limits.
    pub fn of(password: &[u8], cost: Argon2Cost) -> Result<Self, CostError> {
        let salt = random_bytes().as_ref()[..SALT_BYTES].to_vec();
        // One lane, because a verification runs on one thread.
        let params = params(cost, 1)?;
        let hash = hash(&params, &salt, password).ok_or(CostError(cost))?;
        Ok(Self { params, salt, hash })
    }

    /// Whether this is the verifier of `password`. Takes its full cost, whatever the password.
    pub(crate) fn matches(&self, password: &[u8]) -> bool {
        let hash = hash(&self.params, &self.salt, password);
        hash.is_some_and(|hash| hash.ct_eq(&self.hash).into())
    }
}

impl fmt::Display for Argon2id {
    /// The text form in which it is stored.
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { params, salt, hash } = self;
        let (memory_kib, passes, lanes) = (params.m_cost(), params.t_cost(), params.p_cost());
        let [salt, hash] = [&salt[..], hash].map(|bytes| BASE64_STANDARD_NO_PAD.encode(bytes));
        write!(
            to,
            "$argon2id$v=19$m={memory_kib},t={passes},p={lanes}${salt}${hash}"
        )
    }
}

impl FromStr for Argon2id {
    type Err = VerifierError;

    /// Parses the text form, also from another program. Runs no verification.
    fn from_str(text: &str) -> Result<Self, VerifierError> {
        let (cost, lanes, salt, hash) = parse_text(text, FORM, |text| {
            let text = text.strip_prefix("$argon2id$v=19$m=")?;
            let (memory_kib, text) = text.split_once(",t=")?;
            let (passes, text) = text.split_once(",p=")?;
            let (lanes, text) = text.split_once('$')?;
            let (salt, hash) = text.split_once('$')?;
            let cost = Argon2Cost {
                memory_kib: number(memory_kib)?,
                passes: number(passes)?,
            };
            let [salt, hash] = [salt, hash].map(|text| bytes(&BASE64_STANDARD_NO_PAD, text));
            Some((cost, number(lanes)?, salt?, hash?.try_into().ok()?))
        })?;
        check_salt(&salt, SALT_BYTES_MIN)?;
        let params = params(cost, lanes)?;
        Ok(Self { params, salt, hash })
    }
}

impl fmt::Debug for Argon2id {
    /// Shows only the cost.
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (memory_kib, passes) = (self.params.m_cost(), self.params.t_cost());
        write!(to, "Argon2id({memory_kib} KiB, {passes} passes)")
    }
}

/// Checks the limits. The number of lanes is bounded by the memory, which they share.
fn params(cost: Argon2Cost, lanes: u32) -> Result<Params, CostError> {
    let Argon2Cost { memory_kib, passes } = cost;
    if memory_kib > MEMORY_KIB_MAX || passes > PASSES_MAX {
        return Err(CostError(cost));
    }
    let params = Params::new(memory_kib, passes, lanes, Some(HASH_BYTES));
    params.map_err(|_| CostError(cost))
}

/// `None`: the password has 4 GiB or more.
fn hash(params: &Params, salt: &[u8], password: &[u8]) -> Option<[u8; HASH_BYTES]> {
    let mut hash = [0; HASH_BYTES];
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params.clone());
    let mut memory = vec![Block::default(); params.block_count()];
    let hashed = argon2.hash_password_into_with_memory(password, salt, &mut hash, &mut memory);
    hashed.ok().map(|()| hash)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const CHEAP: Argon2Cost = Argon2Cost {
        memory_kib: 8,
        passes: 1,
    };

    #[test]
    fn only_the_right_password_matches() {
        let verifier = Argon2id::of(b"secret", CHEAP).unwrap();
        assert!(verifier.matches(b"secret"));
        for wrong in [&b"secre"[..], b"secret2", b"", b"Secret"] {
            assert!(!verifier.matches(wrong));
        }
        let other = Argon2id::of(b"secret", CHEAP).unwrap();
        assert_ne!(verifier.hash, other.hash, "each has a salt of its own");
    }

    /// From the tests of the reference implementation, https://github.com/P-H-C/phc-winner-argon2.
    #[test]
    fn verifiers_of_the_reference_implementation_are_parsed() {
        for text in [
            "$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4",
            "$argon2id$v=19$m=256,t=2,p=2$c29tZXNhbHQ$bQk8UB/VmZZF4Oo79iDXuL5/0ttZwg2f/5U52iv1cDc",
        ] {
            let verifier: Argon2id = text.parse().unwrap();
            assert!(verifier.matches(b"password"), "{text}");
            assert!(!verifier.matches(b"passwort"), "{text}");
            assert_eq!(verifier.to_string(), text);
        }
    }

    #[test]
    fn costs_are_bounded() {
        for (memory_kib, passes) in [(7, 1), (8, 0), (8, 17), (u32::MAX, 1)] {
            let cost = Argon2Cost { memory_kib, passes };
            assert_eq!(Argon2id::of(b"secret", cost).err(), Some(CostError(cost)));
        }
    }
}
