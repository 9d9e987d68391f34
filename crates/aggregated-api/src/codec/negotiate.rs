//! Which representation of an answer a client gets, after
//! `k8s.io/apiserver/pkg/endpoints/handlers/negotiation`.

use std::borrow::Cow;

use http::HeaderMap;
use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};

use super::decode::Format;
use super::protobuf;
use crate::http::options::Query;
use crate::http::status::ApiError;
use crate::schema::table::IncludeObject;

/// What the body of an answer looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Representation {
    /// Text format.
    pub format: Format,
    /// Which view of the object.
    pub view: View,
    /// Indented for people.
    pub pretty: bool,
    /// What rows of a table carry of their object.
    pub include: IncludeObject,
}

/// A view of an object or list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// As it is.
    Whole,
    /// `meta.k8s.io` `Table`.
    Table(MetaVersion),
    /// `meta.k8s.io` `PartialObjectMetadata`, or its list for a list.
    Metadata(MetaVersion),
}

/// A version of the group `meta.k8s.io`; their tables and metadata differ in nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaVersion {
    /// `v1`.
    V1,
    /// `v1beta1`.
    V1Beta1,
}

impl MetaVersion {
    /// `apiVersion` of what is in this version.
    pub fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "meta.k8s.io/v1",
            Self::V1Beta1 => "meta.k8s.io/v1beta1",
        }
    }
}

/// The kind of endpoint that answers: decides which views it offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// One object.
    Object,
    /// A list.
    List,
    /// A stream of events.
    Watch,
    /// The body of a subresource, which has no metadata: a table of it can be asked for, though not
    /// be made.
    Body,
    /// Discovery and the like: no other view.
    Plain,
}

struct Clause<'a> {
    media: &'a str,
    quality: f32,
    parameters: Vec<(&'a str, Cow<'a, str>)>,
}

impl Clause<'_> {
    fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters
            .iter()
            .find(|(k, _)| *k == name)
            .map(|(_, v)| v.as_ref())
    }
}

fn clauses(accept: &str) -> Vec<Clause<'_>> {
    let mut clauses: Vec<_> = accept
        .split(',')
        .map(str::trim)
        .filter(|clause| !clause.is_empty())
        .map(|clause| {
            let mut parts = clause.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default();
            let parameters: Vec<_> = parts
                .filter_map(|part| part.split_once('='))
                .map(|(k, v)| (k.trim(), Cow::Borrowed(v.trim().trim_matches('"'))))
                .collect();
            let quality = parameters
                .iter()
                .find(|(k, _)| *k == "q")
                .and_then(|(_, v)| v.parse().ok())
                .unwrap_or(1.0);
            Clause {
                media,
                quality,
                parameters,
            }
        })
        .collect();
    clauses.sort_by(|a, b| b.quality.total_cmp(&a.quality));
    clauses
}

/// All `Accept` header lines as one.
pub fn accept_header(headers: &HeaderMap) -> String {
    let lines: Vec<_> = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .collect();
    lines.join(",")
}

/// Chooses the representation of an answer.
///
/// # Errors
/// 406 when no clause of `Accept` can be met, or the first that can names metadata of a list for an
/// object or the other way round; 400 for an unknown `includeObject`.
pub fn negotiate(
    headers: &HeaderMap,
    query: &Query,
    answer: Answer,
) -> Result<Representation, ApiError> {
    let include = include_object(query)?;
    let pretty = match query.get("pretty").filter(|text| !text.is_empty()) {
        // What `strconv.ParseBool` takes for true.
        Some(text) => matches!(text, "1" | "t" | "T" | "true" | "TRUE" | "True"),
        None => headers
            .get(USER_AGENT)
            .and_then(|v| v.to_str().ok())
            .is_some_and(|agent| {
                ["curl", "Wget", "Mozilla/5.0"]
                    .iter()
                    .any(|p| agent.starts_with(p))
            }),
    };
    let accept = accept_header(headers);
    if accept.is_empty() {
        return Ok(Representation {
            format: Format::Json,
            view: View::Whole,
            pretty,
            include,
        });
    }
    for clause in clauses(&accept) {
        let format = match clause.media {
            "application/json" | "*/*" | "application/*" => Format::Json,
            "application/yaml" if answer != Answer::Watch => Format::Yaml,
            protobuf::MEDIA_TYPE => Format::Protobuf,
            _ => continue,
        };
        if let Some(view) = view_of(&clause, answer)? {
            if format == Format::Protobuf && !matches!(view, View::Metadata(_)) {
                continue;
            }
            return Ok(Representation {
                format,
                view,
                pretty,
                include,
            });
        }
    }
    let accepted = if answer == Answer::Watch {
        "application/json, application/json;stream=watch"
    } else {
        "application/json, application/yaml"
    };
    Err(ApiError::not_acceptable(format!(
        "only the following media types are accepted: {accepted}"
    )))
}

