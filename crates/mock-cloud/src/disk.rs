//! Keeps the state in a directory: a write is there whole or not at all, also after kill -9 or a
//! power cut, and is on the disk when it returns.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use crate::state::State;

const STATE: &str = "state.json";
const NEXT: &str = "state.json.next";
const LOCK: &str = "lock";

/// Why the state could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another cloud runs on the directory.
    #[error("{} is used by another mock-cloud; stop it or choose another --state", .0.display())]
    InUse(PathBuf),
    /// The file system refused.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which path.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The state does not read back.
    #[error("{} is not a state this version can read; remove it to start empty", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: serde_json::Error,
    },
}

/// The directory, locked against a second cloud until it is dropped.
#[derive(Debug)]
pub(crate) struct Disk {
    directory: PathBuf,
    _lock: File,
}

impl Disk {
    /// Creates and locks the directory.
    pub(crate) fn open(directory: &Path) -> Result<Self, Error> {
        fs::create_dir_all(directory).map_err(|e| io_error("create", directory, e))?;
        let path = directory.join(LOCK);
        let lock = File::create(&path).map_err(|e| io_error("create", &path, e))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self {
                directory: directory.to_owned(),
                _lock: lock,
            }),
            Err(fs::TryLockError::WouldBlock) => Err(Error::InUse(directory.to_owned())),
            Err(fs::TryLockError::Error(source)) => Err(io_error("lock", &path, source)),
        }
    }

    /// The state written last; none in a new directory.
    pub(crate) fn read(&self) -> Result<Option<State>, Error> {
        let path = self.directory.join(STATE);
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|source| Error::Format { path, source }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io_error("read", &path, error)),
        }
    }

    /// Replaces the state. Blocks until it is on the disk.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<(), Error> {
        let next = self.directory.join(NEXT);
        let path = self.directory.join(STATE);
        // The state holds the passwords of proxies.
        let mut file = File::options()
            .create(true)
            .write(true)
            .truncate(true)
            .mode(0o600)
            .open(&next)
            .map_err(|e| io_error("create", &next, e))?;
        file.write_all(bytes)
            .map_err(|e| io_error("write", &next, e))?;
        file.sync_all().map_err(|e| io_error("sync", &next, e))?;
        fs::rename(&next, &path).map_err(|e| io_error("replace", &path, e))?;
        // Why: without this the rename itself may be lost with the power.
        File::open(&self.directory)
            .and_then(|directory| directory.sync_all())
            .map_err(|e| io_error("sync", &self.directory, e))
    }
}

fn io_error(what: &'static str, path: &Path, source: io::Error) -> Error {
    Error::Io {
        what,
        path: path.to_owned(),
        source,
    }
}
