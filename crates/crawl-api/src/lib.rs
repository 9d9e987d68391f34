//! Every API type of proxy-operator. Pure: no runtime, no client, no I/O.

pub mod endpoint;
pub mod lease;
pub mod scheme;
