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
use http_body_util::{BodyExt, LengthLimitError, Limited};
use parking_lot::Mutex;
use prometheus::{IntCounterVec, Opts, Registry};
use runtime_kit::clock::Clock;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::documents::Documents;
use super::options::{DeleteOptions, ListOptions, Query, ReadAt, WriteOptions, revision};
use super::request::{RequestInfo, ResourceRequest};
use super::response::{Answer, error, object, value};
use super::status::{ApiError, GroupResource};
use crate::admission::NamespaceLifecycle;
use crate::auth::{
    Attributes, AuthError, Authenticator, Authorizer, Decision, User, is_always_allowed,
};
use crate::codec::decode::{Decoded, Format, decode};
use crate::codec::negotiate::{self, Representation, View, body_format, content_type, negotiate};
use crate::registry::capability::Object;
use crate::registry::context::RequestCtx;
use crate::registry::read::Reader;
use crate::registry::serving::{AnyServing, Serving};
use crate::registry::watch::{self, WatchSource};
use crate::registry::write::{Change, Deleted, Patch};
use crate::schema::discovery::{GroupVersionDiscovery, ServedKind, ServedSubresource};
use crate::server::Draining;

/// Largest request body, in bytes.
const MAX_BODY: usize = 3 * 1024 * 1024;
/// Most operations in a JSON patch.
const MAX_PATCH_OPERATIONS: usize = 10_000;
/// Longest time a write may take.
const MAX_WRITE: Duration = Duration::from_secs(34);
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

struct Shared {
    authenticator: Arc<dyn Authenticator>,
    authorizer: Arc<dyn Authorizer>,
    namespaces: Arc<dyn NamespaceLifecycle>,
    clock: Arc<dyn Clock>,
    kinds: HashMap<(String, String, String), Served>,
    documents: Documents,
    checks: Vec<(String, ReadyCheck)>,
    requests: IntCounterVec,
}

/// A kind with its description, made once.
struct Served {
    kind: Arc<dyn AnyServing>,
    description: ServedKind,
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
struct Admitted {
    parts: Parts,
    body: Body,
    query: Query,
    user: Arc<User>,
    deadline: Duration,
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
        let answer = self
            .filtered(parts, body, query, &info, &path, &warnings, &mut close)
            .await;
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
                return Err(ApiError::internal(
                    "the caller could not be authenticated",
                    failure,
                ));
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

    async fn resource(
        &self,
        request: &ResourceRequest,
        admitted: Admitted,
        warnings: &Arc<Mutex<Vec<String>>>,
    ) -> Answer {
        let Served {
            kind,
            description: served,
        } = self
            .kinds
            .get(&key_of(request))
            .ok_or_else(ApiError::unknown_resource)?;
        let declaration = kind.declaration();
        if request.namespaced && !declaration.namespaced {
            return Err(ApiError::unknown_resource());
        }
        if declaration.namespaced && !request.namespaced {
            if !request.name.is_empty() {
                return Err(ApiError::unknown_resource());
            }
            if !matches!(request.verb, "list" | "watch") {
                return Err(ApiError::method_not_allowed());
            }
        }
        let sub = served
            .subresources
            .iter()
            .find(|s| s.name == request.subresource);
        if !request.subresource.is_empty() {
            if sub.is_none() {
                return Err(ApiError::unknown_resource());
            }
            if request.verb != "create" {
                return Err(ApiError::method_not_allowed());
            }
        } else if !served.verbs.contains(&request.verb)
            || (request.verb == "create" && !request.name.is_empty())
            || (matches!(request.verb, "update" | "patch") && request.name.is_empty())
        {
            return Err(ApiError::method_not_allowed());
        }
        if request.verb == "watch" {
            return self.watch(&**kind, request, admitted).await;
        }
        let writes = !matches!(request.verb, "get" | "list" | "deletecollection");
        let now = self.clock.elapsed();
        let mut remaining = admitted.deadline.saturating_sub(now);
        if writes {
            remaining = remaining.min(MAX_WRITE);
        }
        let handled = self.handle(&**kind, sub, request, admitted, remaining, warnings);
        tokio::select! {
            answer = handled => answer,
            () = self.clock.sleep(remaining) => Err(ApiError::timeout()),
        }
    }

