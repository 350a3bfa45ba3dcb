//! TLS between a client and the broker: a certificate, and a tunnel for libraries without TLS.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

use super::ClientContext;
use crate::broker::{BrokerListener, Certificate};

/// Listens for clients without TLS and carries their bytes to the broker over TLS, until the
/// runtime ends. Returns the address for the clients.
///
/// # Errors
/// There is no certificate, or no port for a listener.
pub(super) async fn tunnel(client: &ClientContext) -> io::Result<SocketAddr> {
    let none = || io::Error::other("the broker has no certificate");
    let broker = client.addresses.get(BrokerListener::AmqpTls);
    let broker = broker.ok_or_else(none)?;
    let authority = client.authority.as_deref().ok_or_else(none)?;
    let authority = CertificateDer::from_pem_slice(authority.as_bytes());
    let mut roots = RootCertStore::empty();
    let added = roots.add(authority.map_err(io::Error::other)?);
    added.map_err(io::Error::other)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            // If it fails, its client notices that.
            tokio::spawn(carry(client, connector.clone(), broker));
        }
    });
    Ok(address)
}

async fn carry(
    mut client: TcpStream,
    connector: TlsConnector,
    broker: SocketAddr,
) -> io::Result<()> {
    let far = TcpStream::connect(broker).await?;
    far.set_nodelay(true)?;
    client.set_nodelay(true)?;
    let name = ServerName::from(broker.ip());
    let mut far = connector.connect(name, far).await?;
    tokio::io::copy_bidirectional(&mut client, &mut far).await?;
    Ok(())
}

/// A certificate for 127.0.0.1, and the authority that has signed it.
pub(super) struct Tls {
    /// The files of the certificate and its key.
    pub(super) certificate: Certificate,
    /// The certificate of the authority that signed it, PEM.
    pub(super) authority: String,
    _folder: TempDir,
}

impl Tls {
    pub(super) fn make() -> io::Result<Tls> {
        let folder = tempfile::Builder::new()
            .prefix("cloverleaf-lab-")
            .tempdir()?;
        let (certificate, key, authority) = Tls::sign().map_err(io::Error::other)?;
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).map(|()| path)
        };
        Ok(Tls {
            certificate: Certificate {
                certificate: write("certificate.pem", &certificate)?,
                key: write("key.pem", &key)?,
            },
            authority,
            _folder: folder,
        })
    }

    fn sign() -> Result<(String, String, String), rcgen::Error> {
        let mut authority = CertificateParams::new(Vec::new())?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // A certificate that has the name of its issuer is taken for self-signed.
        let name = &mut authority.distinguished_name;
        name.push(DnType::CommonName, "Cloverleaf's lab");
        let signer = KeyPair::generate()?;
        let signed = authority.self_signed(&signer)?.pem();
        let issuer = Issuer::new(authority, signer);
        let key = KeyPair::generate()?;
        let mut own = CertificateParams::new(vec!["127.0.0.1".to_owned()])?;
        let name = &mut own.distinguished_name;
        name.push(DnType::CommonName, "a broker of the lab");
        let certificate = own.signed_by(&key, &issuer)?.pem();
        Ok((certificate, key.serialize_pem(), signed))
    }
}
