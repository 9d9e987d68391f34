//! The endpoints a process shows to its platform: `/healthz`, `/readyz` and `/metrics`.
//!
//! Binaries build one [`Health`], hand parts of it to whoever knows whether something works, and
//! serve it with [`AdminServer`]. Plain HTTP: meant for loopback and for the kubelet; `/metrics`, and
//! what a binary adds, is answered to loopback peers only.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::extract::{ConnectInfo, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use parking_lot::RwLock;
use prometheus::{Registry, TextEncoder};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use crate::chain::chain;

/// Named checks behind `/healthz` and `/readyz`; clones share them.
#[derive(Clone, Default)]
pub struct Health {
    live: Checks,
    ready: Checks,
}

type Check = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

#[derive(Clone, Default)]
struct Checks(Arc<RwLock<Vec<(String, Check)>>>);

impl Health {
    /// No checks: alive and ready.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a check to `/healthz`: when it fails, the platform restarts the process. It must be
    /// quick and must not wait for anybody else.
    pub fn live_check(
        &self,
        name: impl Into<String>,
        check: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) {
        self.live.0.write().push((name.into(), Arc::new(check)));
    }

    /// Adds a check to `/readyz`; `Err` carries what is missing. It must be quick.
    pub fn ready_check(
        &self,
        name: impl Into<String>,
        check: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) {
        self.ready.0.write().push((name.into(), Arc::new(check)));
    }

    /// Adds a readiness check that its owner switches; not ready at first, because of `reason`.
    pub fn ready_flag(&self, name: impl Into<String>, reason: impl Into<String>) -> ReadyFlag {
        let flag = ReadyFlag {
            state: Arc::new(RwLock::new(Err(reason.into()))),
        };
        let state = Arc::clone(&flag.state);
        self.ready_check(name, move || state.read().clone());
        flag
    }

    /// Whether all readiness checks pass; `Err` names those that fail, with their reasons.
    pub fn ready(&self) -> Result<(), Vec<(String, String)>> {
        let failed: Vec<_> = self
            .ready
            .run()
            .into_iter()
            .filter_map(|(name, result)| result.err().map(|reason| (name, reason)))
            .collect();
        if failed.is_empty() {
            Ok(())
        } else {
            Err(failed)
        }
    }
}

impl std::fmt::Debug for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Health").finish_non_exhaustive()
    }
}

impl Checks {
    fn run(&self) -> Vec<(String, Result<(), String>)> {
        let checks = self.0.read().clone();
        checks
            .into_iter()
            .map(|(name, check)| (name, check()))
            .collect()
    }
}

/// One readiness check, switched by its owner; clones switch the same check.
#[derive(Debug, Clone)]
pub struct ReadyFlag {
    state: Arc<RwLock<Result<(), String>>>,
}

impl ReadyFlag {
    /// From now on ready.
    pub fn set_ready(&self) {
        *self.state.write() = Ok(());
    }

    /// From now on not ready, because of `reason`.
    pub fn set_unready(&self, reason: impl Into<String>) {
        *self.state.write() = Err(reason.into());
    }
}

