//! Where an exit is, from local files in MaxMind's format (`--geoip-db`).

use std::collections::HashSet;
use std::fs::Metadata;
use std::io::{Error as IoError, ErrorKind};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use maxminddb::{LookupResult, MaxMindDbError, Reader, WithinOptions, path};
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
    files: Vec<Arc<File>>,
}

#[derive(Debug)]
struct File {
    path: PathBuf,
    reader: ArcSwap<Reader<Vec<u8>>>,
    seen: Mutex<Seen>,
}

/// Bytes of the largest file that is read: some ten times the largest that vendors sell.
const MAX_FILE: u64 = 4 * 1024 * 1024 * 1024;

/// What is known of a file beside its content.
#[derive(Debug)]
struct Seen {
    stamp: Stamp,
    /// The content that was last refused. It is not read again.
    refused: Option<Stamp>,
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

/// What became of a file since it was last looked at.
enum Look {
    /// It is the one that is in use.
    Same,
    /// It is the one that was refused.
    RefusedBefore,
    /// Another content was taken over.
    TakenOver,
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
    /// Its tree runs in circles.
    #[error("--geoip-db {} is damaged: fetch it again", path.display())]
    Endless {
        /// The file.
        path: PathBuf,
    },
}

// === impl GeoIp ===

impl GeoIp {
    /// Reads the files; none when there are none.
    pub(super) fn open(files: &[PathBuf]) -> Result<Option<Arc<Self>>, GeoIpError> {
        let files: Vec<_> = files
            .iter()
            .map(|path| File::open(path).map(Arc::new))
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
            // Why: a large file takes seconds, in which probes go on.
            let looked = tokio::task::spawn_blocking({
                let file = Arc::clone(file);
                move || file.reload()
            });
            let problem = match looked.await {
                Ok(Ok(Look::TakenOver)) => {
                    tracing::info!(file = %file.path.display(), "GeoIP file reloaded");
                    None
                },
                Ok(Ok(Look::Same)) => None,
                Ok(Ok(Look::RefusedBefore)) => continue,
                Ok(Err(error)) => Some(chain(&error).to_string()),
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
        let stamp = stamp(path)?;
        Ok(Self {
            path: path.to_owned(),
            reader: ArcSwap::from_pointee(read(path)?),
            seen: Mutex::new(Seen {
                stamp,
                refused: None,
                problem: None,
            }),
        })
    }

    /// Takes another content over, if there is one. It blocks for as long as that takes.
    fn reload(&self) -> Result<Look, GeoIpError> {
        // Why first: what is written while it is read has another stamp the next time.
        let stamp = stamp(&self.path)?;
        let (known, refused) = {
            let seen = self.seen.lock();
            (seen.stamp, seen.refused)
        };
        if known == stamp {
            return Ok(Look::Same);
        }
        if refused == Some(stamp) {
            return Ok(Look::RefusedBefore);
        }
        match read(&self.path) {
            Ok(reader) => {
                self.reader.store(Arc::new(reader));
                self.seen.lock().stamp = stamp;
                Ok(Look::TakenOver)
            },
            // Why not for ever: it may be readable the next time.
            Err(error @ GeoIpError::Read { .. }) => Err(error),
            Err(error @ (GeoIpError::Parse { .. } | GeoIpError::Endless { .. })) => {
                self.seen.lock().refused = Some(stamp);
                Err(error)
            },
        }
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

fn unreadable(path: &Path, source: IoError) -> GeoIpError {
    GeoIpError::Read {
        path: path.to_owned(),
        source,
    }
}

/// Refuses what has no end, or more of it than fits.
fn stamp(path: &Path) -> Result<Stamp, GeoIpError> {
    let unreadable = |source| unreadable(path, source);
    let metadata = std::fs::metadata(path).map_err(unreadable)?;
    if metadata.is_file() && metadata.len() <= MAX_FILE {
        return Ok(Stamp::of(&metadata));
    }
    let what = "it is no file, or one of more than 4 GiB";
    Err(unreadable(IoError::new(ErrorKind::InvalidInput, what)))
}

fn read(path: &Path) -> Result<Reader<Vec<u8>>, GeoIpError> {
    let bytes = std::fs::read(path).map_err(|source| unreadable(path, source))?;
    parse(path, bytes)
}

/// A database of which every network answers. Why all: of one with a damaged part, proxies would
/// be in no known country, and be replaced.
fn parse(path: &Path, bytes: Vec<u8>) -> Result<Reader<Vec<u8>>, GeoIpError> {
    let wrong = |source| GeoIpError::Parse {
        path: path.to_owned(),
        source: Box::new(source),
    };
    let reader = Reader::from_source(bytes).map_err(wrong)?;
    // A tree has one network more than it has nodes, and parts may be in it several times. One that
    // has many more runs in circles.
    let nodes = usize::try_from(reader.metadata().node_count).unwrap_or(usize::MAX);
    let mut known = HashSet::new();
    for (index, network) in reader
        .networks(WithinOptions::default().include_networks_without_data())
        .map_err(wrong)?
        .enumerate()
    {
        if index > nodes.saturating_mul(3) {
            return Err(GeoIpError::Endless {
                path: path.to_owned(),
            });
        }
        let network = network.map_err(wrong)?;
        let Some(offset) = network.offset() else {
            continue;
        };
        if !known.insert(offset) {
            continue;
        }
        location(&network).map_err(wrong)?;
    }
    Ok(reader)
}

fn locate(reader: &Reader<Vec<u8>>, ip: IpAddr) -> Result<Location, MaxMindDbError> {
    let found = reader.lookup(ip.to_canonical())?;
    if !found.has_data() {
        return Ok(Location::default());
    }
    location(&found)
}

fn location(found: &LookupResult<'_, Vec<u8>>) -> Result<Location, MaxMindDbError> {
    let asn: Option<u32> = found.decode_path(&path!["autonomous_system_number"])?;
    let country: Option<String> = found.decode_path(&path!["country", "iso_code"])?;
    // Why only codes: it becomes the value of a label.
    let is_code = |text: &String| text.len() == 2 && text.bytes().all(|b| b.is_ascii_uppercase());
    Ok(Location {
        country: country.filter(is_code),
        asn: asn.map(i64::from),
    })
}

#[cfg(test)]
#[path = "geo_tests.rs"]
mod tests;
