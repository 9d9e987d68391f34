//! A certificate and an echo key for trying out: made once in a directory, used again afterwards.
//!
//! `ca.crt` is what the health engine and curl are told to trust, `echo.key` what the health engine
//! shares with the target. The key of the CA is thrown away.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use runtime_kit::tls::KeyPairFiles;

/// Why the files could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file system refused.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A name is not one a certificate can carry, or no key could be made.
    #[error("cannot make a certificate for {}", names.join(", "))]
    Certificate {
        /// The names asked for.
        names: Vec<String>,
        /// Why not.
        #[source]
        source: rcgen::Error,
    },
}

/// Where the files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The certificate authority, for clients.
    pub ca: PathBuf,
    /// The serving certificate and its key.
    pub serving: KeyPairFiles,
    /// The key that answers are signed with.
    pub echo_key: PathBuf,
}

/// The files in a directory; what is missing, or was made for other names, is made.
pub fn ensure(directory: &Path, names: &[String]) -> Result<Files, Error> {
    let files = Files {
        ca: directory.join("ca.crt"),
        serving: KeyPairFiles {
            certificate: directory.join("tls.crt"),
            key: directory.join("tls.key"),
        },
        echo_key: directory.join("echo.key"),
    };
    let names_file = directory.join("names");
    std::fs::create_dir_all(directory).map_err(|source| Error::Write {
        path: directory.to_owned(),
        source,
    })?;
    if !files.echo_key.exists() {
        let key = HEXLOWER.encode(&rand::random::<[u8; 32]>());
        write(&files.echo_key, 0o600, &format!("{key}\n"))?;
    }
    let wanted = names.join("\n");
    let complete = [&files.ca, &files.serving.certificate, &files.serving.key]
        .iter()
        .all(|path| path.exists());
    let made_for = std::fs::read_to_string(&names_file).unwrap_or_default();
    if complete && made_for == wanted {
        return Ok(files);
    }
    let made = build_certificates(names).map_err(|source| Error::Certificate {
        names: names.to_vec(),
        source,
    })?;
    let Certificates {
        ca,
        certificate,
        key,
    } = made;
    write(&files.ca, 0o644, &ca)?;
    write(&files.serving.certificate, 0o644, &certificate)?;
    write(&files.serving.key, 0o600, &key)?;
    // Written last: it says that the others are whole.
    write(&names_file, 0o644, &wanted)?;
    Ok(files)
}

struct Certificates {
    ca: String,
    certificate: String,
    key: String,
}

fn build_certificates(names: &[String]) -> Result<Certificates, rcgen::Error> {
    let ca_key = KeyPair::generate()?;
    let mut ca = CertificateParams::new(Vec::new())?;
    ca.distinguished_name
        .push(DnType::CommonName, "proxy-operator echo CA");
    ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let ca_certificate = ca.self_signed(&ca_key)?;
    let key = KeyPair::generate()?;
    let mut leaf = CertificateParams::new(names.to_vec())?;
    leaf.distinguished_name
        .push(DnType::CommonName, "proxy-operator echo");
    leaf.use_authority_key_identifier_extension = true;
    let certificate = leaf.signed_by(&key, &Issuer::new(ca, ca_key))?;
    Ok(Certificates {
        ca: ca_certificate.pem(),
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    })
}

/// Replaces a file in one step, so that nobody reads half of it.
fn write(path: &Path, mode: u32, text: &str) -> Result<(), Error> {
    let next = path.with_extension("next");
    let written = OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(mode)
        .open(&next)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| std::fs::rename(&next, path));
    written.map_err(|source| Error::Write {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(files: &Files) -> Vec<Vec<u8>> {
        let Files {
            ca,
            serving,
            echo_key,
        } = files;
        [ca, &serving.certificate, &serving.key, echo_key]
            .map(|path| std::fs::read(path).unwrap())
            .to_vec()
    }

    #[test]
    fn files_are_made_once_and_again_for_other_names_with_the_same_echo_key() {
        let directory = tempfile::tempdir().unwrap();
        let names = |list: &[&str]| list.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let first = contents(&ensure(directory.path(), &names(&["localhost"])).unwrap());
        let again = contents(&ensure(directory.path(), &names(&["localhost"])).unwrap());
        assert_eq!(first, again);
        let other = contents(&ensure(directory.path(), &names(&["127.0.0.1"])).unwrap());
        assert_ne!(first[1], other[1]);
        assert_eq!(first[3], other[3]);
    }

    #[test]
    fn keys_are_readable_by_their_owner_only() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let files = ensure(directory.path(), &["localhost".into()]).unwrap();
        for path in [&files.echo_key, &files.serving.key] {
            let mode = std::fs::metadata(path).unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0, "{}", path.display());
        }
    }
}
