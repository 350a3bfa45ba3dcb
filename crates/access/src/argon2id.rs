//! The verifier for passwords that come in clear: argon2id, which is slow and takes memory on
//! purpose, so that who has stolen verifiers can try few passwords.
//!
//! Source: RFC 9106.

use argon2::{Algorithm, Argon2, Block, Params, Version};
use subtle::ConstantTimeEq;

use crate::process_key::draw;

/// As RFC 9106 has it.
const SALT_BYTES: usize = 16;
const HASH_BYTES: usize = 32;
/// Most memory that one verification may take.
const MEMORY_KIB_MAX: u32 = 256 << 10;
/// Most turns over that memory.
const PASSES_MAX: u32 = 16;

/// The price of a verification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    /// Memory, in KiB.
    pub memory_kib: u32,
    /// Turns over that memory.
    pub passes: u32,
}

impl Default for Cost {
    /// OWASP's password storage cheat sheet recommends 19 MiB and two passes.
    fn default() -> Self {
        Self {
            memory_kib: 19 << 10,
            passes: 2,
        }
    }
}

/// A cost that no verification may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "argon2id with {} KiB and {} passes: at least 8 KiB and one pass, at most {MEMORY_KIB_MAX} KiB \
     and {PASSES_MAX} passes",
    .0.memory_kib, .0.passes
)]
pub struct CostError(pub Cost);

/// The verifier of one password.
#[derive(Clone)]
pub struct Argon2id {
    params: Params,
    salt: [u8; SALT_BYTES],
    hash: [u8; HASH_BYTES],
}

impl Argon2id {
    /// The verifier of a password, with a salt of its own. Takes as long as a verification.
    ///
    /// # Errors
    /// The cost is none that a verification may have.
    pub fn of(password: &[u8], cost: Cost) -> Result<Self, CostError> {
        let mut salt = [0; SALT_BYTES];
        salt.copy_from_slice(&draw().as_ref()[..SALT_BYTES]);
        let Cost { memory_kib, passes } = cost;
        if memory_kib > MEMORY_KIB_MAX || passes > PASSES_MAX {
            return Err(CostError(cost));
        }
        // One lane: a verification is one thread's.
        let params = Params::new(memory_kib, passes, 1, Some(HASH_BYTES));
        let params = params.map_err(|_| CostError(cost))?;
        let hash = hash(&params, &salt, password).ok_or(CostError(cost))?;
        Ok(Self { params, salt, hash })
    }

    /// Whether it is this password's. Takes its cost, whatever the password.
    pub(crate) fn knows(&self, password: &[u8]) -> bool {
        let hash = hash(&self.params, &self.salt, password);
        hash.is_some_and(|hash| hash.ct_eq(&self.hash).into())
    }
}

/// `None` for a password of 4 GiB and more.
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

    const CHEAP: Cost = Cost {
        memory_kib: 8,
        passes: 1,
    };

    #[test]
    fn a_password_is_known_and_no_other() {
        let verifier = Argon2id::of(b"secret", CHEAP).unwrap();
        assert!(verifier.knows(b"secret"));
        for wrong in [&b"secre"[..], b"secret2", b"", b"Secret"] {
            assert!(!verifier.knows(wrong));
        }
        let other = Argon2id::of(b"secret", CHEAP).unwrap();
        assert_ne!(verifier.hash, other.hash, "each has a salt of its own");
    }

    #[test]
    fn costs_are_bounded() {
        for (memory_kib, passes) in [(7, 1), (8, 0), (8, 17), (u32::MAX, 1)] {
            let cost = Cost { memory_kib, passes };
            assert_eq!(Argon2id::of(b"secret", cost).err(), Some(CostError(cost)));
        }
    }
}
