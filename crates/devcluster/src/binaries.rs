//! Finds the upstream binaries, or builds them once from Go modules.
//!
//! The modules (`hack/devcluster/*/go.mod` and `go.sum`) are compiled into this crate, so this works from
//! any folder. The cache is keyed by everything that decides what comes out: modules, linker flags, Go
//! version, platform. [`crate::Cluster::start`] calls this, and `devcluster build`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::settings;

const MINIMUM_GO: &str = "1.26";
const MINIMUM_GO_NUMBERS: (u32, u32) = (1, 26);
const PROGRESS_EVERY: Duration = Duration::from_secs(15);

/// One upstream command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Binary {
    /// The store of kube-apiserver.
    Etcd,
    /// The API server with the aggregator.
    KubeApiserver,
    /// Garbage collector, namespaces, quota and the rest.
    KubeControllerManager,
    /// The command line client.
    Kubectl,
    /// Stands in for kubelets.
    Kwok,
    /// The sample aggregated API server: the peer in benchmarks and the oracle in conformance tests.
    SampleApiserver,
}

struct Module {
    name: &'static str,
    go_mod: &'static str,
    go_sum: &'static str,
    ldflags: &'static str,
}

static KUBERNETES: Module = Module {
    name: "kubernetes-v1.36.3",
    go_mod: include_str!("../../../hack/devcluster/kubernetes/go.mod"),
    go_sum: include_str!("../../../hack/devcluster/kubernetes/go.sum"),
    // Why: without these the server reports no version, and clients refuse to compare versions.
    ldflags: "-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3 \
              -X k8s.io/component-base/version.gitMajor=1 \
              -X k8s.io/component-base/version.gitMinor=36",
};

static KWOK: Module = Module {
    name: "kwok-v0.8.0",
    go_mod: include_str!("../../../hack/devcluster/kwok/go.mod"),
    go_sum: include_str!("../../../hack/devcluster/kwok/go.sum"),
    ldflags: "-s -w",
};

impl Binary {
    /// All of them, in the order they are built: what a cluster needs first comes first.
    pub const ALL: [Self; 6] = [
        Self::Etcd,
        Self::KubeApiserver,
        Self::KubeControllerManager,
        Self::Kubectl,
        Self::SampleApiserver,
        Self::Kwok,
    ];

    /// The file name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::KubeApiserver => "kube-apiserver",
            Self::KubeControllerManager => "kube-controller-manager",
            Self::Kubectl => "kubectl",
            Self::Kwok => "kwok",
            Self::SampleApiserver => "sample-apiserver",
        }
    }

    fn package(self) -> &'static str {
        match self {
            Self::Etcd => "go.etcd.io/etcd/server/v3",
            Self::KubeApiserver => "k8s.io/kubernetes/cmd/kube-apiserver",
            Self::KubeControllerManager => "k8s.io/kubernetes/cmd/kube-controller-manager",
            Self::Kubectl => "k8s.io/kubernetes/cmd/kubectl",
            Self::Kwok => "sigs.k8s.io/kwok/cmd/kwok",
            Self::SampleApiserver => "k8s.io/sample-apiserver",
        }
    }

    fn module(self) -> &'static Module {
        match self {
            Self::Kwok => &KWOK,
            Self::Etcd
            | Self::KubeApiserver
            | Self::KubeControllerManager
            | Self::Kubectl
            | Self::SampleApiserver => &KUBERNETES,
        }
    }
}

impl std::str::FromStr for Binary {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|binary| binary.name() == name)
            .ok_or_else(|| {
                let names = Self::ALL.map(Self::name).join(", ");
                format!("there are {names}")
            })
    }
}

/// Where the binaries are that were asked for.
#[derive(Debug, Clone)]
pub struct Binaries {
    paths: BTreeMap<Binary, PathBuf>,
}

impl Binaries {
    /// Finds each of `wanted`, and builds what is missing; blocks meanwhile, for minutes on the first
    /// use. Progress goes to standard error. Several processes may call this at once: one builds.
    pub fn ensure(wanted: &[Binary]) -> Result<Self> {
        Self::ensure_in(
            wanted,
            settings::assets_folder().as_deref(),
            settings::cache_folder,
        )
    }

