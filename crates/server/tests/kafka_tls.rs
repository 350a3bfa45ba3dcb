//! Kafka over TLS, with and without certificates of clients.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use crate::certificates::{Authority, Certified, save};
use crate::kafka_support::{Broker, Client, config, connect, start};
use crate::support::expect_read;
use cloverleaf_server::config_value::{ClientAuthPolicy, HostPort, TlsVersion};
use cloverleaf_server::{Config, Server};
use rustls::{ClientConnection, StreamOwned, SupportedProtocolVersion};

struct Tested {
    broker: Broker,
    authority: Authority,
    _folder: tempfile::TempDir,
}

fn start_tls(change: impl FnOnce(&mut Config)) -> Tested {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let own = authority.certify();
    let file = |name: &str, text: &str| save(&folder, name, text);
    let broker = start(|config| {
        config.kafka.tls_address.0 = "127.0.0.1:0".to_owned();
        config.kafka.tls_cert = file("cert.pem", &own.certificate);
        config.kafka.tls_key = file("key.pem", &own.key);
        config.kafka.tls_root_ca_file = file("ca.pem", &authority.certificate);
        config.kafka.batch_bytes_max.0 = 2 << 20;
        change(config);
    });
    Tested {
        broker,
        authority,
        _folder: folder,
    }
}

type TlsClient = Client<StreamOwned<ClientConnection, TcpStream>>;

