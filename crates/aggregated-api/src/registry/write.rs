//! The generic write flows: what every create, update, patch and delete goes through, in the order
//! of `k8s.io/apiserver/pkg/registry/generic/registry`.

use std::sync::Arc;

use bytes::Bytes;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde_json::Value;

use super::capability::{Create, CreatePlan, CreateSubresource, Delete, Object, Update};
use super::collection::{Collection, parse, whole_seconds};
use super::context::RequestCtx;
use super::entry::{Entry, encode};
use super::meta;
use crate::admission::{NamespaceError, NamespaceLifecycle};
use crate::codec::decode::Decoded;
use crate::http::options::{DeleteOptions, FieldValidation, Propagation, WriteOptions};
use crate::http::status::{ApiError, GroupResource};
use crate::schema::declaration::Declaration;
use crate::store::Outcome;

/// Conflicts after which a write is given back to the client.
const MAX_CONFLICTS: usize = 64;
/// Names tried for one generateName.
const MAX_GENERATED: usize = 8;
/// Finalizers with which the garbage collector is told what becomes of dependents.
const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

/// How a stored object becomes the new one.
pub(crate) enum Change {
    /// PUT: the body is the new object.
    Replace(Decoded),
    /// PATCH: the body is applied to the stored object.
    Patch(Patch),
}

/// A change description.
pub(crate) enum Patch {
    /// RFC 7386.
    Merge(Decoded),
    /// RFC 6902.
    Json(json_patch::Patch),
}

/// What a delete did.
pub(crate) enum Deleted {
    /// The object is gone.
    Gone(Arc<Entry>),
    /// Finalizers keep it; this is what it looks like now.
    Pending(Arc<Entry>),
}

impl<T: Object> Collection<T> {
    /// `POST` on the collection.
    pub(crate) async fn create_flow(
        &self,
        rules: &dyn Create<T>,
        namespaces: &dyn NamespaceLifecycle,
        ctx: &RequestCtx,
        body: Decoded,
        options: &WriteOptions,
    ) -> Result<Arc<Entry>, ApiError> {
        let declaration = &*self.declaration;
        let mut value = read_object(declaration, body, options, ctx)?;
        drop_status(declaration, &mut value);
        declaration.schema.set_defaults(&mut value);
        let schema_errors = declaration.schema.validate(&value);
        let given_name = value
            .pointer("/metadata/name")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if !schema_errors.is_empty() {
            let name = given_name.to_owned();
            return Err(invalid(declaration, &name, &schema_errors));
        }
        let mut object: T = typed(declaration, value)?;
        if object
            .meta()
            .resource_version
            .as_deref()
            .is_some_and(|rv| !rv.is_empty())
        {
            return Err(ApiError::bad_request(
                "resourceVersion should not be set on objects to be created",
            ));
        }
        meta::wipe_system_fields(object.meta_mut());
        set_namespace(declaration, object.meta_mut(), &ctx.namespace)?;
        warn_of_duplicate_owners(object.meta_mut(), ctx);
        let generated = generate_name(object.meta_mut());
        self.stamp(&mut object);
        rules.prepare(ctx, &mut object)?;
        let mut errors = meta::validate(object.meta(), declaration.namespaced);
        errors.extend(rules.validate(ctx, &object));
        let name = object.meta().name.clone().unwrap_or_default();
        if !errors.is_empty() {
            return Err(invalid(declaration, &name, &errors));
        }
        if declaration.namespaced {
            check_namespace(namespaces, declaration, &ctx.namespace, &name).await?;
        }
        self.create_planned(rules, ctx, object, generated).await
    }

