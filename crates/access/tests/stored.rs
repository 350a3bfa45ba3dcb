//! The text form of verifiers: stored ones are parsed, hostile ones are refused before they cost
//! anything.

#![allow(clippy::unwrap_used)]

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_STANDARD_NO_PAD};
use cloverleaf_access::{Argon2Cost, Argon2id, Scram, ScramHash, VerifierError};
use proptest::prelude::*;

/// RFC 7677's example, as PostgreSQL stores it.
const PENCIL: &str = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$\
                      WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:\
                      wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";
const PHC: &str =
    "$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4";

fn scram_error(text: &str) -> VerifierError {
    text.parse::<Scram>().unwrap_err()
}

fn phc_error(text: &str) -> VerifierError {
    text.parse::<Argon2id>().unwrap_err()
}

#[test]
fn a_verifier_reads_back_what_it_wrote() {
    for hash in ScramHash::ALL {
        let text = Scram::of(hash, b"pencil", 4096).unwrap().to_string();
        assert!(text.starts_with(&format!("{}$4096:", hash.mechanism())));
        assert_eq!(text.parse::<Scram>().unwrap().to_string(), text);
    }
    let cost = Argon2Cost {
        memory_kib: 8,
        passes: 1,
    };
    let text = Argon2id::of(b"pencil", cost).unwrap().to_string();
    assert!(text.starts_with("$argon2id$v=19$m=8,t=1,p=1$"), "{text}");
    assert_eq!(text.parse::<Argon2id>().unwrap().to_string(), text);
}

#[test]
fn costs_beyond_the_limits_are_refused() {
    for (iterations, expected) in [
        ("4095", "4095 iterations: at least 4096, at most 1048576"),
        ("0", "0 iterations: at least 4096, at most 1048576"),
        (
            "1048577",
            "1048577 iterations: at least 4096, at most 1048576",
        ),
        (
            "99999999999999999999",
            "4294967295 iterations: at least 4096, at most 1048576",
        ),
    ] {
        let text = PENCIL.replace("$4096:", &format!("${iterations}:"));
        assert_eq!(scram_error(&text).to_string(), expected);
    }
    for cost in [
        "m=262145,t=2,p=1",
        "m=99999999999,t=2,p=1",
        "m=256,t=17,p=1",
        "m=256,t=4294967296,p=1",
        "m=7,t=2,p=1",
        "m=256,t=0,p=1",
        "m=256,t=2,p=0",
        "m=256,t=2,p=33",
    ] {
        let error = phc_error(&PHC.replace("m=256,t=2,p=1", cost));
        assert!(matches!(error, VerifierError::Cost(_)), "{cost}: {error}");
    }
}

#[test]
fn salts_are_bounded() {
    for (bytes, is_scrams, is_phcs) in [
        (0, false, false),
        (7, true, false),
        (8, true, true),
        (64, true, true),
        (65, false, false),
    ] {
        let salt = vec![9; bytes];
        let scram = PENCIL.replace("W22ZaJ0SNY7soEsUEjb6gQ==", &BASE64_STANDARD.encode(&salt));
        assert_eq!(scram.parse::<Scram>().is_ok(), is_scrams, "{bytes}");
        let made = Scram::of_salted(ScramHash::Sha512, 4096, salt.clone(), &[1; 64]);
        assert_eq!(made.is_ok(), is_scrams, "{bytes}");
        let phc = PHC.replace("c29tZXNhbHQ", &BASE64_STANDARD_NO_PAD.encode(&salt));
        assert_eq!(phc.parse::<Argon2id>().is_ok(), is_phcs, "{bytes}");
    }
}