impl Tested {
    fn client(
        &self,
        certified: Option<&Certified>,
        versions: &[&'static SupportedProtocolVersion],
    ) -> TlsClient {
        let connection = self.authority.client(certified, versions);
        let socket = connect(
            self.broker
                .server
                .addresses()
                .of("kafka.tls_address")
                .unwrap(),
        );
        Client::new(StreamOwned::new(connection, socket))
    }

    /// Whether such a client is served.
    fn serves(
        &self,
        certified: Option<&Certified>,
        versions: &[&'static SupportedProtocolVersion],
    ) -> bool {
        let mut client = self.client(certified, versions);
        let request = client.request(crate::kafka_support::API_VERSIONS, 0, &[]);
        let sent = client.stream.write_all(&request);
        sent.is_ok() && client.stream.read_exact(&mut [0; 8]).is_ok()
    }
}

#[test]
fn messages_go_through_tls() {
    let tested = start_tls(|_| {});
    for version in rustls::ALL_VERSIONS {
        let mut client = tested.client(None, &[version]);
        client.api_versions();
        client.make_topic("t");
        assert_eq!(client.produce("t", -1, &[b"secret"]).0, 0);
        let (error, batches) = client.fetch("t", 0, 1000);
        assert!(error == 0 && crate::kafka_support::holds(&batches, b"secret"));
    }
    let mut plain = tested.broker.client();
    assert_eq!(
        plain.fetch("t", 0, 1000).0,
        0,
        "the plain address serves too"
    );
}

/// A ClientHello that the network has cut into pieces is served like one that comes whole.
#[test]
fn a_hello_may_come_in_pieces() {
    let tested = start_tls(|_| {});
    for version in rustls::ALL_VERSIONS {
        let mut connection = tested.authority.client(None, &[version]);
        let mut socket = connect(
            tested
                .broker
                .server
                .addresses()
                .of("kafka.tls_address")
                .unwrap(),
        );
        socket.set_nodelay(true).unwrap();
        let mut hello = Vec::new();
        connection.write_tls(&mut hello).unwrap();
        // Ends: in the head of the record, after it, in the middle, and before the last byte.
        let mut begin = 0;
        for end in [1, 3, 5, 6, hello.len() / 2, hello.len() - 1] {
            socket.write_all(&hello[begin..end]).unwrap();
            begin = end;
            // The broker reads each piece alone, and neither answers nor closes.
            expect_read(&socket);
            socket.set_nonblocking(true).unwrap();
            let answer = socket.read(&mut [0; 1]).map_err(|error| error.kind());
            assert_eq!(answer, Err(ErrorKind::WouldBlock), "after {end} bytes");
            socket.set_nonblocking(false).unwrap();
        }
        socket.write_all(&hello[begin..]).unwrap();
        let mut client = Client::new(StreamOwned::new(connection, socket));
        client.api_versions();
    }
}

#[test]
fn tls_clients_get_the_address_for_tls() {
    let tested = start_tls(|_| {});
    let port = tested
        .broker
        .server
        .addresses()
        .of("kafka.tls_address")
        .unwrap()
        .port();
    let mut client = tested.client(None, rustls::ALL_VERSIONS);
    assert_eq!(client.advertised(), ("127.0.0.1".to_owned(), port.into()));
    let tested = start_tls(|config| {
        config.kafka.advertised_tls_address = Some(HostPort {
            host: "kafka.example.com".to_owned(),
            port: 19093,
        });
    });
    let mut client = tested.client(None, rustls::ALL_VERSIONS);
    assert_eq!(client.advertised(), ("kafka.example.com".to_owned(), 19093));
    let port = i32::from(tested.broker.address().port());
    let told = tested.broker.client().advertised();
    assert_eq!(told, ("127.0.0.1".to_owned(), port), "without TLS");
}

#[test]
fn a_large_answer_goes_through_tls_while_it_is_read() {
    let tested = start_tls(|_| {});
    let mut client = tested.client(None, rustls::ALL_VERSIONS);
    client.make_topic("t");
    let bodies: Vec<Vec<u8>> = (0..12).map(|n| vec![n; 1 << 20]).collect();
    for body in &bodies {
        assert_eq!(client.produce("t", 1, &[body]).0, 0);
    }
    let (error, batches) = client.fetch("t", 0, 50 << 20);
    assert_eq!(error, 0);
    let mut rest = &batches[..];
    for body in &bodies {
        let batch = u32::from_be_bytes(rest[8..12].try_into().unwrap()) as usize + 12;
        assert!(batch > body.len());
        let inner = &rest[batch - body.len() - 1..batch - 1];
        assert!(*inner == body[..], "message {}", body[0]);
        rest = &rest[batch..];
    }
    assert!(rest.is_empty());
}

#[test]
fn policies_for_certificates_of_clients_are_those_of_nsq() {
    let every = rustls::ALL_VERSIONS;
    let tested = start_tls(|c| c.kafka.tls_client_auth_policy = ClientAuthPolicy::Require);
    assert!(tested.serves(Some(&Authority::new().certify()), every));
    assert!(!tested.serves(None, every));
    let tested = start_tls(|c| c.kafka.tls_client_auth_policy = ClientAuthPolicy::RequireVerify);
    assert!(tested.serves(Some(&tested.authority.certify()), every));
    assert!(!tested.serves(Some(&Authority::new().certify()), every));
    assert!(!tested.serves(None, every));
}

#[test]
fn the_minimum_tls_version_is_enforced() {
    let tested = start_tls(|c| c.kafka.tls_min_version = TlsVersion::Tls13);
    assert!(tested.serves(None, &[&rustls::version::TLS13]));
    assert!(!tested.serves(None, &[&rustls::version::TLS12]));
}

#[test]
fn half_a_configuration_is_refused_with_a_sentence() {
    let error = |change: fn(&mut Config)| {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(&folder);
        config.kafka.tls_address.0 = "127.0.0.1:0".to_owned();
        change(&mut config);
        let error = Server::start(config).err();
        error.map(|error| error.to_string()).unwrap_or_default()
    };
    let text = error(|_| {});
    assert!(
        text.contains("kafka.tls_cert and kafka.tls_key are missing"),
        "{text}"
    );
    let text = error(|c| c.kafka.tls_key = Some("key.pem".into()));
    assert!(text.contains("belong together"), "{text}");
    let text = error(|c| {
        c.kafka.tls_cert = Some("/nonexistent/cert.pem".into());
        c.kafka.tls_key = Some("/nonexistent/key.pem".into());
    });
    assert!(
        text.contains("/nonexistent/cert.pem (kafka.tls_cert)"),
        "{text}"
    );
    let text = error(|c| {
        c.kafka.tls_address.0 = String::new();
        c.kafka.tls_cert = Some("cert.pem".into());
        c.kafka.tls_key = Some("key.pem".into());
    });
    assert!(
        text.contains("kafka.tls_address, which is not set"),
        "{text}"
    );
    let text = error(|c| c.kafka.tls_address.0 = "0.0.0.0:0".to_owned());
    assert!(text.contains("--allow-anonymous-remote"), "{text}");
}
