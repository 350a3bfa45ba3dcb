//! As much of an HTTP client as asking an auth service takes: one request, one connection, one
//! bounded answer.

use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::options::NsqConfig;

/// Most bytes of an answer, head included.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// Where systems keep the certificates of the authorities that they trust.
const SYSTEM_AUTHORITIES: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

/// Why there is no answer.
#[derive(Debug, Error)]
pub(crate) enum HttpError {
    #[error("{0:?} is not an address of the form http[s]://host[:port][/path]")]
    Address(String),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("no connection within {0:?}")]
    ConnectTimedOut(std::time::Duration),
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    #[error("no certificates of authorities were found: set nsq.tls_root_ca_file")]
    NoAuthorities,
    #[error("the answer is longer than {ANSWER_BYTES_MAX} bytes")]
    TooLong,
    #[error("the answer is not HTTP")]
    Malformed,
}

/// An address taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    https: bool,
    host: String,
    port: u16,
    path: String,
}

/// What is sent.
pub(crate) enum Method {
    /// A GET with this query.
    Get(String),
    /// A POST of this JSON.
    Post(String),
}

impl Endpoint {
    pub(crate) fn parse(url: &str) -> Result<Endpoint, HttpError> {
        let malformed = || HttpError::Address(url.to_owned());
        let (scheme, rest) = url.split_once("://").ok_or_else(malformed)?;
        let https = match scheme {
            "http" => false,
            "https" => true,
            _ => return Err(malformed()),
        };
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                (host, port.parse().map_err(|_| malformed())?)
            }
            _ => (authority, if https { 443 } else { 80 }),
        };
        // What would end the request line early must not get into it.
        if host.is_empty() || url.bytes().any(|byte| byte <= b' ' || byte == 0x7f) {
            return Err(malformed());
        }
        Ok(Endpoint {
            https,
            host: host.to_owned(),
            port,
            path: path.to_owned(),
        })
    }

    pub(crate) fn is_https(&self) -> bool {
        self.https
    }

    pub(crate) fn with_https(&self, port: u16) -> Endpoint {
        Endpoint {
            https: true,
            port,
            ..self.clone()
        }
    }

    /// The host without the brackets of an IPv6 address.
    fn name(&self) -> &str {
        let name = self.host.strip_prefix('[');
        name.and_then(|name| name.strip_suffix(']'))
            .unwrap_or(&self.host)
    }

    fn head(&self, method: &Method) -> String {
        let (word, target, length) = match method {
            Method::Get(query) => {
                let mark = if self.path.contains('?') { '&' } else { '?' };
                ("GET", format!("{}{mark}{query}", self.path), String::new())
            }
            Method::Post(body) => {
                let length = body.len();
                let lines =
                    format!("Content-Type: application/json\r\nContent-Length: {length}\r\n");
                ("POST", self.path.clone(), lines)
            }
        };
        let (host, port) = (&self.host, self.port);
        format!(
            "{word} {target} HTTP/1.1\r\nHost: {host}:{port}\r\nUser-Agent: cloverleaf\r\n\
             Accept: application/vnd.nsq; version=1.0\r\nConnection: close\r\n{length}\r\n"
        )
    }
}

/// Sends one request and returns status and body of the answer.
pub(crate) async fn request(
    endpoint: &Endpoint,
    method: Method,
    nsq: &NsqConfig,
    tls: &ClientTls,
) -> Result<(u16, Vec<u8>), HttpError> {
    let mut bytes = endpoint.head(&method).into_bytes();
    if let Method::Post(body) = method {
        bytes.extend_from_slice(body.as_bytes());
    }
    let limit = nsq.http_client_connect_timeout;
    let connected = timeout(limit, TcpStream::connect((endpoint.name(), endpoint.port))).await;
    let stream = connected.map_err(|_| HttpError::ConnectTimedOut(limit))??;
    if !endpoint.https {
        return exchange(stream, &bytes).await;
    }
    let name = ServerName::try_from(endpoint.name().to_owned())
        .map_err(|_| HttpError::Address(endpoint.host.clone()))?;
    let connector = TlsConnector::from(tls.config(nsq).await?);
    exchange(connector.connect(name, stream).await?, &bytes).await
}

/// TLS towards the auth services: made for the first question that needs it, then kept.
#[derive(Default)]
pub(crate) struct ClientTls {
    made: OnceLock<Arc<ClientConfig>>,
}

impl ClientTls {
    /// Reads the authorities' certificates on another thread, because a core's serves many.
    async fn config(&self, nsq: &NsqConfig) -> Result<Arc<ClientConfig>, HttpError> {
        if let Some(config) = self.made.get() {
            return Ok(Arc::clone(config));
        }
        let root_ca_file = nsq.tls_root_ca_file.clone();
        let reading = spawn_blocking(move || client_config(root_ca_file.as_deref()));
        let config = reading.await.map_err(io::Error::other)??;
        Ok(Arc::clone(self.made.get_or_init(|| config)))
    }
}

