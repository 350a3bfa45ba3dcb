//! Any responses of a client that logs in, by each mechanism that several protocols share.
#![no_main]

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, LazyLock};

use cloverleaf_access::{Login, LoginStep, Mechanism, Scram, ScramHash, User, Users};
use libfuzzer_sys::fuzz_target;

const MECHANISMS: [Mechanism; 4] = [
    Mechanism::PLAIN,
    Mechanism::anonymous("guest", "guest"),
    Mechanism::SCRAM_SHA_256,
    Mechanism::SCRAM_SHA_512,
];

/// A user whose password nobody guesses.
static USERS: LazyLock<Arc<Users>> = LazyLock::new(|| {
    let mut ann = User::new("ann").with_configured("a long password");
    for hash in ScramHash::ALL {
        ann = ann.with_scram(Scram::of(hash, b"a long password", 4096).unwrap());
    }
    Arc::new(Users::from_iter([ann]))
});

fuzz_target!(|data: (u8, Vec<Vec<u8>>)| {
    let (number, responses) = data;
    let mechanism = MECHANISMS[usize::from(number) % MECHANISMS.len()];
    let peer = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let mut login = Login::new(Arc::clone(&USERS), mechanism, peer);
    let mut is_over = false;
    for response in responses {
        match login.respond(&response) {
            LoginStep::Challenge(challenge) => assert!(!is_over && challenge.starts_with(b"r=")),
            LoginStep::Verify(_) => panic!("no verifier is slow"),
            LoginStep::Done(verdict) => {
                assert!(verdict.is_err());
                is_over = true;
            }
        }
    }
});
