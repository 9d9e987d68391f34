//! Discovery and OpenAPI documents: encoded once, served with entity tags.

use std::collections::HashMap;

use axum::body::Body;
use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, EXPIRES, HOST, HeaderValue, IF_NONE_MATCH,
    LAST_MODIFIED, LOCATION, VARY,
};
use http::request::Parts;
use http::{HeaderMap, Method, Response, StatusCode};
use jiff::{Span, Timestamp, tz::TimeZone};
use serde_json::{Value, json};

use super::compress::{accepts_gzip, gzip};
use super::options::Query;
use super::response::{Answer, json_bytes, raw_json, value};
use super::status::ApiError;
use crate::codec::negotiate::{self, negotiate, wants_aggregated_discovery};
use crate::schema::discovery::{
    GroupDiscovery, GroupVersionDiscovery, aggregated_list, etag, group_list,
};
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

    /// The same with a final newline, which the entity tag does not cover.
    fn line(value: &Value) -> Self {
        let Self { body, etag } = Self::new(value);
        Self {
            body: [&body[..], b"\n"].concat().into(),
            etag,
        }
    }
}

/// Every document of a server.
pub(crate) struct Documents {
    versions: Vec<GroupVersionDiscovery>,
    /// Negotiated like objects, by path.
    plain: HashMap<String, Value>,
    aggregated: Document,
    openapi_v2: Document,
    /// The same compressed; it is what every kube-apiserver fetches, and never small.
    openapi_v2_gzip: Option<Bytes>,
    openapi_v3: HashMap<String, Document>,
    openapi_v3_index: Document,
    made: Timestamp,
    paths: Value,
}

impl Documents {
    /// `others` are the paths that are served beside the documents.
    pub(crate) fn new(
        versions: Vec<GroupVersionDiscovery>,
        others: Vec<String>,
        made: Timestamp,
    ) -> Self {
        let groups = GroupDiscovery::all(&versions);
        let mut plain: HashMap<_, _> = groups
            .iter()
            .map(|group| (format!("/apis/{}", group.name()), group.document()))
            .collect();
        let mut openapi_v3 = HashMap::new();
        let mut index = serde_json::Map::new();
        for gv in &versions {
            let path = format!("apis/{}/{}", gv.group, gv.version);
            plain.insert(format!("/{path}"), gv.resource_list());
            let document = Document::new(&openapi::v3(gv));
            index.insert(
                path.clone(),
                json!({"serverRelativeURL": format!("/openapi/v3/{path}?hash={}", document.etag)}),
            );
            openapi_v3.insert(format!("/openapi/v3/{path}"), document);
        }
        let mut paths = others;
        paths.extend(["/apis", "/openapi/v2", "/openapi/v3"].map(ToOwned::to_owned));
        paths.extend(plain.keys().chain(openapi_v3.keys()).cloned());
        paths.sort();
        let openapi_v2 = Document::new(&openapi::v2(&versions));
        Self {
            plain,
            aggregated: Document::line(&aggregated_list(&groups)),
            openapi_v2_gzip: gzip(&openapi_v2.body).ok(),
            openapi_v2,
            openapi_v3,
            openapi_v3_index: Document::new(&json!({"paths": index})),
            made,
            paths: json!({"paths": paths}),
            versions,
        }
    }

    /// Whether there is anything at `path`.
    pub(crate) fn has(&self, path: &str) -> bool {
        matches!(path, "/" | "/index.html")
            || self.paths["paths"].as_array().is_some_and(|paths| {
                paths
                    .iter()
                    .any(|known| known == path.trim_end_matches('/'))
            })
    }

    /// The document at `path`, or a 404: below a served group as for an object, else with the paths there
    /// are.
    pub(crate) fn answer(
        &self,
        path: &str,
        parts: &Parts,
        query: &Query,
        now: Timestamp,
    ) -> Answer {
        let headers = &parts.headers;
        match path {
            "/" | "/index.html" => Ok(raw_json(StatusCode::OK, &self.paths)),
            "/openapi/v2" => Ok(self.openapi_v2(headers)),
            "/openapi/v3" => Ok(self.openapi(&self.openapi_v3_index, headers)),
            _ => {
                if let Some(document) = self.openapi_v3.get(path) {
                    return Ok(self.openapi_v3(path, document, headers, query, now));
                }
                match path.trim_end_matches('/') {
                    "/apis" => {
                        only_get(&parts.method)?;
                        self.groups(parts, query)
                    },
                    path => {
                        let Some(document) = self.plain.get(path) else {
                            return match path.rsplit_once('/') {
                                Some((group, _))
                                    if group != "/apis" && self.plain.contains_key(group) =>
                                {
                                    Err(ApiError::unknown_resource())
                                },
                                _ => Ok(raw_json(StatusCode::NOT_FOUND, &self.paths)),
                            };
                        };
                        only_get(&parts.method)?;
                        let representation = negotiate(headers, query, negotiate::Answer::Plain)?;
                        value(StatusCode::OK, document, representation)
                    },
                }
            },
        }
    }

