//! Logins with a password in clear, which is checked at once or by a slow verification.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use cloverleaf_access::{
    Argon2Cost, Argon2id, Login, LoginError, LoginStep, LoginSuccess, Mechanism,
    RESPONSE_BYTES_MAX, Scram, ScramHash, User, Users,
};
use proptest::prelude::*;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const ANONYMOUS: Mechanism = Mechanism::anonymous("guest", "guest");
const CHEAP: Argon2Cost = Argon2Cost {
    memory_kib: 8,
    passes: 1,
};

type Verdict = Result<LoginSuccess, LoginError>;

fn users(users: impl IntoIterator<Item = User>) -> Arc<Users> {
    Arc::new(users.into_iter().collect())
}

fn hashed(name: &str, password: &str) -> User {
    User::new(name).with_argon2id(Argon2id::of(password.as_bytes(), CHEAP).unwrap())
}

fn step(users: &Arc<Users>, mechanism: Mechanism, response: &[u8], peer: IpAddr) -> LoginStep {
    Login::new(Arc::clone(users), mechanism, peer).respond(response)
}

fn plain(users: &Arc<Users>, user: &str, password: &str) -> LoginStep {
    let response = format!("\0{user}\0{password}");
    step(users, Mechanism::PLAIN, response.as_bytes(), ELSEWHERE)
}

/// The verdict of a login that was checked at once.
fn at_once(step: LoginStep) -> Verdict {
    match step {
        LoginStep::Done(verdict) => verdict,
        other => panic!("{other:?}"),
    }
}

/// The verdict of a login that needs a verification.
fn verified(step: LoginStep) -> Verdict {
    match step {
        LoginStep::Verify(verification) => verification.run(),
        other => panic!("{other:?}"),
    }
}

fn name(verdict: Verdict) -> String {
    let accepted = verdict.unwrap();
    assert!(accepted.last_message.is_empty());
    accepted.principal.name
}

fn invalid(user: &str) -> Verdict {
    let user = user.to_owned();
    Err(LoginError::Credentials { user })
}

#[test]
fn a_configured_password_is_known_at_once() {
    let ann = User::new("ann").with_configured("secret");
    let users = users([ann, User::new("bob").with_configured("secret")]);
    assert_eq!(name(at_once(plain(&users, "ann", "secret"))), "ann");
    assert_eq!(name(at_once(plain(&users, "bob", "secret"))), "bob");
    for wrong in ["secre", "secret2", "", "Secret"] {
        assert_eq!(at_once(plain(&users, "ann", wrong)), invalid("ann"));
    }
    for unknown in ["eve", "", "Ann"] {
        assert_eq!(at_once(plain(&users, unknown, "secret")), invalid(unknown));
        assert_eq!(at_once(plain(&users, unknown, "")), invalid(unknown));
    }
}

#[test]
fn a_slow_verifier_runs_on_another_thread_until_the_first_success() {
    let users = users([hashed("ann", "secret")]);
    assert_eq!(
        verified(plain(&users, "ann", "wrong")),
        invalid("ann"),
        "which tells nothing of the right one"
    );
    let two = [(); 2].map(|()| plain(&users, "ann", "secret"));
    for step in two {
        assert_eq!(name(verified(step)), "ann");
    }
    assert_eq!(name(at_once(plain(&users, "ann", "secret"))), "ann");
    // A wrong password still costs a verification.
    assert_eq!(verified(plain(&users, "ann", "wrong")), invalid("ann"));
    let eve = User::new("eve");
    let users = self::users([hashed("ann", "secret"), eve]);
    assert_eq!(verified(plain(&users, "eve", "secret")), invalid("eve"));
}

#[test]
fn an_unknown_name_costs_as_much_as_a_wrong_password() {
    let configured = User::new("cid").with_configured("known");
    let users = users([hashed("ann", "secret"), configured]);
    for name in ["ann", "cid", "eve", ""] {
        assert_eq!(verified(plain(&users, name, "wrong")), invalid(name));
    }
    // The verifier of another user stands in, but that user's password does not log them in.
    for name in ["cid", "eve"] {
        assert_eq!(verified(plain(&users, name, "secret")), invalid(name));
        assert_eq!(verified(plain(&users, name, "secret")), invalid(name));
    }
    assert_eq!(name(at_once(plain(&users, "cid", "known"))), "cid");
}

#[test]
fn malformed_responses_are_told_from_wrong_ones() {
    let users = users([User::new("ann").with_configured("secret")]);
    let plain = |response: &[u8]| at_once(step(&users, Mechanism::PLAIN, response, HERE));
    assert_eq!(name(plain(b"ann\0ann\0secret")), "ann");
    let user = "ann".to_owned();
    assert_eq!(
        plain(b"bob\0ann\0secret"),
        Err(LoginError::ActsFor { user })
    );
    assert_eq!(plain(b"\0ann\0secret\0"), invalid("ann"));
    for malformed in [&b"ann"[..], b"\0ann", b"", b"\0\xff\0x", b"\0ann\0\xff"] {
        assert_eq!(plain(malformed), Err(LoginError::Malformed));
    }
    let longest = [&b"\0ann\0"[..], &vec![b'x'; RESPONSE_BYTES_MAX - 5]].concat();
    assert_eq!(plain(&longest), invalid("ann"));
    assert_eq!(
        plain(&[&*longest, b"x"].concat()),
        Err(LoginError::Malformed)
    );
}

