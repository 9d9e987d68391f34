//! Kubernetes' protobuf, for what is alike for all kinds: metadata and errors. Objects of a kind have no
//! messages and are JSON or YAML.
//!
//! The garbage collector, the quota controller and the namespace controller ask for metadata in protobuf
//! first. It is more than a matter of size: of the items of a list client-go keeps a type that is in JSON,
//! of watched objects it does not, so that its detector of inconsistent lists takes equal metadata in JSON
//! for different and ends kube-controller-manager.
//!
//! Fields are numbered as in `k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto` and
//! `k8s.io/apimachinery/pkg/runtime/generated.proto`.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use jiff::Timestamp;
use prost::Message;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// The media type.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";
/// The media type of a watch.
pub const STREAM_MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf;stream=watch";
/// What a message begins with that is not part of another one.
const MAGIC: &[u8] = b"k8s\0";

/// A value of one of the kinds that have a message, in its envelope.
///
/// # Errors
/// It is of another kind, or is not what its kind says.
pub fn encode(value: &Value) -> Result<Bytes, serde_json::Error> {
    let type_of = |field: &str| value[field].as_str().unwrap_or_default().to_owned();
    let kind = type_of("kind");
    let raw = match kind.as_str() {
        "PartialObjectMetadata" => message::<PartialObjectMetadata>(value)?,
        "PartialObjectMetadataList" => message::<PartialObjectMetadataList>(value)?,
        "Status" => message::<Status>(value)?,
        other => {
            let why = format!("{other:?} has no protobuf message");
            return Err(serde_json::Error::custom(why));
        },
    };
    let envelope = Unknown {
        type_meta: Some(TypeMeta {
            api_version: type_of("apiVersion"),
            kind,
        }),
        raw,
    };
    Ok([MAGIC, &envelope.encode_to_vec()].concat().into())
}

/// An event of a watch, behind its length.
///
/// # Errors
/// As of [`encode`].
pub fn encode_event(kind: &str, object: &Value) -> Result<Bytes, serde_json::Error> {
    let event = WatchEvent {
        kind: kind.to_owned(),
        object: Some(RawExtension {
            raw: encode(object)?.into(),
        }),
    };
    let length = u32::try_from(event.encoded_len()).map_err(serde_json::Error::custom)?;
    let mut frame = BytesMut::with_capacity(event.encoded_len() + 4);
    frame.put_u32(length);
    event
        .encode(&mut frame)
        .map_err(serde_json::Error::custom)?;
    Ok(frame.freeze())
}

fn message<M: Message + DeserializeOwned>(value: &Value) -> Result<Vec<u8>, serde_json::Error> {
    Ok(M::deserialize(value)?.encode_to_vec())
}

#[derive(Clone, PartialEq, Message)]
struct Unknown {
    #[prost(message, optional, tag = "1")]
    type_meta: Option<TypeMeta>,
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct TypeMeta {
    #[prost(string, tag = "1")]
    api_version: String,
    #[prost(string, tag = "2")]
    kind: String,
}

#[derive(Clone, PartialEq, Message)]
struct WatchEvent {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(message, optional, tag = "2")]
    object: Option<RawExtension>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct RawExtension {
    #[prost(bytes = "vec", tag = "1")]
    raw: Vec<u8>,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
struct PartialObjectMetadataList {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ListMeta>,
    #[prost(message, repeated, tag = "2")]
    items: Vec<PartialObjectMetadata>,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
struct PartialObjectMetadata {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
}

#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListMeta {
    #[prost(string, tag = "2")]
    resource_version: String,
    #[prost(string, tag = "3")]
    r#continue: String,
    #[prost(int64, optional, tag = "4")]
    remaining_item_count: Option<i64>,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ObjectMeta {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    generate_name: String,
    #[prost(string, tag = "3")]
    namespace: String,
    #[prost(string, tag = "4")]
    self_link: String,
    #[prost(string, tag = "5")]
    uid: String,
    #[prost(string, tag = "6")]
    resource_version: String,
    #[prost(int64, tag = "7")]
    generation: i64,
    // apimachinery has no absent creation time, but one that is zero.
    #[serde(default = "zero", deserialize_with = "time_or_zero")]
    #[prost(message, optional, tag = "8")]
    creation_timestamp: Option<Time>,
    #[serde(deserialize_with = "time")]
    #[prost(message, optional, tag = "9")]
    deletion_timestamp: Option<Time>,
    #[prost(int64, optional, tag = "10")]
    deletion_grace_period_seconds: Option<i64>,
    #[prost(btree_map = "string, string", tag = "11")]
    labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "12")]
    annotations: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "13")]
    owner_references: Vec<OwnerReference>,
    #[prost(string, repeated, tag = "14")]
    finalizers: Vec<String>,
    #[prost(message, repeated, tag = "17")]
    managed_fields: Vec<ManagedFieldsEntry>,
}

