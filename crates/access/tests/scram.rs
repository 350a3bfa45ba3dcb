//! SCRAM between a client and a server, with right passwords and wrong ones.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use cloverleaf_access::{
    Login, LoginError, LoginStep, LoginSuccess, Mechanism, Scram, ScramHash, User, Users,
};
use proptest::prelude::*;

use crate::scram_client::Client;

fn mechanism(hash: ScramHash) -> Mechanism {
    match hash {
        ScramHash::Sha256 => Mechanism::SCRAM_SHA_256,
        ScramHash::Sha512 => Mechanism::SCRAM_SHA_512,
    }
}

fn with(name: &str, password: &str, iterations: u32) -> User {
    let scram = |hash| Scram::of(hash, password.as_bytes(), iterations).unwrap();
    let user = User::new(name).with_scram(scram(ScramHash::Sha256));
    user.with_scram(scram(ScramHash::Sha512))
}

fn users(users: impl IntoIterator<Item = User>) -> Arc<Users> {
    Arc::new(users.into_iter().collect())
}

fn login(users: &Arc<Users>, hash: ScramHash) -> Login {
    let peer = IpAddr::V4(Ipv4Addr::LOCALHOST);
    Login::new(Arc::clone(users), mechanism(hash), peer)
}

fn challenge(step: LoginStep) -> Vec<u8> {
    match step {
        LoginStep::Challenge(challenge) => challenge,
        other => panic!("{other:?}"),
    }
}

fn verdict(step: LoginStep) -> Result<LoginSuccess, LoginError> {
    match step {
        LoginStep::Done(verdict) => verdict,
        other => panic!("{other:?}"),
    }
}

/// A whole login, in which the client's last message is changed.
fn changed(
    users: &Arc<Users>,
    client: &Client,
    hash: ScramHash,
    change: impl Fn(&str) -> String,
) -> Result<LoginSuccess, LoginError> {
    let mut login = login(users, hash);
    let challenge = challenge(login.respond(client.first().as_bytes()));
    let proof = client.prove(&challenge);
    let verdict = verdict(login.respond(change(&proof.message).as_bytes()));
    if let Ok(accepted) = &verdict {
        assert_eq!(
            accepted.last_message, proof.expects,
            "the server proves itself"
        );
    }
    verdict
}

fn try_in(
    users: &Arc<Users>,
    hash: ScramHash,
    user: &str,
    password: &str,
) -> Result<LoginSuccess, LoginError> {
    let client = Client::new(hash, user, password, "n,,");
    changed(users, &client, hash, str::to_owned)
}

fn invalid(user: &str) -> Result<LoginSuccess, LoginError> {
    let user = user.to_owned();
    Err(LoginError::Credentials { user })
}

#[test]
fn a_client_with_the_password_logs_in() {
    let users = users([with("ann", "pencil", 4096)]);
    for hash in ScramHash::ALL {
        let accepted = try_in(&users, hash, "ann", "pencil").unwrap();
        assert_eq!(accepted.principal.name, "ann");
        for wrong in ["", "pencil2", "Pencil"] {
            assert_eq!(try_in(&users, hash, "ann", wrong), invalid("ann"));
        }
        assert_eq!(try_in(&users, hash, "eve", "pencil"), invalid("eve"));
        for header in ["y,,", "n,a=ann,"] {
            let client = Client::new(hash, "ann", "pencil", header);
            assert!(changed(&users, &client, hash, str::to_owned).is_ok());
        }
    }
}

#[test]
fn a_verifier_of_one_hash_says_nothing_of_the_other() {
    let scram = Scram::of(ScramHash::Sha256, b"pencil", 4096).unwrap();
    let users = users([User::new("ann").with_scram(scram)]);
    assert!(try_in(&users, ScramHash::Sha256, "ann", "pencil").is_ok());
    let other = try_in(&users, ScramHash::Sha512, "ann", "pencil");
    assert_eq!(other, invalid("ann"));
}

