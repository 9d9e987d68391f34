//! The certificates of a cluster: who may act as the API server, the aggregator, an administrator, any
//! user. [`crate::Cluster`] owns two authorities (clients and servers; front proxy) and hands out from them.

use std::fs;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use crate::error::{Error, Result};

mod subject;

/// A certificate and its private key, both PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct CertPair {
    /// The certificate.
    pub cert: String,
    /// The private key (PKCS #8, P-256).
    pub key: String,
}

impl std::fmt::Debug for CertPair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CertPair")
            .field("cert", &self.cert)
            .finish_non_exhaustive()
    }
}

impl CertPair {
    /// Writes `<name>.crt` and `<name>.key` into `folder`; the key is readable by its owner only.
    pub fn write(&self, folder: &Path, name: &str) -> Result<CertFiles> {
        let files = CertFiles {
            cert: folder.join(format!("{name}.crt")),
            key: folder.join(format!("{name}.key")),
        };
        write_file(&files.cert, &self.cert)?;
        write_file(&files.key, &self.key)?;
        Ok(files)
    }
}

/// Where a [`CertPair`] was written to.
#[derive(Debug, Clone)]
pub struct CertFiles {
    /// The certificate, PEM.
    pub cert: std::path::PathBuf,
    /// The private key, PEM.
    pub key: std::path::PathBuf,
}

/// A certificate authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority")
            .field("pem", &self.pem)
            .finish_non_exhaustive()
    }
}

impl Authority {
    /// A new authority called `name`.
    pub fn new(name: &str) -> Result<Self> {
        let mut params = params(name, Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let key = KeyPair::generate()?;
        let pem = params.self_signed(&key)?.pem();
        Ok(Self {
            issuer: Issuer::new(params, key),
            pem,
        })
    }

    /// The authority kept as `<name>.crt` and `<name>.key` in `folder`; made and written when absent.
    pub(crate) fn load_or_create(folder: &Path, name: &str) -> Result<Self> {
        let (cert_path, key_path) = (
            folder.join(format!("{name}.crt")),
            folder.join(format!("{name}.key")),
        );
        if cert_path.is_file() && key_path.is_file() {
            let read = |path: &Path| fs::read_to_string(path).map_err(Error::file("read", path));
            let (pem, key) = (read(&cert_path)?, KeyPair::from_pem(&read(&key_path)?)?);
            return Ok(Self {
                issuer: Issuer::from_ca_cert_pem(&pem, key)?,
                pem,
            });
        }
        let authority = Self::new(name)?;
        CertPair {
            cert: authority.pem.clone(),
            key: authority.issuer.key().serialize_pem(),
        }
        .write(folder, name)?;
        Ok(authority)
    }

    /// The certificate of the authority, PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// A client certificate; the API server takes the common name for the user and the organisations
    /// for the groups.
    pub fn client(&self, user: &str, groups: &[&str]) -> Result<CertPair> {
        let mut params = params(user, Vec::new())?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        let cert = params.signed_by(&key, &self.issuer)?;
        let cert = match groups {
            [] => cert.pem(),
            // Why: rcgen's names hold one value per attribute, so several groups are spliced in.
            groups => subject::with_subject(cert.der(), user, groups, self.issuer.key())?,
        };
        Ok(CertPair {
            cert,
            key: key.serialize_pem(),
        })
    }

    /// A serving certificate for `names` (DNS names and IP addresses).
    pub fn serving(&self, names: &[&str]) -> Result<CertPair> {
        let common_name = names.first().copied().unwrap_or("localhost");
        let mut params = params(
            common_name,
            names.iter().map(|&name| name.to_owned()).collect(),
        )?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        let cert = params.signed_by(&key, &self.issuer)?.pem();
        Ok(CertPair {
            cert,
            key: key.serialize_pem(),
        })
    }

    /// A serving certificate for an aggregated API behind Service `service` in `namespace`: valid for
    /// `<service>.<namespace>.svc`, `localhost` and 127.0.0.1.
    pub fn serving_cert_for(&self, service: &str, namespace: &str) -> Result<CertPair> {
        self.serving(&[
            &format!("{service}.{namespace}.svc"),
            "localhost",
            "127.0.0.1",
        ])
    }
}

fn params(common_name: &str, names: Vec<String>) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    params.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyEncipherment,
    ];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

/// The key that signs ServiceAccount tokens, kept as `sa.key` (private) and `sa.pub` in `folder`.
pub(crate) fn service_account_key(folder: &Path) -> Result<CertFiles> {
    let files = CertFiles {
        cert: folder.join("sa.pub"),
        key: folder.join("sa.key"),
    };
    if !(files.cert.is_file() && files.key.is_file()) {
        let key = KeyPair::generate()?;
        write_file(&files.key, &key.serialize_pem())?;
        write_file(&files.cert, &key.public_key_pem())?;
    }
    Ok(files)
}

/// Writes `text` to `path`, readable by its owner only.
pub(crate) fn write_file(path: &Path, text: &str) -> Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .map_err(Error::file("write", path))?;
    file.write_all(text.as_bytes())
        .map_err(Error::file("write", path))
}
