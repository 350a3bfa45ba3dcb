//! TLS with each policy for clients' certificates, over the HTTPS interface.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use crate::certificates::{Authority, Certified, save};
use cloverleaf_server::config_value::{ClientAuthPolicy, ListenAddress, TlsRequired, TlsVersion};
use cloverleaf_server::{Config, Server};
use rustls::StreamOwned;

struct Tested {
    server: Server,
    authority: Authority,
    _folder: tempfile::TempDir,
}

fn start(change: impl FnOnce(&mut Config)) -> Tested {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let own = authority.certify();
    let file = |name: &str, text: &str| save(&folder, name, text);
    let mut config = local(&folder.path().join("data"));
    config.nsq.tls_cert = file("cert.pem", &own.certificate);
    config.nsq.tls_key = file("key.pem", &own.key);
    config.nsq.tls_root_ca_file = file("ca.pem", &authority.certificate);
    change(&mut config);
    Tested {
        server: Server::start(config).unwrap(),
        authority,
        _folder: folder,
    }
}

fn local(data: &Path) -> Config {
    let any_port = ListenAddress("127.0.0.1:0".to_owned());
    let mut config = Config::default();
    config.general.data_dir = data.to_owned();
    config.general.disk_free_bytes_min.0 = 0;
    config.general.admin_address = any_port.clone();
    config.nsq.tcp_address = any_port.clone();
    config.nsq.http_address = any_port.clone();
    config.nsq.https_address = any_port.clone();
    config.kafka.address = any_port.clone();
    config.amqp.address = any_port.clone();
    config.nsq.lookup_http_address = any_port;
    config
}

impl Tested {
    /// The answer to `/ping` over HTTPS, or `None` when TLS fails.
    fn ping(&self, client: Option<&Certified>) -> Option<String> {
        self.ping_with(client, rustls::ALL_VERSIONS)
    }

    fn ping_with(
        &self,
        client: Option<&Certified>,
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> Option<String> {
        let connection = self.authority.client(client, versions);
        let socket =
            TcpStream::connect(self.server.addresses().of("nsq.https_address").unwrap()).unwrap();
        let mut stream = StreamOwned::new(connection, socket);
        let request = b"GET /ping HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        stream.write_all(request).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    fn plain_ping(&self) -> String {
        let mut stream =
            TcpStream::connect(self.server.addresses().of("nsq.http_address").unwrap()).unwrap();
        let request = b"GET /ping HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

fn is_ok(answer: Option<String>) -> bool {
    answer.is_some_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

#[test]
fn without_a_policy_no_certificate_is_requested() {
    let tested = start(|_| ());
    assert!(is_ok(tested.ping(None)));
    assert!(tested.plain_ping().starts_with("HTTP/1.1 200"));
}

#[test]
fn require_takes_any_certificate() {
    let tested = start(|c| c.nsq.tls_client_auth_policy = ClientAuthPolicy::Require);
    assert!(is_ok(tested.ping(Some(&Authority::new().certify()))));
    assert!(is_ok(tested.ping_with(
        Some(&Authority::new().certify()),
        &[&rustls::version::TLS12]
    )));
    assert_eq!(tested.ping(None), None);
    // As in nsqd, such a policy requires TLS.
    let plain = tested.plain_ping();
    assert!(plain.starts_with("HTTP/1.1 403"), "{plain}");
    let port = tested
        .server
        .addresses()
        .of("nsq.https_address")
        .unwrap()
        .port();
    assert!(plain.ends_with(&format!(
        "{{\"message\": \"TLS_REQUIRED\", \"https_port\": {port}}}"
    )));
}

#[test]
fn require_verify_takes_certificates_of_its_authority_only() {
    let tested = start(|c| {
        c.nsq.tls_client_auth_policy = ClientAuthPolicy::RequireVerify;
        c.nsq.tls_required = TlsRequired::TcpOnly;
    });
    assert!(is_ok(tested.ping(Some(&tested.authority.certify()))));
    assert_eq!(tested.ping(Some(&Authority::new().certify())), None);
    assert_eq!(tested.ping(None), None);
    assert!(
        tested.plain_ping().starts_with("HTTP/1.1 200"),
        "tcp-https spares plain HTTP"
    );
}

#[test]
fn the_minimum_tls_version_is_enforced() {
    let tested = start(|c| c.nsq.tls_min_version = TlsVersion::Tls13);
    assert!(is_ok(tested.ping(None)));
    assert_eq!(tested.ping_with(None, &[&rustls::version::TLS12]), None);
}

#[test]
fn half_a_configuration_is_refused_with_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let error = |change: fn(&mut Config)| {
        let mut config = local(folder.path());
        change(&mut config);
        Server::start(config)
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default()
    };
    let text = error(|c| c.nsq.tls_cert = Some("cert.pem".into()));
    assert!(text.contains("belong together"), "{text}");
    let text = error(|c| c.nsq.tls_required = TlsRequired::Yes);
    assert!(
        text.contains("nsq.tls_cert and nsq.tls_key are missing"),
        "{text}"
    );
    let text = error(|c| {
        c.nsq.tls_cert = Some("/nonexistent/cert.pem".into());
        c.nsq.tls_key = Some("/nonexistent/key.pem".into());
    });
    assert!(
        text.contains("/nonexistent/cert.pem (nsq.tls_cert)"),
        "{text}"
    );
}
