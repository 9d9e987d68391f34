//! What this crate takes from the environment. Nothing else in the crate reads it.

use std::path::PathBuf;

use crate::error::{Error, Result};

fn path(name: &str) -> Option<PathBuf> {
    std::env::var_os(name)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

/// `PROXY_OPERATOR_CACHE`, or `proxy-operator` in the user's cache folder.
pub(crate) fn cache_folder() -> Result<PathBuf> {
    path("PROXY_OPERATOR_CACHE")
        .or_else(|| path("XDG_CACHE_HOME").map(|cache| cache.join("proxy-operator")))
        .or_else(|| path("HOME").map(|home| home.join(".cache/proxy-operator")))
        .ok_or(Error::NoCacheFolder)
}

/// `KUBEBUILDER_ASSETS`: a folder with ready binaries, as envtest users have it.
pub(crate) fn assets_folder() -> Option<PathBuf> {
    path("KUBEBUILDER_ASSETS")
}

/// `DEVCLUSTER_KEEP`: data and logs stay after the cluster has ended, also when all went well.
pub(crate) fn keep_data() -> bool {
    path("DEVCLUSTER_KEEP").is_some()
}
