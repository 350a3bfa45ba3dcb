//! The clients against peers that announce more than they could ever send.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use cloverleaf_bench::{
    Acks, Amount, Arrivals, Clock, Live, PayloadKind, Plan, Recorder, Stop, Url, connect,
};

fn plan() -> Plan {
    Plan {
        run: 5,
        topic: "t".to_owned(),
        producers: 1,
        consumers: 1,
        size_bytes: 100,
        payload: PayloadKind::Random,
        amount: Amount::Messages(10),
        warm_up_s: 0.0,
        arrivals: Arrivals::Closed,
        batch_messages: 1,
        in_flight: 1,
        acks: Acks::One,
        partitions: 1,
        keys: 0,
        seed: 1,
    }
}

fn peer(script: impl FnOnce(TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || script(listener.accept().unwrap().0));
    address
}

/// A frame of AMQP 0-9-1.
fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(payload.len()).unwrap();
    let mut frame = vec![kind];
    frame.extend_from_slice(&channel.to_be_bytes());
    frame.extend_from_slice(&size.to_be_bytes());
    frame.extend_from_slice(payload);
    frame.push(0xce);
    frame
}

/// Reads until what the client says has gone by.
fn hear(stream: &mut TcpStream, method: [u8; 4]) {
    let mut heard = Vec::new();
    while !heard.windows(4).any(|part| part == method) {
        let mut bytes = [0; 4096];
        let count = stream.read(&mut bytes).unwrap();
        assert!(count > 0, "it went away");
        heard.extend_from_slice(&bytes[..count]);
    }
}

#[test]
fn a_message_of_an_exabyte_is_not_waited_for() {
    let address = peer(|mut stream| {
        let start = [&[0, 10, 0, 10, 0, 9][..], &[0; 12]].concat();
        let tune = [0, 10, 0, 30, 0, 1, 0, 2, 0, 0, 0, 0];
        stream.write_all(&frame(1, 0, &start)).unwrap();
        hear(&mut stream, [0, 10, 0, 11]);
        stream.write_all(&frame(1, 0, &tune)).unwrap();
        hear(&mut stream, [0, 10, 0, 40]);
        stream.write_all(&frame(1, 0, &[0, 10, 0, 41, 0])).unwrap();
        hear(&mut stream, [0, 20, 0, 10]);
        let open_ok = [0, 20, 0, 11, 0, 0, 0, 0];
        stream.write_all(&frame(1, 1, &open_ok)).unwrap();
        hear(&mut stream, [0, 60, 0, 10]);
        stream.write_all(&frame(1, 1, &[0, 60, 0, 11])).unwrap();
        hear(&mut stream, [0, 60, 0, 20]);
        let deliver = [&[0, 60, 0, 60, 0][..], &1u64.to_be_bytes(), &[0, 0, 0]].concat();
        stream.write_all(&frame(1, 1, &deliver)).unwrap();
        let mut header = vec![0, 60, 0, 0];
        header.extend_from_slice(&(1u64 << 60).to_be_bytes());
        header.extend_from_slice(&[0, 0]);
        stream.write_all(&frame(2, 1, &header)).unwrap();
        // And all the bytes that one wants to have, until nobody wants any.
        let body = frame(3, 1, &[7; 100_000]);
        while stream.write_all(&body).is_ok() {}
    });
    let url: Url = format!("amqp://{address}?client=raw").parse().unwrap();
    let client = connect(&url).unwrap();
    let mut consumer = client.consumer(&plan(), 0).unwrap();
    let mut recorder = Recorder::new(Clock::new(), 5, 0, 0, Live::default());
    let error = consumer.run(&mut recorder, &Stop::default()).unwrap_err();
    let expected = format!(
        "amqp://{address} went away: it announced a message of {} bytes",
        1u64 << 60
    );
    assert_eq!(error.to_string(), expected);
}
