//! A laboratory for slow clients: a broker in this process at a distance that the user chooses,
//! clients that make a mistake, and the doctor that has to find it.
//!
//! ```text
//!   client's network                      broker's network
//!     a program, or a client library  ◄─ round trip ─►  the embedded broker
//!                                                         └─ its doctor ──► Report
//! ```
//!
//! Two ways to use it. [`RunArgs`] runs a program of the user's own beside a broker that is some
//! milliseconds away, and prints what the doctor has found when the program ends. The scenarios
//! (`scenario/table.rs`) do the same with client libraries that are built in. Then they make the
//! change that the finding names, with the value that it names, and measure whether it helps as
//! much as the finding predicts.
//!
//! The lab is no benchmark: rates are those of a client that does something wrong.
//!
//! Architecture invariant: this crate knows no crate of the broker but the doctor, whose findings
//! it checks. The command line hands the broker over ([`StartBroker`]).

mod broker;
mod command;
mod distance;
mod process;
mod run;
mod scenario;

pub use broker::{
    Addresses, AskDoctor, BrokerListener, BrokerOptions, Certificate, LabBroker, Ports, StartBroker,
};
pub use command::{LabArgs, LabCommand, LabOutcome, OutputPage};
pub use distance::LabError;
pub use run::RunArgs;