fn client_config(root_ca_file: Option<&Path>) -> Result<Arc<ClientConfig>, HttpError> {
    let files = match root_ca_file {
        Some(configured) => vec![configured],
        None => SYSTEM_AUTHORITIES.map(Path::new).to_vec(),
    };
    let mut roots = RootCertStore::empty();
    for file in files {
        let Ok(certificates) = CertificateDer::pem_file_iter(file) else {
            continue;
        };
        // A single odd certificate in a bundle must not spoil the others.
        roots.add_parsable_certificates(certificates.flatten());
        break;
    }
    if roots.is_empty() {
        return Err(HttpError::NoAuthorities);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    request: &[u8],
) -> Result<(u16, Vec<u8>), HttpError> {
    stream.write_all(request).await?;
    stream.flush().await?;
    let mut answer = Vec::new();
    loop {
        if let Some(parsed) = parse_answer(&answer, false)? {
            return Ok(parsed);
        }
        if answer.len() >= ANSWER_BYTES_MAX {
            return Err(HttpError::TooLong);
        }
        if stream.read_buf(&mut answer).await? == 0 {
            return parse_answer(&answer, true)?.ok_or(HttpError::Malformed);
        }
    }
}

/// Status and body, once the answer is complete; `ended` says that no further byte will come.
fn parse_answer(answer: &[u8], ended: bool) -> Result<Option<(u16, Vec<u8>)>, HttpError> {
    let Some(head_end) = answer.windows(4).position(|window| window == b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = std::str::from_utf8(&answer[..head_end]).map_err(|_| HttpError::Malformed)?;
    let body = &answer[head_end + 4..];
    let mut lines = head.split("\r\n");
    let status = lines
        .next()
        .filter(|line| line.starts_with("HTTP/1."))
        .and_then(|line| line.split(' ').nth(1))
        .and_then(|status| status.parse().ok())
        .ok_or(HttpError::Malformed)?;
    let (mut length, mut chunked) = (None, false);
    for line in lines {
        let (name, value) = line.split_once(':').ok_or(HttpError::Malformed)?;
        if name.eq_ignore_ascii_case("content-length") {
            let parsed: usize = value.trim().parse().map_err(|_| HttpError::Malformed)?;
            length = Some(parsed);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            chunked = value.trim().eq_ignore_ascii_case("chunked");
        }
    }
    if chunked {
        return Ok(join_chunks(body)?.map(|body| (status, body)));
    }
    match length {
        Some(length) => Ok(body.get(..length).map(|body| (status, body.to_vec()))),
        None if ended => Ok(Some((status, body.to_vec()))),
        None => Ok(None),
    }
}

/// The body without its chunks' sizes, once the last chunk is there.
fn join_chunks(mut rest: &[u8]) -> Result<Option<Vec<u8>>, HttpError> {
    let mut joined = Vec::new();
    loop {
        let Some(line_end) = rest.windows(2).position(|window| window == b"\r\n") else {
            return Ok(None);
        };
        let line = std::str::from_utf8(&rest[..line_end]).map_err(|_| HttpError::Malformed)?;
        let size = line.split(';').next().unwrap_or_default().trim();
        let size = usize::from_str_radix(size, 16).map_err(|_| HttpError::Malformed)?;
        if size == 0 {
            return Ok(Some(joined));
        }
        if size > ANSWER_BYTES_MAX {
            return Err(HttpError::TooLong);
        }
        let Some(chunk) = rest[line_end + 2..].get(..size + 2) else {
            return Ok(None);
        };
        joined.extend_from_slice(&chunk[..size]);
        rest = &rest[line_end + 2 + size + 2..];
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn addresses_are_taken_apart() {
        let endpoint = Endpoint::parse("http://auth.local:4181/auth").unwrap();
        let head = endpoint.head(&Method::Get("a=b".into()));
        assert!(head.starts_with("GET /auth?a=b HTTP/1.1\r\nHost: auth.local:4181\r\n"));
        let endpoint = Endpoint::parse("https://[::1]/x?y=z")
            .unwrap()
            .with_https(444);
        assert_eq!((endpoint.name(), endpoint.port), ("::1", 444));
        assert!(
            endpoint
                .head(&Method::Get("a=b".into()))
                .starts_with("GET /x?y=z&a=b ")
        );
        for bad in [
            "auth",
            "ftp://a/",
            "http://",
            "http://a:x/",
            "http://a/\r\nX: y",
        ] {
            assert!(Endpoint::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn answers_are_read_in_each_form() {
        let check = |answer: &str, ended, expect: Option<(u16, &str)>| {
            let expect = expect.map(|(status, body)| (status, body.as_bytes().to_vec()));
            assert_eq!(
                parse_answer(answer.as_bytes(), ended).unwrap(),
                expect,
                "{answer}"
            );
        };
        check("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{", false, None);
        check(
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
            false,
            Some((200, "{}")),
        );
        check("HTTP/1.0 403 No\r\nA: b\r\n\r\nbody", false, None);
        check(
            "HTTP/1.0 403 No\r\nA: b\r\n\r\nbody",
            true,
            Some((403, "body")),
        );
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1;x\r\n}\r\n";
        check(chunked, false, None);
        check(&format!("{chunked}0\r\n\r\n"), false, Some((200, "{}")));
        for bad in [
            "SSH-2.0\r\n\r\n",
            "HTTP/1.1 x\r\n\r\n",
            "HTTP/1.1 200 OK\r\nx\r\n\r\n",
        ] {
            assert!(parse_answer(bad.as_bytes(), true).is_err(), "{bad}");
        }
    }

    #[test]
    fn authorities_are_read_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        let mut nsq = crate::Config::default().nsq;
        nsq.tls_root_ca_file = Some(file.clone());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let tls = ClientTls::default();
        let missing = runtime.block_on(tls.config(&nsq));
        assert!(matches!(missing, Err(HttpError::NoAuthorities)));
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        std::fs::write(&file, params.self_signed(&key).unwrap().pem()).unwrap();
        let made = runtime.block_on(tls.config(&nsq)).unwrap();
        std::fs::remove_file(&file).unwrap();
        let kept = runtime.block_on(tls.config(&nsq)).unwrap();
        assert!(Arc::ptr_eq(&made, &kept));
    }
}