    async fn create_planned(
        &self,
        rules: &dyn Create<T>,
        ctx: &RequestCtx,
        mut object: T,
        generated: bool,
    ) -> Result<Arc<Entry>, ApiError> {
        let resource = &self.declaration.resource;
        let mut names = 1;
        for _ in 0..MAX_CONFLICTS {
            check_deadline(ctx)?;
            let name = object.meta().name.clone().unwrap_or_default();
            let key = self.key_of(&object);
            let mut existing = self.existing(&key).await?;
            if existing.is_some() && generated {
                if names == MAX_GENERATED {
                    return Err(ApiError::generate_name_exhausted(resource, &name));
                }
                names += 1;
                object.meta_mut().name = None;
                generate_name(object.meta_mut());
                continue;
            }
            let plan = loop {
                match rules.plan(ctx, object.clone(), existing.take()).await? {
                    // A dry run leaves the old one alone and pretends that it is gone.
                    CreatePlan::Replace { .. } if ctx.dry_run => {},
                    plan @ (CreatePlan::Replace { .. }
                    | CreatePlan::Existing(_)
                    | CreatePlan::Write { .. }) => break plan,
                }
            };
            match plan {
                CreatePlan::Existing(stored) => {
                    return self.kind.get(&self.key_of(&stored)).ok_or_else(|| {
                        ApiError::conflict(
                            resource,
                            &name,
                            "the object was just deleted; try again",
                        )
                    });
                },
                CreatePlan::Replace { old, companion } => {
                    let written = self.remove(&old, companion).await?;
                    drop(written);
                    self.cache.consistent().await?;
                },
                CreatePlan::Write {
                    object: mut planned,
                    companion,
                } => {
                    let value = encoded(&mut planned)?;
                    if ctx.dry_run {
                        return unstored(&key, value);
                    }
                    match self.commit(&key, 0, Some(value.clone()), companion).await? {
                        Outcome::Committed(revision) => return stored(&key, &value, revision),
                        Outcome::Conflict => self.cache.consistent().await?,
                    }
                },
            }
        }
        Err(contended(
            resource,
            object.meta().name.as_deref().unwrap_or_default(),
        ))
    }

    /// The stored object of this key, if any. Only a present one is read consistently: that none is
    /// there is checked by the commit.
    async fn existing(&self, key: &str) -> Result<Option<T>, ApiError> {
        if self.kind.get(key).is_none() {
            return Ok(None);
        }
        self.cache.consistent().await?;
        self.kind.get(key).map(|entry| parse(&entry)).transpose()
    }

    /// `PUT` and `PATCH` on an object.
    pub(crate) async fn update_flow(
        &self,
        rules: &dyn Update<T>,
        ctx: &RequestCtx,
        name: &str,
        change: &Change,
        options: &WriteOptions,
    ) -> Result<Arc<Entry>, ApiError> {
        let declaration = &*self.declaration;
        let resource = &declaration.resource;
        let key: Arc<str> = declaration.key(&ctx.namespace, name).into();
        self.cache.consistent().await?;
        for _ in 0..MAX_CONFLICTS {
            check_deadline(ctx)?;
            let entry = self
                .kind
                .get(&key)
                .ok_or_else(|| ApiError::not_found(resource, name))?;
            let old: T = parse(&entry)?;
            let mut value = self.changed(&entry, change, ctx, options)?;
            keep_status(declaration, &mut value, &entry.value());
            declaration.schema.set_defaults(&mut value);
            let mut errors = declaration.schema.validate(&value);
            if !errors.is_empty() {
                return Err(invalid(declaration, name, &errors));
            }
            let mut new: T = typed(declaration, value)?;
            check_identity(
                declaration,
                new.meta_mut(),
                old.meta(),
                name,
                &ctx.namespace,
            )?;
            match (new.meta().resource_version.as_deref(), change) {
                (None | Some("" | "0"), Change::Replace(_)) => {
                    let error = crate::http::status::FieldError::invalid(
                        "metadata.resourceVersion",
                        &0,
                        "must be specified for an update",
                    );
                    return Err(invalid(declaration, name, &[error]));
                },
                (Some(given), _) if !given.is_empty() && given != entry.revision.to_string() => {
                    return Err(ApiError::modified(resource, name));
                },
                _ => {},
            }
            meta::keep_system_fields(new.meta_mut(), old.meta());
            warn_of_duplicate_owners(new.meta_mut(), ctx);
            rules.prepare(ctx, &mut new, &old)?;
            errors.extend(meta::validate(new.meta(), declaration.namespaced));
            errors.extend(meta::validate_update(new.meta(), old.meta()));
            errors.extend(rules.validate(ctx, &new, &old));
            if !errors.is_empty() {
                return Err(invalid(declaration, name, &errors));
            }
            let companion = rules.plan(ctx, &new, &old).await?;
            let mut unchanged = old.clone();
            let before = encoded(&mut unchanged)?;
            if encoded(&mut new)? == before {
                return Ok(entry);
            }
            if spec_changed(&mut new, &before)? {
                new.meta_mut().generation = old.meta().generation.map(|n| n + 1).or(Some(1));
            }
            let value = encoded(&mut new)?;
            let released = old.meta().deletion_timestamp.is_some()
                && new.meta().finalizers.as_ref().is_none_or(Vec::is_empty);
            if ctx.dry_run {
                return unstored(&key, value);
            }
            let put = (!released).then(|| value.clone());
            match self.commit(&key, entry.revision, put, companion).await? {
                Outcome::Committed(revision) => return stored(&key, &value, revision),
                Outcome::Conflict => self.cache.consistent().await?,
            }
        }
        Err(contended(resource, name))
    }

