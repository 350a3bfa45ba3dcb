//! AMQP 0-9-1: transient messages with confirms (only a transient message is confirmed without a
//! sync, and nothing syncs here), deliveries, an ack for each.

use std::sync::Arc;

use cloverleaf_amqp::host::VirtualHost;
use cloverleaf_amqp::wire::{
    ContentHeader, FRAME_END, Method, PROTOCOL_HEADER, Properties, Table, Writer, method,
    peek_frame, table_bytes,
};
use cloverleaf_amqp::{Session, SessionOptions, SessionParts};
use cloverleaf_broker::Realm;
use cloverleaf_telemetry::Protocol;

use crate::{BODY, CLIENT, Outcome, Peer, SimulatedBroker};

const FRAME_BYTES_MAX: u32 = 131_072;
const METHOD: u8 = 1;
const HEADER: u8 = 2;
const CONTENT: u8 = 3;

pub(crate) fn play(simulated: &SimulatedBroker, rounds: u32, per_round: u32) -> Outcome<u64> {
    let host = VirtualHost::open(Realm::unrestricted(simulated.broker.clone()))?;
    let connect = || -> Outcome<Peer<'_, Session>> {
        let parts = SessionParts {
            host: host.clone(),
            options: Arc::new(SessionOptions::default()),
            probe: simulated.probe(Protocol::Amqp),
            peer: CLIENT,
        };
        let mut peer = Peer::new(simulated, Session::new(parts, simulated.now()));
        open(&mut peer)?;
        Ok(peer)
    };
    let (mut producer, mut consumer) = (connect()?, connect()?);
    let declare = method::QueueDeclare {
        queue: "q",
        durable: true,
        ..Default::default()
    };
    producer.say(&of_method(1, &Method::QueueDeclare(declare)));
    let confirms = Method::ConfirmSelect(method::ConfirmSelect::default());
    producer.say(&of_method(1, &confirms));
    let consume = method::BasicConsume {
        queue: "q",
        ..Default::default()
    };
    consumer.say(&of_method(1, &Method::BasicConsume(consume)));
    let publish = publish().repeat(per_round as usize);
    let (mut consumed, mut acks) = (0_u64, Vec::new());
    for _ in 0..rounds {
        simulated.next_round(per_round);
        producer.say(&publish);
        let come = deliveries(consumer.listen());
        acks.clear();
        for tag in consumed + 1..=consumed + come {
            acks.extend(ack(tag));
        }
        consumed += come;
        consumer.say(&acks);
    }
    Ok(consumed)
}

fn open(peer: &mut Peer<'_, Session>) -> Outcome<()> {
    peer.say(PROTOCOL_HEADER);
    let properties = table_bytes(&[]);
    let start = method::ConnectionStartOk {
        client_properties: Table::check(&properties)?,
        mechanism: "PLAIN",
        response: b"\0guest\0guest",
        locale: "en_US",
    };
    peer.say(&of_method(0, &Method::ConnectionStartOk(start)));
    let tune = method::ConnectionTuneOk {
        channel_max: 2047,
        frame_max: FRAME_BYTES_MAX,
        heartbeat: 0,
    };
    peer.say(&of_method(0, &Method::ConnectionTuneOk(tune)));
    let open = method::ConnectionOpen {
        virtual_host: "/",
        ..Default::default()
    };
    peer.say(&of_method(0, &Method::ConnectionOpen(open)));
    let channel = Method::ChannelOpen(method::ChannelOpen::default());
    peer.say(&of_method(1, &channel));
    Ok(())
}

fn publish() -> Vec<u8> {
    let publish = method::BasicPublish {
        routing_key: "q",
        ..Default::default()
    };
    let transient = Properties {
        delivery_mode: Some(1),
        ..Default::default()
    };
    let (mut raw, mut header) = (Vec::new(), Vec::new());
    transient.write(&mut Writer::new(&mut raw));
    let content = ContentHeader {
        body_bytes: BODY.len() as u64,
        raw: &raw,
    };
    content.write(&mut Writer::new(&mut header));
    let frames = [
        of_method(1, &Method::BasicPublish(publish)),
        frame(HEADER, 1, &header),
        frame(CONTENT, 1, &BODY),
    ];
    frames.concat()
}

fn ack(delivery_tag: u64) -> Vec<u8> {
    let ack = method::BasicAck {
        delivery_tag,
        multiple: false,
    };
    of_method(1, &Method::BasicAck(ack))
}

/// How many bodies are in these frames.
fn deliveries(mut frames: &[u8]) -> u64 {
    let mut count = 0;
    while let Ok(Ok(frame)) = peek_frame(frames, FRAME_BYTES_MAX) {
        count += u64::from(frame.payload == BODY);
        frames = &frames[frame.len_bytes()..];
    }
    count
}

fn of_method(channel: u16, method: &Method<'_>) -> Vec<u8> {
    let mut payload = Vec::new();
    method.write(&mut Writer::new(&mut payload));
    frame(METHOD, channel, &payload)
}

fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![kind];
    frame.extend(channel.to_be_bytes());
    frame.extend((payload.len() as u32).to_be_bytes());
    frame.extend(payload);
    frame.push(FRAME_END);
    frame
}
