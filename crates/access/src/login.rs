//! A login: a state machine from the client's first response to the verdict.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::mechanism::{ClearCredentials, Mechanism, MechanismKind, RESPONSE_BYTES_MAX};
use crate::scram::ScramExchange;
use crate::users::{PasswordAttempt, Users};

/// An authenticated client, to which rights refer by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// The name.
    pub name: String,
}

/// The result of a successful login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginSuccess {
    /// The authenticated client.
    pub principal: Principal,
    /// The last message to the client; empty unless the mechanism has one. In SCRAM it proves the
    /// server's identity.
    pub last_message: Vec<u8>,
}

/// The reason why a login failed, for the broker's log. It is never sent to the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// No such user, or a wrong password.
    #[error("user '{user}' - invalid credentials")]
    Credentials {
        /// The name that the client sent.
        user: String,
    },
    /// The user may log in only from the same machine.
    #[error("user '{user}' can only connect via localhost")]
    NotLocal {
        /// The name.
        user: String,
    },
    /// The client asks for the identity of another user.
    #[error("user '{user}' may not act for another one")]
    ActsFor {
        /// The name.
        user: String,
    },
    /// The response does not follow its mechanism.
    #[error("malformed response")]
    Malformed,
    /// The mechanism was not offered.
    #[error("unknown authentication mechanism '{mechanism}'")]
    Mechanism {
        /// Its name.
        mechanism: String,
    },
    /// The thread for verifications has not returned a verdict.
    #[error("the password could not be verified")]
    Unverified,
}

/// The answer to a response.
pub enum LoginStep {
    /// Send this challenge to the client, which has to respond.
    Challenge(Vec<u8>),
    /// Run this verification, which is slow on purpose, on a thread that serves no connections. Its
    /// result ends the login.
    Verify(Box<Verification>),
    /// The verdict.
    Done(Result<LoginSuccess, LoginError>),
}

/// One login.
pub struct Login {
    users: Arc<Users>,
    mechanism: Mechanism,
    peer: IpAddr,
    state: LoginState,
}

enum LoginState {
    /// No response has come yet.
    First,
    /// The client has got a challenge.
    Challenged(Box<ScramExchange>),
    /// The login has ended, or a verification is in progress.
    Ended,
}

impl Login {
    /// A login of one of these users, by this mechanism, from this address.
    pub fn new(users: Arc<Users>, mechanism: Mechanism, peer: IpAddr) -> Login {
        Login {
            users,
            mechanism,
            peer,
            state: LoginState::First,
        }
    }

    /// Handles a response of the client.
    pub fn respond(&mut self, response: &[u8]) -> LoginStep {
        let step = self.step(response);
        step.unwrap_or_else(|refused| LoginStep::Done(Err(refused)))
    }

    fn step(&mut self, response: &[u8]) -> Result<LoginStep, LoginError> {
        let state = std::mem::replace(&mut self.state, LoginState::Ended);
        if response.len() > RESPONSE_BYTES_MAX {
            return Err(LoginError::Malformed);
        }
        match (state, self.mechanism.kind) {
            (LoginState::First, MechanismKind::InClear(read)) => {
                let response_parts = read(response).ok_or(LoginError::Malformed)?;
                self.in_clear(&response_parts)
            }
            // The trace information that a client may send is ignored.
            (LoginState::First, MechanismKind::Anonymous { user, password }) => {
                Ok(self.check(PasswordAttempt {
                    user: user.to_owned(),
                    password: password.as_bytes().into(),
                    peer: self.peer,
                }))
            }
            (LoginState::First, MechanismKind::Scram(hash)) => {
                let (exchange, challenge) = ScramExchange::begin(&self.users, hash, response)?;
                self.state = LoginState::Challenged(Box::new(exchange));
                Ok(LoginStep::Challenge(challenge))
            }
            (LoginState::Challenged(exchange), _) => {
                let last_words = exchange.finish(response)?;
                let verdict = self.users.admit(exchange.user(), self.peer, last_words);
                Ok(LoginStep::Done(verdict))
            }
            (LoginState::Ended, _) => Err(LoginError::Malformed),
        }
    }

    fn in_clear(&self, response_parts: &ClearCredentials<'_>) -> Result<LoginStep, LoginError> {
        // No user has a password that is not UTF-8.
        let user = std::str::from_utf8(response_parts.user).map_err(|_| LoginError::Malformed)?;
        std::str::from_utf8(response_parts.password).map_err(|_| LoginError::Malformed)?;
        let user = user.to_owned();
        if !response_parts.authorization_id.is_empty()
            && response_parts.authorization_id != response_parts.user
        {
            return Err(LoginError::ActsFor { user });
        }
        Ok(self.check(PasswordAttempt {
            user,
            password: response_parts.password.into(),
            peer: self.peer,
        }))
    }

    fn check(&self, attempt: PasswordAttempt) -> LoginStep {
        match self.users.check(&attempt) {
            Some(verdict) => LoginStep::Done(verdict),
            None => LoginStep::Verify(Box::new(Verification {
                users: Arc::clone(&self.users),
                attempt,
            })),
        }
    }
}

/// A password to be verified on a thread that serves no connections.
pub struct Verification {
    users: Arc<Users>,
    attempt: PasswordAttempt,
}

impl Verification {
    /// Verifies the password. Takes the time and the memory of [`crate::Argon2Cost`], also if
    /// there is no such user.
    ///
    /// # Errors
    /// The password is wrong, or the user may not log in.
    pub fn run(self) -> Result<LoginSuccess, LoginError> {
        self.users.verify(&self.attempt)
    }
}

impl fmt::Debug for Verification {
    /// Does not show the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Verification")
            .field(&self.attempt.user)
            .finish()
    }
}

impl fmt::Debug for LoginStep {
    /// Does not show secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoginStep::Challenge(_) => f.write_str("Challenge"),
            LoginStep::Verify(verification) => verification.fmt(f),
            LoginStep::Done(verdict) => verdict.fmt(f),
        }
    }
}
