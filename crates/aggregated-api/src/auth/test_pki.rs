//! Authorities and certificates for the unit tests of `auth` and `server`.

use std::sync::Arc;

use http::{Request, request};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, date_time_ymd,
};
use runtime_kit::{Clock, SystemClock};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

use super::{DelegatedConfig, PeerCertificates, RequestHeaderConfig, ca::CaBundle, trust::Trust};

pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

pub(crate) struct Issued {
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) pem: String,
    pub(crate) key_pem: String,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    pub(crate) fn certificate(&self) -> CertificateDer<'static> {
        self.0.der().clone()
    }

    pub(crate) fn bundle(&self) -> Arc<CaBundle> {
        Arc::new(CaBundle::from_pem(&self.pem(), clock()).unwrap())
    }

    /// A client certificate with everything right.
    pub(crate) fn client(&self, common_name: &str) -> Issued {
        self.issue(&client_params(common_name))
    }

    pub(crate) fn server(&self, dns_name: &str) -> Issued {
        let mut params = CertificateParams::new([dns_name.to_owned()]).unwrap();
        params.insert_extended_key_usage(ExtendedKeyUsagePurpose::ServerAuth);
        self.issue(&params)
    }

    pub(crate) fn issue(&self, params: &CertificateParams) -> Issued {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Issued {
            certificate: certificate.der().clone(),
            pem: certificate.pem(),
            key_pem: key.serialize_pem(),
        }
    }
}

impl Issued {
    pub(crate) fn peer(&self) -> PeerCertificates {
        PeerCertificates::new(vec![self.certificate.clone()]).unwrap()
    }

    pub(crate) fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_slice(self.key_pem.as_bytes()).unwrap()
    }
}

pub(crate) fn client_params(common_name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    params.insert_extended_key_usage(ExtendedKeyUsagePurpose::ClientAuth);
    params
}

pub(crate) fn expired(mut params: CertificateParams) -> CertificateParams {
    params.not_before = date_time_ymd(2001, 1, 1);
    params.not_after = date_time_ymd(2002, 1, 1);
    params
}

pub(crate) fn clock() -> Arc<dyn Clock> {
    SystemClock::shared()
}

/// The front proxy as kube-apiserver describes itself.
pub(crate) fn front_proxy(ca: Arc<CaBundle>, allowed_names: &[&str]) -> Arc<RequestHeaderConfig> {
    Arc::new(RequestHeaderConfig {
        ca,
        allowed_names: allowed_names.iter().map(|&name| name.to_owned()).collect(),
        username_headers: vec!["x-remote-user".parse().unwrap()],
        uid_headers: vec!["x-remote-uid".parse().unwrap()],
        group_headers: vec!["x-remote-group".parse().unwrap()],
        extra_prefixes: vec!["x-remote-extra-".to_owned()],
    })
}

/// Trusts `client_ca` for users and `proxy_ca` for a front proxy named `front-proxy-client`.
pub(crate) fn trusting(
    client_ca: Option<&Authority>,
    proxy_ca: Option<&Authority>,
) -> Arc<DelegatedConfig> {
    let trust = Trust {
        client_ca: client_ca.map(Authority::bundle),
        request_header: proxy_ca.map(|ca| front_proxy(ca.bundle(), &["front-proxy-client"])),
    };
    DelegatedConfig::fixed(trust, clock())
}

/// A request with these headers, from a peer with this certificate.
pub(crate) fn request(peer: Option<&Issued>, headers: &[(&str, &str)]) -> request::Parts {
    let mut request = Request::builder().uri("/apis");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let (mut parts, ()) = request.body(()).unwrap().into_parts();
    if let Some(peer) = peer {
        parts.extensions.insert(peer.peer());
    }
    parts
}