    /// [`Self::ensure`] with the two folders given: `assets` is looked into first, `cache` is where built
    /// binaries go.
    pub fn ensure_in(
        wanted: &[Binary],
        assets: Option<&Path>,
        cache: impl FnOnce() -> Result<PathBuf>,
    ) -> Result<Self> {
        let mut paths = BTreeMap::new();
        let mut to_find = Vec::new();
        for &binary in wanted {
            match assets
                .map(|folder| folder.join(binary.name()))
                .filter(|path| path.is_file())
            {
                Some(path) => {
                    paths.insert(binary, path);
                },
                None => to_find.push(binary),
            }
        }
        if to_find.is_empty() {
            return Ok(Self { paths });
        }
        let cache = cache()?;
        let mut places = Vec::new();
        for module in [&KUBERNETES, &KWOK] {
            let of_module = |binary: &Binary| std::ptr::eq(binary.module(), module);
            let of_module: Vec<Binary> = to_find.iter().copied().filter(of_module).collect();
            if !of_module.is_empty() {
                places.push(Place::find(module, of_module, &cache)?);
            }
        }
        let mut progress = Progress {
            done: 0,
            total: places.iter().map(|place| place.missing().len()).sum(),
        };
        for place in places {
            place.build_missing(&mut progress)?;
            paths.extend(
                place
                    .wanted
                    .iter()
                    .map(|&binary| (binary, place.path(binary))),
            );
        }
        Ok(Self { paths })
    }

    /// The path of `binary`, if it was asked for.
    pub fn get(&self, binary: Binary) -> Option<&Path> {
        self.paths.get(&binary).map(PathBuf::as_path)
    }

    /// Every binary with its path.
    pub fn iter(&self) -> impl Iterator<Item = (Binary, &Path)> {
        self.paths
            .iter()
            .map(|(binary, path)| (*binary, path.as_path()))
    }
}

/// Where the binaries of one module are kept, and what is wanted of them.
struct Place {
    module: &'static Module,
    wanted: Vec<Binary>,
    sources: PathBuf,
    go_version: String,
    folder: PathBuf,
}

/// How many binaries have to be built.
struct Progress {
    done: usize,
    total: usize,
}

impl Place {
    fn find(module: &'static Module, wanted: Vec<Binary>, cache: &Path) -> Result<Self> {
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

    fn path(&self, binary: Binary) -> PathBuf {
        self.folder.join(binary.name())
    }

    fn missing(&self) -> Vec<Binary> {
        self.wanted
            .iter()
            .copied()
            .filter(|&binary| !self.path(binary).is_file())
            .collect()
    }

    fn build_missing(&self, progress: &mut Progress) -> Result<()> {
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
    for part in [
        module.go_mod,
        module.go_sum,
        module.ldflags,
        go_version,
        &platform,
    ] {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    let hex = data_encoding::HEXLOWER.encode(&hash.finalize()[..6]);
    format!("{}-{hex}", module.name)
}

fn write_sources(module: &Module, cache: &Path) -> Result<PathBuf> {
    let folder = cache.join("src").join(key(module, ""));
    create_folder(&folder)?;
    for (name, text) in [("go.mod", module.go_mod), ("go.sum", module.go_sum)] {
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
    use super::*;

    #[test]
    fn go_versions_are_read_from_what_go_prints() {
        assert_eq!(parse_go_version("go1.26.8"), Some((1, 26)));
        assert_eq!(parse_go_version("go1.27rc1"), Some((1, 27)));
        assert_eq!(parse_go_version("go1.25"), Some((1, 25)));
        assert_eq!(parse_go_version("devel +abc"), None);
    }

    #[test]
    fn binaries_in_the_assets_folder_need_neither_go_nor_a_cache() {
        let assets = tempfile::tempdir().unwrap();
        fs::write(assets.path().join("etcd"), "").unwrap();
        let found = Binaries::ensure_in(&[Binary::Etcd], Some(assets.path()), || {
            Err(Error::NoCacheFolder)
        });
        assert_eq!(
            found.unwrap().get(Binary::Etcd),
            Some(assets.path().join("etcd").as_path())
        );
    }

    #[test]
    fn the_cache_key_changes_with_the_go_version() {
        assert_ne!(key(&KUBERNETES, "go1.26.8"), key(&KUBERNETES, "go1.26.9"));
    }

    #[test]
    fn the_version_in_the_linker_flags_is_the_version_of_the_module() {
        let line = KUBERNETES
            .go_mod
            .lines()
            .find(|line| line.trim().starts_with("k8s.io/kubernetes v"));
        let version = line.unwrap().split_whitespace().nth(1).unwrap();
        assert!(
            KUBERNETES
                .ldflags
                .contains(&format!("gitVersion={version} ")),
            "{version}"
        );
        assert!(KUBERNETES.name.ends_with(version), "{version}");
        assert!(KWOK.go_mod.contains(&format!(
            "sigs.k8s.io/kwok {}",
            KWOK.name.trim_start_matches("kwok-")
        )));
    }
}
