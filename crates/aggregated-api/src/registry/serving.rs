//! Which capabilities of a kind are served; verbs and routes follow from what is given here.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;

use super::cache::{KindCache, StoreCache};
use super::capability::{Create, CreateSubresource, Delete, Object, Update};
use super::collection::Collection;
use super::context::RequestCtx;
use super::entry::Entry;
use super::write::{Change, Deleted, Part, known_fields};
use crate::admission::NamespaceLifecycle;
use crate::codec::decode::Decoded;
use crate::http::options::{DeleteOptions, WriteOptions};
use crate::http::status::ApiError;
use crate::schema::declaration::{Declaration, DeclarationError, body_schema};
use crate::schema::discovery::{ServedKind, ServedSubresource};
use crate::schema::scale;
use crate::schema::structural::Schema;

/// The subresource of the status.
const STATUS: &str = "status";
/// The subresource of a kind that declares how it is scaled and can be updated.
pub(crate) const SCALE: &str = "scale";

/// A kind and what can be done to it. Get, list and watch always can.
pub struct Serving<T: Object> {
    collection: Collection<T>,
    create: Option<Arc<dyn Create<T>>>,
    update: Option<Arc<dyn Update<T>>>,
    delete: Option<Arc<dyn Delete<T>>>,
    status: Option<Arc<dyn Update<T>>>,
    subresources: Vec<Arc<dyn AnySubresource<T>>>,
}

impl<T: Object> Serving<T> {
    /// Read-only.
    pub fn new(collection: Collection<T>) -> Self {
        Self {
            collection,
            create: None,
            update: None,
            delete: None,
            status: None,
            subresources: Vec::new(),
        }
    }

    /// Adds `create`.
    #[must_use]
    pub fn create(mut self, rules: Arc<dyn Create<T>>) -> Self {
        self.create = Some(rules);
        self
    }

    /// Adds `update` and `patch`.
    #[must_use]
    pub fn update(mut self, rules: Arc<dyn Update<T>>) -> Self {
        self.update = Some(rules);
        self
    }

    /// Adds `delete` and `deletecollection`.
    #[must_use]
    pub fn delete(mut self, rules: Arc<dyn Delete<T>>) -> Self {
        self.delete = Some(rules);
        self
    }

    /// Adds the subresource `status`: `get`, and `update` and `patch` of the status alone. The rules see
    /// the whole object, of which nothing else is changed.
    ///
    /// # Errors
    /// The kind has no status.
    pub fn status(mut self, rules: Arc<dyn Update<T>>) -> Result<Self, DeclarationError> {
        let without = self
            .collection
            .versions
            .all()
            .iter()
            .find(|version| !version.declaration.has_status);
        if let Some(version) = without {
            return Err(DeclarationError::Incomplete {
                kind: version.declaration.kind.clone(),
                missing: "status",
            });
        }
        self.status = Some(rules);
        Ok(self)
    }

    /// Adds `create` on a named subresource.
    ///
    /// # Errors
    /// The body's schema is not structural.
    pub fn subresource<S: CreateSubresource<T>>(
        mut self,
        rules: Arc<S>,
    ) -> Result<Self, DeclarationError> {
        let (openapi, schema) = body_schema::<S::Body>(S::KIND)?;
        self.subresources.push(Arc::new(Subresource {
            rules,
            openapi,
            schema,
        }));
        Ok(self)
    }
}

impl<T: Object> Serving<T> {
    /// Every version of the kind as it is served.
    pub(crate) fn versions(self) -> Vec<Arc<dyn AnyServing>> {
        let serving = Arc::new(self);
        let versions = Arc::clone(&serving.collection.versions);
        versions
            .all()
            .iter()
            .enumerate()
            .map(|(index, version)| {
                let served: Arc<dyn AnyServing> = Arc::new(ServedVersion {
                    declaration: Arc::clone(&version.declaration),
                    serving: Arc::clone(&serving),
                    index,
                });
                served
            })
            .collect()
    }
}

