//! ack-deadline: messages wait in the client for longer than they may be held, and come again.

use std::time::Duration;

use cloverleaf_doctor::Rule;

use super::{AppliedChange, ClientContext, Scenario, ValueIn, program};

const SCRIPT: &str = include_str!("ack_deadline.py");

/// The deadline that the program has set, in seconds: too short.
const DEADLINE: &str = "1";

pub(super) fn story() -> Scenario {
    Scenario {
        rule: Rule::AckDeadline,
        title: "pynsq holds messages for longer than the 1 s that it has asked for",
        library: "pynsq",
        setting: "msg_timeout",
        value: ValueIn::Value,
        rtt: Duration::from_millis(5),
        bandwidth: None,
        broker: &[],
        with_tls: false,
        measured_s: 10.0,
        play,
    }
}

fn play(client: &ClientContext, fix: Option<&AppliedChange>) -> Result<(), String> {
    let deadline = fix.and_then(|fix| fix.value.as_deref()).unwrap_or(DEADLINE);
    let (nsq, http) = (client.addresses.nsq, client.addresses.nsq_http);
    let args = [&nsq.to_string(), &http.to_string(), &client.name, deadline];
    program::python(client, ("nsq", "pynsq"), SCRIPT, &args)
}
