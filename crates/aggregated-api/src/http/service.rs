//! The server as a `tower::Service`: filters in upstream's order, then the route.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use prometheus::{IntCounterVec, Opts, Registry, TEXT_FORMAT, TextEncoder};
use runtime_kit::clock::Clock;
use serde_json::json;

use super::compress::{accepts_gzip, compress};
use super::documents::{Documents, only_get};
use super::health::{Health, ReadyCheck};
use super::in_flight::InFlight;
use super::options::Query;
use super::request::{RequestInfo, ResourceRequest};
use super::response::{Answer, error, raw_json};
use super::status::{ApiError, GroupResource};
use crate::admission::NamespaceLifecycle;
use crate::auth::{
    Attributes, AuthError, Authenticator, Authorizer, Decision, User, is_always_allowed,
};
use crate::codec::negotiate::{self, negotiate};
use crate::registry::capability::Object;
use crate::registry::serving::{AnyServing, Serving};
use crate::schema::discovery::{GroupVersionDiscovery, ServedKind};

const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
const WARNING: HeaderName = HeaderName::from_static("warning");

const METRICS: &str = "/metrics";
const VERSION: &str = "/version";

/// What a server is built from.
pub struct ApiServerBuilder {
    authenticator: Arc<dyn Authenticator>,
    authorizer: Arc<dyn Authorizer>,
    namespaces: Arc<dyn NamespaceLifecycle>,
    clock: Arc<dyn Clock>,
    kinds: Vec<Arc<dyn AnyServing>>,
    checks: Vec<(String, ReadyCheck)>,
    roles: Vec<(String, ReadyCheck)>,
}

/// The server. Cloning shares everything.
#[derive(Clone)]
pub struct ApiServer(Arc<Shared>);

pub(super) struct Shared {
    pub(super) authenticator: Arc<dyn Authenticator>,
    pub(super) authorizer: Arc<dyn Authorizer>,
    pub(super) namespaces: Arc<dyn NamespaceLifecycle>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) kinds: HashMap<(String, String, String), Served>,
    pub(super) documents: Documents,
    health: Health,
    in_flight: InFlight,
    /// Whether it ever was ready.
    started: AtomicBool,
    registry: Registry,
    pub(super) requests: IntCounterVec,
}

/// A kind with its description, made once.
pub(super) struct Served {
    pub(super) kind: Arc<dyn AnyServing>,
    pub(super) description: ServedKind,
}

impl ApiServer {
    /// Starts building a server from what it must be given.
    pub fn builder(
        authenticator: Arc<dyn Authenticator>,
        authorizer: Arc<dyn Authorizer>,
        namespaces: Arc<dyn NamespaceLifecycle>,
        clock: Arc<dyn Clock>,
    ) -> ApiServerBuilder {
        ApiServerBuilder {
            authenticator,
            authorizer,
            namespaces,
            clock,
            kinds: Vec::new(),
            checks: Vec::new(),
            roles: Vec::new(),
        }
    }
}

impl ApiServerBuilder {
    /// Serves a kind, in all its versions.
    #[must_use]
    pub fn serve<T: Object>(mut self, serving: Serving<T>) -> Self {
        self.kinds.extend(serving.versions());
        self
    }

    /// Adds a condition to `/readyz`. Until all of them hold for the first time, everything but health,
    /// version and metrics is answered with 503.
    #[must_use]
    pub fn ready_check(mut self, name: &str, check: ReadyCheck) -> Self {
        self.checks.push((name.to_owned(), check));
        self
    }

    /// Adds a condition to `/readyz` that keeps nothing from being answered: whether this replica has
    /// the role for which it should get requests.
    #[must_use]
    pub fn role_check(mut self, name: &str, check: ReadyCheck) -> Self {
        self.roles.push((name.to_owned(), check));
        self
    }

    /// The server, with its metrics in `registry`, which it serves at `/metrics`.
    ///
    /// # Errors
    /// A metric of the same name is already registered.
    pub fn build(self, registry: &Registry) -> Result<ApiServer, prometheus::Error> {
        let requests = IntCounterVec::new(
            Opts::new(
                "apiserver_request_total",
                "Requests by verb, resource and status code",
            ),
            &["verb", "resource", "subresource", "code"],
        )?;
        registry.register(Box::new(requests.clone()))?;
        let mut versions: HashMap<(String, String), Vec<_>> = HashMap::new();
        let mut kinds = HashMap::new();
        for kind in self.kinds {
            let declaration = Arc::clone(kind.declaration());
            let version = (
                declaration.resource.group.clone(),
                declaration.version.clone(),
            );
            let description = kind.describe();
            versions
                .entry(version.clone())
                .or_default()
                .push(description.clone());
            let key = (version.0, version.1, declaration.resource.resource.clone());
            kinds.insert(key, Served { kind, description });
        }
        let mut discovery: Vec<_> = versions
            .into_iter()
            .map(|((group, version), kinds)| GroupVersionDiscovery::new(&group, &version, kinds))
            .collect();
        discovery.sort_by(|a, b| (&a.group, &a.version).cmp(&(&b.group, &b.version)));
        let health = Health::new(self.checks, self.roles);
        let mut others = health.paths();
        others.extend([METRICS, VERSION].map(ToOwned::to_owned));
        let made = self.clock.now();
        Ok(ApiServer(Arc::new(Shared {
            authenticator: self.authenticator,
            authorizer: self.authorizer,
            namespaces: self.namespaces,
            clock: self.clock,
            kinds,
            documents: Documents::new(discovery, others, made),
            health,
            in_flight: InFlight::new(),
            started: AtomicBool::new(false),
            registry: registry.clone(),
            requests,
        })))
    }
}