    /// The changed object as the client means it, unknown fields dropped.
    fn changed(
        &self,
        entry: &Entry,
        change: &Change,
        ctx: &RequestCtx,
        options: &WriteOptions,
    ) -> Result<Value, ApiError> {
        let decoded = match change {
            Change::Replace(body) => Decoded {
                value: body.value.clone(),
                duplicates: body.duplicates.clone(),
            },
            Change::Patch(Patch::Merge(patch)) => {
                let mut value = entry.value();
                json_patch::merge(&mut value, &patch.value);
                let given = patch.value.pointer("/metadata/resourceVersion").cloned();
                set_resource_version(&mut value, given);
                Decoded {
                    value,
                    duplicates: patch.duplicates.clone(),
                }
            },
            Change::Patch(Patch::Json(patch)) => {
                let mut value = entry.value();
                json_patch::patch(&mut value, patch).map_err(|e| {
                    ApiError::refusal(
                        http::StatusCode::UNPROCESSABLE_ENTITY,
                        "Invalid",
                        format!(
                            "the server rejected our request due to an error in our request: {e}"
                        ),
                    )
                })?;
                let given = value
                    .pointer("/metadata/resourceVersion")
                    .filter(|rv| rv.as_str() != Some(&entry.revision.to_string()))
                    .cloned();
                set_resource_version(&mut value, given);
                Decoded {
                    value,
                    duplicates: Vec::new(),
                }
            },
        };
        read_object(&self.declaration, decoded, options, ctx)
    }

