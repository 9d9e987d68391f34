//! What can be done to served kinds: caches, reads, watches and the generic write flows.

pub mod cache;
pub mod capability;
pub mod collection;
pub mod context;
pub mod entry;
pub mod meta;
mod past;
pub(crate) mod read;
pub mod serving;
pub mod version;
pub(crate) mod watch;
pub(crate) mod write;