impl<B> tower::Service<Request<B>> for ApiServer
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let shared = Arc::clone(&self.0);
        let (parts, body) = request.into_parts();
        Box::pin(async move { Ok(shared.respond(parts, Body::new(body)).await) })
    }
}

/// A request that has passed the filters.
pub(super) struct Admitted {
    pub(super) parts: Parts,
    pub(super) body: Body,
    pub(super) query: Query,
    pub(super) user: Arc<User>,
    pub(super) deadline: Duration,
}

impl Shared {
    async fn respond(&self, parts: Parts, body: Body) -> Response<Body> {
        let audit_id = parts
            .headers
            .get(&AUDIT_ID)
            .cloned()
            .or_else(|| HeaderValue::from_str(&uuid::Uuid::new_v4().to_string()).ok());
        let warnings = Arc::new(Mutex::new(Vec::new()));
        let path = percent_decode_str(parts.uri.path())
            .decode_utf8_lossy()
            .into_owned();
        let query = Query::parse(parts.uri.query().unwrap_or_default());
        let info = RequestInfo::parse(&parts.method, &path, &query);
        let mut close = false;
        let gzip = accepts_gzip(&parts.headers);
        let representation = negotiate(&parts.headers, &query, negotiate::Answer::Plain).ok();
        let mut answer = self
            .filtered(parts, body, query, &info, &path, &warnings, &mut close)
            .await;
        if gzip && let Ok(response) = answer {
            answer = compress(response).await;
        }
        let mut response = answer.unwrap_or_else(|refusal| {
            if refusal.code().is_server_error() {
                tracing::error!(error = %refusal, %path, "request failed");
            }
            error(&refusal, representation)
        });
        let headers = response.headers_mut();
        if !headers.contains_key(CACHE_CONTROL) {
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
        }
        if let Some(audit_id) = audit_id {
            headers.insert(AUDIT_ID, audit_id);
        }
        for warning in warnings.lock().drain(..) {
            let text: String = warning;
            let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
            if let Ok(line) = HeaderValue::from_str(&format!("299 - \"{escaped}\"")) {
                headers.append(WARNING, line);
            }
        }
        if close {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if let RequestInfo::Resource(request) = &info {
            // Why: a label that callers may choose would let them fill the memory with metrics.
            let served = self.kinds.get(&key_of(request));
            let resource = served.map_or("", |_| request.resource.as_str());
            let subresource = served
                .and_then(|served| served.description.subresource(&request.subresource))
                .map_or("", |subresource| subresource.name);
            self.requests
                .with_label_values(&[
                    request.verb,
                    resource,
                    subresource,
                    response.status().as_str(),
                ])
                .inc();
        }
        response
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the one place where the filters meet"
    )]
    async fn filtered(
        &self,
        mut parts: Parts,
        body: Body,
        query: Query,
        info: &RequestInfo,
        path: &str,
        warnings: &Arc<Mutex<Vec<String>>>,
        close: &mut bool,
    ) -> Answer {
        let watches = matches!(info, RequestInfo::Resource(request) if request.verb == "watch");
        let allowed = if watches {
            // A watch has `timeoutSeconds`, and takes no notice of what bounds a request.
            Duration::MAX
        } else {
            query.timeout()?
        };
        let deadline = self.clock.elapsed().saturating_add(allowed);
        if parts
            .headers
            .keys()
            .any(|name| name.as_str().starts_with("impersonate-"))
        {
            return Err(ApiError::bad_request(
                "this server does not impersonate; send the request through the aggregator (kube-apiserver), which does",
            ));
        }
        let user = match self.authenticator.authenticate(&parts).await {
            Ok(Some(user)) => user,
            Ok(None) => {
                *close = true;
                return Err(ApiError::unauthorized());
            },
            Err(AuthError::Unauthenticated(why)) => {
                tracing::debug!(%why, %path, "unauthenticated");
                *close = true;
                return Err(ApiError::unauthorized());
            },
            Err(failure @ AuthError::Unavailable { .. }) => {
                tracing::warn!(error = %failure, %path, "a caller could not be authenticated");
                return Err(ApiError::service_unavailable(
                    "the caller cannot be authenticated now; try again",
                )
                .retry_after(1));
            },
        };
        *close = user.is_anonymous() && parts.version == http::Version::HTTP_2;
        self.authenticator.strip_credentials(&mut parts.headers);
        let mut _place = None;
        if !is_always_allowed(path) {
            let verb = match info {
                RequestInfo::Resource(request) => request.verb,
                RequestInfo::Other => "",
            };
            match self.in_flight.enter(verb, &user) {
                Ok(place) => _place = place,
                Err(full) => return Ok(*full),
            }
            let attributes = info.attributes(&parts.method, path, &query);
            self.authorize(&user, &attributes).await?;
        }
        let admitted = Admitted {
            parts,
            body,
            query,
            user: Arc::new(user),
            deadline,
        };
        match info {
            RequestInfo::Other => self.other(&admitted, path),
            RequestInfo::Resource(request) => {
                self.refuse_until_started()?;
                if admitted.parts.method == Method::HEAD
                    && self.kinds.contains_key(&key_of(request))
                {
                    return Err(ApiError::method_not_allowed());
                }
                self.resource(request, admitted, warnings).await
            },
        }
    }

