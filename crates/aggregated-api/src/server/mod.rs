//! The listener of an API server: TLS whose certificates are replaced without a restart, HTTP/2
//! and HTTP/1.1 within the limits kube-aggregator needs, and a stop that cuts nobody off.
//!
//! The binary that embeds the library calls [`serve()`] with the service the HTTP layer builds.

pub mod connection;
mod limits;
pub mod panic;
pub mod serve;
pub mod tls;
mod tracked;

pub use self::{
    connection::{Draining, PeerAddress},
    limits::Limits,
    panic::CatchPanicLayer,
    serve::{DrainReport, Shutdown, serve},
    tls::{ServingTls, TlsError},
};
