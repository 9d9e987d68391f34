//! TLS certificates that are replaced while the process runs.
//!
//! Servers build their rustls configuration around a [`ReloadingCertificate`] and run
//! [`ReloadingCertificate::watch`] beside it. Files are compared by content at an interval, not by
//! file notifications: mounted Secrets are swapped by a symlink, which those miss. A pair that does
//! not parse or does not match is reported and the old one stays in use.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_util::sync::CancellationToken;

use crate::chain::chain;
use crate::clock::Clock;

/// How often files are compared unless a caller says otherwise.
pub const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

/// Makes aws-lc the cryptography of this process. Called first in every binary; a second call
/// changes nothing.
pub fn install_default_provider() {
    if rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .is_err()
    {
        tracing::debug!("a cryptography provider is installed already");
    }
}

/// Where a certificate chain and its private key are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPairFiles {
    /// PEM, leaf first.
    pub certificate: PathBuf,
    /// PEM: PKCS #8, PKCS #1 or SEC 1.
    pub key: PathBuf,
}

/// Why a key pair cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The certificate file is not PEM, or damaged.
    #[error("{path} holds no readable PEM certificate")]
    ParseCertificate {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: rustls_pki_types::pem::Error,
    },
    /// The key file is not PEM, or damaged.
    #[error("{path} holds no readable PEM private key")]
    ParseKey {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: rustls_pki_types::pem::Error,
    },
    /// The key is of a kind that is not supported, or belongs to another certificate.
    #[error("the key in {key} does not belong to the certificate in {certificate}")]
    Mismatch {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What rustls said.
        #[source]
        source: rustls::Error,
    },
}

#[derive(PartialEq, Eq)]
struct Content {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl KeyPairFiles {
    async fn read(&self) -> Result<Content, Error> {
        Ok(Content {
            certificate: read(&self.certificate).await?,
            key: read(&self.key).await?,
        })
    }

    fn parse(&self, content: &Content) -> Result<CertifiedKey, Error> {
        let no_certificate = |source| Error::ParseCertificate {
            path: self.certificate.clone(),
            source,
        };
        let certificates = CertificateDer::pem_slice_iter(&content.certificate)
            .collect::<Result<Vec<_>, _>>()
            .map_err(no_certificate)?;
        if certificates.is_empty() {
            return Err(no_certificate(rustls_pki_types::pem::Error::NoItemsFound));
        }
        let key =
            PrivateKeyDer::from_pem_slice(&content.key).map_err(|source| Error::ParseKey {
                path: self.key.clone(),
                source,
            })?;
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        CertifiedKey::from_der(certificates, key, &provider).map_err(|source| Error::Mismatch {
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            source,
        })
    }
}

async fn read(path: &Path) -> Result<Vec<u8>, Error> {
    tokio::fs::read(path).await.map_err(|source| Error::Read {
        path: path.to_owned(),
        source,
    })
}

/// A server certificate that follows its files; give it to rustls as the certificate resolver.
pub struct ReloadingCertificate {
    files: KeyPairFiles,
    content: parking_lot::Mutex<Content>,
    current: ArcSwap<CertifiedKey>,
}

impl ReloadingCertificate {
    /// Reads the pair once; errors are those of a start with wrong files.
    pub async fn load(files: KeyPairFiles) -> Result<Arc<Self>, Error> {
        let content = files.read().await?;
        let current = ArcSwap::from_pointee(files.parse(&content)?);
        Ok(Arc::new(Self {
            files,
            content: parking_lot::Mutex::new(content),
            current,
        }))
    }

    /// The pair in use.
    pub fn current(&self) -> Arc<CertifiedKey> {
        self.current.load_full()
    }

    /// Compares the files with the pair in use; `true` when it was replaced. On an error the pair
    /// in use stays: certificate and key are seldom replaced in the same instant.
    pub async fn reload(&self) -> Result<bool, Error> {
        let content = self.files.read().await?;
        if *self.content.lock() == content {
            return Ok(false);
        }
        self.current.store(Arc::new(self.files.parse(&content)?));
        *self.content.lock() = content;
        Ok(true)
    }

