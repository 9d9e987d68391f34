//! A real Kubernetes control plane on loopback, for tests, the demo and benchmarks.
//!
//! ```no_run
//! # async fn example() -> Result<(), devcluster::Error> {
//! let cluster = devcluster::Cluster::start(devcluster::Options::default()).await?;
//! let client = cluster.client().await?;
//! # Ok(()) }
//! ```
//!
//! [`Cluster::start`] gives etcd, kube-apiserver and kube-controller-manager with their own certificates in
//! about three seconds; the binaries are built once from Go modules ([`binaries`]). Everything ends with
//! the value, and with the process that owns it ([`process`]).

mod access;
mod aggregation;
pub mod binaries;
mod cluster;
mod components;
mod error;
mod kubeconfig;
mod kwok;
mod logs;
mod options;
pub mod pki;
pub mod ports;
pub mod process;
mod sample;
mod settings;
mod wait;

pub use access::client_for;
pub use aggregation::{Registered, register_apiservice};
pub use cluster::Cluster;
pub use error::{Error, Result};
pub use kwok::KWOK_NODE;
pub use nix::sys::signal::Signal;
pub use options::Options;
pub use pki::{Authority, CertFiles, CertPair};
pub use process::{Process, ProcessGroup};
pub use sample::{SAMPLE_GROUP, SAMPLE_VERSIONS, SampleApiserver, sample_apiserver};
pub use wait::wait_for;

/// Common name of the certificate kube-apiserver shows to aggregated APIs.
pub const FRONT_PROXY_NAME: &str = "front-proxy-client";