    async fn handle(
        &self,
        kind: &dyn AnyServing,
        subresource: Option<&ServedSubresource>,
        request: &ResourceRequest,
        admitted: Admitted,
        remaining: Duration,
        warnings: &Arc<Mutex<Vec<String>>>,
    ) -> Answer {
        let declaration = kind.declaration();
        let Admitted {
            parts,
            body,
            query,
            user,
            ..
        } = admitted;
        let headers = &parts.headers;
        let mut ctx = RequestCtx {
            user,
            namespace: request.namespace.clone(),
            dry_run: false,
            now: self.clock.now(),
            clock: Arc::clone(&self.clock),
            deadline: self.clock.elapsed() + remaining,
            authorizer: Arc::clone(&self.authorizer),
            warnings: Arc::clone(warnings),
        };
        let reader = Reader {
            declaration,
            cache: kind.cache(),
            kind: kind.kind(),
        };
        let name = request.name.as_str();
        if let Some(subresource) = subresource {
            let representation = negotiate(headers, &query, negotiate::Answer::Plain)?;
            let options = WriteOptions::parse(&query, "CreateOptions")?;
            ctx.dry_run = options.dry_run;
            let decoded = match read_body(body).await? {
                empty if empty.is_empty() => Decoded {
                    value: json!({}),
                    duplicates: Vec::new(),
                },
                bytes => decode(&bytes, body_format(headers)?)?,
            };
            check_body_kind(&decoded.value, subresource.kind)?;
            let answer = kind
                .create_subresource(&ctx, subresource.name, name, decoded.value)
                .await?;
            return value(StatusCode::CREATED, &answer, representation);
        }
        match request.verb {
            "get" => {
                let representation = negotiate(headers, &query, negotiate::Answer::Object)?;
                let read_at = match revision(query.get("resourceVersion").unwrap_or_default())? {
                    None => ReadAt::Latest,
                    Some(0) => ReadAt::Any,
                    Some(n) => ReadAt::NotOlderThan(n),
                };
                let entry = reader.get(&request.namespace, name, read_at).await?;
                object(StatusCode::OK, &entry, declaration, representation, ctx.now)
            },
            "list" => {
                let representation = negotiate(headers, &query, negotiate::Answer::List)?;
                let options = ListOptions::parse(&query, false)?;
                let page = reader.list(&request.namespace, &options).await?;
                page.answer(declaration, representation, ctx.now)
            },
            "create" => {
                let representation = negotiate(headers, &query, negotiate::Answer::Object)?;
                let options = WriteOptions::parse(&query, "CreateOptions")?;
                ctx.dry_run = options.dry_run;
                let format = body_format(headers)?;
                let body = decode(&read_body(body).await?, format)?;
                let entry = kind.create(&ctx, &*self.namespaces, body, &options).await?;
                object(
                    StatusCode::CREATED,
                    &entry,
                    declaration,
                    representation,
                    ctx.now,
                )
            },
            "update" | "patch" => {
                let patching = request.verb == "patch";
                let patch_format = patching.then(|| patch_format(headers)).transpose()?;
                let representation = negotiate(headers, &query, negotiate::Answer::Object)?;
                let kind_name = if patching {
                    "PatchOptions"
                } else {
                    "UpdateOptions"
                };
                let options = WriteOptions::parse(&query, kind_name)?;
                ctx.dry_run = options.dry_run;
                let format = if patching {
                    Format::Json
                } else {
                    body_format(headers)?
                };
                let bytes = read_body(body).await?;
                let change = match patch_format {
                    None => Change::Replace(decode(&bytes, format)?),
                    Some(PatchFormat::Merge) => {
                        Change::Patch(Patch::Merge(decode(&bytes, format)?))
                    },
                    Some(PatchFormat::Json) => Change::Patch(Patch::Json(json_patch(&bytes)?)),
                };
                let entry = kind.update(&ctx, name, change, &options).await?;
                object(StatusCode::OK, &entry, declaration, representation, ctx.now)
            },
            "delete" => {
                let representation = negotiate(headers, &query, negotiate::Answer::Object)?;
                let options = delete_options(&query, body, headers).await?;
                ctx.dry_run = options.dry_run;
                match kind.delete(&ctx, name, &options).await? {
                    Deleted::Gone(entry) => {
                        let plain = Representation {
                            view: View::Whole,
                            ..representation
                        };
                        value(StatusCode::OK, &success(declaration, &entry), plain)
                    },
                    Deleted::Pending(entry) => {
                        object(StatusCode::OK, &entry, declaration, representation, ctx.now)
                    },
                }
            },
            "deletecollection" => {
                let representation = negotiate(headers, &query, negotiate::Answer::List)?;
                let list = ListOptions::parse(&query, false)?;
                let options = delete_options(&query, body, headers).await?;
                ctx.dry_run = options.dry_run;
                let page = reader.list(&request.namespace, &list).await?;
                for entry in &page.entries {
                    entry.namespace.as_ref().clone_into(&mut ctx.namespace);
                    match kind.delete(&ctx, &entry.name, &options).await {
                        Ok(_) => {},
                        Err(gone) if gone.code() == StatusCode::NOT_FOUND => {},
                        Err(other) => return Err(other),
                    }
                }
                page.answer(declaration, representation, ctx.now)
            },
            _ => Err(ApiError::method_not_allowed()),
        }
    }

