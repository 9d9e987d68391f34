//! A bundle of certificate authorities, and its verdict on a peer's chain.
//!
//! Verdicts are remembered inside the bundle: a new bundle starts with none, so a rotation takes
//! effect on open connections at their next request.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use runtime_kit::Clock;
use rustls::{
    DistinguishedName, RootCertStore,
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use rustls_pki_types::{CertificateDer, UnixTime, pem::PemObject};
use sha2::{Digest, Sha256};
use thiserror::Error;
use x509_parser::{oid_registry::Oid, prelude::*};

use super::peer::PeerCertificates;

/// Verdicts remembered per bundle. A cluster has a handful of front proxy certificates; more only
/// come from somebody who tries.
const MAX_VERDICTS: usize = 1024;
/// How long a refusal is remembered: short, because a certificate may become valid.
const KEEP_REFUSAL: Duration = Duration::from_secs(10);
/// Where Kubernetes puts a user's UID into a client certificate's subject.
const UID_OID: [u64; 8] = [1, 3, 6, 1, 4, 1, 57683, 2];

/// A bundle that cannot be used.
#[derive(Debug, Error)]
pub enum CaBundleError {
    /// The text is not PEM.
    #[error("the CA bundle is not valid PEM")]
    Pem(#[source] rustls_pki_types::pem::Error),
    /// There is no certificate in it.
    #[error("the CA bundle holds no certificate")]
    Empty,
    /// A certificate in it cannot serve as a trust anchor.
    #[error("certificate {index} of the CA bundle cannot be used as an authority")]
    Anchor {
        /// Position in the bundle, from 0.
        index: usize,
        /// What is wrong with it.
        #[source]
        source: rustls::Error,
    },
    /// The verifier refused the bundle.
    #[error("the CA bundle cannot be used to verify clients")]
    Verifier(#[source] rustls::server::VerifierBuilderError),
}

/// What the subject of a verified certificate says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// Common name, empty when there is none.
    pub common_name: String,
    /// Organizations, in order: the groups of a client certificate.
    pub organizations: Vec<String>,
    /// Kubernetes UID, empty when there is none.
    pub uid: String,
    /// Lower-case hex SHA-256 of the certificate.
    pub sha256: String,
}

#[derive(Clone)]
enum Verdict {
    Trusted(Arc<Subject>),
    Refused(Arc<str>),
}

struct Remembered {
    verdict: Verdict,
    until: UnixTime,
}

/// Authorities that sign clients.
pub struct CaBundle {
    pem: String,
    verifier: Arc<dyn ClientCertVerifier>,
    clock: Arc<dyn Clock>,
    verdicts: Mutex<HashMap<[u8; 32], Remembered>>,
}

impl fmt::Debug for CaBundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaBundle")
            .field("authorities", &self.verifier.root_hint_subjects().len())
            .finish_non_exhaustive()
    }
}

impl CaBundle {
    /// Reads a PEM bundle; validity periods are compared with the wall time of `clock`.
    ///
    /// # Errors
    /// [`CaBundleError`] when it holds no certificate or one that cannot be an authority.
    pub fn from_pem(pem: &str, clock: Arc<dyn Clock>) -> Result<Self, CaBundleError> {
        let mut roots = RootCertStore::empty();
        for (index, certificate) in CertificateDer::pem_slice_iter(pem.as_bytes()).enumerate() {
            let certificate = certificate.map_err(CaBundleError::Pem)?;
            roots
                .add(certificate)
                .map_err(|source| CaBundleError::Anchor { index, source })?;
        }
        if roots.is_empty() {
            return Err(CaBundleError::Empty);
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(
            Arc::new(roots),
            Arc::new(rustls::crypto::aws_lc_rs::default_provider()),
        )
        .build()
        .map_err(CaBundleError::Verifier)?;
        Ok(Self {
            pem: pem.to_owned(),
            verifier,
            clock,
            verdicts: Mutex::default(),
        })
    }

    /// The text the bundle was read from.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// DER subjects of the authorities, for the CertificateRequest of a TLS handshake.
    pub fn subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    /// Verifies that `peer` chains to one of the authorities, is within its validity, and may be
    /// used by a client; gives its subject.
    ///
    /// # Errors
    /// Why it is not trusted, for the log.
    pub fn verify(&self, peer: &PeerCertificates) -> Result<Arc<Subject>, Arc<str>> {
        let now = unix_time(self.clock.now().as_second());
        if let Some(known) = self.verdicts.lock().get(peer.fingerprint())
            && now < known.until
        {
            return known.verdict.clone().into_result();
        }
        let remembered = self.judge(peer, now);
        let verdict = remembered.verdict.clone();
        let mut verdicts = self.verdicts.lock();
        if verdicts.len() >= MAX_VERDICTS {
            verdicts.clear();
        }
        verdicts.insert(*peer.fingerprint(), remembered);
        verdict.into_result()
    }

    fn judge(&self, peer: &PeerCertificates, now: UnixTime) -> Remembered {
        let refused = |why: String| Remembered {
            verdict: Verdict::Refused(why.into()),
            until: UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs()) + KEEP_REFUSAL),
        };
        if let Err(err) = self
            .verifier
            .verify_client_cert(peer.leaf(), peer.intermediates(), now)
        {
            return refused(format!("client certificate: {err}"));
        }
        let subject = match read_subject(peer.leaf()) {
            Ok(subject) => subject,
            Err(why) => return refused(why),
        };
        Remembered {
            until: valid_until(peer),
            verdict: Verdict::Trusted(Arc::new(subject)),
        }
    }
}