/// A kind in one of its versions.
struct ServedVersion<T: Object> {
    serving: Arc<Serving<T>>,
    declaration: Arc<Declaration>,
    /// Index of the version.
    index: usize,
}

/// A kind in one version, without its types. Entries that come out of writes are in this version; those
/// of the cache are as they are stored until [`AnyServing::convert`]ed.
#[async_trait]
pub(crate) trait AnyServing: Send + Sync {
    fn declaration(&self) -> &Arc<Declaration>;
    fn cache(&self) -> &Arc<StoreCache>;
    fn kind(&self) -> &Arc<KindCache>;
    fn describe(&self) -> ServedKind;

    /// A stored object in this version.
    fn convert(&self, entry: &Arc<Entry>) -> Result<Arc<Entry>, ApiError>;

    /// As [`Self::convert`], converted once and kept with the entry: for watch events.
    fn shared(&self, entry: &Arc<Entry>) -> Result<Arc<Entry>, ApiError>;

    async fn create(
        &self,
        ctx: &RequestCtx,
        namespaces: &dyn NamespaceLifecycle,
        body: Decoded,
        options: &WriteOptions,
    ) -> Result<Arc<Entry>, ApiError>;

    async fn update(
        &self,
        ctx: &RequestCtx,
        name: &str,
        part: Part,
        change: Change,
        options: &WriteOptions,
    ) -> Result<Arc<Entry>, ApiError>;

    async fn delete(
        &self,
        ctx: &RequestCtx,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Deleted, ApiError>;

    async fn create_subresource(
        &self,
        ctx: &RequestCtx,
        subresource: &str,
        name: &str,
        body: Decoded,
        options: &WriteOptions,
    ) -> Result<Value, ApiError>;
}

#[async_trait]
impl<T: Object> AnyServing for ServedVersion<T> {
    fn declaration(&self) -> &Arc<Declaration> {
        &self.declaration
    }

    fn cache(&self) -> &Arc<StoreCache> {
        &self.serving.collection.cache
    }

    fn kind(&self) -> &Arc<KindCache> {
        &self.serving.collection.kind
    }

    fn convert(&self, entry: &Arc<Entry>) -> Result<Arc<Entry>, ApiError> {
        self.serving.collection.versions.convert(entry, self.index)
    }

    fn shared(&self, entry: &Arc<Entry>) -> Result<Arc<Entry>, ApiError> {
        self.serving.collection.versions.shared(entry, self.index)
    }

    fn describe(&self) -> ServedKind {
        let serving = &*self.serving;
        let mut verbs = vec!["get", "list", "watch"];
        if serving.create.is_some() {
            verbs.push("create");
        }
        if serving.update.is_some() {
            verbs.extend(["patch", "update"]);
        }
        if serving.delete.is_some() {
            verbs.extend(["delete", "deletecollection"]);
        }
        verbs.sort_unstable();
        let mut subresources: Vec<_> = serving.subresources.iter().map(|s| s.describe()).collect();
        if serving.status.is_some() {
            subresources.push(ServedSubresource {
                name: STATUS,
                kind: self.declaration.kind.clone(),
                foreign: None,
                verbs: vec!["get", "patch", "update"],
                schema: None,
            });
        }
        if serving.update.is_some() && self.declaration.scaling.is_some() {
            subresources.push(ServedSubresource {
                name: SCALE,
                kind: scale::KIND.to_owned(),
                foreign: Some(scale::GROUP_VERSION),
                verbs: vec!["get", "patch", "update"],
                schema: None,
            });
        }
        subresources.sort_by_key(|s| s.name);
        ServedKind {
            declaration: Arc::clone(&self.declaration),
            storage_version: serving.collection.declaration.version.clone(),
            verbs,
            subresources,
        }
    }

    async fn create(
        &self,
        ctx: &RequestCtx,
        namespaces: &dyn NamespaceLifecycle,
        body: Decoded,
        options: &WriteOptions,
    ) -> Result<Arc<Entry>, ApiError> {
        let serving = &*self.serving;
        let rules = serving
            .create
            .as_ref()
            .ok_or_else(ApiError::method_not_allowed)?;
        let version = serving.collection.versions.at(self.index)?;
        let created = serving
            .collection
            .create_flow(&**rules, version, namespaces, ctx, body, options)
            .await?;
        self.convert(&created)
    }

