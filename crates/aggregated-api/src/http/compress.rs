//! gzip for large answers, as `k8s.io/apiserver` does it: only when the client accepts it, only above
//! a size at which it pays, never for streams.

use std::io::Write;

use axum::body::Body;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderValue, VARY};
use http::{HeaderMap, Response};
use http_body::Body as _;
use http_body_util::BodyExt;

use super::status::ApiError;

/// Bodies up to this size, in bytes, are sent as they are.
const THRESHOLD: u64 = 128 * 1024;

/// Whether the client takes gzip.
pub(super) fn accepts_gzip(headers: &HeaderMap) -> bool {
    headers
        .get_all(ACCEPT_ENCODING)
        .iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','))
        .any(|coding| {
            let mut parts = coding.split(';').map(str::trim);
            parts.next() == Some("gzip") && parts.all(|p| p != "q=0")
        })
}

/// Compresses a complete, large body.
///
/// # Errors
/// 500 when the body cannot be compressed.
pub(super) async fn compress(response: Response<Body>) -> Result<Response<Body>, ApiError> {
    let large = response
        .body()
        .size_hint()
        .exact()
        .is_some_and(|size| size > THRESHOLD);
    if !large || response.headers().contains_key(CONTENT_ENCODING) {
        return Ok(response);
    }
    let failed =
        |e: &dyn std::fmt::Display| ApiError::internal("the answer cannot be compressed", e);
    let (mut parts, body) = response.into_parts();
    let plain = body.collect().await.map_err(|e| failed(&e))?.to_bytes();
    let packed = tokio::task::spawn_blocking(move || gzip(&plain));
    let packed = packed
        .await
        .map_err(|e| failed(&e))?
        .map_err(|e| failed(&e))?;
    parts
        .headers
        .insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    parts
        .headers
        .append(VARY, HeaderValue::from_static("Accept-Encoding"));
    Ok(Response::from_parts(parts, Body::from(packed)))
}

/// Packs a body, faster rather than smaller.
pub(super) fn gzip(plain: &[u8]) -> std::io::Result<Bytes> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(plain.len() / 4), Compression::fast());
    encoder.write_all(plain)?;
    encoder.finish().map(Bytes::from)
}
