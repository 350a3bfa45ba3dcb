//! Users and their verifiers.
//!
//! A login with an unknown name is answered like one with a wrong password: in the same words and
//! after the same work, so that it does not reveal which users exist. The verifier of another user
//! stands in for the missing one and determines the work and SCRAM's iterations. For one name it is
//! always the same user's.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use ring::hmac::Tag;
use subtle::ConstantTimeEq;

use crate::argon2id::Argon2id;
use crate::login::{LoginError, LoginSuccess, Principal};
use crate::process_key::process_hmac;
use crate::scram::{Scram, ScramHash};

/// A user, and the verifiers of the user's password.
pub struct User {
    name: String,
    /// The HMAC of the right password under this process' key. If it is known, a login costs one
    /// hash.
    tag: OnceLock<Tag>,
    argon2id: Option<Argon2id>,
    scram: [Option<Arc<Scram>>; ScramHash::ALL.len()],
    is_local: bool,
}

impl User {
    /// A user without a verifier, who cannot log in yet.
    pub fn new(name: impl Into<String>) -> User {
        User {
            name: name.into(),
            tag: OnceLock::new(),
            argon2id: None,
            scram: Default::default(),
            is_local: false,
        }
    }

    /// Adds a password that is in the configuration in clear. A slow verifier would protect nothing
    /// there. The password is recognized by its HMAC under a key that only this process has, and
    /// only in memory: a check costs one hash.
    #[must_use]
    pub fn with_configured(mut self, password: &str) -> User {
        self.tag = OnceLock::from(password_tag(&self.name, password.as_bytes()));
        self
    }

    /// Adds a verifier for passwords that are sent in clear. After the first success the right
    /// password is recognized by its HMAC, like a configured one, so that a user who has logged in
    /// once is not delayed by attackers who try passwords. A wrong password always costs a
    /// verification.
    #[must_use]
    pub fn with_argon2id(mut self, verifier: Argon2id) -> User {
        self.argon2id = Some(verifier);
        self
    }

    /// Adds a verifier for SCRAM with its hash.
    #[must_use]
    pub fn with_scram(mut self, verifier: Scram) -> User {
        let hash = verifier.hash();
        self.scram[hash as usize] = Some(Arc::new(verifier));
        self
    }

    /// Restricts the user to connections from the same machine.
    #[must_use]
    pub fn local(mut self) -> User {
        self.is_local = true;
        self
    }
}

/// All users who may log in.
#[derive(Default)]
pub struct Users {
    users: BTreeMap<String, User>,
}

impl FromIterator<User> for Users {
    /// Of several users with one name, the last one is used.
    fn from_iter<I: IntoIterator<Item = User>>(users: I) -> Self {
        let users = users.into_iter().map(|user| (user.name.clone(), user));
        Self {
            users: users.collect(),
        }
    }
}

impl fmt::Debug for Users {
    /// Shows only names.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.users.keys()).finish()
    }
}

/// A name and a password that a client has sent.
pub(crate) struct PasswordAttempt {
    pub(crate) user: String,
    pub(crate) password: Box<[u8]>,
    pub(crate) peer: IpAddr,
}

impl Users {
    /// Checks a password at once, if possible; `None`: [`Users::verify`] has to check it.
    pub(crate) fn check(
        &self,
        attempt: &PasswordAttempt,
    ) -> Option<Result<LoginSuccess, LoginError>> {
        let user = self.users.get(&attempt.user);
        let tag = password_tag(&attempt.user, &attempt.password);
        // Unknown names are compared, too, so that both cases take the same time.
        let known = user.and_then(|user| user.tag.get());
        let known_bytes = known.map_or([0; 32].as_slice(), AsRef::as_ref);
        let is_right = bool::from(tag.as_ref().ct_eq(known_bytes)) & known.is_some();
        if is_right {
            return Some(self.admit(&attempt.user, attempt.peer, Vec::new()));
        }
        let (_, stand_in) = self.verifier(&attempt.user, |user| user.argon2id.as_ref());
        let credentials = LoginError::Credentials {
            user: attempt.user.clone(),
        };
        stand_in.is_none().then_some(Err(credentials))
    }

    /// Checks a password by the verifier, which is slow.
    pub(crate) fn verify(&self, attempt: &PasswordAttempt) -> Result<LoginSuccess, LoginError> {
        let user = self.users.get(&attempt.user);
        let (own, stand_in) = self.verifier(&attempt.user, |user| user.argon2id.as_ref());
        let verifier = own.or(stand_in);
        let is_known = verifier.is_some_and(|verifier| verifier.matches(&attempt.password));
        let Some(user) = user.filter(|_| own.is_some() & is_known) else {
            let user = attempt.user.clone();
            return Err(LoginError::Credentials { user });
        };
        let tag = || password_tag(&attempt.user, &attempt.password);
        user.tag.get_or_init(tag);
        self.admit(&attempt.user, attempt.peer, Vec::new())
    }

    /// The SCRAM verifier of this name, or one that no password satisfies.
    pub(crate) fn scram(&self, name: &str, hash: ScramHash) -> Arc<Scram> {
        let (own, stand_in) = self.verifier(name, |user| user.scram[hash as usize].as_ref());
        // Computed even if it is not needed, so that both cases take the same time.
        let stand_in = Arc::new(Scram::stand_in(hash, name, stand_in.map(AsRef::as_ref)));
        own.map_or(stand_in, Arc::clone)
    }

    /// Admits an authenticated user, unless the user's address is not allowed.
    pub(crate) fn admit(
        &self,
        name: &str,
        peer: IpAddr,
        last_words: Vec<u8>,
    ) -> Result<LoginSuccess, LoginError> {
        let name = name.to_owned();
        match self.users.get(&name) {
            None => Err(LoginError::Credentials { user: name }),
            Some(user) if user.is_local && !peer.to_canonical().is_loopback() => {
                Err(LoginError::NotLocal { user: name })
            }
            Some(_) => Ok(LoginSuccess {
                principal: Principal { name },
                last_message: last_words,
            }),
        }
    }

    /// The verifier of this name, if a user with one has it, and the verifier that stands in for it
    /// otherwise. Which user stands in cannot be predicted without this process' key.
    fn verifier<'a, T>(
        &'a self,
        name: &str,
        of: impl Fn(&'a User) -> Option<&'a T>,
    ) -> (Option<&'a T>, Option<&'a T>) {
        let all = || self.users.values().filter_map(&of);
        let tag = process_hmac(&[b"stands in", name.as_bytes()]);
        let number = tag.as_ref().iter().take(8);
        let number = number.fold(0, |number, byte| number << 8 | u64::from(*byte));
        let count = all().count().max(1) as u64;
        let stand_in = all().nth((number % count) as usize);
        (self.users.get(name).and_then(&of), stand_in)
    }
}

/// The HMAC of a user's password under this process' key. It differs for users with the same
/// password.
fn password_tag(user: &str, password: &[u8]) -> Tag {
    process_hmac(&[b"password", user.as_bytes(), password])
}
