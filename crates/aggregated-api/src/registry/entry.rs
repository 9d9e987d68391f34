//! A stored object as the caches hold it: encoded bytes plus what selectors look at.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::store::Revision;

/// What opens the metadata of every stored object; the resourceVersion is spliced in behind it.
const METADATA: &[u8] = br#""metadata":{"#;
/// The name of the field that is spliced in.
const RESOURCE_VERSION: &str = "\"resourceVersion\":";

/// Why a stored value cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum EntryError {
    /// It is not an object this library wrote.
    #[error("the stored value at {key} is not an object with metadata")]
    NotAnObject {
        /// Store key.
        key: String,
    },
    /// Its metadata cannot be read.
    #[error("the stored value at {key} has metadata that cannot be read")]
    Metadata {
        /// Store key.
        key: String,
        /// The parser's error.
        #[source]
        source: serde_json::Error,
    },
}

/// An object at one revision.
#[derive(Debug)]
pub struct Entry {
    /// Store key.
    pub key: Arc<str>,
    /// Revision of this state: its `resourceVersion`.
    pub revision: Revision,
    /// The whole object as JSON, with its resourceVersion.
    pub body: Bytes,
    /// Namespace, empty at cluster scope.
    pub namespace: Box<str>,
    /// Name.
    pub name: Box<str>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    metadata_body: OnceLock<Bytes>,
    /// The same object in other versions, by the version's index.
    versions: Mutex<Vec<(usize, Arc<Self>)>>,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    metadata: Selected<'a>,
}

#[derive(Deserialize)]
struct Selected<'a> {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    namespace: Option<String>,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    #[serde(skip)]
    _lifetime: std::marker::PhantomData<&'a ()>,
}

impl Entry {
    /// Reads a stored value (which has no resourceVersion) as the object at `revision`.
    ///
    /// # Errors
    /// When the value is not what [`encode`] writes.
    pub fn decode(key: &Arc<str>, value: &[u8], revision: Revision) -> Result<Self, EntryError> {
        let body = splice(value, revision).ok_or_else(|| EntryError::NotAnObject {
            key: key.to_string(),
        })?;
        let envelope: Envelope<'_> =
            serde_json::from_slice(&body).map_err(|source| EntryError::Metadata {
                key: key.to_string(),
                source,
            })?;
        Ok(Self {
            key: Arc::clone(key),
            revision,
            namespace: envelope.metadata.namespace.unwrap_or_default().into(),
            name: envelope.metadata.name.unwrap_or_default().into(),
            labels: envelope.metadata.labels.unwrap_or_default(),
            body,
            metadata_body: OnceLock::new(),
            versions: Mutex::default(),
        })
    }

    /// An object that is not stored: the answer of a dry run, without a resourceVersion.
    ///
    /// # Errors
    /// When the value is not what [`encode`] writes.
    pub fn unstored(key: &Arc<str>, value: Bytes) -> Result<Self, EntryError> {
        let entry = Self::decode(key, &value, 0)?;
        Ok(Self {
            body: value,
            ..entry
        })
    }

    /// The same object under a later revision: the last state of one that was deleted, or that left
    /// a selection.
    pub fn at(&self, revision: Revision) -> Self {
        Self {
            key: Arc::clone(&self.key),
            revision,
            body: respliced(&self.body, self.revision, revision),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            labels: self.labels.clone(),
            metadata_body: OnceLock::new(),
            versions: Mutex::default(),
        }
    }

    /// This object in another version, of which `value` is the encoded form.
    pub(crate) fn converted(&self, value: Bytes) -> Result<Self, EntryError> {
        match self.revision {
            0 => Self::unstored(&self.key, value),
            revision => Self::decode(&self.key, &value, revision),
        }
    }

    /// The object in the version with this index, converted by the first who asks.
    pub(crate) fn in_version<E>(
        &self,
        index: usize,
        convert: impl FnOnce() -> Result<Arc<Self>, E>,
    ) -> Result<Arc<Self>, E> {
        let mut versions = self.versions.lock();
        if let Some((_, entry)) = versions.iter().find(|(known, _)| *known == index) {
            return Ok(Arc::clone(entry));
        }
        let entry = convert()?;
        versions.push((index, Arc::clone(&entry)));
        Ok(entry)
    }

    /// What this entry takes in memory, roughly, in bytes.
    pub fn weight(&self) -> usize {
        let labels: usize = self
            .labels
            .iter()
            .map(|(k, v)| k.len() + v.len() + 48)
            .sum();
        self.body.len() + labels + self.key.len() + 256
    }