    async fn watch(
        &self,
        kind: &dyn AnyServing,
        request: &ResourceRequest,
        admitted: Admitted,
    ) -> Answer {
        let Admitted { parts, query, .. } = admitted;
        let representation = negotiate(&parts.headers, &query, negotiate::Answer::Watch)?;
        let mut options = ListOptions::parse(&query, true)?;
        if !request.name.is_empty() {
            if options
                .fields
                .exact_name()
                .is_some_and(|selected| selected != request.name)
            {
                return Err(ApiError::bad_request(
                    "fieldSelector metadata.name doesn't match requested name",
                ));
            }
            options.fields = crate::codec::selector::FieldSelector::name(&request.name);
        }
        let shutdown = parts
            .extensions
            .get::<Draining>()
            .map_or_else(CancellationToken::new, |draining| draining.0.clone());
        let source = WatchSource {
            declaration: Arc::clone(kind.declaration()),
            cache: Arc::clone(kind.cache()),
            kind: Arc::clone(kind.kind()),
            clock: Arc::clone(&self.clock),
            shutdown,
        };
        watch::start(source, &request.namespace, options, representation).await
    }
}

fn key_of(request: &ResourceRequest) -> (String, String, String) {
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

async fn read_body(body: Body) -> Result<Bytes, ApiError> {
    match Limited::new(body, MAX_BODY).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(ApiError::entity_too_large(MAX_BODY)),
        Err(error) => Err(ApiError::bad_request(format!(
            "the body could not be read: {error}"
        ))),
    }
}

enum PatchFormat {
    Json,
    Merge,
}

fn patch_format(headers: &http::HeaderMap) -> Result<PatchFormat, ApiError> {
    match content_type(headers).as_str() {
        "application/json-patch+json" => Ok(PatchFormat::Json),
        "application/merge-patch+json" => Ok(PatchFormat::Merge),
        _ => Err(ApiError::unsupported_media_type(super::patch_types())),
    }
}

fn json_patch(bytes: &[u8]) -> Result<json_patch::Patch, ApiError> {
    let patch: json_patch::Patch = serde_json::from_slice(bytes)
        .map_err(|e| ApiError::bad_request(format!("invalid JSON patch: {e}")))?;
    if patch.0.len() > MAX_PATCH_OPERATIONS {
        return Err(ApiError::refusal(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestEntityTooLarge",
            format!(
                "The allowed maximum operations in a JSON patch is {MAX_PATCH_OPERATIONS}, got {}",
                patch.0.len()
            ),
        ));
    }
    Ok(patch)
}

async fn delete_options(
    query: &Query,
    body: Body,
    headers: &http::HeaderMap,
) -> Result<DeleteOptions, ApiError> {
    let bytes = read_body(body).await?;
    let value = if bytes.is_empty() {
        None
    } else {
        Some(decode(&bytes, body_format(headers)?)?.value)
    };
    DeleteOptions::parse(query, value)
}

fn check_body_kind(body: &Value, expected: &str) -> Result<(), ApiError> {
    match body.get("kind").and_then(Value::as_str) {
        None | Some("") => Ok(()),
        Some(kind) if kind == expected => Ok(()),
        Some(other) => Err(ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {expected}): it is of kind {other:?}"
        ))),
    }
}

fn success(
    declaration: &crate::schema::declaration::Declaration,
    entry: &crate::registry::entry::Entry,
) -> Value {
    let object = entry.value();
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {
            "name": &*entry.name,
            "group": declaration.resource.group,
            "kind": declaration.resource.resource,
            "uid": object.pointer("/metadata/uid"),
        },
    })
}