#[test]
fn a_login_ends_with_its_verdict() {
    let users = users([User::new("ann").with_configured("secret")]);
    for first in [&b"\0ann\0secret"[..], b"\0ann\0wrong", b""] {
        let mut login = Login::new(Arc::clone(&users), Mechanism::PLAIN, HERE);
        login.respond(first);
        let again = at_once(login.respond(b"\0ann\0secret"));
        assert_eq!(again, Err(LoginError::Malformed));
    }
}

#[test]
fn a_local_user_logs_in_only_from_the_same_machine() {
    let guest = || User::new("guest").with_configured("guest");
    let local = users([guest().local()]);
    let from = |peer: IpAddr| at_once(step(&local, Mechanism::PLAIN, b"\0guest\0guest", peer));
    let mapped = IpAddr::V6(Ipv4Addr::LOCALHOST.to_ipv6_mapped());
    for here in [HERE, mapped, IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        assert_eq!(name(from(here)), "guest");
    }
    let user = "guest".to_owned();
    assert_eq!(from(ELSEWHERE), Err(LoginError::NotLocal { user }));
    let wrong = step(&local, Mechanism::PLAIN, b"\0guest\0wrong", ELSEWHERE);
    assert_eq!(at_once(wrong), invalid("guest"), "which says less");
}

#[test]
fn an_anonymous_client_is_the_configured_user() {
    let guest = || User::new("guest").with_configured("guest");
    let local = users([guest().local()]);
    for trace in [&b""[..], b"sigorney", b"\0\xff"] {
        let verdict = at_once(step(&local, ANONYMOUS, trace, HERE));
        assert_eq!(name(verdict), "guest");
    }
    let user = "guest".to_owned();
    let refused = at_once(step(&local, ANONYMOUS, b"", ELSEWHERE));
    assert_eq!(refused, Err(LoginError::NotLocal { user }));
    let secret = users([User::new("guest").with_configured("secret")]);
    let refused = at_once(step(&secret, ANONYMOUS, b"", HERE));
    assert_eq!(refused, invalid("guest"));
}

#[test]
fn an_offered_mechanism_is_found_by_its_name() {
    let offered = [Mechanism::PLAIN, ANONYMOUS];
    for mechanism in offered {
        let found = Mechanism::find(&offered, mechanism.name()).ok();
        assert_eq!(found.map(|found| found.name()), Some(mechanism.name()));
    }
    for unknown in ["plain", "", "SCRAM-SHA-256"] {
        let mechanism = unknown.to_owned();
        let refused = Mechanism::find(&offered, unknown).err();
        assert_eq!(refused, Some(LoginError::Mechanism { mechanism }));
    }
}

#[test]
fn nothing_shows_a_password() {
    let users = users([
        hashed("ann", "hunter2"),
        User::new("bob").with_configured("hunter2"),
    ]);
    let step = plain(&users, "ann", "hunter2");
    assert!(matches!(step, LoginStep::Verify(_)));
    let shown = format!("{users:?} {step:?} {:?}", plain(&users, "bob", "hunter2"));
    assert!(shown.contains("ann") && shown.contains("bob"), "{shown}");
    // The password must appear neither as text nor as a list of bytes.
    for secret in ["hunter2", "104, 117"] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Nothing panics, and no login without a password succeeds.
    #[test]
    fn any_responses_have_a_verdict(
        mechanism in 0usize..4,
        responses in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..40),
                "[nyp],(a=[a-z]{0,3})?,n=ann,r=[!-~]{0,8}".prop_map(String::into_bytes),
                "c=(biws|eSws|[A-Za-z]{0,6}),r=[!-~]{0,8},p=[A-Za-z0-9+/]{0,8}={0,2}"
                    .prop_map(String::into_bytes),
                "[a-z]{0,3}\0[a-z]{0,3}\0[a-z]{0,3}".prop_map(String::into_bytes),
            ],
            1..4,
        ),
    ) {
        let scram = |hash| Scram::of_salted(hash, 4096, vec![1; 16], &[1; 32]).unwrap();
        let ann = User::new("ann")
            .with_configured("a secret")
            .with_scram(scram(ScramHash::Sha256))
            .with_scram(scram(ScramHash::Sha512));
        let mechanism = [
            Mechanism::PLAIN,
            ANONYMOUS,
            Mechanism::SCRAM_SHA_256,
            Mechanism::SCRAM_SHA_512,
        ][mechanism];
        let mut login = Login::new(users([ann]), mechanism, HERE);
        for response in responses {
            match login.respond(&response) {
                LoginStep::Challenge(challenge) => prop_assert!(challenge.starts_with(b"r=")),
                LoginStep::Verify(_) => prop_assert!(false, "no verifier takes long"),
                LoginStep::Done(verdict) => prop_assert!(verdict.is_err()),
            }
        }
    }
}
