//! Users, how they prove who they are, and their rights.
//!
//! ```text
//! session ──▶ Login (a Mechanism: bytes in, bytes out) ──▶ Users ──▶ a Principal
//!         └─▶ Grants::may(principal, operation, resource)
//! ```
//!
//! A password is kept nowhere: of each there is a *verifier*, by which the right one is known when
//! it comes, and which has a text, to be stored as. [`Login`] runs on a thread that serves
//! connections, so it does not ask one that is slow on purpose ([`Argon2id`]): it hands out a
//! [`Verification`] ([`Step::Verify`]) for another thread, and the login waits.
//!
//! Architecture invariant: this crate knows no protocol beyond the mechanisms that several of them
//! share, no socket, no clock and no broker. A verdict depends on what it is asked and on nothing
//! else.

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

pub use argon2id::{Argon2id, Cost, CostError};
pub use grants::{Effect, Grants, Kind, Kinds, Operation, Operations, Resource, Rule};
pub use login::{Accepted, Login, Principal, Refused, Step, Verification};
pub use mechanism::{InClear, Mechanism, RESPONSE_BYTES_MAX};
pub use pattern::{Pattern, PatternError};
pub use scram::{ITERATIONS_MAX, ITERATIONS_MIN, IterationsError, Scram, ScramHash};
pub use stored::VerifierError;
pub use users::{User, Users};
