//! Certificates that are made when the tests run: there is no key in the repository.
#![allow(clippy::unwrap_used, clippy::expect_used, dead_code, unreachable_pub)]

use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

/// Writes a certificate or key to a file of this name in the folder; returns the option's value.
pub fn save(folder: &tempfile::TempDir, name: &str, text: &str) -> Option<PathBuf> {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    Some(path)
}

/// An authority that signs certificates for the name `localhost`.
pub struct Authority {
    pub certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, in PEM.
pub struct Certified {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new() -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap().pem();
        Authority {
            certificate,
            issuer: Issuer::new(params, key),
        }
    }

    pub fn certify(&self) -> Certified {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Certified {
            certificate,
            key: key.serialize_pem(),
        }
    }

    /// The client's side of a TLS connection to a server with a certificate of this authority.
    pub fn client(
        &self,
        client: Option<&Certified>,
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> ClientConnection {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(self.certificate.as_bytes()).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        let config = match client {
            None => builder.with_no_client_auth(),
            Some(client) => builder
                .with_client_auth_cert(
                    vec![CertificateDer::from_pem_slice(client.certificate.as_bytes()).unwrap()],
                    PrivateKeyDer::from_pem_slice(client.key.as_bytes()).unwrap(),
                )
                .unwrap(),
        };
        let name = "localhost".try_into().unwrap();
        ClientConnection::new(Arc::new(config), name).unwrap()
    }
}
