//! The aggregated API server that leases proxies: lease rules on top of `aggregated_api`.
//!
//! [`rules`] answers requests, [`allocator`] decides who gets which proxy, [`inputs`]
//! watches the cluster, [`tasks`] do what is due. [`app`] puts them together for the binary.

pub mod allocator;
pub mod app;
pub mod args;
pub mod ended;
pub mod inputs;
pub mod known;
pub mod metrics;
pub mod role;
pub mod rules;
pub mod status;
pub mod storage;
pub mod tasks;
