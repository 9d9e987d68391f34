//! The two kubectl plugins of crawler developers: `kubectl create lease` takes a proxy, and
//! `kubectl px lease hold` runs a command with one.
//!
//! Both are ordinary clients of the lease API with the caller's own kubeconfig. They decide nothing
//! about leases; they print and fail the way kubectl does, so that scripts can treat them alike.

pub mod cli;
mod complete;
mod create;
mod duration;
mod environment;
mod failure;
mod hold;
mod kube_flags;
mod lease_flags;
mod leases;
mod output;
mod selector;
mod terminal;
