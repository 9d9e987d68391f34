//! The typed handle to one kind, for the server's own rules and controllers.

use std::sync::Arc;

use bytes::Bytes;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use runtime_kit::clock::Clock;

use super::cache::{KindCache, StoreCache};
use super::capability::{Companion, Object};
use super::entry::encode;
use super::version::Versions;
use crate::http::status::{ApiError, GroupResource};
use crate::schema::declaration::{Declaration, DeclarationError};
use crate::store::{self, Compare, Op, Outcome, Revision};

/// Result of a write of the server's own.
#[derive(Clone, Debug)]
pub enum Written<T> {
    /// Durable; the object as it now stands.
    Committed(T),
    /// Something changed in between: read again and decide again.
    Conflict,
}

/// One served kind: its declaration, its cache and its store.
pub struct Collection<T> {
    pub(crate) declaration: Arc<Declaration>,
    pub(crate) cache: Arc<StoreCache>,
    pub(crate) kind: Arc<KindCache>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) versions: Arc<Versions<T>>,
}

impl<T> Clone for Collection<T> {
    fn clone(&self) -> Self {
        Self {
            declaration: Arc::clone(&self.declaration),
            cache: Arc::clone(&self.cache),
            kind: Arc::clone(&self.kind),
            clock: Arc::clone(&self.clock),
            versions: Arc::clone(&self.versions),
        }
    }
}

impl<T: Object> Collection<T> {
    /// The kind `T` in this store.
    ///
    /// # Errors
    /// When `T`'s declaration cannot be served.
    pub fn new(cache: &Arc<StoreCache>, clock: Arc<dyn Clock>) -> Result<Self, DeclarationError> {
        Self::with_versions(cache, clock, |_| Ok(()))
    }

    /// The kind `T`, which is the hub of further versions: stored as `T`, served in all of them, and
    /// readable when it was stored in one of them.
    ///
    /// ```text
    /// Collection::<v1::Lease>::with_versions(&cache, clock, |versions| versions.add::<v1beta1::Lease>())?
    /// ```
    ///
    /// # Errors
    /// When a declaration cannot be served, or is not another version of `T`.
    pub fn with_versions(
        cache: &Arc<StoreCache>,
        clock: Arc<dyn Clock>,
        add: impl FnOnce(&mut Versions<T>) -> Result<(), DeclarationError>,
    ) -> Result<Self, DeclarationError> {
        let declaration = Arc::new(Declaration::of::<T>()?);
        let mut versions = Versions::new(Arc::clone(&declaration));
        add(&mut versions)?;
        Ok(Self {
            kind: cache.kind(&declaration.prefix()),
            cache: Arc::clone(cache),
            declaration,
            clock,
            versions: Arc::new(versions),
        })
    }

    /// Group and plural, as errors name the kind.
    pub fn resource(&self) -> &GroupResource {
        &self.declaration.resource
    }

    /// An object from the cache, which may lag a commit by microseconds.
    pub fn get(&self, namespace: &str, name: &str) -> Option<T> {
        self.kind
            .get(&self.declaration.key(namespace, name))
            .and_then(|entry| self.versions.hub(&entry).ok())
    }

    /// An object as of every write acknowledged before this call.
    ///
    /// # Errors
    /// The cache does not catch up, or the stored object is unreadable.
    pub async fn get_latest(&self, namespace: &str, name: &str) -> Result<Option<T>, ApiError> {
        self.cache.consistent().await?;
        self.kind
            .get(&self.declaration.key(namespace, name))
            .map(|entry| self.versions.hub(&entry))
            .transpose()
    }

    /// All objects from the cache.
    pub fn list(&self) -> Vec<T> {
        self.kind
            .snapshot()
            .objects
            .values()
            .filter_map(|entry| self.versions.hub(entry).ok())
            .collect()
    }

    /// Tells when this kind, or anything else in the store, has changed.
    pub fn changes(&self) -> tokio::sync::watch::Receiver<Revision> {
        self.kind.subscribe()
    }

    /// Creates an object on the server's own behalf; uid, creation time and generation are set.
    ///
    /// # Errors
    /// The store fails. An object of this name is a conflict, not an error.
    pub async fn create(
        &self,
        mut object: T,
        companion: Companion,
    ) -> Result<Written<T>, ApiError> {
        self.stamp(&mut object);
        let key = self.key_of(&object);
        self.put(object, key, 0, companion).await
    }

