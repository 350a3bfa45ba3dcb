//! Load generation: messages with a schedule, through the client libraries that people use, against
//! any broker of the protocols that Cloverleaf speaks.
//!
//! How a measurement goes. A [`Plan`] says what is sent. Each connection has a thread and a
//! [`Produce`] or a [`Consume`], which is one protocol's client. A producer asks its
//! [`MessageSource`] what is due, and tells its [`Recorder`] what was sent and acknowledged; a
//! consumer tells its [`Recorder`] what came. Their statistics are added up to an [`Outcome`].
//!
//! Latency is counted twice: from the time at which a message was to be sent (*response time*, free
//! of coordinated omission), and from the time at which it was (*service time*).
//!
//! Architecture invariant: this crate knows no crate of the broker. The command line starts an
//! embedded broker and hands over its address.

mod amqp;
mod check;
mod clients;
mod clock;
pub mod command;
mod conditions;
mod cpu_clock;
mod distant;
mod driver;
pub mod figures;
mod fleet;
mod histogram;
mod in_flight;
mod json;
mod kafka;
mod listeners;
mod meanwhile;
mod measure;
mod message_source;
mod network;
mod notes;
mod nsq;
mod outcome;
mod pace;
mod payload;
mod plan;
mod proxy;
mod pump;
mod reader;
mod recorder;
mod report;
mod schedule;
mod secrets;
mod sides;
pub mod stories;
mod table;
mod timed;
mod times;
mod url;
mod usage;
mod wait;
mod wire;
pub mod words;

pub use check::{Findings, Ranges, Seen};
pub use clock::Clock;
pub use cloverleaf_telemetry::Protocol;
pub use conditions::Conditions;
pub use distant::{connect_across, connect_over};
pub use driver::{Connect, Consume, DriverError, Produce, Promise, Stop};
pub use fleet::{Fleet, FleetError, Worker};
pub use histogram::Histogram;
pub use json::{text as json_text, value as json_value};
pub use meanwhile::Meanwhile;
pub use measure::{Progress, Target};
pub use message_source::{Message, MessageSource, Next};
pub use network::{Network, NetworkError, allow_networks};
pub use nsq::Sink;
pub use outcome::{Kind, Outcome, Report, Row, Subject, Variation};
pub use payload::{PayloadKind, Payloads, STAMP_BYTES, Stamp};
pub use plan::{Acks, Amount, Plan};
pub use proxy::{Bandwidth, BandwidthError, Carries, Link, PROXY_THREADS, Proxy};
pub use recorder::{ClientStats, Live, Recorder, Second};
pub use report::{page, side_by_side};
pub use schedule::{Arrivals, Schedule};
pub use table::render;
pub use times::WarmUpEnd;
pub use url::{Url, UrlError, connect};
pub use usage::{BrokerPlace, GENERATOR_THREADS, Meter, Usage};