impl Verdict {
    fn into_result(self) -> Result<Arc<Subject>, Arc<str>> {
        match self {
            Self::Trusted(subject) => Ok(subject),
            Self::Refused(why) => Err(why),
        }
    }
}

fn unix_time(seconds: i64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

/// The earliest end of validity in the presented chain. A verdict must not outlive it.
fn valid_until(peer: &PeerCertificates) -> UnixTime {
    std::iter::once(peer.leaf())
        .chain(peer.intermediates())
        .map(|certificate| {
            X509Certificate::from_der(certificate)
                .map_or(0, |(_, parsed)| parsed.validity().not_after.timestamp())
        })
        .min()
        .map_or(UnixTime::since_unix_epoch(Duration::ZERO), unix_time)
}

fn read_subject(leaf: &CertificateDer<'_>) -> Result<Subject, String> {
    let (_, certificate) = X509Certificate::from_der(leaf)
        .map_err(|err| format!("client certificate cannot be parsed: {err}"))?;
    let subject = certificate.subject();
    let text = |attribute: &AttributeTypeAndValue<'_>| attribute.as_str().map(str::to_owned);
    // Go keeps the last of several common names, and the API server's users were named by Go.
    let common_name = match subject.iter_common_name().last() {
        None => String::new(),
        Some(name) => text(name).map_err(|err| format!("common name is not text: {err}"))?,
    };
    let organizations = subject
        .iter_organization()
        .map(text)
        .collect::<Result<_, _>>()
        .map_err(|err| format!("organization is not text: {err}"))?;
    let uid_oid = Oid::from(&UID_OID).map_err(|_| "UID attribute type".to_owned())?;
    let mut uids = subject.iter_by_oid(&uid_oid);
    let uid = match (uids.next(), uids.next()) {
        (None, _) => String::new(),
        (Some(uid), None) => text(uid).map_err(|err| format!("UID is not text: {err}"))?,
        (Some(_), Some(_)) => return Err("client certificate names more than one UID".to_owned()),
    };
    Ok(Subject {
        common_name,
        organizations,
        uid,
        sha256: data_encoding::HEXLOWER.encode(&Sha256::digest(leaf)),
    })
}

#[cfg(test)]
mod tests {
    use rcgen::date_time_ymd;
    use runtime_kit::SteppedClock;

    use super::*;
    use crate::auth::test_pki::{Authority, client_params};

    const DAY: Duration = Duration::from_hours(24);

    fn at(date: &str) -> SteppedClock {
        SteppedClock::new(format!("{date}T00:00:00Z").parse().unwrap())
    }

    #[test]
    fn trust_ends_with_the_certificate_although_it_was_verified_before() {
        let (authority, clock) = (Authority::new("ca"), at("2026-01-09"));
        let ca = CaBundle::from_pem(&authority.pem(), Arc::new(clock.clone())).unwrap();
        let mut params = client_params("bob");
        params.not_after = date_time_ymd(2026, 1, 10);
        let peer = authority.issue(&params).peer();
        assert!(ca.verify(&peer).is_ok());
        clock.advance(2 * DAY);
        assert!(ca.verify(&peer).is_err());
    }

    #[test]
    fn a_certificate_that_becomes_valid_is_trusted_ten_seconds_later_at_most() {
        let (authority, clock) = (Authority::new("ca"), at("2026-01-09"));
        let ca = CaBundle::from_pem(&authority.pem(), Arc::new(clock.clone())).unwrap();
        let mut params = client_params("bob");
        params.not_before = date_time_ymd(2026, 1, 10);
        let peer = authority.issue(&params).peer();
        clock.advance(Duration::from_secs(24 * 3600 - 1));
        assert!(ca.verify(&peer).is_err());
        clock.advance(Duration::from_secs(10));
        assert!(ca.verify(&peer).is_ok());
    }

    #[test]
    fn strangers_do_not_fill_the_memory() {
        let (authority, clock) = (Authority::new("ca"), at("2026-01-09"));
        let ca = CaBundle::from_pem(&authority.pem(), Arc::new(clock)).unwrap();
        for index in 0..=MAX_VERDICTS {
            let nonsense = CertificateDer::from(index.to_be_bytes().to_vec());
            let peer = PeerCertificates::new(vec![nonsense]).unwrap();
            assert!(ca.verify(&peer).is_err());
        }
        assert!(ca.verdicts.lock().len() <= MAX_VERDICTS);
        assert!(ca.verify(&authority.client("bob").peer()).is_ok());
    }

    #[test]
    fn a_bundle_without_a_certificate_is_refused() {
        for pem in ["", "nonsense"] {
            let refused = CaBundle::from_pem(pem, Arc::new(at("2026-01-09")));
            assert!(matches!(refused, Err(CaBundleError::Empty)), "{refused:?}");
        }
    }
}