#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct OwnerReference {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(string, tag = "4")]
    uid: String,
    #[prost(string, tag = "5")]
    api_version: String,
    #[prost(bool, optional, tag = "6")]
    controller: Option<bool>,
    #[prost(bool, optional, tag = "7")]
    block_owner_deletion: Option<bool>,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ManagedFieldsEntry {
    #[prost(string, tag = "1")]
    manager: String,
    #[prost(string, tag = "2")]
    operation: String,
    #[prost(string, tag = "3")]
    api_version: String,
    #[serde(deserialize_with = "time")]
    #[prost(message, optional, tag = "4")]
    time: Option<Time>,
    #[prost(string, tag = "6")]
    fields_type: String,
    #[serde(deserialize_with = "fields")]
    #[prost(message, optional, tag = "7")]
    fields_v1: Option<FieldsV1>,
    #[prost(string, tag = "8")]
    subresource: String,
}

/// JSON as it is.
#[derive(Clone, PartialEq, Eq, Message)]
struct FieldsV1 {
    #[prost(bytes = "vec", tag = "1")]
    raw: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct Time {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default)]
struct Status {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ListMeta>,
    #[serde(rename = "status")]
    #[prost(string, tag = "2")]
    outcome: String,
    #[prost(string, tag = "3")]
    message: String,
    #[prost(string, tag = "4")]
    reason: String,
    #[prost(message, optional, tag = "5")]
    details: Option<StatusDetails>,
    #[prost(int32, tag = "6")]
    code: i32,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StatusDetails {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    group: String,
    #[prost(string, tag = "3")]
    kind: String,
    #[prost(message, repeated, tag = "4")]
    causes: Vec<StatusCause>,
    #[prost(int32, tag = "5")]
    retry_after_seconds: i32,
    #[prost(string, tag = "6")]
    uid: String,
}

#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[serde(default)]
struct StatusCause {
    #[prost(string, tag = "1")]
    reason: String,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(string, tag = "3")]
    field: String,
}

fn time<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Time>, D::Error> {
    let time = Option::<Timestamp>::deserialize(value)?;
    // Why without fractions: Kubernetes' JSON has none, and what both encodings say has to be the same.
    Ok(time.map(|time| Time {
        seconds: time.as_second(),
        nanos: 0,
    }))
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "it is the default of an optional field"
)]
fn zero() -> Option<Time> {
    Some(Time::default())
}

fn time_or_zero<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Time>, D::Error> {
    time(value).map(|time| time.or_else(zero))
}

