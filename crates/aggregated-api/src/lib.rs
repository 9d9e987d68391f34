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
//!
//! # A whole server
//!
//! The kind is an ordinary `CustomResource`. What its rules implement is what clients can do; discovery,
//! OpenAPI, tables, watches, validation by the schema and patches follow.
//!
//! ```
//! use std::sync::Arc;
//!
//! use aggregated_api::admission::StaticNamespaces;
//! use aggregated_api::auth::testing::{HeaderIdentity, ListAuthorizer};
//! use aggregated_api::http::service::ApiServer;
//! use aggregated_api::http::status::ApiError;
//! use aggregated_api::registry::cache::StoreCache;
//! use aggregated_api::registry::capability::{Companion, Create, CreatePlan};
//! use aggregated_api::registry::collection::Collection;
//! use aggregated_api::registry::context::RequestCtx;
//! use aggregated_api::registry::serving::Serving;
//! use aggregated_api::store::redb::{Options, RedbStore};
//! use axum::body::Body;
//! use http::Request;
//! use runtime_kit::clock::SystemClock;
//! use tower::ServiceExt;
//!
//! #[derive(kube::CustomResource, Clone, Debug, serde::Deserialize, serde::Serialize, schemars::JsonSchema)]
//! #[kube(group = "example.com", version = "v1", kind = "Ticket", namespaced)]
//! struct TicketSpec {
//!     seats: u8,
//! }
//!
//! struct Rules(Collection<Ticket>);
//!
//! #[async_trait::async_trait]
//! impl Create<Ticket> for Rules {
//!     fn prepare(&self, _: &RequestCtx, _: &mut Ticket) -> Result<(), ApiError> {
//!         Ok(())
//!     }
//!
//!     // Runs again on fresh state when the commit meets a conflict; a dry run ends here.
//!     async fn plan(
//!         &self,
//!         _: &RequestCtx,
//!         object: Ticket,
//!         existing: Option<Ticket>,
//!     ) -> Result<CreatePlan<Ticket>, ApiError> {
//!         match existing.and_then(|ticket| ticket.metadata.name) {
//!             Some(name) => Err(ApiError::already_exists(self.0.resource(), &name)),
//!             None => Ok(CreatePlan::Write { object, companion: Companion::default() }),
//!         }
//!     }
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let clock = SystemClock::shared();
//! let cache = StoreCache::start(Arc::new(RedbStore::in_memory(Options::default())?)).await?;
//! let tickets = Collection::<Ticket>::new(&cache, clock.clone())?;
//! // In a cluster: DelegatedAuthenticator, SubjectAccessReviewAuthorizer and KubeNamespaces.
//! let server = ApiServer::builder(
//!     Arc::new(HeaderIdentity),
//!     Arc::new(ListAuthorizer::allow_all()),
//!     Arc::new(StaticNamespaces::of(["crawlers"])),
//!     clock,
//! )
//! .serve(Serving::new(tickets.clone()).create(Arc::new(Rules(tickets.clone()))))
//! .build(&prometheus::Registry::new())?;
//!
//! let create = Request::post("/apis/example.com/v1/namespaces/crawlers/tickets")
//!     .header("x-test-user", "jane")
//!     .body(Body::from(r#"{"metadata": {"name": "a"}, "spec": {"seats": 2}}"#))?;
//! assert_eq!(server.oneshot(create).await?.status(), 201);
//! assert_eq!(tickets.get_latest("crawlers", "a").await?.map(|t| t.spec.seats), Some(2));
//! # Ok(())
//! # }
//! ```
//!
//! `examples/wardle` is a server for a real cluster, with two versions of a kind.

pub mod admission;
pub mod auth;
pub mod codec;
pub mod http;
pub mod registry;
pub mod schema;
pub mod server;
pub mod store;