    /// Reloads at an interval until `shutdown`, logging each change and each new problem once.
    pub async fn watch(
        self: Arc<Self>,
        interval: Duration,
        clock: Arc<dyn Clock>,
        shutdown: CancellationToken,
    ) {
        let mut problem: Option<String> = None;
        while shutdown
            .run_until_cancelled(clock.sleep(interval))
            .await
            .is_some()
        {
            let certificate = self.files.certificate.display();
            match self.reload().await {
                Ok(changed) => {
                    if changed {
                        tracing::info!(%certificate, "serving certificate reloaded");
                    }
                    problem = None;
                },
                Err(error) => {
                    let text = chain(&error).to_string();
                    if problem.as_ref() != Some(&text) {
                        tracing::warn!(error = text, "keeping the previous serving certificate");
                        problem = Some(text);
                    }
                },
            }
        }
    }
}

impl std::fmt::Debug for ReloadingCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReloadingCertificate")
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

impl ResolvesServerCert for ReloadingCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertifiedKey as Generated, generate_simple_self_signed};

    use super::*;

    struct Pair {
        certificate: String,
        key: String,
        der: Vec<u8>,
    }

    fn generate() -> Pair {
        let names = vec!["localhost".to_owned()];
        let Generated { cert, signing_key } =
            generate_simple_self_signed(names).expect("a certificate");
        Pair {
            certificate: cert.pem(),
            key: signing_key.serialize_pem(),
            der: cert.der().to_vec(),
        }
    }

    fn files(folder: &tempfile::TempDir) -> KeyPairFiles {
        KeyPairFiles {
            certificate: folder.path().join("tls.crt"),
            key: folder.path().join("tls.key"),
        }
    }

    fn write(files: &KeyPairFiles, pair: &Pair) {
        std::fs::write(&files.certificate, &pair.certificate).expect("written");
        std::fs::write(&files.key, &pair.key).expect("written");
    }

    fn served(certificate: &ReloadingCertificate) -> Vec<u8> {
        certificate.current().cert[0].to_vec()
    }

    #[tokio::test]
    async fn a_replaced_pair_is_served_after_the_next_interval() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = files(&folder);
        let (old, new) = (generate(), generate());
        write(&files, &old);
        let certificate = ReloadingCertificate::load(files.clone())
            .await
            .expect("loaded");
        assert_eq!(served(&certificate), old.der);
        assert!(!certificate.reload().await.expect("readable"));

        write(&files, &new);
        assert!(certificate.reload().await.expect("readable"));
        assert_eq!(served(&certificate), new.der);
    }

    #[tokio::test]
    async fn a_half_replaced_pair_leaves_the_old_one_in_use_until_it_is_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = files(&folder);
        let (old, new) = (generate(), generate());
        write(&files, &old);
        let certificate = ReloadingCertificate::load(files.clone())
            .await
            .expect("loaded");

        std::fs::write(&files.certificate, &new.certificate).expect("written");
        let error = certificate
            .reload()
            .await
            .expect_err("the key is another one's");
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        assert_eq!(served(&certificate), old.der);

        std::fs::write(&files.key, &new.key).expect("written");
        assert!(certificate.reload().await.expect("whole"));
        assert_eq!(served(&certificate), new.der);
    }

    #[tokio::test]
    async fn missing_and_damaged_files_are_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = files(&folder);
        let missing = ReloadingCertificate::load(files.clone())
            .await
            .expect_err("no files");
        assert!(missing.to_string().contains("tls.crt"));
        let pair = generate();
        std::fs::write(&files.certificate, "not a certificate").expect("written");
        std::fs::write(&files.key, &pair.key).expect("written");
        let damaged = ReloadingCertificate::load(files)
            .await
            .expect_err("no certificate");
        assert!(
            matches!(damaged, Error::ParseCertificate { .. }),
            "{damaged}"
        );
    }

    #[tokio::test]
    async fn the_watch_loop_reloads_on_the_clock_and_stops_when_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = files(&folder);
        let (old, new) = (generate(), generate());
        write(&files, &old);
        let certificate = ReloadingCertificate::load(files.clone())
            .await
            .expect("loaded");
        let clock = crate::SteppedClock::default();
        let stop = CancellationToken::new();
        let watching = tokio::spawn(Arc::clone(&certificate).watch(
            RELOAD_INTERVAL,
            Arc::new(clock.clone()),
            stop.clone(),
        ));
        write(&files, &new);
        let replaced = async {
            while served(&certificate) != new.der {
                clock.advance(RELOAD_INTERVAL);
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), replaced)
            .await
            .expect("reloaded");
        stop.cancel();
        watching.await.expect("ended");
    }
}
