//! Bodies and query strings: from bytes to values and back, and what a client may ask for.

pub mod decode;
pub mod negotiate;
pub(crate) mod number;
pub mod protobuf;
pub mod selector;
