//! The deliberate faults, by what they spoil. Each has to be noticed by one of the cases it names.

use http::header::{ACCEPT, ACCEPT_ENCODING, IF_NONE_MATCH, LOCATION};
use http::{HeaderValue, StatusCode};
use serde_json::{Value, json};

use crate::faults::{
    Fault, Kind, as_text, is, lose, lose_cache_control, lose_etag, lose_retry_after, remove,
    replace, with_charset, without_parameter,
};

macro_rules! fault {
    ($name:literal, $what:literal, [$($case:literal),+], $kind:expr) => {
        Fault {
            name: $name,
            what: $what,
            cases: &[$($case),+],
            kind: $kind,
        }
    };
}

/// All of them.
pub(crate) const FAULTS: &[Fault] = &[
    // Status and headers.
    fault!(
        "code",
        "404 becomes 400",
        ["get-missing"],
        Kind::Head(|head| {
            if head.status == StatusCode::NOT_FOUND {
                head.status = StatusCode::BAD_REQUEST;
            }
        })
    ),
    fault!(
        "created",
        "201 becomes 200",
        ["create-answers-201"],
        Kind::Head(|head| {
            if head.status == StatusCode::CREATED {
                head.status = StatusCode::OK;
            }
        })
    ),
    fault!(
        "text",
        "JSON is called text",
        ["get-one"],
        Kind::Head(as_text)
    ),
    fault!(
        "charset",
        "the content type gets a charset",
        ["get-one"],
        Kind::Head(with_charset)
    ),
    fault!(
        "cachecontrol",
        "Cache-Control is lost",
        ["get-one"],
        Kind::Head(lose_cache_control)
    ),
    fault!(
        "etag",
        "the ETag is lost",
        ["discovery-etag"],
        Kind::Head(lose_etag)
    ),
    fault!(
        "retryafter",
        "Retry-After is lost",
        ["get-future-version"],
        Kind::Head(lose_retry_after)
    ),
    fault!(
        "auditid",
        "the Audit-Id is lost",
        ["audit-id-is-echoed"],
        Kind::Head(|head| {
            lose(head, "audit-id");
        })
    ),
    fault!(
        "vary",
        "Vary is lost",
        ["discovery-etag"],
        Kind::Head(|head| lose(head, "vary"))
    ),
    fault!(
        "sniff",
        "X-Content-Type-Options is lost",
        ["forbidden"],
        Kind::Head(|head| {
            lose(head, "x-content-type-options");
        })
    ),
    fault!(
        "warning",
        "warnings are lost",
        ["warnings-pass"],
        Kind::Head(|head| {
            lose(head, "warning");
        })
    ),
    fault!(
        "plain",
        "nothing is compressed",
        ["gzip-long"],
        Kind::Request(|parts| {
            parts.headers.remove(ACCEPT_ENCODING);
        })
    ),
    fault!(
        "location",
        "every answer has a Location",
        ["no-redirects"],
        Kind::Head(|head| {
            head.headers.insert(LOCATION, HeaderValue::from_static("/"));
        })
    ),
    // Bodies of errors.
    fault!(
        "reason",
        "a Status loses its reason",
        ["get-missing"],
        Kind::Body(|body| {
            remove(body, "", "reason");
        })
    ),
    fault!(
        "details",
        "a Status loses its details",
        ["get-missing"],
        Kind::Body(|body| {
            remove(body, "", "details");
        })
    ),
    fault!(
        "bodycode",
        "a Status tells another code",
        ["get-missing"],
        Kind::Body(|body| {
            replace(body, "/code", json!(500));
        })
    ),
    fault!(
        "causes",
        "details lose their causes",
        ["list-match-without-version"],
        Kind::Body(|body| {
            remove(body, "/details", "causes");
        })
    ),
    // Bodies of reads.
    fault!(
        "nullitems",
        "an empty list is null",
        ["list-empty"],
        Kind::Body(|body| {
            if body.pointer("/items") == Some(&json!([])) {
                replace(body, "/items", Value::Null);
            }
        })
    ),
    fault!(
        "nolistversion",
        "a list has no resourceVersion",
        ["list-empty"],
        Kind::Body(|body| {
            if body.get("items").is_some() {
                remove(body, "/metadata", "resourceVersion");
            }
        })
    ),
    fault!(
        "stalelist",
        "a list's resourceVersion is old",
        ["list-envelope"],
        Kind::Body(|body| {
            if body.get("items").is_some() {
                replace(body, "/metadata/resourceVersion", json!("1"));
            }
        })
    ),
    fault!(
        "staleobject",
        "an object's resourceVersion is old",
        ["version-grows"],
        Kind::Body(|body| {
            if body.get("spec").is_some() {
                replace(body, "/metadata/resourceVersion", json!("1"));
            }
        })
    ),
    fault!(
        "nocontinue",
        "a page loses its continue token",
        ["list-pages"],
        Kind::Body(|body| {
            remove(body, "/metadata", "continue");
        })
    ),
    fault!(
        "remaining",
        "a page loses remainingItemCount",
        ["list-pages"],
        Kind::Body(|body| {
            remove(body, "/metadata", "remainingItemCount");
        })
    ),
    fault!(
        "order",
        "a list is in reverse order",
        ["list-envelope"],
        Kind::Body(|body| {
            if let Some(Value::Array(items)) = body.get_mut("items") {
                items.reverse();
            }
        })
    ),
    fault!(
        "owner",
        "ownerReferences are lost",
        ["metadata-keeps-owners"],
        Kind::Body(|body| {
            remove(body, "/metadata", "ownerReferences");
            remove(body, "/items/0/metadata", "ownerReferences");
        })
    ),
    fault!(
        "kind",
        "an object has no kind",
        ["get-one"],
        Kind::Body(|body| {
            remove(body, "", "kind");
        })
    ),
    fault!(
        "partialkind",
        "metadata are given the whole kind",
        ["metadata-of-one"],
        Kind::Body(|body| {
            if body["kind"] == "PartialObjectMetadata" {
                replace(body, "/kind", json!("Flunder"));
            }
        })
    ),
    fault!(
        "tablerows",
        "an empty table has null rows",
        ["table-empty"],
        Kind::Body(|body| {
            if body.pointer("/rows") == Some(&json!([])) {
                replace(body, "/rows", Value::Null);
            }
        })
    ),
    fault!(
        "rowobject",
        "rows carry no object",
        ["table-of-list"],
        Kind::Body(|body| {
            remove(body, "/rows/0", "object");
        })
    ),
    // Discovery and OpenAPI.
    fault!(
        "verbs",
        "verbs are not sorted",
        ["discovery-resources"],
        Kind::Body(|body| {
            if let Some(Value::Array(verbs)) = body.pointer_mut("/resources/0/verbs") {
                verbs.reverse();
            }
        })
    ),
    fault!(
        "singular",
        "singularName is left out",
        ["discovery-resources"],
        Kind::Body(|body| {
            remove(body, "/resources/0", "singularName");
        })
    ),
    fault!(
        "openapipatch",
        "OpenAPI has no PATCH operation",
        ["openapi-v3-patch"],
        Kind::Body(|body| {
            if let Some(Value::Object(paths)) = body.get_mut("paths") {
                for path in paths.values_mut().filter_map(Value::as_object_mut) {
                    path.remove("patch");
                }
            }
        })
    ),
    fault!(
        "openapikey",
        "keys of the index begin with a slash",
        ["openapi-v3-index"],
        Kind::Body(|body| {
            if let Some(Value::Object(paths)) = body.get_mut("paths") {
                *paths = std::mem::take(paths)
                    .into_iter()
                    .map(|(path, value)| (format!("/{path}"), value))
                    .collect();
            }
        })
    ),
    // What is asked.
    fault!(
        "nolabels",
        "the label selector is ignored",
        ["label-selectors"],
        Kind::Request(|parts| {
            without_parameter(parts, "labelSelector");
        })
    ),
    fault!(
        "nofields",
        "the field selector is ignored",
        ["field-selectors"],
        Kind::Request(|parts| {
            without_parameter(parts, "fieldSelector");
        })
    ),
    fault!(
        "nolimit",
        "the limit is ignored",
        ["list-pages"],
        Kind::Request(|parts| {
            without_parameter(parts, "limit");
        })
    ),
    fault!(
        "norestart",
        "the continue token is ignored",
        ["list-pages"],
        Kind::Request(|parts| {
            without_parameter(parts, "continue");
        })
    ),
    fault!(
        "noexact",
        "resourceVersionMatch is ignored",
        ["list-exact"],
        Kind::Request(|parts| {
            without_parameter(parts, "resourceVersionMatch");
        })
    ),
    fault!(
        "nowatchlist",
        "sendInitialEvents is ignored",
        ["watchlist"],
        Kind::Request(|parts| {
            without_parameter(parts, "sendInitialEvents");
            without_parameter(parts, "resourceVersionMatch");
        })
    ),
    fault!(
        "noaccept",
        "Accept is ignored",
        ["metadata-of-one"],
        Kind::Request(|parts| {
            parts.headers.remove(ACCEPT);
        })
    ),
    fault!(
        "nonematch",
        "If-None-Match is ignored",
        ["discovery-etag"],
        Kind::Request(|parts| {
            parts.headers.remove(IF_NONE_MATCH);
        })
    ),
    fault!(
        "anybody",
        "everybody is an administrator",
        ["forbidden"],
        Kind::Request(|parts| {
            parts
                .headers
                .insert("x-remote-group", HeaderValue::from_static("system:masters"));
        })
    ),
    // Events.
    fault!(
        "nobookmark",
        "bookmarks are not sent",
        ["watchlist"],
        Kind::Events(|_, event| {
            if is(&event, "BOOKMARK") {
                Vec::new()
            } else {
                vec![event]
            }
        })
    ),
    fault!(
        "noannotation",
        "the last initial bookmark is like any other",
        ["watchlist"],
        Kind::Events(|_, mut event| {
            remove(&mut event, "/object/metadata", "annotations");
            vec![event]
        })
    ),
    fault!(
        "bookmarkkind",
        "a bookmark has no kind",
        ["watchlist"],
        Kind::Events(|_, mut event| {
            if is(&event, "BOOKMARK") {
                remove(&mut event, "/object", "kind");
            }
            vec![event]
        })
    ),
    fault!(
        "dropped",
        "a MODIFIED event is dropped",
        ["watch-from-version"],
        Kind::Events(|_, event| {
            if is(&event, "MODIFIED") {
                Vec::new()
            } else {
                vec![event]
            }
        })
    ),
    fault!(
        "twice",
        "events are sent twice",
        ["watch-from-version"],
        Kind::Events(|_, event| { vec![event.clone(), event] })
    ),
    fault!(
        "swapped",
        "two events change places",
        ["watch-from-version"],
        Kind::Events(|held, event| {
            if held.is_empty() {
                held.push(event);
                return Vec::new();
            }
            let first = held.pop();
            std::iter::once(event).chain(first).collect()
        })
    ),
    fault!(
        "oldversion",
        "DELETED carries the version before",
        ["watch-deleted-version"],
        Kind::Events(|held, event| {
            let mut sent = event.clone();
            if is(&event, "DELETED")
                && let Some(version) = held
                    .first()
                    .and_then(|last| last.pointer("/object/metadata/resourceVersion"))
            {
                replace(
                    &mut sent,
                    "/object/metadata/resourceVersion",
                    version.clone(),
                );
            }
            *held = vec![event];
            vec![sent]
        })
    ),
    fault!(
        "notgone",
        "leaving a selector is MODIFIED",
        ["selector-transitions"],
        Kind::Events(|_, mut event| {
            if is(&event, "DELETED") {
                replace(&mut event, "/type", json!("MODIFIED"));
            }
            vec![event]
        })
    ),
    fault!(
        "eventowner",
        "events lose ownerReferences",
        ["watch-metadata-keeps-owners"],
        Kind::Events(|_, mut event| {
            remove(&mut event, "/object/metadata", "ownerReferences");
            vec![event]
        })
    ),
    fault!(
        "errorcode",
        "an ERROR event has no code",
        ["watch-too-old"],
        Kind::Events(|_, mut event| {
            if is(&event, "ERROR") {
                remove(&mut event, "/object", "code");
            }
            vec![event]
        })
    ),
    fault!(
        "silenterror",
        "an ERROR event is left out",
        ["watch-too-old"],
        Kind::Events(|_, event| {
            if is(&event, "ERROR") {
                Vec::new()
            } else {
                vec![event]
            }
        })
    ),
];