fn include_object(query: &Query) -> Result<IncludeObject, ApiError> {
    match query.get("includeObject").unwrap_or_default() {
        "" | "Metadata" => Ok(IncludeObject::Metadata),
        "None" => Ok(IncludeObject::None),
        "Object" => Ok(IncludeObject::Object),
        other => Err(ApiError::bad_request(format!(
            "unrecognized includeObject value: {other:?}"
        ))),
    }
}

/// The view that a clause asks for; `None` when the clause cannot be met.
fn view_of(clause: &Clause<'_>, answer: Answer) -> Result<Option<View>, ApiError> {
    let Some(kind) = clause.parameter("as") else {
        return Ok(Some(View::Whole));
    };
    let version = match (clause.parameter("g"), clause.parameter("v")) {
        (Some("meta.k8s.io"), Some("v1")) => MetaVersion::V1,
        (Some("meta.k8s.io"), Some("v1beta1")) => MetaVersion::V1Beta1,
        _ => return Ok(None),
    };
    match (kind, answer) {
        ("Table", Answer::Object | Answer::List | Answer::Watch | Answer::Body) => {
            Ok(Some(View::Table(version)))
        },
        ("PartialObjectMetadata", Answer::Object | Answer::Watch)
        | ("PartialObjectMetadataList", Answer::List) => Ok(Some(View::Metadata(version))),
        ("PartialObjectMetadata", Answer::List) => Err(ApiError::not_acceptable(
            "you requested PartialObjectMetadata, but the requested object is a list",
        )),
        ("PartialObjectMetadataList", Answer::Object) => Err(ApiError::not_acceptable(
            "you requested PartialObjectMetadataList, but the requested object is not a list",
        )),
        _ => Ok(None),
    }
}

/// Whether the client asks for aggregated discovery v2 before any plain JSON.
pub fn wants_aggregated_discovery(headers: &HeaderMap) -> bool {
    for clause in clauses(&accept_header(headers)) {
        if clause.media != "application/json" {
            continue;
        }
        match (
            clause.parameter("g"),
            clause.parameter("v"),
            clause.parameter("as"),
        ) {
            (Some("apidiscovery.k8s.io"), Some("v2"), Some("APIGroupDiscoveryList")) => {
                return true;
            },
            (None, None, None) => return false,
            _ => {},
        }
    }
    false
}

/// The media type of a request body, without parameters, lower case.
pub fn content_type(headers: &HeaderMap) -> String {
    headers
        .get(CONTENT_TYPE)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.split(';').next())
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase()
}

/// The format of a create or update body.
///
/// # Errors
/// 415 for anything but JSON and YAML.
pub fn body_format(headers: &HeaderMap) -> Result<Format, ApiError> {
    match content_type(headers).as_str() {
        "" | "application/json" => Ok(Format::Json),
        "application/yaml" => Ok(Format::Yaml),
        _ => Err(ApiError::unsupported_media_type(&[
            "application/json",
            "application/yaml",
        ])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(accept: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, accept.parse().unwrap());
        headers
    }

    fn choose(accept: &str, answer: Answer) -> Result<(Format, View), u16> {
        negotiate(&headers(accept), &Query::default(), answer)
            .map(|r| (r.format, r.view))
            .map_err(|e| e.code().as_u16())
    }

    #[test]
    fn accept_is_met_as_kubernetes_clients_send_it() {
        use Format::{Json, Protobuf, Yaml};
        use MetaVersion::{V1, V1Beta1};
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        let gc = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
        for (accept, answer, expected) in [
            ("*/*", Answer::List, Ok((Json, View::Whole))),
            (
                "application/vnd.kubernetes.protobuf,application/json",
                Answer::Object,
                Ok((Json, View::Whole)),
            ),
            ("application/yaml", Answer::Object, Ok((Yaml, View::Whole))),
            (table, Answer::List, Ok((Json, View::Table(V1)))),
            (table, Answer::Watch, Ok((Json, View::Table(V1)))),
            (gc, Answer::List, Ok((Protobuf, View::Metadata(V1)))),
            (gc, Answer::Object, Err(406)),
            (
                "application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
                Answer::List,
                Ok((Json, View::Table(V1Beta1))),
            ),
            (
                "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
                Answer::List,
                Err(406),
            ),
            (
                "application/json;as=Foo;g=x;v=y,application/json",
                Answer::Object,
                Ok((Json, View::Whole)),
            ),
            ("text/html", Answer::Object, Err(406)),
            ("application/yaml", Answer::Watch, Err(406)),
            (
                "application/yaml;q=0.5, application/json",
                Answer::Object,
                Ok((Json, View::Whole)),
            ),
        ] {
            assert_eq!(choose(accept, answer), expected, "{accept}");
        }
    }

    #[test]
    fn aggregated_discovery_is_served_only_to_those_who_ask_for_v2() {
        for (accept, expected) in [
            (
                "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json",
                true,
            ),
            (
                "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;profile=nopeer",
                true,
            ),
            (
                "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json",
                false,
            ),
            ("application/json", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, accept.parse().unwrap());
            assert_eq!(wants_aggregated_discovery(&headers), expected, "{accept}");
        }
    }
}
