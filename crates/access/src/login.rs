//! A client logs in: a state machine from the first response to the verdict.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::mechanism::{InClear, Mechanism, MechanismKind, RESPONSE_BYTES_MAX};
use crate::scram::Exchange;
use crate::users::{Attempt, Users};

/// A client with a name, as rights know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// The name.
    pub name: String,
}

/// A client that may come in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// Its name.
    pub principal: Principal,
    /// To be told to the client: by this SCRAM proves to it who we are.
    pub last_words: Vec<u8>,
}

/// Why somebody may not come in: for our own log, never for the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// No such user, or another password.
    #[error("user '{user}' - invalid credentials")]
    Credentials {
        /// The name that was given.
        user: String,
    },
    /// From another machine, as one who is for this one only.
    #[error("user '{user}' can only connect via localhost")]
    NotLocal {
        /// The name.
        user: String,
    },
    /// One who wants to act for another one.
    #[error("user '{user}' may not act for another one")]
    ActsFor {
        /// The name.
        user: String,
    },
    /// The response is not what its mechanism prescribes.
    #[error("malformed response")]
    Malformed,
    /// A mechanism that was not offered.
    #[error("unknown authentication mechanism '{mechanism}'")]
    Mechanism {
        /// Its name.
        mechanism: String,
    },
    /// The thread that should have found out has not.
    #[error("the password could not be verified")]
    Unverified,
}

/// The answer to a response.
pub enum Step {
    /// The client is to be told this, and to respond.
    Challenge(Vec<u8>),
    /// It takes long to find out, on purpose: not on a thread that serves connections. The login
    /// waits for it, and ends with what it says.
    Verify(Box<Verification>),
    /// The verdict.
    Done(Result<Accepted, Refused>),
}

/// One login.
pub struct Login {
    users: Arc<Users>,
    mechanism: Mechanism,
    peer: IpAddr,
    state: State,
}

enum State {
    /// Nothing was said.
    First,
    /// The client has been challenged.
    Challenged(Box<Exchange>),
    /// All is said.
    Over,
}

impl Login {
    /// One of these users, by this mechanism, from this address.
    pub fn new(users: Arc<Users>, mechanism: Mechanism, peer: IpAddr) -> Login {
        Login {
            users,
            mechanism,
            peer,
            state: State::First,
        }
    }

    /// Takes a response.
    pub fn respond(&mut self, response: &[u8]) -> Step {
        let step = self.step(response);
        step.unwrap_or_else(|refused| Step::Done(Err(refused)))
    }

    fn step(&mut self, response: &[u8]) -> Result<Step, Refused> {
        let state = std::mem::replace(&mut self.state, State::Over);
        if response.len() > RESPONSE_BYTES_MAX {
            return Err(Refused::Malformed);
        }
        match (state, self.mechanism.kind) {
            (State::First, MechanismKind::InClear(read)) => {
                let said = read(response).ok_or(Refused::Malformed)?;
                self.in_clear(&said)
            }
            // The trace that a client may send of itself says nothing to us.
            (State::First, MechanismKind::Anonymous { user, password }) => {
                Ok(self.check(Attempt {
                    user: user.to_owned(),
                    password: password.as_bytes().into(),
                    peer: self.peer,
                }))
            }
            (State::First, MechanismKind::Scram(hash)) => {
                let (exchange, challenge) = Exchange::begin(&self.users, hash, response)?;
                self.state = State::Challenged(Box::new(exchange));
                Ok(Step::Challenge(challenge))
            }
            (State::Challenged(exchange), _) => {
                let last_words = exchange.finish(response)?;
                let verdict = self.users.admit(exchange.user(), self.peer, last_words);
                Ok(Step::Done(verdict))
            }
            (State::Over, _) => Err(Refused::Malformed),
        }
    }

    fn in_clear(&self, said: &InClear<'_>) -> Result<Step, Refused> {
        // A password that is no text is nobody's.
        let user = std::str::from_utf8(said.user).map_err(|_| Refused::Malformed)?;
        std::str::from_utf8(said.password).map_err(|_| Refused::Malformed)?;
        let user = user.to_owned();
        if !said.acts_for.is_empty() && said.acts_for != said.user {
            return Err(Refused::ActsFor { user });
        }
        Ok(self.check(Attempt {
            user,
            password: said.password.into(),
            peer: self.peer,
        }))
    }

    fn check(&self, attempt: Attempt) -> Step {
        match self.users.check(&attempt) {
            Some(verdict) => Step::Done(verdict),
            None => Step::Verify(Box::new(Verification {
                users: Arc::clone(&self.users),
                attempt,
            })),
        }
    }
}

/// A password that has come, and is to be verified on a thread that has time.
pub struct Verification {
    users: Arc<Users>,
    attempt: Attempt,
}

impl Verification {
    /// Says whether it is right. Takes what [`crate::Cost`] says, in time and in memory, whether
    /// there is such a user or not.
    ///
    /// # Errors
    /// It is not.
    pub fn run(self) -> Result<Accepted, Refused> {
        self.users.verify(&self.attempt)
    }
}

impl fmt::Debug for Verification {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Verification")
            .field(&self.attempt.user)
            .finish()
    }
}

impl fmt::Debug for Step {
    /// Without secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Challenge(_) => f.write_str("Challenge"),
            Step::Verify(verification) => verification.fmt(f),
            Step::Done(verdict) => verdict.fmt(f),
        }
    }
}
