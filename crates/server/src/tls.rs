//! TLS for clients: certificates from files, and nsqd's policies for clients' certificates.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme,
};
use thiserror::Error;

use crate::config_value::{ClientAuthPolicy, TlsRequired, TlsVersion};
use crate::options::NsqConfig;

/// Why TLS cannot be offered as configured.
#[derive(Debug, Error)]
pub enum TlsError {
    /// Only one of the two files is configured.
    #[error("nsq.tls_cert and nsq.tls_key belong together: configure both or neither")]
    HalfConfigured,
    /// Clients must use TLS but there is no certificate.
    #[error("clients are required to use TLS, but nsq.tls_cert and nsq.tls_key are missing")]
    RequiredWithoutCertificate,
    /// Clients' certificates are to be verified but there is nobody to trust.
    #[error(
        "nsq.tls_client_auth_policy = \"require-verify\" needs nsq.tls_root_ca_file, the \
         authorities that sign clients' certificates"
    )]
    NoAuthorities,
    /// A file cannot be read or holds nothing of the kind.
    #[error("cannot use {} ({option}): {error}", path.display())]
    File {
        /// The option that names the file.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: rustls::pki_types::pem::Error,
    },
    /// Certificate, key and authorities do not make a working configuration.
    #[error("the TLS certificate cannot be used: {0}")]
    Unusable(String),
}

/// The configuration for servers; `None` when no certificate is configured.
///
/// # Errors
/// Says which option to change.
pub(crate) fn server_config(nsq: &NsqConfig) -> Result<Option<Arc<ServerConfig>>, TlsError> {
    let (cert, key) = match (&nsq.tls_cert, &nsq.tls_key) {
        (Some(cert), Some(key)) => (cert, key),
        (None, None) if nsq.tls_required == TlsRequired::No => return Ok(None),
        (None, None) => return Err(TlsError::RequiredWithoutCertificate),
        _ => return Err(TlsError::HalfConfigured),
    };
    let chain = certificates(cert, "nsq.tls_cert")?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| TlsError::File {
        option: "nsq.tls_key",
        path: key.clone(),
        error,
    })?;
    let provider = Arc::new(ring::default_provider());
    let versions: &[&rustls::SupportedProtocolVersion] = match nsq.tls_min_version {
        TlsVersion::Tls12 => &[&rustls::version::TLS13, &rustls::version::TLS12],
        TlsVersion::Tls13 => &[&rustls::version::TLS13],
    };
    let unusable = |error: rustls::Error| TlsError::Unusable(error.to_string());
    let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .map_err(unusable)?
        .with_client_cert_verifier(client_verifier(nsq, provider)?)
        .with_single_cert(chain, key)
        .map_err(unusable)?;
    Ok(Some(Arc::new(config)))
}

fn certificates(
    path: &Path,
    option: &'static str,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let file_error = |error| TlsError::File {
        option,
        path: path.to_owned(),
        error,
    };
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path)
        .map_err(file_error)?
        .collect();
    match certificates {
        Ok(none) if none.is_empty() => Err(file_error(rustls::pki_types::pem::Error::NoItemsFound)),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(file_error(error)),
    }
}

fn client_verifier(
    nsq: &NsqConfig,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    match nsq.tls_client_auth_policy {
        ClientAuthPolicy::None => Ok(WebPkiClientVerifier::no_client_auth()),
        ClientAuthPolicy::Require => Ok(Arc::new(AnyCertificate(provider))),
        ClientAuthPolicy::RequireVerify => {
            let path = nsq
                .tls_root_ca_file
                .as_ref()
                .ok_or(TlsError::NoAuthorities)?;
            let mut roots = RootCertStore::empty();
            for authority in certificates(path, "nsq.tls_root_ca_file")? {
                let added = roots.add(authority);
                added.map_err(|error| TlsError::Unusable(error.to_string()))?;
            }
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map(|verifier| verifier as Arc<dyn ClientCertVerifier>)
                .map_err(|error| TlsError::Unusable(error.to_string()))
        }
    }
}

/// The policy `require`: the client must own the key of some certificate, whoever signed it.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ClientCertVerifier for AnyCertificate {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