    fn groups(&self, parts: &Parts, query: &Query) -> Answer {
        let headers = &parts.headers;
        if wants_aggregated_discovery(headers) {
            let mut response = tagged(&self.aggregated, headers);
            let out = response.headers_mut();
            out.insert(VARY, HeaderValue::from_static("Accept"));
            out.insert(CACHE_CONTROL, HeaderValue::from_static("public"));
            if out.contains_key(CONTENT_TYPE) {
                out.insert(CONTENT_TYPE, HeaderValue::from_static(AGGREGATED));
            }
            return Ok(response);
        }
        let representation = negotiate(headers, query, negotiate::Answer::Plain)?;
        let authority = parts.uri.authority().map(http::uri::Authority::as_str);
        let host = headers.get(HOST).and_then(|host| host.to_str().ok());
        let address = authority.or(host).unwrap_or_default();
        let list = group_list(&GroupDiscovery::all(&self.versions), address);
        value(StatusCode::OK, &list, representation)
    }

    fn openapi_v2(&self, headers: &HeaderMap) -> Response<Body> {
        let mut response = if accepts_json(headers) {
            self.openapi(&self.openapi_v2, headers)
        } else {
            not_acceptable()
        };
        if accepts_gzip(headers)
            && response.status() == StatusCode::OK
            && let Some(packed) = &self.openapi_v2_gzip
        {
            *response.body_mut() = Body::from(packed.clone());
            response
                .headers_mut()
                .insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        let out = response.headers_mut();
        out.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
        out.append(VARY, HeaderValue::from_static("Accept"));
        response
    }

    fn openapi_v3(
        &self,
        path: &str,
        document: &Document,
        headers: &HeaderMap,
        query: &Query,
        now: Timestamp,
    ) -> Response<Body> {
        let hash = query.get("hash").filter(|hash| !hash.is_empty());
        let mut response = if !accepts_json(headers) {
            not_acceptable()
        } else if hash.is_some_and(|hash| hash != document.etag) {
            redirect(path, &document.etag)
        } else {
            let mut response = self.openapi(document, headers);
            if hash.is_some() {
                let out = response.headers_mut();
                out.insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
                // A year: for ever, as far as HTTP can say it.
                insert_date(out, EXPIRES, now + Span::new().hours(365 * 24));
            }
            response
        };
        response
            .headers_mut()
            .insert(VARY, HeaderValue::from_static("Accept"));
        response
    }

    /// An OpenAPI document, which tells when it was made.
    fn openapi(&self, document: &Document, headers: &HeaderMap) -> Response<Body> {
        let mut response = tagged(document, headers);
        if response.status() == StatusCode::OK {
            insert_date(response.headers_mut(), LAST_MODIFIED, self.made);
        }
        response
    }
}

/// Discovery has no HEAD, and nothing that changes it.
pub(super) fn only_get(method: &Method) -> Result<(), ApiError> {
    if method == Method::GET {
        Ok(())
    } else {
        Err(ApiError::method_not_allowed())
    }
}

fn insert_date(headers: &mut HeaderMap, name: http::HeaderName, at: Timestamp) {
    let text = at
        .to_zoned(TimeZone::UTC)
        .strftime("%a, %d %b %Y %H:%M:%S GMT");
    if let Ok(date) = HeaderValue::from_str(&text.to_string()) {
        headers.insert(name, date);
    }
}

fn accepts_json(headers: &HeaderMap) -> bool {
    let accept = negotiate::accept_header(headers);
    accept.is_empty()
        || accept.split(',').any(|clause| {
            let media = clause.split(';').next().unwrap_or_default().trim();
            matches!(media, "application/json" | "*/*" | "application/*")
        })
}

/// 406 without a word, as `kube-openapi/pkg/handler3` answers.
fn not_acceptable() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NOT_ACCEPTABLE;
    response
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
    if let Ok(tag) = HeaderValue::from_str(&quoted) {
        response.headers_mut().insert(ETAG, tag);
    }
    response
}

fn redirect(path: &str, etag: &str) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    if let Ok(location) = HeaderValue::from_str(&format!("{path}?hash={etag}")) {
        response.headers_mut().insert(LOCATION, location);
    }
    response
}
