//! What the cluster's API server checks for its own resources and does not check for aggregated
//! ones, so that this server has to.

pub mod namespace;

pub use self::namespace::{KubeNamespaces, NamespaceError, NamespaceLifecycle, StaticNamespaces};
