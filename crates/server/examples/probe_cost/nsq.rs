//! NSQ: MPUB, message frames, FIN.

use std::sync::Arc;

use cloverleaf_broker::Realm;
use cloverleaf_nsq::definitions::channel_options;
use cloverleaf_nsq::stats::clients::Clients;
use cloverleaf_nsq::{Session, SessionOptions, SessionParts};
use cloverleaf_telemetry::Protocol;

use crate::{BODY, CLIENT, Outcome, Peer, SimulatedBroker};

/// In a message frame, the size, frame type, timestamp and attempts come before the id.
const ID_AT: usize = 18;
const ID_BYTES: usize = 16;

pub(crate) fn play(simulated: &SimulatedBroker, rounds: u32, per_round: u32) -> Outcome<u64> {
    let clients = Clients::new();
    let connect = || {
        let parts = SessionParts {
            realm: Realm::unrestricted(simulated.broker.clone()),
            options: Arc::new(SessionOptions::default()),
            channel_policy: Arc::new(|_, channel| channel_options(channel)),
            client: clients.connect(CLIENT.to_string(), 0),
            probe: simulated.probe(Protocol::Nsq),
        };
        Peer::new(simulated, Session::new(parts, simulated.now()))
    };
    let (mut producer, mut consumer) = (connect(), connect());
    consumer.say(b"  V2SUB t ch\nRDY 2500\n");
    producer.say(b"  V2");
    let publish = mpub(per_round);
    let mut fins = Vec::new();
    let mut consumed = 0;
    for _ in 0..rounds {
        simulated.next_round(per_round);
        producer.say(&publish);
        consumed += finish_all(consumer.listen(), &mut fins);
        consumer.say(&fins);
    }
    Ok(consumed)
}

fn mpub(count: u32) -> Vec<u8> {
    let mut body = count.to_be_bytes().to_vec();
    for _ in 0..count {
        body.extend_from_slice(&(BODY.len() as u32).to_be_bytes());
        body.extend_from_slice(&BODY);
    }
    let mut command = b"MPUB t\n".to_vec();
    command.extend_from_slice(&(body.len() as u32).to_be_bytes());
    command.extend_from_slice(&body);
    command
}

/// Writes a FIN for each message frame in `frames`; returns the number of messages.
fn finish_all(frames: &[u8], fins: &mut Vec<u8>) -> u64 {
    fins.clear();
    let (mut rest, mut count) = (frames, 0);
    while let Some((size, behind)) = rest.split_first_chunk::<4>() {
        let size = u32::from_be_bytes(*size) as usize;
        if size == BODY.len() + 30 {
            fins.extend_from_slice(b"FIN ");
            fins.extend_from_slice(&rest[ID_AT..ID_AT + ID_BYTES]);
            fins.push(b'\n');
            count += 1;
        }
        rest = &behind[size..];
    }
    count
}
