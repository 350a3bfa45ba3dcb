//! Users, and how each is known.
//!
//! A name that no user has is answered as a user's would be with a wrong password: in the same
//! words, after as much work. A user stands in for it, for one name always the same one: the cost
//! of a verifier and the iterations that SCRAM tells are that user's.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use ring::hmac::Tag;
use subtle::ConstantTimeEq;

use crate::argon2id::Argon2id;
use crate::login::{Accepted, Principal, Refused};
use crate::process_key::keyed;
use crate::scram::{Scram, ScramHash};

/// A user, and by what it is known that it is this one.
pub struct User {
    name: String,
    /// The right password under this process' key. With it a login costs one hash.
    tag: OnceLock<Tag>,
    argon2id: Option<Argon2id>,
    scram: [Option<Arc<Scram>>; ScramHash::ALL.len()],
    is_local: bool,
}

impl User {
    /// One who can prove nothing yet.
    pub fn new(name: impl Into<String>) -> User {
        User {
            name: name.into(),
            tag: OnceLock::new(),
            argon2id: None,
            scram: Default::default(),
            is_local: false,
        }
    }

    /// One whose password stands in the configuration, in clear. There a verifier that is slow to
    /// ask would protect nothing. The password is known by what it becomes under a key that this
    /// process alone has, in its memory alone: that costs next to nothing to make and to ask.
    #[must_use]
    pub fn with_configured(mut self, password: &str) -> User {
        self.tag = OnceLock::from(password_tag(&self.name, password.as_bytes()));
        self
    }

    /// One whose passwords in clear have this verifier. After the first success the right one is
    /// known as one of the configuration is, so a user who has logged in once is not held up by
    /// those who try passwords. A wrong one costs as much as ever.
    #[must_use]
    pub fn with_argon2id(mut self, verifier: Argon2id) -> User {
        self.argon2id = Some(verifier);
        self
    }

    /// One who can come by SCRAM with this verifier's hash.
    #[must_use]
    pub fn with_scram(mut self, verifier: Scram) -> User {
        let hash = verifier.hash();
        self.scram[hash as usize] = Some(Arc::new(verifier));
        self
    }

    /// One who may come from the same machine only.
    #[must_use]
    pub fn local(mut self) -> User {
        self.is_local = true;
        self
    }
}

/// All who may log in.
#[derive(Default)]
pub struct Users {
    users: BTreeMap<String, User>,
}

impl FromIterator<User> for Users {
    /// Of several of one name the last one counts.
    fn from_iter<I: IntoIterator<Item = User>>(users: I) -> Self {
        let users = users.into_iter().map(|user| (user.name.clone(), user));
        Self {
            users: users.collect(),
        }
    }
}

impl fmt::Debug for Users {
    /// Names alone.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.users.keys()).finish()
    }
}

/// A password that somebody gave.
pub(crate) struct Attempt {
    pub(crate) user: String,
    pub(crate) password: Box<[u8]>,
    pub(crate) peer: IpAddr,
}

impl Users {
    /// Says at once whether a password is right, if that can be: `None` if [`Users::verify`] has to
    /// find out.
    pub(crate) fn check(&self, attempt: &Attempt) -> Option<Result<Accepted, Refused>> {
        let user = self.users.get(&attempt.user);
        let tag = password_tag(&attempt.user, &attempt.password);
        // A comparison also for a name that nobody has, so that both take the same time.
        let known = user.and_then(|user| user.tag.get());
        let known_bytes = known.map_or([0; 32].as_slice(), AsRef::as_ref);
        let is_right = bool::from(tag.as_ref().ct_eq(known_bytes)) & known.is_some();
        if is_right {
            return Some(self.admit(&attempt.user, attempt.peer, Vec::new()));
        }
        let (_, stands_in) = self.verifier(&attempt.user, |user| user.argon2id.as_ref());
        let credentials = Refused::Credentials {
            user: attempt.user.clone(),
        };
        stands_in.is_none().then_some(Err(credentials))
    }

    /// Says whether a password is right, and takes its time.
    pub(crate) fn verify(&self, attempt: &Attempt) -> Result<Accepted, Refused> {
        let user = self.users.get(&attempt.user);
        let (own, stands_in) = self.verifier(&attempt.user, |user| user.argon2id.as_ref());
        let verifier = own.or(stands_in);
        let is_known = verifier.is_some_and(|verifier| verifier.knows(&attempt.password));
        let Some(user) = user.filter(|_| own.is_some() & is_known) else {
            let user = attempt.user.clone();
            return Err(Refused::Credentials { user });
        };
        let tag = || password_tag(&attempt.user, &attempt.password);
        user.tag.get_or_init(tag);
        self.admit(&attempt.user, attempt.peer, Vec::new())
    }

    /// The SCRAM verifier of this name, or one by which no password is known.
    pub(crate) fn scram(&self, name: &str, hash: ScramHash) -> Arc<Scram> {
        let (own, stands_in) = self.verifier(name, |user| user.scram[hash as usize].as_ref());
        // Made also where it is not needed, so that both take the same time.
        let nobodys = Arc::new(Scram::nobodys(hash, name, stands_in.map(AsRef::as_ref)));
        own.map_or(nobodys, Arc::clone)
    }

    /// Lets in who is known to be this user.
    pub(crate) fn admit(
        &self,
        name: &str,
        peer: IpAddr,
        last_words: Vec<u8>,
    ) -> Result<Accepted, Refused> {
        let name = name.to_owned();
        match self.users.get(&name) {
            None => Err(Refused::Credentials { user: name }),
            Some(user) if user.is_local && !peer.to_canonical().is_loopback() => {
                Err(Refused::NotLocal { user: name })
            }
            Some(_) => Ok(Accepted {
                principal: Principal { name },
                last_words,
            }),
        }
    }

    /// The verifier of this name, if it is a user's who has one, and that of the user who stands in
    /// for it if it is none; which one is told by nobody who does not know this process' key.
    fn verifier<'a, T>(
        &'a self,
        name: &str,
        of: impl Fn(&'a User) -> Option<&'a T>,
    ) -> (Option<&'a T>, Option<&'a T>) {
        let all = || self.users.values().filter_map(&of);
        let tag = keyed(&[b"stands in", name.as_bytes()]);
        let number = tag.as_ref().iter().take(8);
        let number = number.fold(0, |number, byte| number << 8 | u64::from(*byte));
        let count = all().count().max(1) as u64;
        let stands_in = all().nth((number % count) as usize);
        (self.users.get(name).and_then(&of), stands_in)
    }
}

/// A password under this process' key; for each user it is another one.
fn password_tag(user: &str, password: &[u8]) -> Tag {
    keyed(&[b"password", user.as_bytes(), password])
}
