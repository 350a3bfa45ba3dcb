//! The common part of verifiers as texts, the form in which they can be stored.

use base64::Engine as _;
use base64::engine::GeneralPurpose;

use crate::argon2id::CostError;
use crate::scram::IterationsError;

/// Most bytes of a verifier's text: twice what the longest of ours has.
const TEXT_BYTES_MAX: usize = 512;
/// Most bytes of a salt.
const SALT_BYTES_MAX: usize = 64;

/// Why a verifier cannot be made of what it is said to consist of. It shows nothing of that but
/// its price.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum VerifierError {
    /// More text than a verifier has.
    #[error("a verifier has at most {TEXT_BYTES_MAX} bytes")]
    TooLong,
    /// Not the form, or not the form that is written.
    #[error("no verifier: {form}")]
    Malformed {
        /// How one is written.
        form: &'static str,
    },
    /// A salt that is too short or too long.
    #[error("a salt of {bytes} bytes: at least {bytes_min}, at most {SALT_BYTES_MAX}")]
    Salt {
        /// That it has.
        bytes: usize,
        /// That it should have.
        bytes_min: usize,
    },
    /// A verification would cost too much, or nothing.
    #[error(transparent)]
    Cost(#[from] CostError),
    /// A login would cost the client too much, or next to nothing.
    #[error(transparent)]
    Iterations(#[from] IterationsError),
}

/// Has `read` take a verifier's text apart, which it cannot if that has another form.
pub(crate) fn take_apart<'a, T>(
    text: &'a str,
    form: &'static str,
    read: impl FnOnce(&'a str) -> Option<T>,
) -> Result<T, VerifierError> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(VerifierError::TooLong);
    }
    read(text).ok_or(VerifierError::Malformed { form })
}

pub(crate) fn check_salt(salt: &[u8], bytes_min: usize) -> Result<(), VerifierError> {
    let bytes = salt.len();
    if (bytes_min..=SALT_BYTES_MAX).contains(&bytes) {
        Ok(())
    } else {
        Err(VerifierError::Salt { bytes, bytes_min })
    }
}

/// A number as it is written: without a sign or zeros before it. One that is too large is refused
/// by the limit of what it counts.
pub(crate) fn number(text: &str) -> Option<u32> {
    let is_canonical = text == "0" || !text.starts_with('0');
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_canonical && is_number).then(|| text.parse().unwrap_or(u32::MAX))
}

pub(crate) fn bytes(by: &GeneralPurpose, text: &str) -> Option<Vec<u8>> {
    by.decode(text).ok()
}
