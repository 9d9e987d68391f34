//! Where an exit is, from local files in MaxMind's format (`--geoip-db`).

use std::fs::Metadata;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use maxminddb::{MaxMindDbError, Reader, path};
use parking_lot::Mutex;
use runtime_kit::tls::RELOAD_INTERVAL;
use runtime_kit::{Clock, chain};

/// Where an address is, as far as known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// ISO 3166 code of the country.
    pub country: Option<String>,
    /// Number of the autonomous system.
    pub asn: Option<i64>,
}

/// The files that were given, which may be replaced while the process runs. What several of them
/// know, the first one says.
#[derive(Debug)]
pub(super) struct GeoIp {
    files: Vec<File>,
}

#[derive(Debug)]
struct File {
    path: PathBuf,
    reader: ArcSwap<Reader<Vec<u8>>>,
    seen: Mutex<Seen>,
}

/// What is known of a file beside its content.
#[derive(Debug)]
struct Seen {
    stamp: Stamp,
    /// Why it was not taken over; told once.
    problem: Option<String>,
}

/// Tells a file that was replaced or written anew without reading it: databases of cities have
/// some 60 MB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
}

/// Why a GeoIP file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GeoIpError {
    /// It cannot be read.
    #[error("--geoip-db {} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// It is damaged, or something else.
    #[error("--geoip-db {} is no database in MaxMind's format", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: Box<MaxMindDbError>,
    },
}

// === impl GeoIp ===

impl GeoIp {
    /// Reads the files; none when there are none.
    pub(super) fn open(files: &[PathBuf]) -> Result<Option<Arc<Self>>, GeoIpError> {
        let files: Vec<_> = files
            .iter()
            .map(|path| File::open(path))
            .collect::<Result<_, _>>()?;
        Ok((!files.is_empty()).then(|| Arc::new(Self { files })))
    }

    /// Takes over files that were replaced, for ever.
    pub(super) async fn follow(self: Arc<Self>, clock: Arc<dyn Clock>) {
        loop {
            clock.sleep(RELOAD_INTERVAL).await;
            self.reload().await;
        }
    }

    /// Takes over files that were replaced. One that cannot be used is reported once, and what it
    /// held before goes on to be used.
    async fn reload(&self) {
        for file in &self.files {
            let problem = match file.reload().await {
                Ok(changed) => {
                    if changed {
                        tracing::info!(file = %file.path.display(), "GeoIP file reloaded");
                    }
                    None
                },
                Err(error) => Some(chain(&error).to_string()),
            };
            let mut seen = file.seen.lock();
            if let Some(error) = problem.as_ref().filter(|_| seen.problem != problem) {
                tracing::warn!(error, "keeping what the GeoIP file held before");
            }
            seen.problem = problem;
        }
    }

    /// What the files know of an address.
    pub(super) fn locate(&self, ip: IpAddr) -> Location {
        let mut location = Location::default();
        for file in &self.files {
            match locate(&file.reader.load(), ip) {
                Ok(Location { country, asn }) => {
                    location.country = location.country.or(country);
                    location.asn = location.asn.or(asn);
                },
                Err(error) => tracing::debug!(%ip, %error, "a GeoIP file does not answer"),
            }
        }
        location
    }
}

// === impl File ===

impl File {
    fn open(path: &Path) -> Result<Self, GeoIpError> {
        let unreadable = |source| unreadable(path, source);
        let stamp = Stamp::of(&std::fs::metadata(path).map_err(unreadable)?);
        let bytes = std::fs::read(path).map_err(unreadable)?;
        Ok(Self {
            path: path.to_owned(),
            reader: ArcSwap::from_pointee(parse(path, bytes)?),
            seen: Mutex::new(Seen {
                stamp,
                problem: None,
            }),
        })
    }

    /// Whether another content was taken over.
    async fn reload(&self) -> Result<bool, GeoIpError> {
        let path = &self.path;
        let unreadable = |source| unreadable(path, source);
        // Why first: what is written while it is read has another stamp the next time.
        let stamp = Stamp::of(&tokio::fs::metadata(path).await.map_err(unreadable)?);
        if self.seen.lock().stamp == stamp {
            return Ok(false);
        }
        let bytes = tokio::fs::read(path).await.map_err(unreadable)?;
        self.reader.store(Arc::new(parse(path, bytes)?));
        self.seen.lock().stamp = stamp;
        Ok(true)
    }
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            length: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

fn unreadable(path: &Path, source: std::io::Error) -> GeoIpError {
    GeoIpError::Read {
        path: path.to_owned(),
        source,
    }
}

fn parse(path: &Path, bytes: Vec<u8>) -> Result<Reader<Vec<u8>>, GeoIpError> {
    Reader::from_source(bytes).map_err(|source| GeoIpError::Parse {
        path: path.to_owned(),
        source: Box::new(source),
    })
}

fn locate(reader: &Reader<Vec<u8>>, ip: IpAddr) -> Result<Location, MaxMindDbError> {
    let found = reader.lookup(ip.to_canonical())?;
    if !found.has_data() {
        return Ok(Location::default());
    }
    let asn: Option<u32> = found.decode_path(&path!["autonomous_system_number"])?;
    Ok(Location {
        country: found.decode_path(&path!["country", "iso_code"])?,
        asn: asn.map(i64::from),
    })
}

#[cfg(test)]
#[path = "geo_tests.rs"]
mod tests;
