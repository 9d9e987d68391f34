//! The TLS side of the listener: the serving certificate and the list of client authorities, both
//! replaced while the server runs.
//!
//! A handshake never fails because of who signed the client's certificate. It proves that the
//! client holds the key; the authenticators judge the signature per request, so a stranger gets
//! 401 and a changed CA takes effect on connections that are already open.

use std::sync::Arc;

use arc_swap::ArcSwap;
use runtime_kit::chain;
use rustls::{
    DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{
        CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
        verify_tls13_signature_with_raw_key,
    },
    server::{
        ResolvesServerCert,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use rustls_pki_types::{CertificateDer, SubjectPublicKeyInfoDer, UnixTime};
use thiserror::Error;
use tokio_util::sync::CancellationToken;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::auth::DelegatedConfig;

/// A TLS configuration that cannot be built.
#[derive(Debug, Error)]
#[error("TLS cannot be configured")]
pub struct TlsError(#[from] rustls::Error);

/// The TLS configuration that new connections get.
pub struct ServingTls {
    certificate: Arc<dyn ResolvesServerCert>,
    clients: Arc<DelegatedConfig>,
    current: ArcSwap<ServerConfig>,
}

impl ServingTls {
    /// Serves with `certificate`, usually a
    /// [`ReloadingCertificate`](runtime_kit::tls::ReloadingCertificate), and asks clients for
    /// certificates of the authorities in `clients`.
    ///
    /// # Errors
    /// [`TlsError`] when the cryptography provider cannot do TLS 1.2 and 1.3.
    pub fn new(
        certificate: Arc<dyn ResolvesServerCert>,
        clients: Arc<DelegatedConfig>,
    ) -> Result<Arc<Self>, TlsError> {
        let config = build_config(Arc::clone(&certificate), &clients)?;
        Ok(Arc::new(Self {
            certificate,
            clients,
            current: ArcSwap::from_pointee(config),
        }))
    }

    /// What the next handshake uses.
    pub fn current(&self) -> Arc<ServerConfig> {
        self.current.load_full()
    }

    /// Follows the client authorities until `stop`.
    pub async fn run(&self, stop: CancellationToken) {
        let mut clients = self.clients.subscribe();
        loop {
            // Why: before the first wait, or an authority that arrived between building and
            // subscribing would be missed.
            match build_config(Arc::clone(&self.certificate), &self.clients) {
                Ok(config) => self.current.store(Arc::new(config)),
                Err(err) => tracing::error!(
                    error = %chain(&err),
                    "the list of client authorities stays what it was"
                ),
            }
            match stop.run_until_cancelled(clients.changed()).await {
                Some(Ok(())) => {},
                Some(Err(_)) | None => return,
            }
        }
    }
}

fn build_config(
    certificate: Arc<dyn ResolvesServerCert>,
    clients: &DelegatedConfig,
) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = Arc::new(AskForCertificate::new(&provider, clients));
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(certificate);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// Requests a certificate, takes any, and checks that the client holds its key.
#[derive(Debug)]
struct AskForCertificate {
    acceptable: Vec<DistinguishedName>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl AskForCertificate {
    fn new(provider: &CryptoProvider, clients: &DelegatedConfig) -> Self {
        let trust = clients.trust();
        let proxy_ca = trust.request_header.as_ref().map(|config| &config.ca);
        let mut acceptable = Vec::new();
        for subject in trust
            .client_ca
            .iter()
            .chain(proxy_ca)
            .flat_map(|ca| ca.subjects())
        {
            if !acceptable
                .iter()
                .any(|known: &DistinguishedName| known.as_ref() == subject.as_ref())
            {
                acceptable.push(subject.clone());
            }
        }
        Self {
            acceptable,
            algorithms: provider.signature_verification_algorithms,
        }
    }
}

impl ClientCertVerifier for AskForCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.acceptable
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        // Judged per request by `auth`, so that a certificate of an unknown CA is answered 401.
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let verified = verify_tls13_signature(message, cert, dss, &self.algorithms);
        // Why: a certificate of X.509 version 1, as `openssl x509 -req` makes, cannot be parsed
        // there; the handshake still only needs its key.
        if let Err(rustls::Error::InvalidCertificate(_)) = &verified
            && let Some(key) = public_key(cert)
        {
            return verify_tls13_signature_with_raw_key(message, &key, dss, &self.algorithms);
        }
        verified
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

fn public_key(certificate: &CertificateDer<'_>) -> Option<SubjectPublicKeyInfoDer<'static>> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    Some(SubjectPublicKeyInfoDer::from(
        certificate.public_key().raw.to_vec(),
    ))
}