    async fn update(
        &self,
        ctx: &RequestCtx,
        name: &str,
        part: Part,
        change: Change,
        options: &WriteOptions,
    ) -> Result<Arc<Entry>, ApiError> {
        let serving = &*self.serving;
        let rules = match part {
            Part::Main | Part::Scale => serving.update.as_ref(),
            Part::Status => serving.status.as_ref(),
        };
        let rules = rules.ok_or_else(ApiError::method_not_allowed)?;
        let updated = serving
            .collection
            .update_flow(&**rules, self.index, ctx, name, part, &change, options)
            .await?;
        self.convert(&updated)
    }

    async fn delete(
        &self,
        ctx: &RequestCtx,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Deleted, ApiError> {
        let serving = &*self.serving;
        let rules = serving
            .delete
            .as_ref()
            .ok_or_else(ApiError::method_not_allowed)?;
        let deleted = serving
            .collection
            .delete_flow(&**rules, ctx, name, options)
            .await?;
        Ok(match deleted {
            Deleted::Gone(entry) => Deleted::Gone(self.convert(&entry)?),
            Deleted::Pending(entry) => Deleted::Pending(self.convert(&entry)?),
        })
    }

    async fn create_subresource(
        &self,
        ctx: &RequestCtx,
        subresource: &str,
        name: &str,
        body: Decoded,
        options: &WriteOptions,
    ) -> Result<Value, ApiError> {
        let serving = &*self.serving;
        let found = serving
            .subresources
            .iter()
            .find(|s| s.describe_name() == subresource);
        let rules = found.ok_or_else(ApiError::unknown_resource)?;
        rules
            .create(
                &serving.collection,
                &self.declaration,
                ctx,
                name,
                body,
                options,
            )
            .await
    }
}

struct Subresource<S> {
    rules: Arc<S>,
    openapi: Value,
    schema: Schema,
}

#[async_trait]
trait AnySubresource<T: Object>: Send + Sync {
    fn describe_name(&self) -> &'static str;
    fn describe(&self) -> ServedSubresource;
    async fn create(
        &self,
        collection: &Collection<T>,
        declaration: &Declaration,
        ctx: &RequestCtx,
        name: &str,
        body: Decoded,
        options: &WriteOptions,
    ) -> Result<Value, ApiError>;
}

#[async_trait]
impl<T: Object, S: CreateSubresource<T>> AnySubresource<T> for Subresource<S> {
    fn describe_name(&self) -> &'static str {
        S::NAME
    }

    fn describe(&self) -> ServedSubresource {
        ServedSubresource {
            name: S::NAME,
            kind: S::KIND.to_owned(),
            foreign: None,
            verbs: vec!["create"],
            schema: Some(self.openapi.clone()),
        }
    }

    async fn create(
        &self,
        collection: &Collection<T>,
        declaration: &Declaration,
        ctx: &RequestCtx,
        name: &str,
        body: Decoded,
        options: &WriteOptions,
    ) -> Result<Value, ApiError> {
        let mut body = known_fields(
            &self.schema,
            S::KIND,
            &declaration.version,
            body,
            options,
            ctx,
        )?;
        self.schema.set_defaults(&mut body);
        let errors = self.schema.validate(&body);
        if !errors.is_empty() {
            let group = &declaration.resource.group;
            return Err(ApiError::invalid(group, S::KIND, name, &errors));
        }
        let answer = collection
            .subresource_flow(&*self.rules, ctx, name, body)
            .await?;
        let mut value = serde_json::to_value(answer)
            .map_err(|e| ApiError::internal("the answer cannot be encoded", e))?;
        value["kind"] = Value::from(S::KIND);
        value["apiVersion"] = Value::from(declaration.api_version.as_str());
        Ok(value)
    }
}
