//! Request bodies: their limits and formats.

use axum::body::Body;
use bytes::Bytes;
use http::StatusCode;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::Value;

use super::options::{DeleteOptions, Query};
use super::status::ApiError;
use crate::codec::decode::decode;
use crate::codec::negotiate::{body_format, content_type};

/// Largest request body, in bytes.
const MAX_BODY: usize = 3 * 1024 * 1024;
/// Most operations in a JSON patch.
const MAX_PATCH_OPERATIONS: usize = 10_000;

pub(super) async fn read_body(body: Body) -> Result<Bytes, ApiError> {
    match Limited::new(body, MAX_BODY).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(ApiError::entity_too_large(MAX_BODY)),
        Err(error) => Err(ApiError::bad_request(format!(
            "the body could not be read: {error}"
        ))),
    }
}

pub(super) enum PatchFormat {
    Json,
    Merge,
}

pub(super) fn patch_format(headers: &http::HeaderMap) -> Result<PatchFormat, ApiError> {
    match content_type(headers).as_str() {
        "application/json-patch+json" => Ok(PatchFormat::Json),
        "application/merge-patch+json" => Ok(PatchFormat::Merge),
        _ => Err(ApiError::unsupported_media_type(super::patch_types())),
    }
}

pub(super) fn json_patch(bytes: &[u8]) -> Result<json_patch::Patch, ApiError> {
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

pub(super) async fn delete_options(
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

/// Whether the body of a subresource is for the object that the URL names, in the kind it has to be of.
/// What it leaves out is taken for right, as by `pods/eviction` and `pods/binding`.
pub(super) fn check_subresource_body(
    body: &Value,
    kind: &str,
    api_version: &str,
    name: &str,
) -> Result<(), ApiError> {
    let differs = |pointer: &str, expected: &str| {
        body.pointer(pointer)
            .and_then(Value::as_str)
            .filter(|given| !given.is_empty() && *given != expected)
    };
    if let Some(other) = differs("/kind", kind) {
        return Err(ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): it is of kind {other:?}"
        )));
    }
    if let Some(other) = differs("/apiVersion", api_version) {
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({other}) does not match the expected API version ({api_version})"
        )));
    }
    if differs("/metadata/name", name).is_some() {
        return Err(ApiError::bad_request(format!(
            "name in URL does not match name in {kind} object"
        )));
    }
    Ok(())
}