    /// `DELETE` of an object.
    pub(crate) async fn delete_flow(
        &self,
        rules: &dyn Delete<T>,
        ctx: &RequestCtx,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Deleted, ApiError> {
        let declaration = &*self.declaration;
        let resource = &declaration.resource;
        let key: Arc<str> = declaration.key(&ctx.namespace, name).into();
        self.cache.consistent().await?;
        for _ in 0..MAX_CONFLICTS {
            check_deadline(ctx)?;
            let entry = self
                .kind
                .get(&key)
                .ok_or_else(|| ApiError::not_found(resource, name))?;
            let old: T = parse(&entry)?;
            check_preconditions(declaration, options, &old, &entry, name)?;
            let finalizers = finalizers_after(old.meta(), options.propagation);
            let companion = rules.plan(ctx, &old).await?;
            let dry_run = ctx.dry_run || options.dry_run;
            if finalizers.is_empty() {
                if dry_run {
                    return Ok(Deleted::Gone(entry));
                }
                match self.commit(&key, entry.revision, None, companion).await? {
                    Outcome::Committed(_) => return Ok(Deleted::Gone(entry)),
                    Outcome::Conflict => self.cache.consistent().await?,
                }
                continue;
            }
            let already = old.meta().deletion_timestamp.is_some();
            if already && old.meta().finalizers.as_deref() == Some(finalizers.as_slice()) {
                return Ok(Deleted::Pending(entry));
            }
            let mut marked = old;
            let meta = marked.meta_mut();
            meta.finalizers = Some(finalizers);
            if !already {
                meta.deletion_timestamp = Some(Time(whole_seconds(ctx.now)));
                meta.deletion_grace_period_seconds = Some(0);
                meta.generation = meta.generation.map(|n| n + 1);
            }
            let value = encoded(&mut marked)?;
            if dry_run {
                return Ok(Deleted::Pending(unstored(&key, value)?));
            }
            match self
                .commit(&key, entry.revision, Some(value.clone()), companion)
                .await?
            {
                Outcome::Committed(revision) => {
                    return Ok(Deleted::Pending(stored(&key, &value, revision)?));
                },
                Outcome::Conflict => self.cache.consistent().await?,
            }
        }
        Err(contended(resource, name))
    }

    /// `POST` on a named subresource.
    pub(crate) async fn subresource_flow<S: CreateSubresource<T>>(
        &self,
        rules: &S,
        ctx: &RequestCtx,
        name: &str,
        body: Value,
    ) -> Result<S::Body, ApiError> {
        let resource = &self.declaration.resource;
        let body: S::Body = serde_json::from_value(body).map_err(|e| {
            ApiError::bad_request(format!(
                "{} in version {:?} cannot be handled as a {}: {e}",
                S::KIND,
                self.declaration.version,
                S::KIND
            ))
        })?;
        let key: Arc<str> = self.declaration.key(&ctx.namespace, name).into();
        self.cache.consistent().await?;
        for _ in 0..MAX_CONFLICTS {
            check_deadline(ctx)?;
            let entry = self
                .kind
                .get(&key)
                .ok_or_else(|| ApiError::not_found(resource, name))?;
            let planned = rules.plan(ctx, parse(&entry)?, &body).await?;
            let (Some(mut parent), false) = (planned.parent, ctx.dry_run) else {
                return Ok(planned.body);
            };
            let value = encoded(&mut parent)?;
            match self
                .commit(&key, entry.revision, Some(value), planned.companion)
                .await?
            {
                Outcome::Committed(_) => return Ok(planned.body),
                Outcome::Conflict => self.cache.consistent().await?,
            }
        }
        Err(contended(resource, name))
    }
}

fn contended(resource: &GroupResource, name: &str) -> ApiError {
    ApiError::conflict(resource, name, "too many concurrent changes; try again").retry_after(1)
}

fn check_deadline(ctx: &RequestCtx) -> Result<(), ApiError> {
    if ctx.clock.elapsed() >= ctx.deadline {
        Err(ApiError::timeout())
    } else {
        Ok(())
    }
}

fn encoded<T: Object>(object: &mut T) -> Result<Bytes, ApiError> {
    encode(object).map_err(|e| ApiError::internal("the object has no JSON form", e))
}

fn stored(key: &Arc<str>, value: &[u8], revision: u64) -> Result<Arc<Entry>, ApiError> {
    Entry::decode(key, value, revision)
        .map(Arc::new)
        .map_err(|e| ApiError::internal("the object cannot be read back", e))
}

fn unstored(key: &Arc<str>, value: Bytes) -> Result<Arc<Entry>, ApiError> {
    Entry::unstored(key, value)
        .map(Arc::new)
        .map_err(|e| ApiError::internal("the object cannot be read back", e))
}

fn invalid(
    declaration: &Declaration,
    name: &str,
    errors: &[crate::http::status::FieldError],
) -> ApiError {
    ApiError::invalid(&declaration.resource.group, &declaration.kind, name, errors)
}

/// Checks kind and version, and drops (or refuses, or warns of) what the schema does not know.
fn read_object(
    declaration: &Declaration,
    body: Decoded,
    options: &WriteOptions,
    ctx: &RequestCtx,
) -> Result<Value, ApiError> {
    let Decoded {
        mut value,
        duplicates,
    } = body;
    let kind = &declaration.kind;
    let version = &declaration.version;
    let Some(object) = value.as_object_mut() else {
        return Err(ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): it is not an object"
        )));
    };
    let given = |object: &serde_json::Map<String, Value>, field: &str| {
        object
            .get(field)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let (given_kind, given_version) = (given(object, "kind"), given(object, "apiVersion"));
    let same_group = given_version.split('/').next() == declaration.api_version.split('/').next();
    if (!given_kind.is_empty() && given_kind != *kind) || (!given_version.is_empty() && !same_group)
    {
        return Err(ApiError::bad_request(format!(
            "{given_kind} in version {given_version:?} cannot be handled as a {kind}: no kind {given_kind:?} is registered for version {given_version:?}"
        )));
    }
    if !given_version.is_empty() && given_version != declaration.api_version {
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({given_version}) does not match the expected API version ({})",
            declaration.api_version
        )));
    }
    object.insert("kind".to_owned(), Value::from(kind.as_str()));
    object.insert(
        "apiVersion".to_owned(),
        Value::from(declaration.api_version.as_str()),
    );
    if !object.get("metadata").is_some_and(Value::is_object) {
        object.insert("metadata".to_owned(), Value::Object(serde_json::Map::new()));
    }
    let unknown = declaration.schema.prune(&mut value);
    let complaints: Vec<_> = unknown
        .iter()
        .map(|path| format!("unknown field {path:?}"))
        .chain(
            duplicates
                .iter()
                .map(|path| format!("duplicate field {path:?}")),
        )
        .collect();
    match options.field_validation {
        FieldValidation::Strict if !complaints.is_empty() => Err(ApiError::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {kind}: strict decoding error: {}",
            complaints.join(", ")
        ))),
        FieldValidation::Warn => {
            for complaint in complaints {
                ctx.warn(complaint);
            }
            Ok(value)
        },
        FieldValidation::Strict | FieldValidation::Ignore => Ok(value),
    }
}

