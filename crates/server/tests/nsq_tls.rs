//! TLS on NSQ's TCP port: the upgrade after IDENTIFY, alone and below a compression, and the part
//! of the client's certificate that the auth service gets.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use crate::nsq_support::{Broker, PATIENCE, start};
use cloverleaf_server::config_value::{ClientAuthPolicy, TlsRequired};
use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// A self-signed certificate and its key.
struct Certificate {
    pem: String,
    key: String,
}

fn certify(common_name: &str) -> Certificate {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    Certificate {
        pem: params.self_signed(&key).unwrap().pem(),
        key: key.serialize_pem(),
    }
}

struct Tested {
    broker: Broker,
    own: Certificate,
    _folder: tempfile::TempDir,
}

fn start_tls(change: impl FnOnce(&mut cloverleaf_server::Config)) -> Tested {
    let own = certify("broker");
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = (
        folder.path().join("cert.pem"),
        folder.path().join("key.pem"),
    );
    std::fs::write(&cert, &own.pem).unwrap();
    std::fs::write(&key, &own.key).unwrap();
    let broker = start(|config| {
        config.nsq.tls_cert = Some(cert);
        config.nsq.tls_key = Some(key);
        change(config);
    });
    Tested {
        broker,
        own,
        _folder: folder,
    }
}

impl Tested {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(
            self.broker
                .server
                .addresses()
                .of("nsq.tcp_address")
                .unwrap(),
        )
        .unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        (&stream).write_all(b"  V2").unwrap();
        stream
    }

    /// Negotiates TLS and the features in `more`, and upgrades.
    fn upgrade(&self, more: &str, client: Option<&Certificate>) -> TlsStream {
        let mut stream = self.connect();
        let json = format!(r#"{{"feature_negotiation":true,"tls_v1":true{more}}}"#);
        stream
            .write_all(&sized("IDENTIFY\n", json.as_bytes()))
            .unwrap();
        let answer = read_frame(&mut stream);
        assert!(String::from_utf8_lossy(&answer).contains(r#""tls_v1":true"#));
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(self.own.pem.as_bytes()).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match client {
            None => builder.with_no_client_auth(),
            Some(client) => {
                let certificate = CertificateDer::from_pem_slice(client.pem.as_bytes()).unwrap();
                let key = PrivateKeyDer::from_pem_slice(client.key.as_bytes()).unwrap();
                builder
                    .with_client_auth_cert(vec![certificate], key)
                    .unwrap()
            }
        };
        let name = "localhost".try_into().unwrap();
        let connection = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut stream = StreamOwned::new(connection, stream);
        assert_eq!(read_frame(&mut stream), b"OK");
        stream
    }
}

fn read_frame(stream: &mut impl Read) -> Vec<u8> {
    let mut size = [0; 4];
    stream.read_exact(&mut size).unwrap();
    let mut frame = vec![0; u32::from_be_bytes(size) as usize];
    stream.read_exact(&mut frame).unwrap();
    frame.split_off(4)
}

fn sized(line: &str, body: &[u8]) -> Vec<u8> {
    let size = (body.len() as u32).to_be_bytes();
    [line.as_bytes(), &size, body].concat()
}

#[test]
fn a_connection_is_encrypted_after_identify() {
    let tested = start_tls(|_| {});
    let mut stream = tested.upgrade("", None);
    let body = vec![b'x'; 300_000];
    stream.write_all(&sized("PUB t\n", &body)).unwrap();
    assert_eq!(read_frame(&mut stream), b"OK");
    stream.write_all(b"SUB t ch\nRDY 1\n").unwrap();
    assert_eq!(read_frame(&mut stream), b"OK");
    assert!(read_frame(&mut stream).ends_with(&body));
    let stats = tested.broker.get("/stats?format=json&topic=t").body;
    assert!(stats.contains(r#""tls":true"#), "{stats}");
    assert!(stats.contains(r#""tls_version":"TLS1.3""#), "{stats}");
}

#[test]
fn an_encrypted_connection_can_be_compressed() {
    let tested = start_tls(|_| {});
    let stream = tested.upgrade(r#","snappy":true"#, None);
    let mut writer = snap::write::FrameEncoder::new(stream);
    writer
        .write_all(&sized("PUB t\n", &vec![b'y'; 200_000]))
        .unwrap();
    writer.flush().unwrap();
    let mut reader = snap::read::FrameDecoder::new(writer.into_inner().unwrap());
    assert_eq!(read_frame(&mut reader), b"OK");
    assert_eq!(read_frame(&mut reader), b"OK");
}

#[test]
fn bytes_before_an_upgrade_are_no_command_after_it() {
    let tested = start_tls(|_| {});
    let mut stream = tested.connect();
    let negotiate = br#"{"feature_negotiation":true,"tls_v1":true}"#;
    let smuggled = [
        sized("IDENTIFY\n", negotiate),
        sized("PUB smuggled\n", b"x"),
    ]
    .concat();
    stream.write_all(&smuggled).unwrap();
    let answer = read_frame(&mut stream);
    assert!(String::from_utf8_lossy(&answer).contains(r#""tls_v1":true"#));
    // These bytes are not TLS, so the connection ends.
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    let stats = tested.broker.get("/stats?format=json").body;
    assert!(!stats.contains("smuggled"), "{stats}");
}

#[test]
fn tls_can_be_required() {
    let tested = start_tls(|config| config.nsq.tls_required = TlsRequired::TcpOnly);
    let mut stream = tested.connect();
    stream.write_all(b"SUB t ch\n").unwrap();
    let error = read_frame(&mut stream);
    let expect = "E_INVALID cannot SUB in current state (TLS required)";
    assert_eq!(String::from_utf8_lossy(&error), expect);
    let mut stream = tested.upgrade("", None);
    stream.write_all(b"SUB t ch\n").unwrap();
    assert_eq!(read_frame(&mut stream), b"OK");
}

#[test]
fn the_auth_service_gets_the_common_name() {
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = service.local_addr().unwrap().to_string();
    let asked = thread::spawn(move || {
        let (mut stream, _) = service.accept().unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            request.push(byte[0]);
        }
        let body = r#"{"ttl":60,"authorizations":[{"topic":".*","channels":[".*"]}]}"#;
        write!(stream, "HTTP/1.0 200 OK\r\n\r\n{body}").unwrap();
        String::from_utf8(request).unwrap()
    });
    let tested = start_tls(|config| {
        config.nsq.auth_http_address = vec![address];
        config.nsq.tls_client_auth_policy = ClientAuthPolicy::Require;
    });
    let mut stream = tested.upgrade("", Some(&certify("test.local")));
    stream.write_all(&sized("AUTH\n", b"s")).unwrap();
    let answer = read_frame(&mut stream);
    assert_eq!(
        String::from_utf8_lossy(&answer),
        r#"{"identity":"","identity_url":"","permission_count":1}"#
    );
    let request = asked.join().unwrap();
    let expect = "GET /auth?common_name=test.local&remote_ip=127.0.0.1&secret=s&tls=true ";
    assert!(request.starts_with(expect), "{request}");
}