    /// Replaces an object, if it still is as it was read.
    ///
    /// # Errors
    /// The store fails, or the object carries no resourceVersion.
    pub async fn replace(&self, object: T, companion: Companion) -> Result<Written<T>, ApiError> {
        let read_at = revision_of(&object)?;
        let key = self.key_of(&object);
        self.put(object, key, read_at, companion).await
    }

    /// Removes an object, if it still is as it was read, whatever its finalizers.
    ///
    /// # Errors
    /// The store fails, or the object carries no resourceVersion.
    pub async fn remove(&self, object: &T, companion: Companion) -> Result<Written<T>, ApiError> {
        let read_at = revision_of(object)?;
        let key = self.key_of(object);
        match self.commit(&key, read_at, None, companion).await? {
            Outcome::Committed(_) => Ok(Written::Committed(object.clone())),
            Outcome::Conflict => Ok(Written::Conflict),
        }
    }

    async fn put(
        &self,
        mut object: T,
        key: Arc<str>,
        read_at: Revision,
        companion: Companion,
    ) -> Result<Written<T>, ApiError> {
        let value = encode(&mut object)
            .map_err(|e| ApiError::internal("the object has no JSON form", e))?;
        match self.commit(&key, read_at, Some(value), companion).await? {
            Outcome::Committed(revision) => {
                object.meta_mut().resource_version = Some(revision.to_string());
                Ok(Written::Committed(object))
            },
            Outcome::Conflict => Ok(Written::Conflict),
        }
    }

    /// One transaction: the object (put, or deleted when `value` is `None`) as it was read at
    /// `read_at` (0: absent), and what rides along.
    pub(crate) async fn commit(
        &self,
        key: &Arc<str>,
        read_at: Revision,
        value: Option<Bytes>,
        companion: Companion,
    ) -> Result<Outcome, ApiError> {
        let Companion {
            mut compares,
            mut ops,
            reservation,
        } = companion;
        compares.push(Compare::ModRevision(Arc::clone(key), read_at));
        let deletes = value.is_none();
        ops.push(match value {
            Some(value) => Op::Put(Arc::clone(key), value),
            None => Op::Delete(Arc::clone(key)),
        });
        let store = self.cache.store();
        let puts = ops.iter().any(|op| matches!(op, Op::Put(..)));
        let deletion = (deletes && puts).then(|| compares.clone());
        let outcome = match (store.txn(compares, ops).await, deletion) {
            // Why: deletes make room, and a full etcd takes no put. Who wrote beside the deletion
            // learns that it was not done, from the reservation that is dropped.
            (Err(store::Error::NoSpace), Some(compares)) => {
                return Ok(store
                    .txn(compares, vec![Op::Delete(Arc::clone(key))])
                    .await?);
            },
            (outcome, _) => outcome?,
        };
        if let (Outcome::Committed(revision), Some(reservation)) = (outcome, reservation) {
            reservation.committed(revision);
        }
        Ok(outcome)
    }

    /// Sets what the server gives every new object.
    pub(crate) fn stamp(&self, object: &mut T) {
        let meta = object.meta_mut();
        meta.uid = Some(uuid::Uuid::new_v4().to_string());
        meta.creation_timestamp = Some(Time(whole_seconds(self.clock.now())));
        meta.generation = Some(1);
    }

    pub(crate) fn key_of(&self, object: &T) -> Arc<str> {
        let meta = object.meta();
        self.declaration
            .key(
                meta.namespace.as_deref().unwrap_or_default(),
                meta.name.as_deref().unwrap_or_default(),
            )
            .into()
    }
}

/// Times in objects have whole seconds.
pub fn whole_seconds(time: jiff::Timestamp) -> jiff::Timestamp {
    jiff::Timestamp::from_second(time.as_second()).unwrap_or(time)
}

fn revision_of<T: Object>(object: &T) -> Result<Revision, ApiError> {
    object
        .meta()
        .resource_version
        .as_deref()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| ApiError::internal("a write without a resourceVersion", "rule error"))
}
