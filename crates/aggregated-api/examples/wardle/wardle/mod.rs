//! Upstream's sample group on this library: `flunders` in namespaces, `fischers` in the cluster.
//! The example serves it alone; the conformance runner serves it beside the Go original.

pub(crate) mod kinds;
pub(crate) mod rules;
pub(crate) mod server;
