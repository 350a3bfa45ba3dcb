//! Wrong passwords: their answers are delayed, by the broker's clock, and no other answer is.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use crate::amqp_support::Client;
use crate::kafka_support::{Broker, connect};
use crate::support::{Time, start_driven};
use cloverleaf_server::config_login::Logins;
use cloverleaf_server::config_value::OptionValue;

fn amqp(broker: &Broker) -> TcpStream {
    connect(broker.server.addresses().of("amqp.address").unwrap())
}

/// Whether there are bytes to read.
fn is_answered(socket: &TcpStream) -> bool {
    socket.set_nonblocking(true).unwrap();
    let peeked = socket.peek(&mut [0]);
    socket.set_nonblocking(false).unwrap();
    !matches!(peeked, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

/// How often 10 ms have to pass until there are bytes to read.
fn tens_of_ms(time: &mut Time, socket: &TcpStream) -> usize {
    let mut passed = 0;
    time.pass_until(Duration::from_millis(10), "it is answered", || {
        passed += 1;
        is_answered(socket)
    });
    passed
}

#[test]
fn a_wrong_password_waits_longer_each_time_and_a_right_one_does_not() {
    let (broker, mut time) = start_driven(|config| {
        config.amqp.user = Logins::parse_all(&["ann:a".into()]).unwrap();
    });
    for tens in [10, 20, 40] {
        let socket = amqp(&broker);
        let mut wrong = Client::login(socket.try_clone().unwrap(), "ann", "b");
        time.settle();
        assert!(!is_answered(&socket));
        // A right password from the same address, while the clock stands still.
        Client::login(amqp(&broker), "ann", "a").open();
        assert_eq!(tens_of_ms(&mut time, &socket), tens);
        assert_eq!(wrong.refusal().0, 403);
    }
}

#[test]
fn a_shutdown_does_not_wait_for_delayed_answers() {
    let (broker, mut time) = start_driven(|config| {
        config.amqp.user = Logins::parse_all(&["ann:a".into()]).unwrap();
    });
    let socket = amqp(&broker);
    let mut wrong = Client::login(socket.try_clone().unwrap(), "ann", "b");
    time.settle();
    drop(time);
    let ending = thread::spawn(move || broker.server.shutdown());
    assert_eq!(wrong.refusal().0, 403);
    drop((wrong, socket));
    ending.join().unwrap();
}

/// An auth service that accepts one secret; ends with the test's process.
fn auth_service() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            let head = String::from_utf8(head).unwrap();
            let (status, body) = if head.contains("secret=right&") {
                (
                    "200 OK",
                    concat!(
                        r#"{"ttl":60,"authorizations":[{"permissions":["publish"],"#,
                        r#""topic":".*","channels":[".*"]}]}"#
                    ),
                )
            } else {
                ("403 Forbidden", "{}")
            };
            let length = body.len();
            write!(
                stream,
                "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            )
            .unwrap();
        }
    });
    address
}

#[test]
fn a_wrong_secret_of_nsq_waits_and_a_right_one_does_not() {
    let (broker, mut time) = start_driven(|config| {
        config.nsq.auth_http_address = vec![auth_service().to_string()];
    });
    let auth = |secret: &[u8]| {
        let mut socket = connect(broker.server.addresses().of("nsq.tcp_address").unwrap());
        let size = (secret.len() as u32).to_be_bytes();
        socket
            .write_all(&[b"  V2AUTH\n", &size[..], secret].concat())
            .unwrap();
        socket
    };
    let answer = |mut socket: TcpStream| {
        let mut size = [0; 4];
        socket.read_exact(&mut size).unwrap();
        let mut frame = vec![0; u32::from_be_bytes(size) as usize];
        socket.read_exact(&mut frame).unwrap();
        String::from_utf8(frame).unwrap()
    };
    for tens in [10, 20] {
        let wrong = auth(b"wrong");
        assert!(answer(auth(b"right")).contains("permission_count"));
        // The service is not bound to the broker's clock, so the wait may be longer.
        assert!(tens_of_ms(&mut time, &wrong) >= tens);
        assert!(answer(wrong).contains("E_AUTH_FAILED"));
    }
}
