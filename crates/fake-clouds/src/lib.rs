//! Fakes of the clouds' APIs: processes of their own, driven only through the real clients.
//!
//! A fake keeps its state while clients come and go, checks every request and every one of its
//! responses against the API's public description ([`discovery`]), and makes trouble on request
//! ([`faults`]). Paths below `/fake/` are for tests and belong to no cloud.

pub mod discovery;
pub mod faults;
pub mod gce;
pub mod hetzner;
mod journal;
mod now;
pub mod program;
pub mod proxies;
pub mod serve;