    /// The object as a value, for tables and patches.
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The object as `PartialObjectMetadata`, made once and shared.
    pub fn metadata_body(&self) -> &Bytes {
        #[derive(Deserialize)]
        struct Raw<'a> {
            #[serde(borrow)]
            metadata: &'a RawValue,
        }
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Partial<'a> {
            kind: &'static str,
            api_version: &'static str,
            metadata: &'a RawValue,
        }
        self.metadata_body.get_or_init(|| {
            serde_json::from_slice::<Raw<'_>>(&self.body)
                .and_then(|raw| {
                    serde_json::to_vec(&Partial {
                        kind: "PartialObjectMetadata",
                        api_version: "meta.k8s.io/v1",
                        metadata: raw.metadata,
                    })
                })
                .map(Bytes::from)
                .unwrap_or_default()
        })
    }
}

/// An object as it is stored: without resourceVersion, which only the commit knows.
///
/// # Errors
/// When the object cannot be serialised.
pub fn encode(object: &mut (impl kube::Resource + Serialize)) -> Result<Bytes, serde_json::Error> {
    object.meta_mut().resource_version = None;
    serde_json::to_vec(object).map(Bytes::from)
}

fn respliced(body: &Bytes, from: Revision, to: Revision) -> Bytes {
    let old = format!("{RESOURCE_VERSION}\"{from}\"");
    let Some(at) = body.windows(METADATA.len()).position(|w| w == METADATA) else {
        return body.clone();
    };
    let at = at + METADATA.len();
    let Some(tail) = body
        .get(at..)
        .and_then(|rest| rest.strip_prefix(old.as_bytes()))
    else {
        return body.clone();
    };
    let mut moved = BytesMut::with_capacity(body.len() + 4);
    moved.extend_from_slice(body.get(..at).unwrap_or_default());
    moved.extend_from_slice(format!("{RESOURCE_VERSION}\"{to}\"").as_bytes());
    moved.extend_from_slice(tail);
    moved.freeze()
}

/// Puts the resourceVersion into a stored value.
pub fn splice(value: &[u8], revision: Revision) -> Option<Bytes> {
    let at = value.windows(METADATA.len()).position(|w| w == METADATA)? + METADATA.len();
    let field = format!("{RESOURCE_VERSION}\"{revision}\"");
    let (head, tail) = value.split_at(at);
    let mut body = BytesMut::with_capacity(value.len() + field.len() + 1);
    body.extend_from_slice(head);
    body.extend_from_slice(field.as_bytes());
    if !tail.starts_with(b"}") {
        body.extend_from_slice(b",");
    }
    body.extend_from_slice(tail);
    Some(body.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resource_version_is_spliced_into_the_stored_bytes() {
        let stored = br#"{"apiVersion":"g/v1","kind":"K","metadata":{"name":"n","namespace":"s","labels":{"a":"b"}},"spec":{}}"#;
        let entry = Entry::decode(&"/registry/g/ks/s/n".into(), stored, 42).unwrap();
        assert_eq!(entry.value()["metadata"]["resourceVersion"], "42");
        assert_eq!(entry.value()["metadata"]["name"], "n");
        assert_eq!((&*entry.namespace, &*entry.name), ("s", "n"));
        assert_eq!(entry.labels["a"], "b");
        let partial: Value = serde_json::from_slice(entry.metadata_body()).unwrap();
        assert_eq!(partial["kind"], "PartialObjectMetadata");
        assert_eq!(partial["metadata"]["resourceVersion"], "42");
        assert!(partial.get("spec").is_none());
    }

    #[test]
    fn an_entry_moves_to_a_later_revision() {
        let stored = br#"{"metadata":{"name":"n"},"spec":{"resourceVersion":"42"}}"#;
        let entry = Entry::decode(&"/registry/g/ks/n".into(), stored, 42).unwrap();
        let later = entry.at(1042);
        assert_eq!(later.revision, 1042);
        assert_eq!(later.value()["metadata"]["resourceVersion"], "1042");
        assert_eq!(later.value()["spec"]["resourceVersion"], "42");
    }

    #[test]
    fn values_that_are_no_objects_are_refused() {
        assert!(Entry::decode(&"/k".into(), b"[]", 1).is_err());
        assert!(Entry::decode(&"/k".into(), br#"{"metadata":{"name":1}}"#, 1).is_err());
    }
}