/// Why the admin endpoints could not be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address is not to be had.
    #[error("cannot listen on admin address {address}: choose a free one")]
    Listen {
        /// The address asked for.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// Accepting connections failed for good.
    #[error("admin endpoints stopped")]
    Serve(#[source] std::io::Error),
}

/// A bound, not yet serving, admin listener.
#[derive(Debug)]
pub struct AdminServer {
    listener: tokio::net::TcpListener,
    address: SocketAddr,
    router: Router,
}

impl AdminServer {
    /// Listens on `address` (port 0: any free one), so that a busy port is an error at start.
    pub async fn bind(
        address: SocketAddr,
        health: Health,
        registry: Registry,
    ) -> Result<Self, Error> {
        let listen = |source| Error::Listen { address, source };
        let listener = tokio::net::TcpListener::bind(address)
            .await
            .map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        Ok(Self {
            listener,
            address,
            router: router(health, registry),
        })
    }

    /// Serves these routes too, to loopback peers only.
    #[must_use]
    pub fn with(self, routes: Router) -> Self {
        Self {
            router: self.router.merge(for_loopback(routes)),
            ..self
        }
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `shutdown`.
    pub async fn serve(self, shutdown: CancellationToken) -> Result<(), Error> {
        let service = self
            .router
            .into_make_service_with_connect_info::<SocketAddr>();
        axum::serve(self.listener, service)
            .with_graceful_shutdown(shutdown.cancelled_owned())
            .await
            .map_err(Error::Serve)
    }
}

/// The routes alone, for a process that serves them beside others. `/metrics` needs
/// `ConnectInfo<SocketAddr>` and refuses peers it does not know.
pub fn router(health: Health, registry: Registry) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/livez", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(health)
        .merge(for_loopback(
            Router::new()
                .route("/metrics", get(metrics))
                .with_state(registry),
        ))
}

fn for_loopback(routes: Router) -> Router {
    routes.route_layer(middleware::from_fn(only_loopback))
}

async fn only_loopback(request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    if peer.is_some_and(|ConnectInfo(peer)| is_loopback(peer.ip())) {
        return next.run(request).await;
    }
    let message = "this is answered to loopback peers only\n";
    (StatusCode::FORBIDDEN, message).into_response()
}

#[derive(Debug, Deserialize)]
struct CheckQuery {
    verbose: Option<String>,
}

async fn healthz(State(health): State<Health>, Query(query): Query<CheckQuery>) -> Response {
    render_checks("healthz", &health.live.run(), query.verbose.is_some())
}

async fn readyz(State(health): State<Health>, Query(query): Query<CheckQuery>) -> Response {
    render_checks("readyz", &health.ready.run(), query.verbose.is_some())
}

/// As Kubernetes components answer: `ok` when fine; a line per check when asked or when one fails.
fn render_checks(
    endpoint: &str,
    results: &[(String, Result<(), String>)],
    verbose: bool,
) -> Response {
    let passed = results.iter().all(|(_, result)| result.is_ok());
    if passed && !verbose {
        return (StatusCode::OK, "ok").into_response();
    }
    let lines = results.iter().map(|(name, result)| match result {
        Ok(()) => format!("[+]{name} ok\n"),
        Err(reason) => format!("[-]{name} failed: {reason}\n"),
    });
    let (code, verdict) = if passed {
        (StatusCode::OK, "passed")
    } else {
        (StatusCode::INTERNAL_SERVER_ERROR, "failed")
    };
    let body: String = lines
        .chain([format!("{endpoint} check {verdict}\n")])
        .collect();
    (code, body).into_response()
}

async fn metrics(State(registry): State<Registry>) -> Response {
    match TextEncoder::new().encode_to_string(&registry.gather()) {
        Ok(text) => (
            [(
                header::CONTENT_TYPE,
                "text/plain; version=0.0.4; charset=utf-8",
            )],
            text,
        )
            .into_response(),
        Err(error) => {
            tracing::warn!(
                error = %chain(&error),
                "cannot encode metrics"
            );
            (
                StatusCode::INTERNAL_SERVER_ERROR,
                "metrics cannot be encoded, see the log\n",
            )
                .into_response()
        },
    }
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, Empty};
    use hyper::body::Bytes;
    use hyper_util::client::legacy::Client;
    use hyper_util::rt::TokioExecutor;

    use super::*;

    async fn get(address: SocketAddr, path: &str) -> (u16, String) {
        let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
        let uri = format!("http://{address}{path}").parse().expect("a URI");
        let response = client.get(uri).await.expect("an answer");
        let code = response.status().as_u16();
        let body = response
            .into_body()
            .collect()
            .await
            .expect("a body")
            .to_bytes();
        (code, String::from_utf8(body.to_vec()).expect("text"))
    }

    async fn serve(health: Health, registry: Registry) -> (SocketAddr, CancellationToken) {
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = AdminServer::bind(loopback, health, registry)
            .await
            .expect("a free port");
        let (address, stop) = (server.address(), CancellationToken::new());
        drop(tokio::spawn(server.serve(stop.clone())));
        (address, stop)
    }

    #[tokio::test]
    async fn readiness_follows_its_flag_and_names_what_is_missing() {
        let health = Health::new();
        health.ready_check("store", || Ok(()));
        let flag = health.ready_flag("cache", "waiting for the first list");
        let (address, _stop) = serve(health, Registry::new()).await;

        assert_eq!(get(address, "/healthz").await, (200, "ok".to_owned()));
        let (code, body) = get(address, "/readyz").await;
        assert_eq!(code, 500);
        assert_eq!(
            body,
            "[+]store ok\n[-]cache failed: waiting for the first list\nreadyz check failed\n"
        );
        flag.set_ready();
        assert_eq!(get(address, "/readyz").await, (200, "ok".to_owned()));
        let (_, verbose) = get(address, "/readyz?verbose").await;
        assert_eq!(verbose, "[+]store ok\n[+]cache ok\nreadyz check passed\n");
    }

    #[tokio::test]
    async fn metrics_come_from_the_registry_passed_in() {
        let registry = Registry::new();
        let counter = prometheus::IntCounter::new("probes_total", "Probes.").expect("a counter");
        registry
            .register(Box::new(counter.clone()))
            .expect("a free name");
        counter.inc();
        let (address, _stop) = serve(Health::new(), registry).await;
        let (code, body) = get(address, "/metrics").await;
        assert_eq!(code, 200);
        assert!(body.contains("probes_total 1"), "{body}");
    }

    #[tokio::test]
    async fn a_taken_port_is_an_error_that_names_the_address() {
        let taken = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let address = taken.local_addr().expect("an address");
        let error = AdminServer::bind(address, Health::new(), Registry::new())
            .await
            .expect_err("the port is taken");
        assert!(error.to_string().contains(&address.to_string()));
    }
}
