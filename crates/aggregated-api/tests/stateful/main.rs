//! Random interleavings of writes, watches, lists, disconnects, restarts and compactions, held against
//! a model that knows what really happened.
//!
//! Every run prints its seed. `STATEFUL_SEED` begins one alike (what runs at once may still come in
//! another order, and then the run goes on differently); `STATEFUL_STEPS` makes runs longer.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a helper that cannot do its work fails its test"
)]

mod checker;
mod child;
mod client;
#[path = "../common/mod.rs"]
#[expect(dead_code, reason = "shared with other tests, which use more of it")]
mod common;
mod crowd;
mod driver;
#[path = "../common/etcd.rs"]
#[expect(dead_code, reason = "shared with other tests, which use more of it")]
mod etcd;
mod runs;
mod truth;
mod world;
mod writes;
