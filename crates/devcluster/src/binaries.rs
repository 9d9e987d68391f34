//! Finds the upstream binaries, or builds them once from Go modules.
//!
//! The modules (`hack/devcluster/*/go.mod`, `go.sum`, `main.go`) are compiled into this crate, so this works from
//! any folder. The cache is keyed by everything that decides what comes out: modules, linker flags, Go
//! version, platform. [`crate::Cluster::start`] calls this, and `devcluster build`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::settings;

mod build;

use build::{Place, Progress};

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
    /// A command line client that is four minor versions older than the control plane.
    OlderKubectl,
    /// Restores snapshots of etcd.
    Etcdutl,
    /// Stands in for kubelets.
    Kwok,
    /// The sample aggregated API server: the peer in benchmarks and the oracle in conformance tests.
    SampleApiserver,
}

struct Module {
    name: &'static str,
    go_mod: &'static str,
    go_sum: &'static str,
    /// A main package of our own, for a module that has none.
    main_go: Option<&'static str>,
    ldflags: &'static str,
}

static KUBERNETES: Module = Module {
    name: "kubernetes-v1.36.3",
    go_mod: include_str!("../../../hack/devcluster/kubernetes/go.mod"),
    go_sum: include_str!("../../../hack/devcluster/kubernetes/go.sum"),
    main_go: None,
    // Why: without these the server reports no version, and clients refuse to compare versions.
    ldflags: "-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3 \
              -X k8s.io/component-base/version.gitMajor=1 \
              -X k8s.io/component-base/version.gitMinor=36",
};

static KWOK: Module = Module {
    name: "kwok-v0.8.0",
    go_mod: include_str!("../../../hack/devcluster/kwok/go.mod"),
    go_sum: include_str!("../../../hack/devcluster/kwok/go.sum"),
    main_go: None,
    ldflags: "-s -w",
};

static ETCDUTL: Module = Module {
    name: "etcdutl-v3.6.8",
    go_mod: include_str!("../../../hack/devcluster/etcdutl/go.mod"),
    go_sum: include_str!("../../../hack/devcluster/etcdutl/go.sum"),
    main_go: None,
    ldflags: "-s -w",
};

static OLDER_KUBECTL: Module = Module {
    name: "kubectl-v1.32.3",
    go_mod: include_str!("../../../hack/devcluster/kubectl/go.mod"),
    go_sum: include_str!("../../../hack/devcluster/kubectl/go.sum"),
    main_go: Some(include_str!("../../../hack/devcluster/kubectl/main.go")),
    ldflags: "-s -w -X k8s.io/component-base/version.gitVersion=v1.32.3 \
              -X k8s.io/component-base/version.gitMajor=1 \
              -X k8s.io/component-base/version.gitMinor=32",
};

impl Binary {
    /// All of them, in the order they are built: what a cluster needs first comes first.
    pub const ALL: [Self; 8] = [
        Self::Etcd,
        Self::KubeApiserver,
        Self::KubeControllerManager,
        Self::Kubectl,
        Self::SampleApiserver,
        Self::Kwok,
        Self::OlderKubectl,
        Self::Etcdutl,
    ];

    /// The file name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::KubeApiserver => "kube-apiserver",
            Self::KubeControllerManager => "kube-controller-manager",
            Self::Kubectl => "kubectl",
            Self::OlderKubectl => "kubectl-1.32",
            Self::Etcdutl => "etcdutl",
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
            Self::OlderKubectl => ".",
            Self::Etcdutl => "go.etcd.io/etcd/etcdutl/v3",
            Self::Kwok => "sigs.k8s.io/kwok/cmd/kwok",
            Self::SampleApiserver => "k8s.io/sample-apiserver",
        }
    }

    fn module(self) -> &'static Module {
        match self {
            Self::Etcdutl => &ETCDUTL,
            Self::Kwok => &KWOK,
            Self::OlderKubectl => &OLDER_KUBECTL,
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
        for module in [&KUBERNETES, &KWOK, &OLDER_KUBECTL, &ETCDUTL] {
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::error::Error;

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
    fn the_version_in_the_linker_flags_is_the_version_of_the_module() {
        let version = OLDER_KUBECTL.name.trim_start_matches("kubectl-v1.");
        assert!(
            OLDER_KUBECTL
                .go_mod
                .contains(&format!("k8s.io/kubectl v0.{version}\n"))
        );
        assert!(
            OLDER_KUBECTL
                .ldflags
                .contains(&format!("gitVersion=v1.{version} "))
        );
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
        assert!(ETCDUTL.go_mod.contains(&format!(
            "go.etcd.io/etcd/etcdutl/v3 {}",
            ETCDUTL.name.trim_start_matches("etcdutl-")
        )));
    }
}
