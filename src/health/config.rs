//! The flags of the health engine, and what is made of them once at start.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use url::Url;

use super::geo::{GeoIp, GeoIpError};
use crate::echo::answer::{Key, KeyError};

/// The flags of the health engine.
#[derive(Debug, Clone, clap::Args)]
pub struct Config {
    /// Echo targets (`proxy-operator echo`), separated by commas and taken in turn: what a proxy
    /// without health check URLs of its own is probed with, and where exit IPs are learnt. Without
    /// any they are unknown, and healthCheck.expect.exitIP and country are not checked.
    #[arg(
        long,
        value_name = "URL,…",
        value_delimiter = ',',
        requires = "echo_key_file"
    )]
    pub echo_url: Vec<Url>,
    /// The key that the echo target signs its answers with.
    #[arg(long, value_name = "FILE", requires = "echo_url")]
    pub echo_key_file: Option<PathBuf>,
    /// Certificate authorities that probes accept targets from besides the system's, PEM. Whoever
    /// holds such an authority can intercept traffic unseen.
    #[arg(long, value_name = "FILE")]
    pub probe_ca_file: Option<PathBuf>,
    /// Certificate authorities that probes accept proxies with the scheme https from besides the
    /// system's, PEM.
    #[arg(long, value_name = "FILE")]
    pub proxy_ca_file: Option<PathBuf>,
    /// Files in MaxMind's format that tell the country and the autonomous system of exits, separated
    /// by commas. Files that are replaced are read anew.
    #[arg(long, value_name = "FILE,…", value_delimiter = ',')]
    pub geoip_db: Vec<PathBuf>,
    /// How many probes, and so how many sockets of probes, may be open at once. Proxies that are
    /// not healthy get at most half of them.
    #[arg(long, value_name = "NUMBER", default_value_t = MAX_PROBES, value_parser = clap::value_parser!(u16).range(2..))]
    pub max_concurrent_probes: u16,
}

/// Leaves room below the usual limit of 1,024 files of a process.
const MAX_PROBES: u16 = 512;

impl Default for Config {
    fn default() -> Self {
        Self {
            echo_url: Vec::new(),
            echo_key_file: None,
            probe_ca_file: None,
            proxy_ca_file: None,
            geoip_db: Vec::new(),
            max_concurrent_probes: MAX_PROBES,
        }
    }
}

/// Why the health engine cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A metric of the same name is registered already.
    #[error("cannot register the metrics of the health engine")]
    Metrics(#[from] prometheus::Error),
    /// The echo key cannot be used.
    #[error("--echo-key-file cannot be used")]
    EchoKey(#[source] KeyError),
    /// Only one of the two flags is there.
    #[error("--echo-url and --echo-key-file go together")]
    EchoIncomplete,
    /// The URL is not one that can be probed.
    #[error(
        "--echo-url {0} must be like https://echo.example.com:8443/, without query or user info"
    )]
    EchoUrl(Url),
    /// The file has no certificates that can be read.
    #[error("{flag} {} has no certificates that can be read", path.display())]
    ReadCa {
        /// The flag that names it.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: rustls_pki_types::pem::Error,
    },
    /// A certificate cannot be trusted.
    #[error("{flag} {} holds a certificate that cannot be an authority", path.display())]
    AddCa {
        /// The flag that names it.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What rustls said.
        #[source]
        source: rustls::Error,
    },
    /// A GeoIP file cannot be used.
    #[error(transparent)]
    GeoIp(#[from] GeoIpError),
    /// TLS cannot be set up.
    #[error("cannot set up TLS for probes")]
    Tls(#[source] rustls::Error),
}

/// The echo targets as the engine knows them.
#[derive(Clone, Debug)]
pub(crate) struct Echo {
    /// At least one.
    pub(crate) urls: Vec<Url>,
    pub(crate) key: Key,
}

/// Whom probes trust. Why apart: an authority that vouches for proxies could otherwise stand in for
/// every target, and a proxy that reads traffic would pass for one that does not.
pub(super) struct Tls {
    pub(super) targets: ClientConfig,
    pub(super) proxies: ClientConfig,
}

/// What the files hold that the flags name.
pub(super) struct Loaded {
    pub(super) echo: Option<Echo>,
    pub(super) tls: Tls,
    pub(super) geoip: Option<Arc<GeoIp>>,
    pub(super) max_concurrent_probes: u16,
}

impl Config {
    /// Reads the files that the flags name.
    pub(super) fn load(self) -> Result<Loaded, Error> {
        let Self {
            echo_url,
            echo_key_file,
            probe_ca_file,
            proxy_ca_file,
            geoip_db,
            max_concurrent_probes,
        } = self;
        let system = system_authorities();
        Ok(Loaded {
            echo: load_echo(echo_url, echo_key_file.as_deref())?,
            tls: Tls {
                targets: build_tls(system.clone(), "--probe-ca-file", probe_ca_file)?,
                proxies: build_tls(system, "--proxy-ca-file", proxy_ca_file)?,
            },
            geoip: GeoIp::open(&geoip_db)?,
            max_concurrent_probes,
        })
    }
}

fn load_echo(urls: Vec<Url>, key_file: Option<&Path>) -> Result<Option<Echo>, Error> {
    let file = match (urls.is_empty(), key_file) {
        (true, None) => return Ok(None),
        (false, Some(file)) => file,
        (true, Some(_)) | (false, None) => return Err(Error::EchoIncomplete),
    };
    for url in &urls {
        let plain = matches!(url.scheme(), "http" | "https")
            && url.has_host()
            && url.query().is_none()
            && url.fragment().is_none()
            && url.username().is_empty()
            && url.password().is_none();
        if !plain {
            return Err(Error::EchoUrl(url.clone()));
        }
    }
    let key = Key::read(file).map_err(Error::EchoKey)?;
    Ok(Some(Echo { urls, key }))
}

fn system_authorities() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let system = rustls_native_certs::load_native_certs();
    let (_, unusable) = roots.add_parsable_certificates(system.certs);
    for error in system.errors {
        tracing::warn!(%error, "some certificate authorities of the system are not read");
    }
    if unusable > 0 {
        tracing::debug!(
            unusable,
            "certificate authorities of the system are left out"
        );
    }
    roots
}

/// Trusts these authorities, and those of the file that a flag names.
fn build_tls(
    mut roots: RootCertStore,
    flag: &'static str,
    file: Option<PathBuf>,
) -> Result<ClientConfig, Error> {
    if let Some(path) = file {
        let read = CertificateDer::pem_file_iter(&path)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .and_then(|found| {
                if found.is_empty() {
                    Err(rustls_pki_types::pem::Error::NoItemsFound)
                } else {
                    Ok(found)
                }
            });
        let read = read.map_err(|source| Error::ReadCa {
            flag,
            path: path.clone(),
            source,
        })?;
        for certificate in read {
            roots.add(certificate).map_err(|source| Error::AddCa {
                flag,
                path: path.clone(),
                source,
            })?;
        }
    }
    if roots.is_empty() {
        tracing::warn!(
            "no certificate authority is known, so TLS will fail: install the system's \
             certificates, or give {flag}"
        );
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(Error::Tls)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(tls)
}
