//! Any text for a verifier: refused, or what the verifier writes.
#![no_main]

use cloverleaf_access::{Argon2id, Scram};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(verifier) = text.parse::<Scram>() {
        assert_eq!(verifier.to_string(), text);
    }
    if let Ok(verifier) = text.parse::<Argon2id>() {
        assert_eq!(verifier.to_string(), text);
    }
});
