//! The mock cloud as its users see it: through its API, and through the proxies it runs.

#![expect(clippy::expect_used, reason = "helpers of tests fail like tests")]

mod api;
mod common;
mod proxy;
mod restart;
