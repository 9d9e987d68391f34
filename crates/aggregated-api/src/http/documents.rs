//! Discovery and OpenAPI documents: encoded once, served with entity tags.

use std::collections::HashMap;

use axum::body::Body;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH, VARY};
use http::{HeaderMap, Response, StatusCode};
use serde_json::{Value, json};

use super::options::Query;
use super::response::{Answer, json_bytes, value};
use super::status::ApiError;
use crate::codec::negotiate::{self, negotiate, wants_aggregated_discovery};
use crate::schema::discovery::{GroupVersionDiscovery, aggregated_list, etag, group_list};
use crate::schema::openapi;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

struct Document {
    body: Bytes,
    etag: String,
}

impl Document {
    fn new(value: &Value) -> Self {
        let body = Bytes::from(value.to_string());
        Self {
            etag: etag(&body),
            body,
        }
    }
}

/// Every document of a server.
pub(crate) struct Documents {
    /// Negotiated like objects, by path.
    plain: HashMap<String, Value>,
    aggregated: Document,
    openapi_v2: Document,
    openapi_v3: HashMap<String, Document>,
    openapi_v3_index: Value,
    paths: Vec<String>,
}

impl Documents {
    pub(crate) fn new(versions: &[GroupVersionDiscovery]) -> Self {
        let mut plain = HashMap::from([("/apis".to_owned(), group_list(versions))]);
        let mut openapi_v3 = HashMap::new();
        let mut index = serde_json::Map::new();
        for gv in versions {
            let path = format!("apis/{}/{}", gv.group, gv.version);
            plain.insert(format!("/apis/{}", gv.group), gv.group());
            plain.insert(format!("/{path}"), gv.resource_list());
            let document = Document::new(&openapi::v3(gv));
            index.insert(
                path.clone(),
                json!({"serverRelativeURL": format!("/openapi/v3/{path}?hash={}", document.etag)}),
            );
            openapi_v3.insert(format!("/openapi/v3/{path}"), document);
        }
        let mut paths: Vec<_> = plain.keys().chain(openapi_v3.keys()).cloned().collect();
        let fixed = [
            "/healthz",
            "/livez",
            "/openapi/v2",
            "/openapi/v3",
            "/readyz",
            "/version",
        ];
        paths.extend(fixed.map(ToOwned::to_owned));
        paths.sort();
        Self {
            plain,
            aggregated: Document::new(&aggregated_list(versions)),
            openapi_v2: Document::new(&openapi::v2(versions)),
            openapi_v3,
            openapi_v3_index: json!({"paths": index}),
            paths,
        }
    }

    /// The document at `path`, or a 404 that lists the paths there are.
    pub(crate) fn answer(&self, path: &str, headers: &HeaderMap, query: &Query) -> Answer {
        if path == "/apis" && wants_aggregated_discovery(headers) {
            let mut response = tagged(&self.aggregated, headers);
            let out = response.headers_mut();
            out.insert(CACHE_CONTROL, HeaderValue::from_static("public"));
            if !self.aggregated.body.is_empty() {
                out.insert(CONTENT_TYPE, HeaderValue::from_static(AGGREGATED));
            }
            return Ok(response);
        }
        if let Some(document) = self.plain.get(path.trim_end_matches('/')) {
            let representation = negotiate(headers, query, negotiate::Answer::Plain)?;
            return value(StatusCode::OK, document, representation);
        }
        match path {
            "/openapi/v2" => openapi_document(&self.openapi_v2, headers, false),
            "/openapi/v3" => Ok(json_bytes(
                StatusCode::OK,
                self.openapi_v3_index.to_string().into(),
            )),
            _ => {
                let Some(document) = self.openapi_v3.get(path) else {
                    let body = json!({"paths": self.paths}).to_string();
                    return Ok(json_bytes(StatusCode::NOT_FOUND, body.into()));
                };
                let hash = query.get("hash");
                if hash.is_some_and(|hash| hash != document.etag) {
                    return Ok(redirect(path, &document.etag));
                }
                openapi_document(document, headers, hash.is_some())
            },
        }
    }

    pub(crate) fn version() -> Response<Body> {
        let package = env!("CARGO_PKG_VERSION");
        let mut parts = package.split('.');
        let body = json!({
            "major": parts.next(), "minor": parts.next(), "gitVersion": format!("v{package}"),
        });
        json_bytes(StatusCode::OK, body.to_string().into())
    }
}

fn openapi_document(document: &Document, headers: &HeaderMap, immutable: bool) -> Answer {
    let accept = negotiate::accept_header(headers);
    let json = accept.is_empty()
        || accept.split(',').any(|clause| {
            let media = clause.split(';').next().unwrap_or_default().trim();
            matches!(media, "application/json" | "*/*" | "application/*")
        });
    if !json {
        return Err(ApiError::not_acceptable(
            "only the following media types are accepted: application/json",
        ));
    }
    let mut response = tagged(document, headers);
    if immutable {
        response
            .headers_mut()
            .insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
    }
    Ok(response)
}

fn tagged(document: &Document, headers: &HeaderMap) -> Response<Body> {
    let quoted = format!("\"{}\"", document.etag);
    let known = headers
        .get(IF_NONE_MATCH)
        .and_then(|v| v.to_str().ok())
        .is_some_and(|tags| tags.split(',').any(|tag| tag.trim() == quoted));
    let mut response = if known {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        json_bytes(StatusCode::OK, document.body.clone())
    };
    let out = response.headers_mut();
    if let Ok(tag) = HeaderValue::from_str(&quoted) {
        out.insert(ETAG, tag);
    }
    out.insert(VARY, HeaderValue::from_static("Accept"));
    response
}

fn redirect(path: &str, etag: &str) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    if let Ok(location) = HeaderValue::from_str(&format!("{path}?hash={etag}")) {
        response
            .headers_mut()
            .insert(http::header::LOCATION, location);
    }
    response
}
