//! Users, authentication and authorization.
//!
//! ```text
//! session ──▶ Login (a Mechanism: bytes in, bytes out) ──▶ Users ──▶ a Principal
//!         └─▶ Grants::may(principal, operation, resource)
//! ```
//!
//! No password is stored. A *verifier* of each password recognizes the right one, and has a text
//! form in which it can be stored. [`Login`] runs on a thread that serves connections, so it does
//! not run a verifier that is slow on purpose ([`Argon2id`]). It returns a [`Verification`]
//! ([`LoginStep::Verify`]) for another thread, and the login waits for the result.
//!
//! Architecture invariant: this crate knows no protocol beyond the mechanisms that several of them
//! share, no socket, no clock and no broker. A verdict depends only on the arguments and the rules.

mod argon2id;
mod grants;
mod login;
mod mechanism;
mod pattern;
mod process_key;
mod scram;
mod scram_messages;
mod stored;
mod users;

pub use argon2id::{Argon2Cost, Argon2id, CostError};
pub use grants::{
    Grants, Operation, Operations, Resource, ResourceKind, ResourceKinds, Rule, RuleEffect,
};
pub use login::{Login, LoginError, LoginStep, LoginSuccess, Principal, Verification};
pub use mechanism::{ClearCredentials, Mechanism, RESPONSE_BYTES_MAX};
pub use pattern::{Pattern, PatternError};
pub use scram::{ITERATIONS_MAX, ITERATIONS_MIN, IterationsError, Scram, ScramHash};
pub use stored::VerifierError;
pub use users::{User, Users};
