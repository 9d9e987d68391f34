//! The versions of a kind: the hub, which is stored and which rules see, and the others, which exist at
//! the edge only.
//!
//! A request is read in its version's schema, becomes the hub for the rules, and its answer becomes the
//! version again. Stored bytes name the version they are in, so the hub can be changed as long as the old
//! one stays registered.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;

use super::capability::Object;
use super::entry::{Entry, encode};
use super::meta;
use crate::http::status::ApiError;
use crate::schema::declaration::{Declaration, DeclarationError};

/// Another version of the kind `Hub`.
///
/// The conversions lose nothing: `Self::from_hub(v.into_hub())` is `v`, and an object of the hub comes back
/// from this version as it was, at the least for what this version can express. They keep the metadata.
/// (The words are those of controller-runtime's `conversion.Hub` and `Convertible`.)
pub trait Convert<Hub: Object>: Object {
    /// The hub's object in this version.
    fn from_hub(hub: Hub) -> Self;

    /// This object in the hub's version.
    fn into_hub(self) -> Hub;
}

/// One version of the kind that is stored as `T`, without its own type.
pub(crate) struct Version<T> {
    pub(crate) declaration: Arc<Declaration>,
    /// How stored bytes in this version begin.
    head: Box<[u8]>,
    read: fn(&[u8]) -> Result<T, serde_json::Error>,
    take: fn(Value) -> Result<T, serde_json::Error>,
    write: fn(T) -> Result<Bytes, serde_json::Error>,
}

impl<T: Object> Version<T> {
    /// The hub itself.
    fn hub(declaration: Arc<Declaration>) -> Self {
        Self {
            head: head(&declaration),
            declaration,
            read: |bytes| serde_json::from_slice(bytes),
            take: |value| serde_json::from_value(value),
            write: |mut object| encode(&mut object),
        }
    }

    /// The version `V`.
    ///
    /// # Errors
    /// `V` cannot be served.
    fn of<V: Convert<T>>() -> Result<Self, DeclarationError> {
        let declaration = Declaration::of::<V>()?;
        Ok(Self {
            head: head(&declaration),
            declaration: Arc::new(declaration),
            read: |bytes| serde_json::from_slice::<V>(bytes).map(V::into_hub),
            take: |value| serde_json::from_value::<V>(value).map(V::into_hub),
            write: |object| encode(&mut V::from_hub(object)),
        })
    }

    /// A request's object, of which the schema has been checked.
    pub(crate) fn typed(&self, value: Value) -> Result<T, ApiError> {
        let Declaration { kind, version, .. } = &*self.declaration;
        let mut object = (self.take)(value).map_err(|e| {
            ApiError::bad_request(format!(
                "{kind} in version {version:?} cannot be handled as a {kind}: {e}"
            ))
        })?;
        meta::omit_empty(object.meta_mut());
        Ok(object)
    }
}

/// [`encode`] writes the apiVersion first.
fn head(declaration: &Declaration) -> Box<[u8]> {
    format!(r#"{{"apiVersion":"{}","#, declaration.api_version)
        .into_bytes()
        .into()
}

/// All versions of a kind. The first is the hub.
pub struct Versions<T>(Vec<Version<T>>);

impl<T: Object> Versions<T> {
    /// Index of the hub.
    pub(crate) const HUB: usize = 0;

    pub(crate) fn new(hub: Arc<Declaration>) -> Self {
        Self(vec![Version::hub(hub)])
    }

    /// Adds the version `V`.
    ///
    /// # Errors
    /// `V` cannot be served, is not the same kind, or is there already.
    pub fn add<V: Convert<T>>(&mut self) -> Result<(), DeclarationError> {
        let version = Version::of::<V>()?;
        let new = &*version.declaration;
        let fits = self.0.iter().all(|known| {
            let known = &*known.declaration;
            known.resource == new.resource
                && known.kind == new.kind
                && known.namespaced == new.namespaced
                && known.version != new.version
        });
        if !fits {
            return Err(DeclarationError::NotAVersion {
                version: new.api_version.clone(),
            });
        }
        self.0.push(version);
        Ok(())
    }

    pub(crate) fn all(&self) -> &[Version<T>] {
        &self.0
    }

    /// The version at `index`, which comes from [`Self::all`].
    pub(crate) fn at(&self, index: usize) -> Result<&Version<T>, ApiError> {
        self.0
            .get(index)
            .ok_or_else(|| ApiError::internal("a version is not registered", index))
    }

    /// Which version the object is stored in.
    pub(crate) fn stored_in(&self, entry: &Entry) -> Result<usize, ApiError> {
        if let Some(index) = self.0.iter().position(|v| entry.body.starts_with(&v.head)) {
            return Ok(index);
        }
        let stored: Stored<'_> = serde_json::from_slice(&entry.body).map_err(unreadable)?;
        self.0
            .iter()
            .position(|v| v.declaration.api_version == stored.api_version)
            .ok_or_else(|| {
                let why = format!(
                    "{} is stored as {}, which this server has no conversion for",
                    entry.key, stored.api_version
                );
                ApiError::internal("a stored object cannot be read", why)
            })
    }

    /// The object in the hub's type.
    pub(crate) fn hub(&self, entry: &Entry) -> Result<T, ApiError> {
        let stored = self.at(self.stored_in(entry)?)?;
        (stored.read)(&entry.body).map_err(unreadable)
    }

    /// The object in the version at `index`.
    pub(crate) fn convert(&self, entry: &Arc<Entry>, index: usize) -> Result<Arc<Entry>, ApiError> {
        if self.stored_in(entry)? == index {
            return Ok(Arc::clone(entry));
        }
        let value = (self.at(index)?.write)(self.hub(entry)?)
            .map_err(|e| ApiError::internal("an object cannot be converted", e))?;
        entry
            .converted(value)
            .map(Arc::new)
            .map_err(|e| ApiError::internal("a converted object cannot be read back", e))
    }

    /// As [`Self::convert`], made once and kept with the entry: for what many watchers are sent.
    pub(crate) fn shared(&self, entry: &Arc<Entry>, index: usize) -> Result<Arc<Entry>, ApiError> {
        if self.stored_in(entry)? == index {
            return Ok(Arc::clone(entry));
        }
        entry.in_version(index, || self.convert(entry, index))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored<'a> {
    #[serde(borrow, default)]
    api_version: Cow<'a, str>,
}

fn unreadable(error: serde_json::Error) -> ApiError {
    ApiError::internal("a stored object cannot be read", error)
}
