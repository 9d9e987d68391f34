//! The generic write flows: what every create, update, patch and delete goes through, in the order
//! of `k8s.io/apiserver/pkg/registry/generic/registry`. One file per flow; here is what they share.

use std::sync::Arc;

use bytes::Bytes;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::capability::Object;
use super::context::RequestCtx;
use super::entry::{Entry, encode};
use super::meta;
use crate::codec::decode::Decoded;
use crate::http::options::{FieldValidation, WriteOptions};
use crate::http::status::{ApiError, FieldError, GroupResource};
use crate::schema::declaration::Declaration;
use crate::schema::structural::Schema;

mod create;
mod delete;
mod json_patch;
mod subresource;
mod update;

pub(crate) use delete::Deleted;
pub(crate) use update::{Change, Part, Patch};

/// Conflicts after which a write is given back to the client.
const MAX_CONFLICTS: usize = 64;

fn contended(resource: &GroupResource, name: &str) -> ApiError {
    ApiError::conflict(resource, name, "too many concurrent changes; try again").retry_after(1)
}

fn check_deadline(ctx: &RequestCtx) -> Result<(), ApiError> {
    if ctx.clock.elapsed() >= ctx.deadline {
        Err(ApiError::timeout())
    } else {
        Ok(())
    }
}

fn encoded<T: Object>(object: &mut T) -> Result<Bytes, ApiError> {
    encode(object).map_err(|e| ApiError::internal("the object has no JSON form", e))
}

fn stored(key: &Arc<str>, value: &[u8], revision: u64) -> Result<Arc<Entry>, ApiError> {
    Entry::decode(key, value, revision)
        .map(Arc::new)
        .map_err(|e| ApiError::internal("the object cannot be read back", e))
}

fn unstored(key: &Arc<str>, value: Bytes) -> Result<Arc<Entry>, ApiError> {
    Entry::unstored(key, value)
        .map(Arc::new)
        .map_err(|e| ApiError::internal("the object cannot be read back", e))
}

fn invalid(declaration: &Declaration, name: &str, errors: &[FieldError]) -> ApiError {
    ApiError::invalid(&declaration.resource.group, &declaration.kind, name, errors)
}

/// Checks kind and version, and drops (or refuses, or warns of) what the schema does not know.
fn read_object(
    declaration: &Declaration,
    body: Decoded,
    options: &WriteOptions,
    ctx: &RequestCtx,
) -> Result<Value, ApiError> {
    let Decoded {
        mut value,
        duplicates,
    } = body;
    let kind = &declaration.kind;
    let version = &declaration.version;
    if value.is_null() {
        value = Value::Object(serde_json::Map::new());
    }
    let Some(object) = value.as_object_mut() else {
        return Err(ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): it is not an object"
        )));
    };
    let given = |object: &serde_json::Map<String, Value>, field: &str| {
        object
            .get(field)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let (given_kind, given_version) = (given(object, "kind"), given(object, "apiVersion"));
    let same_group = given_version.split('/').next() == declaration.api_version.split('/').next();
    if (!given_kind.is_empty() && given_kind != *kind) || (!given_version.is_empty() && !same_group)
    {
        return Err(ApiError::bad_request(format!(
            "{given_kind} in version {given_version:?} cannot be handled as a {kind}: no kind {given_kind:?} is registered for version {given_version:?}"
        )));
    }
    if !given_version.is_empty() && given_version != declaration.api_version {
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({given_version}) does not match the expected API version ({})",
            declaration.api_version
        )));
    }
    object.insert("kind".to_owned(), Value::from(kind.as_str()));
    object.insert(
        "apiVersion".to_owned(),
        Value::from(declaration.api_version.as_str()),
    );
    if !object.get("metadata").is_some_and(Value::is_object) {
        object.insert("metadata".to_owned(), Value::Object(serde_json::Map::new()));
    }
    let body = Decoded { value, duplicates };
    known_fields(&declaration.schema, kind, version, body, options, ctx)
}

/// Drops what the schema does not know, with a warning or a refusal as the client asked.
pub(crate) fn known_fields(
    schema: &Schema,
    kind: &str,
    version: &str,
    body: Decoded,
    options: &WriteOptions,
    ctx: &RequestCtx,
) -> Result<Value, ApiError> {
    let Decoded {
        mut value,
        duplicates,
    } = body;
    let unknown = schema.prune(&mut value);
    let complaints: Vec<_> = unknown
        .iter()
        .map(|path| format!("unknown field {path:?}"))
        .chain(
            duplicates
                .iter()
                .map(|path| format!("duplicate field {path:?}")),
        )
        .collect();
    match options.field_validation {
        FieldValidation::Strict if !complaints.is_empty() => {
            return Err(ApiError::bad_request(format!(
                "{kind} in version {version:?} cannot be handled as a {kind}: strict decoding error: {}",
                complaints.join(", ")
            )));
        },
        FieldValidation::Warn => {
            for complaint in complaints {
                ctx.warn(complaint);
            }
        },
        FieldValidation::Strict | FieldValidation::Ignore => {},
    }
    Ok(value)
}

fn drop_status(declaration: &Declaration, value: &mut Value) {
    if declaration.has_status
        && let Some(object) = value.as_object_mut()
    {
        object.remove("status");
    }
}

fn set_namespace(
    declaration: &Declaration,
    meta: &mut ObjectMeta,
    namespace: &str,
) -> Result<(), ApiError> {
    if !declaration.namespaced {
        meta.namespace = None;
        return Ok(());
    }
    match meta.namespace.as_deref() {
        None | Some("") => meta.namespace = Some(namespace.to_owned()),
        Some(given) if given == namespace => {},
        Some(_) => {
            return Err(ApiError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        },
    }
    Ok(())
}

fn warn_of_duplicate_owners(meta: &mut ObjectMeta, ctx: &RequestCtx) {
    let duplicates = meta::dedupe_owners(meta);
    if !duplicates.is_empty() {
        ctx.warn(format!(
            ".metadata.ownerReferences contains duplicate entries, of which the first is kept; duplicate UID(s) observed: {}",
            duplicates.join(",")
        ));
    }
}
