//! What can be chosen about a cluster before [`crate::Cluster::start`].

use std::path::PathBuf;

/// What kind of control plane to start. `Options::default()` is what most tests need.
#[derive(Debug, Clone, Default)]
pub struct Options {
    pub(crate) dir: Option<PathBuf>,
    pub(crate) kwok: bool,
    pub(crate) durable: bool,
    pub(crate) apiserver_args: Vec<String>,
    pub(crate) controller_manager_args: Vec<String>,
    pub(crate) controller_manager_env: Vec<(String, String)>,
}

impl Options {
    /// Keep data, certificates and logs in `dir`; a later start on the same folder finds its objects
    /// again. Without this, a temporary folder is used and removed at the end.
    #[must_use]
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }

    /// Also run kwok with one Node ([`crate::KWOK_NODE`]), so that Pods become Running. There is no
    /// scheduler: an admission policy puts Pods without a node on that one.
    #[must_use]
    pub fn kwok(mut self) -> Self {
        self.kwok = true;
        self
    }

    /// Let etcd sync its log to disk, as it does in production. Off by default: tests need speed and do
    /// not survive power cuts. Benchmarks turn it on, so that the peers pay for durability too.
    #[must_use]
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Adds a flag to kube-apiserver, such as `--audit-policy-file=…`; later flags win.
    #[must_use]
    pub fn apiserver_arg(mut self, arg: impl Into<String>) -> Self {
        self.apiserver_args.push(arg.into());
        self
    }

    /// Adds a flag to kube-controller-manager, such as `--kube-api-qps=500`; later flags win.
    #[must_use]
    pub fn controller_manager_arg(mut self, arg: impl Into<String>) -> Self {
        self.controller_manager_args.push(arg.into());
        self
    }

    /// Sets a variable in the environment of kube-controller-manager, such as a feature gate of its client
    /// library.
    #[must_use]
    pub fn controller_manager_env(
        mut self,
        name: impl Into<String>,
        value: impl Into<String>,
    ) -> Self {
        self.controller_manager_env
            .push((name.into(), value.into()));
        self
    }
}