    async fn authorize(&self, user: &User, attributes: &Attributes) -> Result<(), ApiError> {
        let why = match self.authorizer.authorize(user, attributes).await {
            Ok(Decision::Allow) => return Ok(()),
            Ok(Decision::Deny(why)) => why,
            Err(failure) => {
                return Err(ApiError::internal(
                    "the authorizer could not be asked",
                    failure,
                ));
            },
        };
        let suffix = if why.is_empty() {
            String::new()
        } else {
            format!(": {why}")
        };
        Err(match attributes {
            Attributes::NonResource { verb, path } => ApiError::forbidden(
                &GroupResource {
                    group: String::new(),
                    resource: String::new(),
                },
                "",
                &format!("User {:?} cannot {verb} path {path:?}{suffix}", user.name),
            ),
            Attributes::Resource {
                verb,
                group,
                resource,
                subresource,
                namespace,
                name,
                ..
            } => {
                let full = if subresource.is_empty() {
                    resource.clone()
                } else {
                    format!("{resource}/{subresource}")
                };
                let place = if namespace.is_empty() {
                    "at the cluster scope".to_owned()
                } else {
                    format!("in the namespace {namespace:?}")
                };
                ApiError::forbidden(
                    &GroupResource {
                        group: group.clone(),
                        resource: resource.clone(),
                    },
                    name,
                    &format!(
                        "User {:?} cannot {verb} resource {full:?} in API group {group:?} {place}{suffix}",
                        user.name
                    ),
                )
            },
        })
    }

    fn other(&self, request: &Admitted, path: &str) -> Answer {
        let parts = &request.parts;
        if let Some(answer) = self.health.answer(path, &request.query) {
            return Ok(answer);
        }
        match path {
            METRICS => self.metrics(),
            VERSION | "/version/" => {
                only_get(&parts.method)?;
                Ok(raw_json(StatusCode::OK, &version()))
            },
            _ => {
                self.refuse_until_started()?;
                let reads = matches!(parts.method, Method::GET | Method::HEAD);
                if !reads && self.documents.has(path) {
                    return Err(ApiError::method_not_allowed());
                }
                self.documents
                    .answer(path, parts, &request.query, self.clock.now())
            },
        }
    }

    /// A server that cannot serve yet says so, and not that something does not exist: the garbage
    /// collector believes a 404, and the aggregator an incomplete list.
    fn refuse_until_started(&self) -> Result<(), ApiError> {
        if self.started.load(Ordering::Acquire) {
            return Ok(());
        }
        if self.health.can_serve() {
            self.started.store(true, Ordering::Release);
            return Ok(());
        }
        Err(ApiError::service_unavailable(
            "the request has been made before all known HTTP paths have been installed, please try again",
        )
        .retry_after(5))
    }

    fn metrics(&self) -> Answer {
        let text = TextEncoder::new()
            .encode_to_string(&self.registry.gather())
            .map_err(|e| ApiError::internal("the metrics cannot be encoded", e))?;
        let mut response = Response::new(Body::from(text));
        response
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static(TEXT_FORMAT));
        Ok(response)
    }
}

/// What `version.Info` of `k8s.io/apimachinery` has; clients such as Python's insist on every member.
fn version() -> serde_json::Value {
    let package = env!("CARGO_PKG_VERSION");
    let mut parts = package.split('.');
    json!({
        "major": parts.next(),
        "minor": parts.next(),
        "gitVersion": format!("v{package}"),
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, architecture()),
    })
}

/// The architecture as Go calls it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

pub(super) fn key_of(request: &ResourceRequest) -> (String, String, String) {
    (
        request.group.clone(),
        request.version.clone(),
        request.resource.clone(),
    )
}
