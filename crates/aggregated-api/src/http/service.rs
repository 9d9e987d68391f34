//! The server as a `tower::Service`: filters in upstream's order, then the route.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::{CACHE_CONTROL, CONNECTION, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use parking_lot::Mutex;
use prometheus::{IntCounterVec, Opts, Registry};
use runtime_kit::clock::Clock;

use super::compress::{accepts_gzip, compress};
use super::documents::Documents;
use super::options::Query;
use super::request::{RequestInfo, ResourceRequest};
use super::response::{Answer, error};
use super::status::{ApiError, GroupResource};
use crate::admission::NamespaceLifecycle;
use crate::auth::{
    Attributes, AuthError, Authenticator, Authorizer, Decision, User, is_always_allowed,
};
use crate::registry::capability::Object;
use crate::registry::serving::{AnyServing, Serving};
use crate::schema::discovery::{GroupVersionDiscovery, ServedKind};

const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
const WARNING: HeaderName = HeaderName::from_static("warning");

/// A condition of `/readyz`: `Err` says what is missing.
pub type ReadyCheck = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// What a server is built from.
pub struct ApiServerBuilder {
    authenticator: Arc<dyn Authenticator>,
    authorizer: Arc<dyn Authorizer>,
    namespaces: Arc<dyn NamespaceLifecycle>,
    clock: Arc<dyn Clock>,
    kinds: Vec<Arc<dyn AnyServing>>,
    checks: Vec<(String, ReadyCheck)>,
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
    pub(super) checks: Vec<(String, ReadyCheck)>,
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
        }
    }
}

impl ApiServerBuilder {
    /// Serves a kind.
    #[must_use]
    pub fn serve<T: Object>(mut self, serving: Serving<T>) -> Self {
        self.kinds.push(Arc::new(serving));
        self
    }

    /// Adds a condition to `/readyz`.
    #[must_use]
    pub fn ready_check(mut self, name: &str, check: ReadyCheck) -> Self {
        self.checks.push((name.to_owned(), check));
        self
    }

    /// The server, with its metrics in `registry`.
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
        Ok(ApiServer(Arc::new(Shared {
            authenticator: self.authenticator,
            authorizer: self.authorizer,
            namespaces: self.namespaces,
            clock: self.clock,
            kinds,
            documents: Documents::new(&discovery),
            checks: self.checks,
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
        let path = parts.uri.path().to_owned();
        let query = Query::parse(parts.uri.query().unwrap_or_default());
        let info = RequestInfo::parse(&parts.method, &path, &query);
        let mut close = false;
        let gzip = accepts_gzip(&parts.headers);
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
            error(&refusal)
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
            let known = self.kinds.contains_key(&key_of(request));
            let resource = if known { request.resource.as_str() } else { "" };
            let subresource = if known {
                request.subresource.as_str()
            } else {
                ""
            };
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
        let deadline = self.clock.elapsed() + query.timeout()?;
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
        if !is_always_allowed(path) {
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
            RequestInfo::Resource(request) => self.resource(request, admitted, warnings).await,
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
        match path {
            "/healthz" | "/livez" => Ok(text("ok")),
            "/readyz" => Ok(self.readyz(request.query.get("verbose").is_some())),
            "/version" => Ok(Documents::version()),
            _ if request.parts.method != Method::GET && request.parts.method != Method::HEAD => {
                Err(ApiError::method_not_allowed())
            },
            _ => self
                .documents
                .answer(path, &request.parts.headers, &request.query),
        }
    }

    fn readyz(&self, verbose: bool) -> Response<Body> {
        let mut lines = Vec::new();
        let mut red = false;
        for (name, check) in &self.checks {
            match check() {
                Ok(()) => lines.push(format!("[+]{name} ok")),
                Err(why) => {
                    red = true;
                    lines.push(format!("[-]{name} failed: {why}"));
                },
            }
        }
        if !red && !verbose {
            return text("ok");
        }
        lines.push(format!(
            "readyz check {}",
            if red { "failed\n" } else { "passed\n" }
        ));
        let mut response = text(&lines.join("\n"));
        if red {
            *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        }
        response
    }
}

pub(super) fn key_of(request: &ResourceRequest) -> (String, String, String) {
    (
        request.group.clone(),
        request.version.clone(),
        request.resource.clone(),
    )
}

fn text(body: &str) -> Response<Body> {
    let mut response = Response::new(Body::from(body.to_owned()));
    response.headers_mut().insert(
        http::header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    response
}