fn typed<T: Object>(declaration: &Declaration, value: Value) -> Result<T, ApiError> {
    serde_json::from_value(value).map_err(|e| {
        ApiError::bad_request(format!(
            "{} in version {:?} cannot be handled as a {}: {e}",
            declaration.kind, declaration.version, declaration.kind
        ))
    })
}

fn drop_status(declaration: &Declaration, value: &mut Value) {
    if declaration.has_status
        && let Some(object) = value.as_object_mut()
    {
        object.remove("status");
    }
}

fn keep_status(declaration: &Declaration, value: &mut Value, old: &Value) {
    if !declaration.has_status {
        return;
    }
    drop_status(declaration, value);
    if let (Some(object), Some(status)) = (value.as_object_mut(), old.get("status")) {
        object.insert("status".to_owned(), status.clone());
    }
}

fn set_resource_version(value: &mut Value, given: Option<Value>) {
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        match given {
            Some(given) => metadata.insert("resourceVersion".to_owned(), given),
            None => metadata.remove("resourceVersion"),
        };
    }
}

fn set_namespace(
    declaration: &Declaration,
    meta: &mut ObjectMeta,
    namespace: &str,
) -> Result<(), ApiError> {
    if !declaration.namespaced {
        meta.namespace = None;
        return Ok(());
    }
    match meta.namespace.as_deref() {
        None | Some("") => meta.namespace = Some(namespace.to_owned()),
        Some(given) if given == namespace => {},
        Some(_) => {
            return Err(ApiError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        },
    }
    Ok(())
}

fn check_identity(
    declaration: &Declaration,
    new: &mut ObjectMeta,
    old: &ObjectMeta,
    name: &str,
    namespace: &str,
) -> Result<(), ApiError> {
    match new.name.as_deref() {
        None | Some("") => new.name = Some(name.to_owned()),
        Some(given) if given == name => {},
        Some(given) => {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({given}) does not match the name on the URL ({name})"
            )));
        },
    }
    set_namespace(declaration, new, namespace)?;
    let uid = new.uid.as_deref().unwrap_or_default();
    let stored = old.uid.as_deref().unwrap_or_default();
    if !uid.is_empty() && uid != stored {
        let why = format!(
            "Precondition failed: UID in precondition: {uid}, UID in object meta: {stored}"
        );
        return Err(ApiError::conflict(&declaration.resource, name, &why));
    }
    Ok(())
}

