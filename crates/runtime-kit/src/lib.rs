//! What every process of the project needs around its own work: a clock that tests can step,
//! error classes, backoff, leader election, supervised tasks, admin endpoints, logging,
//! a connection to the API server, and TLS certificates that are reloaded.
//!
//! Used by the binaries and by the crates that need one of these pieces. It knows nothing of
//! proxies or leases, holds no global state, and never decides for its caller: it reports, and the
//! caller acts.

pub mod admin;
pub mod api_requests;
pub mod backoff;
pub mod chain;
pub mod class;
pub mod clock;
pub mod kubeconfig;
pub mod leader;
pub mod logging;
pub mod tasks;
pub mod tls;

pub use chain::{chain, shortened};
pub use class::{Class, Classify};
pub use clock::{Clock, SteppedClock, SystemClock};
pub use tasks::Supervisor;
