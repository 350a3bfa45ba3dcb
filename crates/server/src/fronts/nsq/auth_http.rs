//! The requests to auth services, and TLS with them.

use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use hyper::Request;
use hyper::header::CONTENT_TYPE;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::http_client::{ExchangeError, exchange, request};
use crate::config::options::NsqConfig;

/// The files in which Linux distributions keep the authorities that they trust.
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
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
}

/// The parts of an auth service's URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    https: bool,
    host: String,
    port: u16,
    path: String,
}

/// The request's method, with its query or body.
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
        // Control characters and spaces would end the request line early.
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

    fn request(&self, method: Method) -> Result<Request<String>, HttpError> {
        let request = request(&self.host, self.port);
        let request = match method {
            Method::Get(query) => {
                let mark = if self.path.contains('?') { '&' } else { '?' };
                let target = format!("{}{mark}{query}", self.path);
                request.uri(target).body(String::new())
            }
            Method::Post(body) => request
                .method("POST")
                .uri(&self.path)
                .header(CONTENT_TYPE, "application/json")
                .body(body),
        };
        request.map_err(|_| HttpError::Address(format!("{}{}", self.host, self.path)))
    }
}

/// Sends one request and returns status and body of the answer.
pub(crate) async fn ask(
    endpoint: &Endpoint,
    method: Method,
    nsq: &NsqConfig,
    tls: &ClientTls,
) -> Result<(u16, Bytes), HttpError> {
    let request = endpoint.request(method)?;
    let limit = nsq.http_client_connect_timeout;
    let connected = timeout(limit, TcpStream::connect((endpoint.name(), endpoint.port))).await;
    let stream = connected.map_err(|_| HttpError::ConnectTimedOut(limit))??;
    if !endpoint.https {
        return Ok(exchange(stream, request).await?);
    }
    let name = ServerName::try_from(endpoint.name().to_owned())
        .map_err(|_| HttpError::Address(endpoint.host.clone()))?;
    let connector = TlsConnector::from(tls.config(nsq).await?);
    let stream = connector.connect(name, stream).await?;
    Ok(exchange(stream, request).await?)
}

/// TLS with the auth services: made for the first request that needs it, then kept.
#[derive(Default)]
pub(crate) struct ClientTls {
    made: OnceLock<Arc<ClientConfig>>,
}

impl ClientTls {
    /// Reads the authorities' certificates on another thread, so that the core can serve its other
    /// connections.
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
        // An unusable certificate in a bundle must not spoil the others.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn urls_are_parsed() {
        let endpoint = Endpoint::parse("http://auth.local:4181/auth").unwrap();
        let request = endpoint.request(Method::Get("a=b".into())).unwrap();
        assert_eq!(
            (request.method().as_str(), request.uri()),
            ("GET", &"/auth?a=b".parse().unwrap())
        );
        assert_eq!(request.headers()["host"], "auth.local:4181");
        let endpoint = Endpoint::parse("https://[::1]/x?y=z")
            .unwrap()
            .with_https(444);
        assert_eq!((endpoint.name(), endpoint.port), ("::1", 444));
        let request = endpoint.request(Method::Get("a=b".into())).unwrap();
        assert_eq!(request.uri().to_string(), "/x?y=z&a=b");
        let request = endpoint.request(Method::Post("{}".into())).unwrap();
        assert_eq!(
            (request.method().as_str(), request.body().as_str()),
            ("POST", "{}")
        );
        assert_eq!(request.headers()["content-type"], "application/json");
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
