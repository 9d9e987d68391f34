//! Bodies of answers in the representation the client asked for.

use axum::body::Body;
use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::status::ApiError;
use crate::codec::decode::Format;
use crate::codec::negotiate::{MetaVersion, Representation, View};
use crate::codec::protobuf;
use crate::registry::entry::Entry;
use crate::schema::declaration::Declaration;
use crate::schema::table::table;

/// What every handler returns.
pub type Answer = Result<Response<Body>, ApiError>;

/// A body of already encoded JSON.
pub fn json_bytes(status: StatusCode, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A value in the negotiated format.
///
/// # Errors
/// 500 when it cannot be encoded.
pub fn value(status: StatusCode, value: &Value, representation: Representation) -> Answer {
    let unencodable =
        |e: &dyn std::fmt::Display| ApiError::internal("the answer cannot be encoded", e);
    match representation.format {
        Format::Json => {
            // What is indented ends without a newline, as Go's MarshalIndent makes it.
            let text = if representation.pretty {
                let mut text = Vec::new();
                let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
                value
                    .serialize(&mut serde_json::Serializer::with_formatter(
                        &mut text, formatter,
                    ))
                    .map_err(|e| unencodable(&e))?;
                text
            } else {
                let mut text = serde_json::to_vec(value).map_err(|e| unencodable(&e))?;
                text.push(b'\n');
                text
            };
            Ok(json_bytes(status, text.into()))
        },
        Format::Yaml => {
            let text = serde_saphyr::to_string(value).map_err(|e| unencodable(&e))?;
            let mut response = json_bytes(status, text.into());
            response
                .headers_mut()
                .insert(CONTENT_TYPE, HeaderValue::from_static("application/yaml"));
            Ok(response)
        },
        Format::Protobuf => {
            let message = protobuf::encode(value).map_err(|e| unencodable(&e))?;
            let mut response = json_bytes(status, message);
            response
                .headers_mut()
                .insert(CONTENT_TYPE, HeaderValue::from_static(protobuf::MEDIA_TYPE));
            Ok(response)
        },
    }
}

/// One object. `body` is its JSON, with resourceVersion when it has one.
///
/// # Errors
/// 500 when it cannot be encoded.
pub fn object(
    status: StatusCode,
    entry: &Entry,
    declaration: &Declaration,
    representation: Representation,
    now: Timestamp,
) -> Answer {
    let plain = representation.format == Format::Json && !representation.pretty;
    match representation.view {
        View::Whole if plain => Ok(json_bytes(status, with_newline(&entry.body))),
        View::Metadata(MetaVersion::V1) if plain => {
            Ok(json_bytes(status, with_newline(entry.metadata_body())))
        },
        View::Whole => value(status, &entry.value(), representation),
        View::Metadata(version) => {
            let partial = crate::schema::table::partial_metadata(&entry.value(), version);
            value(status, &partial, representation)
        },
        View::Table(version) => {
            let metadata = serde_json::json!({"resourceVersion": entry.revision.to_string()});
            let rows = vec![entry.value()];
            value(
                status,
                &table(
                    version,
                    &declaration.columns,
                    rows,
                    &metadata,
                    representation.include,
                    now,
                    true,
                ),
                representation,
            )
        },
    }
}

fn with_newline(body: &Bytes) -> Bytes {
    let mut line = BytesMut::with_capacity(body.len() + 1);
    line.put_slice(body);
    line.put_u8(b'\n');
    line.freeze()
}

/// JSON that is not negotiated, indented as `responsewriters.WriteRawJSON` does it.
pub fn raw_json(status: StatusCode, value: &Value) -> Response<Body> {
    json_bytes(status, format!("{value:#}").into())
}

/// An error as its `Status`, in JSON when nothing else was negotiated.
pub fn error(error: &ApiError, representation: Option<Representation>) -> Response<Body> {
    let asked = representation.and_then(|representation| {
        let status: Value = serde_json::from_slice(&error.to_json()).ok()?;
        value(error.code(), &status, representation).ok()
    });
    let mut response = asked.unwrap_or_else(|| {
        let mut body = error.to_json();
        body.push(b'\n');
        json_bytes(error.code(), body.into())
    });
    if let Some(seconds) = error.retry_after_seconds() {
        response
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    if error.code() == StatusCode::FORBIDDEN {
        response.headers_mut().insert(
            http::header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        );
    }
    response
}
