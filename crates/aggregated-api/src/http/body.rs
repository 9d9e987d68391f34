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

pub(super) fn check_body_kind(body: &Value, expected: &str) -> Result<(), ApiError> {
    match body.get("kind").and_then(Value::as_str) {
        None | Some("") => Ok(()),
        Some(kind) if kind == expected => Ok(()),
        Some(other) => Err(ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {expected}): it is of kind {other:?}"
        ))),
    }
}
