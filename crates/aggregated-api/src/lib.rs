//! A library for writing aggregated Kubernetes API servers: what `k8s.io/apiserver` is to Go.
//!
//! A kind is declared with `#[derive(kube::CustomResource)]`; [`registry::collection::Collection`]
//! is the typed handle to its objects, [`registry::serving::Serving`] says what clients may do with
//! it, and [`http::service::ApiServer`] is the server as a `tower::Service`, which
//! [`server::serve()`] puts on a TLS port. Authentication, authorization, namespace checks, store and
//! clock are traits passed in; there are no globals.
//!
//! ```text
//! request -> http (filters, route) -> registry (flows) -> rules (capability traits)
//!                                        |                    |
//!                                     cache <- pump <- store <- one transaction per write
//! ```

pub mod admission;
pub mod auth;
pub mod codec;
pub mod http;
pub mod registry;
pub mod schema;
pub mod server;
pub mod store;