/// Whether anything but metadata and status differs from the encoded old object.
fn spec_changed<T: Object>(new: &mut T, before: &[u8]) -> Result<bool, ApiError> {
    let spec = |bytes: &[u8]| {
        let mut value: Value = serde_json::from_slice(bytes).unwrap_or_default();
        if let Some(object) = value.as_object_mut() {
            object.remove("metadata");
            object.remove("status");
        }
        value
    };
    Ok(spec(&encoded(new)?) != spec(before))
}

fn generate_name(meta: &mut ObjectMeta) -> bool {
    let base = meta.generate_name.as_deref().unwrap_or_default();
    let unnamed = meta.name.as_deref().unwrap_or_default().is_empty();
    if unnamed && !base.is_empty() {
        meta.name = Some(meta::generate_name(base));
        return true;
    }
    false
}

fn warn_of_duplicate_owners(meta: &mut ObjectMeta, ctx: &RequestCtx) {
    let duplicates = meta::dedupe_owners(meta);
    if !duplicates.is_empty() {
        ctx.warn(format!(
            ".metadata.ownerReferences contains duplicate entries, of which the first is kept; duplicate UID(s) observed: {}",
            duplicates.join(",")
        ));
    }
}

async fn check_namespace(
    namespaces: &dyn NamespaceLifecycle,
    declaration: &Declaration,
    namespace: &str,
    name: &str,
) -> Result<(), ApiError> {
    match namespaces.check_create(namespace).await {
        Ok(()) => Ok(()),
        Err(NamespaceError::NotFound(namespace)) => {
            let resource =
                GroupResource { group: String::new(), resource: "namespaces".to_owned() };
            Err(ApiError::not_found(&resource, &namespace))
        },
        Err(NamespaceError::Terminating(namespace)) => Err(ApiError::forbidden(
            &declaration.resource,
            name,
            &format!("unable to create new content in namespace {namespace} because it is being terminated"),
        )
        .cause(
            "NamespaceTerminating",
            format!("namespace {namespace} is being terminated"),
            "metadata.namespace",
        )),
        Err(error @ NamespaceError::Unavailable { .. }) => {
            Err(ApiError::internal("the namespace could not be looked up", error))
        },
    }
}

fn check_preconditions<T: Object>(
    declaration: &Declaration,
    options: &DeleteOptions,
    old: &T,
    entry: &Entry,
    name: &str,
) -> Result<(), ApiError> {
    let by_kind = GroupResource {
        group: declaration.resource.group.clone(),
        resource: declaration.kind.clone(),
    };
    let uid = old.meta().uid.as_deref().unwrap_or_default();
    if let Some(wanted) = options.uid.as_deref().filter(|wanted| *wanted != uid) {
        let why = format!(
            "the UID in the precondition ({wanted}) does not match the UID in record ({uid}). The object might have been deleted and then recreated"
        );
        return Err(ApiError::conflict(&by_kind, name, &why));
    }
    let revision = entry.revision.to_string();
    if let Some(wanted) = options
        .resource_version
        .as_deref()
        .filter(|w| *w != revision)
    {
        let why = format!(
            "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record ({revision}). The object might have been modified"
        );
        return Err(ApiError::conflict(&by_kind, name, &why));
    }
    Ok(())
}

/// The finalizers a deleted object keeps, with the ones that tell the garbage collector what to do.
fn finalizers_after(meta: &ObjectMeta, propagation: Option<Propagation>) -> Vec<String> {
    let mut finalizers = meta.finalizers.clone().unwrap_or_default();
    let Some(propagation) = propagation else {
        return finalizers;
    };
    finalizers.retain(|f| f != FOREGROUND && f != ORPHAN);
    match propagation {
        Propagation::Background => {},
        Propagation::Foreground => finalizers.push(FOREGROUND.to_owned()),
        Propagation::Orphan => finalizers.push(ORPHAN.to_owned()),
    }
    finalizers
}
