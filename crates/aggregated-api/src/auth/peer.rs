//! The certificates that a TLS client presented. The TLS layer proves only that the client holds
//! the key; which authority signed them is judged per request by the authenticators.

use std::sync::Arc;

use rustls_pki_types::CertificateDer;
use sha2::{Digest, Sha256};

/// Certificate chain of the TLS peer, leaf first, put into the extensions of every request of the
/// connection. Made once per connection; cloning is cheap.
#[derive(Clone, Debug)]
pub struct PeerCertificates(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    chain: Vec<CertificateDer<'static>>,
    fingerprint: [u8; 32],
}

impl PeerCertificates {
    /// Takes the chain as the peer sent it; `None` when it sent none.
    pub fn new(chain: Vec<CertificateDer<'static>>) -> Option<Self> {
        if chain.is_empty() {
            return None;
        }
        let mut digest = Sha256::new();
        for certificate in &chain {
            // Why: the length keeps two chains that concatenate to the same bytes apart.
            digest.update(
                u64::try_from(certificate.len())
                    .unwrap_or(u64::MAX)
                    .to_be_bytes(),
            );
            digest.update(certificate);
        }
        Some(Self(Arc::new(Inner {
            chain,
            fingerprint: digest.finalize().into(),
        })))
    }

    /// The certificate of the peer itself.
    pub fn leaf(&self) -> &CertificateDer<'static> {
        &self.0.chain[0]
    }

    /// Further certificates that may lead to an authority.
    pub fn intermediates(&self) -> &[CertificateDer<'static>] {
        &self.0.chain[1..]
    }

    /// Digest of the whole chain: verdicts are cached by it.
    pub(crate) fn fingerprint(&self) -> &[u8; 32] {
        &self.0.fingerprint
    }
}
