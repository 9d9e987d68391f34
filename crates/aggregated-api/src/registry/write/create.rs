//! `POST` on a collection.

use std::sync::Arc;

use http::StatusCode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::super::capability::{Create, CreatePlan, Object};
use super::super::collection::Collection;
use super::super::context::RequestCtx;
use super::super::entry::Entry;
use super::super::meta;
use super::super::version::Version;
use super::{
    MAX_CONFLICTS, check_deadline, contended, drop_status, encoded, invalid, read_object,
    set_namespace, stored, unstored, warn_of_duplicate_owners,
};
use crate::admission::{NamespaceError, NamespaceLifecycle};
use crate::codec::decode::Decoded;
use crate::codec::number::parse_uint;
use crate::http::options::WriteOptions;
use crate::http::status::{ApiError, GroupResource};
use crate::schema::declaration::Declaration;
use crate::store::Outcome;

/// Names tried for one generateName.
const MAX_GENERATED: usize = 8;

impl<T: Object> Collection<T> {
    /// `POST` on the collection.
    pub(crate) async fn create_flow(
        &self,
        rules: &dyn Create<T>,
        version: &Version<T>,
        namespaces: &dyn NamespaceLifecycle,
        ctx: &RequestCtx,
        body: Decoded,
        options: &WriteOptions,
    ) -> Result<Arc<Entry>, ApiError> {
        let declaration = &*version.declaration;
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
        let mut object = version.typed(value)?;
        let given_version = object.meta_mut().resource_version.take();
        meta::wipe_system_fields(object.meta_mut());
        set_namespace(declaration, object.meta_mut(), &ctx.namespace)?;
        warn_of_duplicate_owners(object.meta_mut(), ctx);
        let generated = generate_name(object.meta_mut());
        self.stamp(&mut object);
        rules.prepare(ctx, &mut object)?;
        let name = object.meta().name.clone().unwrap_or_default();
        let mut errors = meta::validate_name(&name, |name| rules.name_faults(name));
        errors.extend(meta::validate(object.meta(), declaration.namespaced));
        errors.extend(rules.validate(ctx, &object));
        if !errors.is_empty() {
            return Err(invalid(declaration, &name, &errors));
        }
        if declaration.namespaced {
            check_namespace(namespaces, declaration, &ctx.namespace, &name).await?;
        }
        // Upstream's store finds this last, and its error has no reason.
        if given_version.is_some_and(|rv| parse_uint(&rv).is_ok_and(|n| n > 0)) {
            return Err(ApiError::refusal(
                StatusCode::INTERNAL_SERVER_ERROR,
                "",
                "resourceVersion should not be set on objects to be created",
            ));
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
            let deleted = existing
                .as_ref()
                .is_some_and(|old| old.meta().deletion_timestamp.is_some());
            let plan = loop {
                let planned = rules.plan(ctx, object.clone(), existing.take()).await;
                match planned.map_err(|refusal| taken(refusal, resource, &object, deleted))? {
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
        self.kind
            .get(key)
            .map(|entry| self.versions.hub(&entry))
            .transpose()
    }
}

/// What a name that is taken is answered with: a generateName counts also beside a name.
fn taken<T: Object>(
    refusal: ApiError,
    resource: &GroupResource,
    object: &T,
    deleted: bool,
) -> ApiError {
    if refusal.reason() != "AlreadyExists" {
        return refusal;
    }
    let meta = object.meta();
    let refusal = match meta.generate_name.as_deref().unwrap_or_default() {
        "" => refusal,
        _ => ApiError::generate_name_exhausted(resource, meta.name.as_deref().unwrap_or_default()),
    };
    if deleted {
        refusal.prefixed("object is being deleted: ")
    } else {
        refusal
    }
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
