//! Why is this client slow?
//!
//! The broker sees each client's bytes arrive, so it can explain what the client cannot see of
//! itself. Once a second the [`Doctor`] gets an [`Observation`]. It keeps how each connection's
//! telemetry changed, applies the rules to that, and reports the results as [`Finding`]s, with
//! numbers, a prediction and the setting to change ([`Advice`]).
//!
//! ```text
//! Observation ──► history per connection ──► signs, one per rule and connection
//!                                                 │ by client, causes hide symptoms
//!                                                 ▼
//!                 advice/*.toml ──► Finding ◄── cases: a sign that holds for a while
//! ```
//!
//! The caller calls [`Doctor::observe`] about once a second and writes [`one_line`] of each finding
//! that it returns into the log; [`Doctor::report`] returns all findings, for JSON or
//! [`findings_text`]; [`Doctor::counts`] is for metrics. `observe` takes time: it belongs on a
//! thread that serves no connection.
//!
//! The doctor knows nothing of protocols beyond the tag, opens no socket, has no clock (times are
//! part of the observation) and changes nothing. It is pure and deterministic: the same
//! observations give the same findings, so recordings of real clients ([`Recorder`]) serve as
//! tests. Its memory is bounded, whatever clients do.

mod ack_log;
mod advice;
mod case;
mod causes;
mod client;
mod doctor;
mod fill;
mod finding;
mod known_clients;
mod names;
mod observation;
mod pack;
mod queues;
mod recording;
mod rules;
mod templates;
mod text;
mod units;
mod version;
mod window;

pub use advice::{Advice, AdviceError, Change, How, Kind, Picture, RuleAdvice, Side};
pub use client::Client;
pub use doctor::{Doctor, DoctorSnapshot, Query, Report, RuleCount};
pub use finding::{Bound, Confidence, Fact, Finding, Measure, Prediction, Severity};
pub use known_clients::{KnownClient, KnownClients};
pub use observation::{Consumer, Observation, Partition, Queue};
pub use queues::{ALL_PARTITIONS_MAX, PARTITIONS_MAX};
pub use recording::{Recorder, RecordingError, read_recording};
pub use rules::Rule;
pub use text::{Detail, findings_text, one_line};
