//! The one error type of this crate. Callers are tests and the command: they print it, and branch at
//! most on "Go cannot build", so one enum is enough.

use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

/// Why something on the control plane could not be done. `Display` names the remedy where one exists.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The `go` command is not on PATH, and a binary has to be built.
    #[error(
        "the control plane has to be built once, which needs Go {minimum} or newer, but there is no \
         `go` on PATH; install it from https://go.dev/dl/, or set KUBEBUILDER_ASSETS to a folder \
         that holds {missing}"
    )]
    GoMissing {
        /// Lowest usable version, such as `1.26`.
        minimum: &'static str,
        /// Comma-separated names of the binaries that are not there.
        missing: String,
    },
    /// Go is there, but older than the modules ask for and not allowed to fetch a newer toolchain.
    #[error(
        "Go {minimum} or newer is needed to build the control plane, found {found}; install a newer \
         Go from https://go.dev/dl/ (or unset GOTOOLCHAIN=local)"
    )]
    GoTooOld {
        /// Lowest usable version, such as `1.26`.
        minimum: &'static str,
        /// What `go` said about itself.
        found: String,
    },
    /// Go could not fetch modules.
    #[error(
        "building {binary} needs Go modules that could not be downloaded; check the network and \
         GOPROXY (`go env GOPROXY`). Go said:\n{output}"
    )]
    GoModulesUnreachable {
        /// Name of the binary.
        binary: &'static str,
        /// Standard error of `go build`.
        output: String,
    },
    /// `go build` failed for another reason.
    #[error("building {binary} failed ({status}). Go said:\n{output}")]
    GoBuild {
        /// Name of the binary.
        binary: &'static str,
        /// Exit status of `go build`.
        status: ExitStatus,
        /// Standard error of `go build`.
        output: String,
    },
    /// No cache folder is known.
    #[error(
        "neither PROXY_OPERATOR_CACHE, XDG_CACHE_HOME nor HOME is set; set PROXY_OPERATOR_CACHE"
    )]
    NoCacheFolder,
    /// A file or folder could not be read or written.
    #[error("cannot {action} {path}", path = path.display())]
    File {
        /// What was tried, as in "cannot write".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A process could not be started.
    #[error("cannot start {name}")]
    Spawn {
        /// Name of the process.
        name: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A process could not be signalled or waited for.
    #[error("cannot {action} {name}")]
    Process {
        /// What was tried.
        action: &'static str,
        /// Name of the process.
        name: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The group of processes has ended already.
    #[error("cannot start {name}: the cluster it belongs to has ended")]
    Ended {
        /// Name of the process.
        name: String,
    },
    /// A process that has to keep running exited.
    #[error("{name} exited ({status}); the end of its log:\n{log}")]
    Exited {
        /// Name of the process.
        name: String,
        /// How it ended.
        status: ExitStatus,
        /// The last lines of its log.
        log: String,
    },
    /// Something was waited for and did not come about.
    #[error("gave up after {waited:?} waiting for {what}{detail}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        waited: Duration,
        /// The last thing seen, starting with `: `, or empty.
        detail: String,
    },
    /// No loopback port is free.
    #[error("no free loopback port found between {from} and {to}")]
    NoPort {
        /// First port tried.
        from: u16,
        /// Last port tried.
        to: u16,
    },
    /// A certificate or key could not be made or read.
    #[error("cannot make a certificate")]
    Certificate(#[from] rcgen::Error),
    /// A certificate of our own making did not have the expected form.
    #[error("certificate encoding: {0}")]
    Encoding(&'static str),
    /// The kubeconfig could not be turned into a client.
    #[error("cannot use the kubeconfig")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    /// A request to the API server failed.
    #[error("cannot {action}")]
    Api {
        /// What was tried.
        action: String,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
    /// The folder is in use by a running cluster.
    #[error("a control plane is already running in {path}", path = path.display())]
    AlreadyRunning {
        /// The folder.
        path: PathBuf,
    },
}

impl Error {
    pub(crate) fn file(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File {
            action,
            path,
            source,
        }
    }

    pub(crate) fn api(action: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let action = action.into();
        move |source| Self::Api {
            action,
            source: Box::new(source),
        }
    }
}

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
