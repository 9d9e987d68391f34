//! The two kubectl plugins: `kubectl create lease` takes a proxy, and `kubectl px` runs a command
//! with one, marks proxies for the operator, and says what is wrong.
//!
//! Both are ordinary API clients with the caller's own kubeconfig. They decide nothing about leases
//! or proxies; they print and fail the way kubectl does, so that scripts can treat them alike.

pub mod cli;
mod complete;
mod create;
mod doctor;
mod duration;
mod environment;
mod failure;
mod fleet;
mod hold;
mod kube_flags;
mod lease_flags;
mod leases;
mod mark;
mod output;
mod report;
mod resume;
mod selector;
mod terminal;