#[test]
fn a_login_that_was_tampered_with_fails() {
    let users = users([with("ann", "pencil", 4096)]);
    let hash = ScramHash::Sha256;
    let client = Client::new(hash, "ann", "pencil", "n,,");
    let change = |from: &'static str, to: &'static str| {
        changed(&users, &client, hash, |it| it.replacen(from, to, 1))
    };
    // The header "y,,", another nonce, an attribute that was not signed.
    assert_eq!(change("c=biws", "c=eSws"), Err(LoginError::Malformed));
    assert_eq!(change("r=fyko", "r=fyk"), Err(LoginError::Malformed));
    assert_eq!(change(",p=", ",x=y,p="), invalid("ann"));
    let with_proof = |change: fn(&mut Vec<u8>)| {
        changed(&users, &client, hash, |it| {
            let (head, proof) = it.split_once(",p=").unwrap();
            let mut proof = BASE64_STANDARD.decode(proof).unwrap();
            change(&mut proof);
            format!("{head},p={}", BASE64_STANDARD.encode(proof))
        })
    };
    let changes: [fn(&mut Vec<u8>); 4] = [
        Vec::clear,
        |proof| proof[31] ^= 1,
        |proof| proof.truncate(31),
        |proof| proof.push(0),
    ];
    for change in changes {
        assert_eq!(with_proof(change), invalid("ann"));
    }
    assert!(with_proof(|_| ()).is_ok());
    let mut login = login(&users, hash);
    let acts_for = login.respond(b"n,a=bob,n=ann,r=x");
    let user = "ann".to_owned();
    assert_eq!(verdict(acts_for), Err(LoginError::ActsFor { user }));
}

#[test]
fn a_proof_is_valid_only_once() {
    let users = users([with("ann", "pencil", 4096)]);
    let hash = ScramHash::Sha256;
    let client = Client::new(hash, "ann", "pencil", "n,,");
    let mut first = login(&users, hash);
    let proof = client.prove(&challenge(first.respond(client.first().as_bytes())));
    let mut second = login(&users, hash);
    challenge(second.respond(client.first().as_bytes()));
    let replayed = second.respond(proof.message.as_bytes());
    assert_eq!(verdict(replayed), Err(LoginError::Malformed));
    assert!(verdict(first.respond(proof.message.as_bytes())).is_ok());
    let again = first.respond(proof.message.as_bytes());
    assert_eq!(verdict(again), Err(LoginError::Malformed));
}

/// The salt and the iterations in the challenge for a name.
fn challenge_parameters(users: &Arc<Users>, user: &str) -> (String, String) {
    let client = Client::new(ScramHash::Sha256, user, "", "n,,");
    let mut login = login(users, ScramHash::Sha256);
    let challenge = challenge(login.respond(client.first().as_bytes()));
    let challenge = String::from_utf8(challenge).unwrap();
    let mut attributes = challenge.split(',').skip(1).map(str::to_owned);
    (attributes.next().unwrap(), attributes.next().unwrap())
}

#[test]
fn an_unknown_name_gets_a_challenge_like_a_user() {
    let nobody = users([]);
    let some = users([with("ann", "pencil", 8192), User::new("cid")]);
    let ann = challenge_parameters(&some, "ann");
    for name in ["eve", "cid", "bob"] {
        let (salt, iterations) = challenge_parameters(&some, name);
        let again = challenge_parameters(&some, name);
        assert_eq!((&salt, &iterations), (&again.0, &ann.1), "always the same");
        assert_eq!(salt.len(), ann.0.len());
        assert_ne!(salt, ann.0);
        assert_ne!(
            salt,
            challenge_parameters(&some, "dan").0,
            "each name has its own"
        );
        assert_eq!(
            challenge_parameters(&nobody, name),
            (salt, "i=4096".to_owned())
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: 24,
        ..ProptestConfig::default()
    })]

    /// Any name and any password, also with commas and equals signs.
    #[test]
    fn the_right_password_logs_in_and_any_other_does_not(
        user in "[a-z=,é ]{1,8}",
        password in "\\PC{0,12}",
        other in "\\PC{0,12}",
        hash in prop::sample::select(&ScramHash::ALL[..]),
    ) {
        let users = users([with(&user, &password, 4096)]);
        let accepted = try_in(&users, hash, &user, &password).unwrap();
        prop_assert_eq!(&accepted.principal.name, &user);
        let verdict = try_in(&users, hash, &user, &other);
        prop_assert_eq!(verdict.is_ok(), password == other);
    }
}
