//! Common parts of the text form of verifiers, in which they can be stored.

use base64::Engine as _;
use base64::engine::GeneralPurpose;

use crate::argon2id::CostError;
use crate::scram::IterationsError;

/// Maximum bytes of a verifier's text: twice as many as the longest text that this crate writes.
const TEXT_BYTES_MAX: usize = 512;
/// Maximum bytes of a salt.
const SALT_BYTES_MAX: usize = 64;

/// The reason why a verifier is invalid. It reveals nothing of the verifier but its cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum VerifierError {
    /// The text is too long.
    #[error("a verifier has at most {TEXT_BYTES_MAX} bytes")]
    TooLong,
    /// The text does not have the form, or not the canonical one.
    #[error("no verifier: {form}")]
    Malformed {
        /// The expected form.
        form: &'static str,
    },
    /// The salt is too short or too long.
    #[error("a salt of {bytes} bytes: at least {bytes_min}, at most {SALT_BYTES_MAX}")]
    Salt {
        /// Its length in bytes.
        bytes: usize,
        /// The minimum length in bytes.
        bytes_min: usize,
    },
    /// The cost of a verification is outside the limits.
    #[error(transparent)]
    Cost(#[from] CostError),
    /// The number of iterations is outside the limits.
    #[error(transparent)]
    Iterations(#[from] IterationsError),
}

/// Parses a verifier's text by `read`, which returns `None` if the text has another form.
pub(crate) fn parse_text<'a, T>(
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

/// Parses a canonical number, without a sign or leading zeros. A number that is too large becomes
/// `u32::MAX`, which the limit of its field refuses.
pub(crate) fn number(text: &str) -> Option<u32> {
    let is_canonical = text == "0" || !text.starts_with('0');
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_canonical && is_number).then(|| text.parse().unwrap_or(u32::MAX))
}

pub(crate) fn bytes(by: &GeneralPurpose, text: &str) -> Option<Vec<u8>> {
    by.decode(text).ok()
}