fn fields<'de, D: Deserializer<'de>>(value: D) -> Result<Option<FieldsV1>, D::Error> {
    let fields = Option::<Value>::deserialize(value)?;
    Ok(fields.map(|fields| FieldsV1 {
        raw: fields.to_string().into_bytes(),
    }))
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;
    use serde_json::json;

    use super::*;

    fn owned() -> Value {
        json!({
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": {
                "name": "a", "generateName": "a-", "namespace": "ns", "selfLink": "/x", "uid": "u-1",
                "resourceVersion": "12", "generation": 3,
                "creationTimestamp": "2026-01-02T03:04:05Z",
                "deletionTimestamp": "2026-01-02T03:04:06Z", "deletionGracePeriodSeconds": 0,
                "labels": {"app": "x", "b": ""}, "annotations": {"n": "é"},
                "ownerReferences": [{
                    "apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u-2",
                    "controller": false, "blockOwnerDeletion": true,
                }],
                "finalizers": ["f/1", "f/2"],
                "managedFields": [{
                    "manager": "m", "operation": "Apply", "apiVersion": "g/v1",
                    "time": "2026-01-02T03:04:07Z", "fieldsType": "FieldsV1",
                    "fieldsV1": {"f:spec": {"f:x": {}}}, "subresource": "status",
                }],
            },
        })
    }

    fn bookmark() -> Value {
        json!({
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": {
                "resourceVersion": "9", "creationTimestamp": null,
                "annotations": {"k8s.io/initial-events-end": "true"},
            },
        })
    }

    fn list() -> Value {
        json!({
            "kind": "PartialObjectMetadataList",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": {"resourceVersion": "12", "continue": "c", "remainingItemCount": 7},
            "items": [owned(), {"metadata": {"name": "b"}}],
        })
    }

    fn status() -> Value {
        json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure", "message": "too old", "reason": "Expired",
            "details": {
                "name": "n", "group": "g", "kind": "k", "uid": "u",
                "causes": [{"reason": "r", "message": "m", "field": "f"}], "retryAfterSeconds": 5,
            },
            "code": 410,
        })
    }

    /// The message in an envelope, which has to have the type.
    fn opened<M: Message + Default>(bytes: &[u8], kind: &str) -> M {
        let envelope = Unknown::decode(bytes.strip_prefix(MAGIC).unwrap()).unwrap();
        assert_eq!(envelope.type_meta.unwrap().kind, kind);
        M::decode(envelope.raw.as_slice()).unwrap()
    }

    /// What this makes of a value means what apimachinery's encoding of the same value means. The bytes
    /// differ: apimachinery writes empty fields too.
    fn same<M: Message + Default + PartialEq + std::fmt::Debug>(value: &Value, apimachinery: &str) {
        let kind = value["kind"].as_str().unwrap();
        let theirs = BASE64_STANDARD.decode(apimachinery).unwrap();
        let ours = encode(value).unwrap();
        assert_eq!(opened::<M>(&ours, kind), opened::<M>(&theirs, kind));
    }

    #[test]
    fn what_is_encoded_means_what_apimachinery_means() {
        same::<PartialObjectMetadata>(&owned(), OWNED);
        same::<PartialObjectMetadataList>(&list(), LIST);
        same::<Status>(&status(), STATUS);
    }

    #[test]
    fn events_come_in_frames() {
        let theirs = BASE64_STANDARD.decode(EVENT).unwrap();
        let ours = encode_event("BOOKMARK", &bookmark()).unwrap();
        let opened = [ours.as_ref(), theirs.as_slice()].map(|frame| {
            let (length, event) = frame.split_at(4);
            let length = u32::from_be_bytes(length.try_into().unwrap());
            assert_eq!(usize::try_from(length).unwrap(), event.len());
            let event = WatchEvent::decode(event).unwrap();
            assert_eq!(event.kind, "BOOKMARK");
            opened::<PartialObjectMetadata>(&event.object.unwrap().raw, "PartialObjectMetadata")
        });
        assert_eq!(opened[0], opened[1]);
    }

    #[test]
    fn objects_of_a_kind_have_no_message() {
        assert!(encode(&json!({"kind": "Flunder"})).is_err());
        assert!(encode(&json!({"kind": "Status", "code": "x"})).is_err());
    }

    // Made with `protobuf.NewSerializer(nil, nil)`, and `protobuf.NewRawSerializer(nil, nil)` on a
    // `protobuf.LengthDelimitedFramer` for the event, of k8s.io/apimachinery v0.36.3.
    const OWNED: &str = "azhzAAonCg5tZXRhLms4cy5pby92MRIVUGFydGlhbE9iamVjdE1ldGFkYXRhErwBCrkBCgFhEgJhLRoCbnMiAi94KgN1LTEy\
        AjEyOANCCAil69zKBhAASggIpuvcygYQAFAAWggKA2FwcBIBeFoFCgFiEgBiBwoBbhICw6lqGwoJQ29uZmlnTWFwGgFvIgN1\
        LTIqAnYxMAA4AXIDZi8xcgNmLzKKAUUKAW0SBUFwcGx5GgRnL3YxIggIp+vcygYQADIIRmllbGRzVjE6FwoVeyJmOnNwZWMi\
        OnsiZjp4Ijp7fX19QgZzdGF0dXMaACIA";
    const LIST: &str = "azhzAAorCg5tZXRhLms4cy5pby92MRIZUGFydGlhbE9iamVjdE1ldGFkYXRhTGlzdBLhAQoLCgASAjEyGgFjIAcSvAEKuQEK\
        AWESAmEtGgJucyICL3gqA3UtMTICMTI4A0IICKXr3MoGEABKCAim69zKBhAAUABaCAoDYXBwEgF4WgUKAWISAGIHCgFuEgLD\
        qWobCglDb25maWdNYXAaAW8iA3UtMioCdjEwADgBcgNmLzFyA2YvMooBRQoBbRIFQXBwbHkaBGcvdjEiCAin69zKBhAAMghG\
        aWVsZHNWMToXChV7ImY6c3BlYyI6eyJmOngiOnt9fX1CBnN0YXR1cxITChEKAWISABoAIgAqADIAOABCABoAIgA=";
    const STATUS: &str = "azhzAAoMCgJ2MRIGU3RhdHVzEkEKBgoAEgAaABIHRmFpbHVyZRoHdG9vIG9sZCIHRXhwaXJlZCoZCgFuEgFnGgFrIgkKAXIS\
        AW0aAWYoBTIBdTCaAxoAIgA=";
    const EVENT: &str = "AAAAdwoIQk9PS01BUksSawppazhzAAonCg5tZXRhLms4cy5pby92MRIVUGFydGlhbE9iamVjdE1ldGFkYXRhEjYKNAoAEgAa\
        ACIAKgAyATk4AEIAYiEKGWs4cy5pby9pbml0aWFsLWV2ZW50cy1lbmQSBHRydWUaACIA";
}
