//! One trait per thing that can be done to a kind.
//!
//! A write goes through three steps: `prepare` (pure: sets what the server owns), `plan` (reads and
//! decides, is all that a dry run does) and the commit, which the library does: one store
//! transaction that holds the object and whatever rides along. When the commit meets a conflict,
//! `plan` runs again on fresh state. Verbs of discovery follow from which of these traits a
//! registration was given, so nothing is advertised that does not work.

use async_trait::async_trait;
use k8s_openapi::ClusterResourceScope;
use k8s_openapi::NamespaceResourceScope;
use kube::CustomResourceExt;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::context::RequestCtx;
use super::meta;
use crate::http::status::{ApiError, FieldError};
use crate::store::{Compare, Op, Revision};

/// A kind that can be served: what `#[derive(kube::CustomResource)]` produces.
pub trait Object:
    kube::Resource<DynamicType = ()>
    + CustomResourceExt
    + Clone
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
}

impl<T> Object for T where
    T: kube::Resource<DynamicType = ()>
        + CustomResourceExt
        + Clone
        + Serialize
        + DeserializeOwned
        + Send
        + Sync
        + 'static
{
}

/// Scope marker: objects live in namespaces.
pub type Namespaced = NamespaceResourceScope;
/// Scope marker: objects live in the cluster.
pub type Clustered = ClusterResourceScope;

/// Something taken in memory while a transaction is on its way, given back when dropped.
pub trait Reservation: Send {
    /// The transaction is durable at `revision`: keep what was taken.
    fn committed(self: Box<Self>, revision: Revision);
}

/// What a transaction changes beside the object itself: internal keys only.
#[derive(Default)]
pub struct Companion {
    /// Conditions that must hold.
    pub compares: Vec<Compare>,
    /// Changes of internal keys. A store without space may leave them out of a deletion.
    pub ops: Vec<Op>,
    /// Told about the commit; dropped without it, and when the changes were left out.
    pub reservation: Option<Box<dyn Reservation>>,
}

/// Result of planning a create.
pub enum CreatePlan<T> {
    /// Store this object.
    Write {
        /// As it shall be stored; the server's metadata are set by the library.
        object: T,
        /// Rides along.
        companion: Companion,
    },
    /// The create is a repeat: answer with this stored object, change nothing.
    Existing(T),
    /// An object of this name is over and gives way: delete it (with the companion), plan again.
    Replace {
        /// The object that goes.
        old: T,
        /// Rides along with its deletion.
        companion: Companion,
    },
}

/// `create`.
#[async_trait]
pub trait Create<T: Object>: Send + Sync + 'static {
    /// Sets what the server owns and drops what a client may not set. Pure; runs before schema
    /// defaults are checked against [`Create::validate`].
    fn prepare(&self, ctx: &RequestCtx, object: &mut T) -> Result<(), ApiError>;

    /// What the schema cannot express. Pure.
    fn validate(&self, ctx: &RequestCtx, object: &T) -> Vec<FieldError> {
        let _ = (ctx, object);
        Vec::new()
    }

    /// What keeps a segment of a path from being a name of this kind. As for CustomResourceDefinitions,
    /// names are DNS-1123 subdomains unless a kind says otherwise.
    fn name_faults(&self, name: &str) -> Vec<String> {
        meta::subdomain_faults(name)
    }

    /// Decides, reserving nothing durable. `object` already has its name, uid and creation time;
    /// `existing` is the stored object of the same name.
    async fn plan(
        &self,
        ctx: &RequestCtx,
        object: T,
        existing: Option<T>,
    ) -> Result<CreatePlan<T>, ApiError>;
}

/// `update` and `patch`.
#[async_trait]
pub trait Update<T: Object>: Send + Sync + 'static {
    /// Keeps what a client may not change. Pure.
    fn prepare(&self, ctx: &RequestCtx, new: &mut T, old: &T) -> Result<(), ApiError>;

    /// What the schema cannot express. Pure.
    fn validate(&self, ctx: &RequestCtx, new: &T, old: &T) -> Vec<FieldError>;

    /// May the caller change this object, and what rides along?
    async fn plan(&self, ctx: &RequestCtx, new: &T, old: &T) -> Result<Companion, ApiError> {
        let _ = (ctx, new, old);
        Ok(Companion::default())
    }
}

/// `delete` and `deletecollection`.
#[async_trait]
pub trait Delete<T: Object>: Send + Sync + 'static {
    /// May the caller delete this object, and what rides along with the request that ends it (or
    /// marks it, when finalizers keep it)?
    async fn plan(&self, ctx: &RequestCtx, old: &T) -> Result<Companion, ApiError>;

    /// Changes an object that finalizers keep, in the write that marks it as deleted. Pure.
    fn mark(&self, ctx: &RequestCtx, object: &mut T) {
        let _ = (ctx, object);
    }
}

/// Answer of a named subresource.
pub struct SubresourceWrite<T, B> {
    /// The parent as it shall be stored; `None`: unchanged.
    pub parent: Option<T>,
    /// Rides along. With an unchanged parent nothing is stored: then only the reservation counts, and
    /// is told at once.
    pub companion: Companion,
    /// What the caller gets.
    pub body: B,
}

/// `create` on a named subresource, such as `renew`.
#[async_trait]
pub trait CreateSubresource<T: Object>: Send + Sync + 'static {
    /// Kind of the body, request and answer alike. Its schema gives defaults and is what a request is
    /// validated by, but for `metadata` and `status`.
    type Body: Serialize + DeserializeOwned + JsonSchema + Send + Sync + 'static;
    /// Path segment.
    const NAME: &'static str;
    /// Kind name of the body.
    const KIND: &'static str;

    /// Decides on the stored parent; run again when the commit meets a conflict.
    async fn plan(
        &self,
        ctx: &RequestCtx,
        parent: T,
        body: &Self::Body,
    ) -> Result<SubresourceWrite<T, Self::Body>, ApiError>;
}
