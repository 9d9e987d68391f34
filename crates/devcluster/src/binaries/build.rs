//! Builds the missing binaries of one Go module into the cache: once, also when several processes ask at
//! the same time, and never half. [`super::Binaries`] calls this.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::{Binary, Module};
use crate::error::{Error, Result};

const MINIMUM_GO: &str = "1.26";
const MINIMUM_GO_NUMBERS: (u32, u32) = (1, 26);
const PROGRESS_EVERY: Duration = Duration::from_secs(15);

/// Where the binaries of one module are kept, and what is wanted of them.
pub(super) struct Place {
    module: &'static Module,
    pub(super) wanted: Vec<Binary>,
    sources: PathBuf,
    go_version: String,
    folder: PathBuf,
}

/// How many binaries have to be built.
pub(super) struct Progress {
    pub(super) done: usize,
    pub(super) total: usize,
}

impl Place {
    pub(super) fn find(module: &'static Module, wanted: Vec<Binary>, cache: &Path) -> Result<Self> {
        let sources = write_sources(module, cache)?;
        let go_version = go_version(&sources, &wanted)?;
        let folder = cache.join("bin").join(key(module, &go_version));
        create_folder(&folder)?;
        Ok(Self {
            module,
            wanted,
            sources,
            go_version,
            folder,
        })
    }

    pub(super) fn path(&self, binary: Binary) -> PathBuf {
        self.folder.join(binary.name())
    }

    pub(super) fn missing(&self) -> Vec<Binary> {
        self.wanted
            .iter()
            .copied()
            .filter(|&binary| !self.path(binary).is_file())
            .collect()
    }

    pub(super) fn build_missing(&self, progress: &mut Progress) -> Result<()> {
        if self.missing().is_empty() {
            return Ok(());
        }
        let lock_path = self.folder.join(".lock");
        let lock = File::create(&lock_path).map_err(Error::file("create", &lock_path))?;
        if lock.try_lock().is_err() {
            say("another process is building the control plane; waiting for it");
            lock.lock().map_err(Error::file("lock", &lock_path))?;
        }
        // Asked again: whoever held the lock may have built them.
        for binary in self.missing() {
            progress.done += 1;
            say(&format!(
                "[{}/{}] building {} with {} (first use only; kept in {})",
                progress.done,
                progress.total,
                binary.name(),
                self.go_version,
                self.folder.display()
            ));
            build(binary, self.module, &self.sources, &self.folder)?;
        }
        Ok(())
    }
}

fn key(module: &Module, go_version: &str) -> String {
    let mut hash = Sha256::new();
    let platform = format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH);
    let parts = [
        module.go_mod,
        module.go_sum,
        module.ldflags,
        go_version,
        &platform,
    ];
    for part in parts.into_iter().chain(module.main_go) {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    let hex = data_encoding::HEXLOWER.encode(&hash.finalize()[..6]);
    format!("{}-{hex}", module.name)
}

fn write_sources(module: &Module, cache: &Path) -> Result<PathBuf> {
    let folder = cache.join("src").join(key(module, ""));
    create_folder(&folder)?;
    let modules = [("go.mod", module.go_mod), ("go.sum", module.go_sum)];
    let main = module.main_go.map(|text| ("main.go", text));
    for (name, text) in modules.into_iter().chain(main) {
        let path = folder.join(name);
        if fs::read_to_string(&path).is_ok_and(|present| present == text) {
            continue;
        }
        let mut new =
            tempfile::NamedTempFile::new_in(&folder).map_err(Error::file("write", &path))?;
        std::io::Write::write_all(&mut new, text.as_bytes())
            .map_err(Error::file("write", &path))?;
        new.persist(&path)
            .map_err(|error| Error::file("write", &path)(error.error))?;
    }
    Ok(folder)
}

fn create_folder(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(Error::file("create", folder))
}

fn go(sources: &Path) -> Command {
    let mut command = Command::new("go");
    command
        .current_dir(sources)
        .env("GOWORK", "off")
        .env("GOFLAGS", "-mod=readonly")
        // Why: pure Go binaries need no C compiler to build.
        .env("CGO_ENABLED", "0")
        .stdin(Stdio::null());
    command
}

