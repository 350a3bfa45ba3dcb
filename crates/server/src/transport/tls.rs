//! TLS for clients: certificates from files, and nsqd's policies for client certificates.

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

use crate::config::value::{ClientAuthPolicy, ListenAddress, TlsVersion};

/// Why TLS cannot be offered as configured.
#[derive(Debug, Error)]
pub enum TlsError {
    /// Only one of the two files is configured.
    #[error("{section}.tls_cert and {section}.tls_key belong together: configure both or neither")]
    HalfConfigured {
        /// The protocol's section of the options.
        section: &'static str,
    },
    /// Clients must use TLS but there is no certificate.
    #[error("clients are required to use TLS, but nsq.tls_cert and nsq.tls_key are missing")]
    RequiredWithoutCertificate,
    /// There is an address for TLS but no certificate.
    #[error(
        "{section}.tls_address needs a certificate: {section}.tls_cert and {section}.tls_key are \
         missing"
    )]
    AddressWithoutCertificate {
        /// The protocol's section of the options.
        section: &'static str,
    },
    /// There is a certificate, but no address where clients use TLS.
    #[error(
        "{section}.tls_cert, {section}.tls_key and {section}.tls_root_ca_file are for \
         {section}.tls_address, which is not set: set it, or leave them out"
    )]
    CertificateWithoutAddress {
        /// The protocol's section of the options.
        section: &'static str,
    },
    /// Client certificates are to be verified, but no authorities are configured.
    #[error(
        "{section}.tls_client_auth_policy = \"require-verify\" needs {section}.tls_root_ca_file, \
         the authorities that sign clients' certificates"
    )]
    NoAuthorities {
        /// The protocol's section of the options.
        section: &'static str,
    },
    /// A file cannot be read, or has no item of the kind.
    #[error("cannot use {} ({section}.{key}): {error}", path.display())]
    File {
        /// The protocol's section of the options.
        section: &'static str,
        /// The option that names the file.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// The fault of the file.
        error: rustls::pki_types::pem::Error,
    },
    /// Certificate, key and authorities do not make a working configuration.
    #[error("the TLS certificate cannot be used: {0}")]
    Unusable(String),
}

/// The TLS options of one protocol; they have the same names in each protocol's section.
pub(crate) struct TlsSettings<'a> {
    pub(crate) section: &'static str,
    pub(crate) cert: &'a Option<PathBuf>,
    pub(crate) key: &'a Option<PathBuf>,
    pub(crate) policy: ClientAuthPolicy,
    pub(crate) authorities: &'a Option<PathBuf>,
    pub(crate) min_version: TlsVersion,
}

/// The [`TlsSettings`] of a section of the configuration: `tls_settings!(config.kafka)`.
macro_rules! tls_settings {
    ($config:ident.$section:ident) => {
        $crate::transport::tls::TlsSettings {
            section: stringify!($section),
            cert: &$config.$section.tls_cert,
            key: &$config.$section.tls_key,
            policy: $config.$section.tls_client_auth_policy,
            authorities: &$config.$section.tls_root_ca_file,
            min_version: $config.$section.tls_min_version,
        }
    };
}
pub(crate) use tls_settings;

impl TlsSettings<'_> {
    /// The configuration of a listener that speaks only TLS; `None` if its address is off.
    ///
    /// # Errors
    /// The text names the option to change.
    pub(crate) fn for_listener(
        &self,
        address: &ListenAddress,
    ) -> Result<Option<Arc<ServerConfig>>, TlsError> {
        let section = self.section;
        if address.is_off() {
            let files = [self.cert, self.key, self.authorities];
            return if files.iter().any(|file| file.is_some()) {
                Err(TlsError::CertificateWithoutAddress { section })
            } else {
                Ok(None)
            };
        }
        match self.server_config()? {
            None => Err(TlsError::AddressWithoutCertificate { section }),
            config => Ok(config),
        }
    }

    /// `None` when no certificate is configured.
    ///
    /// # Errors
    /// The text names the option to change.
    pub(crate) fn server_config(&self) -> Result<Option<Arc<ServerConfig>>, TlsError> {
        let section = self.section;
        let (cert, key) = match (self.cert, self.key) {
            (Some(cert), Some(key)) => (cert, key),
            (None, None) => return Ok(None),
            _ => return Err(TlsError::HalfConfigured { section }),
        };
        let chain = self.certificates(cert, "tls_cert")?;
        let key = PrivateKeyDer::from_pem_file(key).map_err(|error| TlsError::File {
            section,
            key: "tls_key",
            path: key.clone(),
            error,
        })?;
        let provider = Arc::new(ring::default_provider());
        let versions: &[&rustls::SupportedProtocolVersion] = match self.min_version {
            TlsVersion::Tls12 => &[&rustls::version::TLS13, &rustls::version::TLS12],
            TlsVersion::Tls13 => &[&rustls::version::TLS13],
        };
        let unusable = |error: rustls::Error| TlsError::Unusable(error.to_string());
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .map_err(unusable)?
            .with_client_cert_verifier(self.client_verifier(provider)?)
            .with_single_cert(chain, key)
            .map_err(unusable)?;
        Ok(Some(Arc::new(config)))
    }

    fn certificates(
        &self,
        path: &Path,
        key: &'static str,
    ) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let file_error = |error| TlsError::File {
            section: self.section,
            key,
            path: path.to_owned(),
            error,
        };
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path)
            .map_err(file_error)?
            .collect();
        match certificates {
            Ok(none) if none.is_empty() => {
                Err(file_error(rustls::pki_types::pem::Error::NoItemsFound))
            }
            Ok(certificates) => Ok(certificates),
            Err(error) => Err(file_error(error)),
        }
    }

    fn client_verifier(
        &self,
        provider: Arc<CryptoProvider>,
    ) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
        match self.policy {
            ClientAuthPolicy::None => Ok(WebPkiClientVerifier::no_client_auth()),
            ClientAuthPolicy::Require => Ok(Arc::new(AnyCertificate(provider))),
            ClientAuthPolicy::RequireVerify => {
                let section = self.section;
                let path = self.authorities.as_ref();
                let path = path.ok_or(TlsError::NoAuthorities { section })?;
                let mut roots = RootCertStore::empty();
                for authority in self.certificates(path, "tls_root_ca_file")? {
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
}

/// The policy `require`: the client must own the key of some certificate, whichever authority
/// signed it.
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
