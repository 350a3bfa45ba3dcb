//! AMQP over real sockets: logins, users, TLS, bytes that are not AMQP, the admin interface.

use std::io::{ErrorKind, Read, Write};

use crate::amqp_support::{Client, HEADER, ask_admin, connect, start};
use crate::certificates::{Authority, save};
use cloverleaf_server::config_login::Logins;
use cloverleaf_server::config_value::OptionValue;
use rustls::StreamOwned;

#[test]
fn a_message_goes_through_a_queue() {
    let broker = start(|_| {});
    let mut client = Client::login(connect(broker.address()), "guest", "guest");
    client.open();
    client.declare("orders");
    client.publish("orders", b"body");
    assert_eq!(client.get("orders").as_deref(), Some(&b"body"[..]));
    assert_eq!(client.get("orders"), None);
}

#[test]
fn other_protocols_are_answered_with_the_amqp_header() {
    let broker = start(|_| {});
    for header in [
        &b"AMQP\x00\x00\x09\x00"[..],
        b"AMQP\x01\x01\x08\x00",
        b"AMQP\x01\x01\x00\x08",
        b"GET / HT",
    ] {
        let mut socket = connect(broker.address());
        socket.write_all(header).unwrap();
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, HEADER, "{header:?}");
    }
}

#[test]
fn a_client_that_says_0_9_means_0_9_1() {
    let broker = start(|_| {});
    let mut socket = connect(broker.address());
    socket.write_all(b"AMQP\x01\x01\x00\x09").unwrap();
    let mut start = [0; 13];
    socket.read_exact(&mut start).unwrap();
    // The frame of a method on channel 0: connection.start, version 0-9.
    assert_eq!(start[..3], [1, 0, 0]);
    assert_eq!(start[7..], [0, 10, 0, 10, 0, 9]);
}

/// After a close in order, amqp091-go closes the socket itself, and reports an earlier end as an
/// error.
#[test]
fn after_an_orderly_close_the_client_closes_the_socket() {
    let broker = start(|_| {});
    let open = || {
        let socket = connect(broker.address());
        let mut client = Client::login(socket.try_clone().unwrap(), "guest", "guest");
        client.open();
        (socket, client)
    };
    let (mut socket, mut client) = open();
    client.close();
    socket.set_nonblocking(true).unwrap();
    // Other connections come and go meanwhile: a wrong end would be here by then.
    for _ in 0..20 {
        let (other, _) = open();
        drop(other);
        let read = socket.read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(read, Err(ErrorKind::WouldBlock), "closed by the broker");
    }
}

#[test]
fn configured_users_are_the_only_ones() {
    let broker = start(|config| {
        config.amqp.user = Logins::parse_all(&["ann:a".into(), "bob:b:c".into()]).unwrap();
    });
    for (user, password) in [("ann", "a"), ("bob", "b:c")] {
        Client::login(connect(broker.address()), user, password).open();
    }
    for (user, password) in [("guest", "guest"), ("ann", "b"), ("", "")] {
        let mut client = Client::login(connect(broker.address()), user, password);
        let (code, text) = client.refusal();
        assert_eq!(code, 403, "{text}");
        assert!(text.contains("Login was refused"), "{text}");
    }
}

#[test]
fn messages_go_through_tls() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let own = authority.certify();
    let broker = start(|config| {
        config.amqp.tls_address.0 = "127.0.0.1:0".to_owned();
        config.amqp.tls_cert = save(&folder, "cert.pem", &own.certificate);
        config.amqp.tls_key = save(&folder, "key.pem", &own.key);
    });
    let address = broker.server.addresses().of("amqp.tls_address").unwrap();
    let session = authority.client(None, rustls::ALL_VERSIONS);
    let stream = StreamOwned::new(session, connect(address));
    let mut client = Client::login(stream, "guest", "guest");
    client.open();
    client.declare("secret");
    let body = vec![b'x'; 300_000];
    client.publish("secret", &body);
    assert_eq!(client.get("secret"), Some(body));
}

#[test]
fn a_durable_queue_and_its_messages_outlive_a_restart() {
    let broker = start(|_| {});
    let mut client = Client::login(connect(broker.address()), "guest", "guest");
    client.open();
    client.declare("kept");
    client.publish("kept", b"1");
    client.publish("kept", b"2");
    assert_eq!(client.get("kept").as_deref(), Some(&b"1"[..]));
    drop(client);
    let broker = broker.restart();
    let mut client = Client::login(connect(broker.address()), "guest", "guest");
    client.open();
    client.declare("kept");
    assert_eq!(client.get("kept").as_deref(), Some(&b"2"[..]));
}

#[test]
fn the_admin_interface_shows_queues_and_changes_their_dispatch() {
    let broker = start(|_| {});
    let mut client = Client::login(connect(broker.address()), "guest", "guest");
    client.open();
    client.declare("orders");
    client.publish("orders", b"body");
    // A publish has no answer, so a later command with one shows that the publish was processed.
    client.declare("orders");
    let queues = ask_admin(&broker, "GET", "/api/amqp/queues");
    for part in [
        "\"name\":\"orders\"",
        "\"durable\":true",
        "\"dispatch\":\"least-loaded\"",
    ] {
        assert!(queues.contains(part), "{queues}");
    }
    let one = ask_admin(&broker, "GET", "/api/amqp/queues/orders");
    assert!(one.contains("\"ready\":1"), "{one}");
    ask_admin(
        &broker,
        "POST",
        "/api/topics/orders/subscriptions/queue/fill-first",
    );
    let queues = ask_admin(&broker, "GET", "/api/amqp/queues");
    assert!(queues.contains("\"dispatch\":\"fill-first\""), "{queues}");
    let exchanges = ask_admin(&broker, "GET", "/api/amqp/exchanges");
    assert!(exchanges.contains("\"amq.topic\""), "{exchanges}");
    let page = ask_admin(&broker, "GET", "/metrics");
    assert!(page.contains("\ncloverleaf_amqp_queues 1\n"), "{page}");
}

#[test]
fn a_draining_broker_closes_its_connections() {
    let broker = start(|_| {});
    let mut client = Client::login(connect(broker.address()), "guest", "guest");
    client.open();
    let ending = std::thread::spawn(|| broker.server.shutdown());
    let (code, text) = client.refusal();
    assert_eq!(code, 320, "{text}");
    drop(client);
    ending.join().unwrap();
}