fn go_version(sources: &Path, wanted: &[Binary]) -> Result<String> {
    let output = go(sources)
        .args(["env", "GOVERSION"])
        .output()
        .map_err(|source| {
            if source.kind() == std::io::ErrorKind::NotFound {
                let missing = wanted
                    .iter()
                    .map(|binary| binary.name())
                    .collect::<Vec<_>>()
                    .join(", ");
                Error::GoMissing {
                    minimum: MINIMUM_GO,
                    missing,
                }
            } else {
                Error::Spawn {
                    name: "go env GOVERSION".to_owned(),
                    source,
                }
            }
        })?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if !output.status.success() || parse_go_version(&version).is_none_or(|v| v < MINIMUM_GO_NUMBERS)
    {
        let said = String::from_utf8_lossy(&output.stderr);
        let found = format!("{version} {}", said.trim()).trim().to_owned();
        return Err(Error::GoTooOld {
            minimum: MINIMUM_GO,
            found,
        });
    }
    Ok(version)
}

/// Major and minor of `go1.26.8`; `devel` versions count as unknown, hence too old.
fn parse_go_version(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version
        .strip_prefix("go")?
        .split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn build(binary: Binary, module: &Module, sources: &Path, folder: &Path) -> Result<()> {
    let started = now();
    let scratch = tempfile::Builder::new()
        .prefix(".build-")
        .tempdir_in(folder)
        .map_err(Error::file("create a folder in", folder))?;
    let built = scratch.path().join(binary.name());
    let mut child = go(sources)
        .args(["build", "-trimpath", "-ldflags", module.ldflags, "-o"])
        .arg(&built)
        .arg(binary.package())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| Error::Spawn {
            name: "go build".to_owned(),
            source,
        })?;
    let (done, finished) = std::sync::mpsc::channel::<()>();
    let ticker = std::thread::spawn(move || {
        while finished.recv_timeout(PROGRESS_EVERY)
            == Err(std::sync::mpsc::RecvTimeoutError::Timeout)
        {
            say(&format!(
                "      still building {}, {} s",
                binary.name(),
                started.elapsed().as_secs()
            ));
        }
    });
    let mut said = String::new();
    let read = child.stderr.take().map_or(Ok(0), |mut stderr| {
        std::io::Read::read_to_string(&mut stderr, &mut said)
    });
    let waited = child.wait();
    drop(done);
    let ticker_ended = ticker.join().is_ok();
    debug_assert!(ticker_ended, "the progress thread only prints");
    let of_go = |source| Error::Process {
        action: "wait for",
        name: "go build".to_owned(),
        source,
    };
    read.map_err(of_go)?;
    let status = waited.map_err(of_go)?;
    if !status.success() {
        return Err(if is_network_trouble(&said) {
            Error::GoModulesUnreachable {
                binary: binary.name(),
                output: said,
            }
        } else {
            Error::GoBuild {
                binary: binary.name(),
                status,
                output: said,
            }
        });
    }
    let path = folder.join(binary.name());
    fs::rename(&built, &path).map_err(Error::file("write", &path))?;
    say(&format!(
        "      built {} in {} s",
        binary.name(),
        started.elapsed().as_secs()
    ));
    Ok(())
}

fn is_network_trouble(said: &str) -> bool {
    [
        "dial tcp",
        "no such host",
        "connection refused",
        "i/o timeout",
        "TLS handshake",
        "GOPROXY",
        "proxyconnect",
    ]
    .iter()
    .any(|sign| said.contains(sign))
}

#[expect(
    clippy::disallowed_methods,
    reason = "elapsed seconds of a build, printed and never decided on"
)]
fn now() -> std::time::Instant {
    std::time::Instant::now()
}

#[expect(
    clippy::print_stderr,
    reason = "a build of minutes has to show that it lives"
)]
fn say(line: &str) {
    eprintln!("devcluster: {line}");
}

#[cfg(test)]
mod tests {
    use super::super::KUBERNETES;
    use super::*;

    #[test]
    fn go_versions_are_read_from_what_go_prints() {
        assert_eq!(parse_go_version("go1.26.8"), Some((1, 26)));
        assert_eq!(parse_go_version("go1.27rc1"), Some((1, 27)));
        assert_eq!(parse_go_version("go1.25"), Some((1, 25)));
        assert_eq!(parse_go_version("devel +abc"), None);
    }

    #[test]
    fn the_cache_key_changes_with_the_go_version() {
        assert_ne!(key(&KUBERNETES, "go1.26.8"), key(&KUBERNETES, "go1.26.9"));
    }
}
