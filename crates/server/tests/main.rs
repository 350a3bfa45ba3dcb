//! All integration tests of this crate in one binary, which is linked once.

#![allow(clippy::expect_used, clippy::unwrap_used)]

mod admin;
mod amqp_connection;
mod amqp_support;
mod busy_folder;
mod certificates;
mod doctor;
mod doctor_groups;
mod doctor_names;
mod engine_faults;
mod failed_logins;
mod half_received;
mod kafka_connection;
mod kafka_files;
mod kafka_groups;
mod kafka_quick_ack;
mod kafka_support;
mod kafka_tls;
mod nsq_connection;
mod nsq_http;
mod nsq_lookup_peer;
mod nsq_support;
mod nsq_tls;
#[path = "../../broker/tests/pack.rs"]
mod pack;
mod support;
mod timeline;
mod tls;