#[test]
fn texts_that_are_not_canonical_are_refused() {
    let scrams = [
        PENCIL.replace("SHA-256", "SHA-1"),
        PENCIL.replace("SHA-256", "SHA-512"),
        PENCIL.replace("$4096", "$04096"),
        PENCIL.replace("$4096", "$+4096"),
        PENCIL.replace("gQ==", "gQ"),
        PENCIL.replace("gQ==", "gR=="),
        PENCIL.replace("4qY=:", "4qY="),
        format!("{PENCIL}:"),
        format!(" {PENCIL}"),
        format!("{PENCIL}\n"),
    ];
    for text in scrams {
        let error = scram_error(&text);
        assert!(matches!(error, VerifierError::Malformed { .. }), "{text}");
    }
    let phcs = [
        PHC.replace("argon2id", "argon2i"),
        PHC.replace("v=19", "v=16"),
        PHC.replace("v=19$", ""),
        PHC.replace("m=256,t=2", "t=2,m=256"),
        PHC.replace("t=2,", "t=,"),
        PHC.replace("p=1", "p=1,data=x"),
        PHC.replace("bHQ$", "bHQ=$"),
        PHC.replace("/4", ""),
        format!("{PHC}$"),
    ];
    for text in phcs {
        let error = phc_error(&text);
        assert!(matches!(error, VerifierError::Malformed { .. }), "{text}");
    }
    let long = "a".repeat(513);
    assert_eq!(scram_error(&long), VerifierError::TooLong);
    assert_eq!(phc_error(&long), VerifierError::TooLong);
}

#[test]
fn neither_debug_nor_an_error_shows_what_is_stored() {
    let scram = format!("{:?}", PENCIL.parse::<Scram>().unwrap());
    assert_eq!(scram, "Scram(SCRAM-SHA-256, 4096 iterations)");
    let argon2id = format!("{:?}", PHC.parse::<Argon2id>().unwrap());
    assert_eq!(argon2id, "Argon2id(256 KiB, 2 passes)");
    let error = scram_error("a password by mistake");
    assert!(!format!("{error} {error:?}").contains("mistake"));
}

fn texts() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just(String::new()),
        "[0-9]{1,12}",
        "[A-Za-z0-9+/]{0,90}={0,2}",
        "\\PC{0,8}",
        proptest::collection::vec(any::<u8>(), 0..70).prop_map(|it| BASE64_STANDARD.encode(it)),
        proptest::collection::vec(any::<u8>(), 32).prop_map(|it| BASE64_STANDARD_NO_PAD.encode(it)),
    ];
    let pieces = proptest::collection::vec(piece, 5);
    let form = prop_oneof![
        Just(["SCRAM-SHA-256$", ":", "$", ":", ""]),
        Just(["SCRAM-SHA-512$", ":", "$", ":", ""]),
        Just(["$argon2id$v=19$m=", ",t=", ",p=", "$", "$"]),
        Just(["", "$", "$", "$", "$"]),
    ];
    (form, pieces).prop_map(|(form, pieces)| {
        let parts = form.into_iter().zip(&pieces);
        parts.flat_map(|(form, piece)| [form, piece]).collect()
    })
}

proptest! {
    #[test]
    fn any_verifier_reads_back_what_it_wrote(
        iterations in 4096u32..=1 << 20,
        salt in proptest::collection::vec(any::<u8>(), 1..=64),
        salted in proptest::collection::vec(any::<u8>(), 0..=64),
        is_long in any::<bool>(),
        (memory_kib, passes, lanes) in (8u32..=256 << 10, 1u32..=16, 1u32..=4),
        hash in any::<[u8; 32]>(),
    ) {
        let by = ScramHash::ALL[usize::from(is_long)];
        let text = Scram::of_salted(by, iterations, salt.clone(), &salted).unwrap().to_string();
        prop_assert_eq!(text.parse::<Scram>().unwrap().to_string(), text);
        let memory_kib = memory_kib.max(8 * lanes);
        let salt: Vec<u8> = salt.into_iter().cycle().take(16).collect();
        let [salt, hash] = [&salt[..], &hash].map(|bytes| BASE64_STANDARD_NO_PAD.encode(bytes));
        let text = format!("$argon2id$v=19$m={memory_kib},t={passes},p={lanes}${salt}${hash}");
        prop_assert_eq!(text.parse::<Argon2id>().unwrap().to_string(), text);
    }

    #[test]
    fn any_text_is_refused_or_is_what_is_written(text in texts()) {
        if let Ok(verifier) = text.parse::<Scram>() {
            prop_assert_eq!(verifier.to_string(), text.clone());
        }
        if let Ok(verifier) = text.parse::<Argon2id>() {
            prop_assert_eq!(verifier.to_string(), text);
        }
    }
}
