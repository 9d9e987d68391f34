//! `PUT` and `PATCH` on an object.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::super::capability::{Object, Update};
use super::super::collection::Collection;
use super::super::context::RequestCtx;
use super::super::entry::Entry;
use super::super::meta;
use super::super::version::Versions;
use super::{
    MAX_CONFLICTS, check_deadline, contended, drop_status, encoded, invalid, read_object,
    set_namespace, stored, warn_of_duplicate_owners,
};
use crate::codec::decode::Decoded;
use crate::http::options::WriteOptions;
use crate::http::status::{ApiError, FieldError};
use crate::schema::declaration::Declaration;
use crate::store::{Outcome, Revision};

/// How a stored object becomes the new one.
pub(crate) enum Change {
    /// PUT: the body is the new object.
    Replace(Decoded),
    /// PATCH: the body is applied to the stored object.
    Patch(Patch),
}

/// What of an object an update is about; the rest stays as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Everything but the status.
    Main,
    /// The status alone.
    Status,
    /// How many replicas it wants, given as a `Scale`.
    Scale,
}

/// A change description.
pub(crate) enum Patch {
    /// RFC 7386.
    Merge(Decoded),
    /// RFC 6902.
    Json(json_patch::Patch),
}

impl<T: Object> Collection<T> {
    /// `PUT` and `PATCH` on an object.
    #[expect(
        clippy::too_many_arguments,
        reason = "each is another part of the request"
    )]
    pub(crate) async fn update_flow(
        &self,
        rules: &dyn Update<T>,
        index: usize,
        ctx: &RequestCtx,
        name: &str,
        part: Part,
        change: &Change,
        options: &WriteOptions,
    ) -> Result<Arc<Entry>, ApiError> {
        let version = self.versions.at(index)?;
        let declaration = &*version.declaration;
        let resource = &declaration.resource;
        let key: Arc<str> = declaration.key(&ctx.namespace, name).into();
        self.cache.consistent().await?;
        for _ in 0..MAX_CONFLICTS {
            check_deadline(ctx)?;
            let entry = self
                .kind
                .get(&key)
                .ok_or_else(|| ApiError::not_found(resource, name))?;
            let old = self.versions.hub(&entry)?;
            let shown = self.versions.convert(&entry, index)?;
            let mut value = match (part, &declaration.scaling) {
                (Part::Scale, None) => return Err(ApiError::unknown_resource()),
                (Part::Scale, Some(scaling)) => {
                    let scale = scaling.read(&shown.value())?;
                    let mut given = applied(scale, entry.revision, change)?.value;
                    let mut value = meant(shown.value(), &mut given);
                    scaling.write(&mut value, &given)?;
                    value
                },
                (Part::Main | Part::Status, _) => {
                    let decoded = applied(shown.value(), shown.revision, change)?;
                    let mut value = read_object(declaration, decoded, options, ctx)?;
                    if part == Part::Status {
                        with_status(shown.value(), &mut value)
                    } else {
                        keep_status(declaration, &mut value, &shown.value());
                        value
                    }
                },
            };
            declaration.schema.set_defaults(&mut value);
            let mut errors = declaration.schema.validate(&value);
            if !errors.is_empty() {
                return Err(invalid(declaration, name, &errors));
            }
            let mut new = version.typed(value)?;
            check_identity(
                declaration,
                new.meta_mut(),
                old.meta(),
                name,
                &ctx.namespace,
            )?;
            match (new.meta().resource_version.as_deref(), change) {
                (None | Some("" | "0"), Change::Replace(_)) if part != Part::Scale => {
                    let error = FieldError::invalid(
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
            let stored_in_hub = self.versions.stored_in(&entry)? == Versions::<T>::HUB;
            if stored_in_hub && encoded(&mut new)? == before {
                return Ok(entry);
            }
            if spec_changed(&mut new, &before)? {
                new.meta_mut().generation = old.meta().generation.map(|n| n + 1).or(Some(1));
            }
            let value = encoded(&mut new)?;
            let released = old.meta().deletion_timestamp.is_some()
                && new.meta().finalizers.as_ref().is_none_or(Vec::is_empty);
            if ctx.dry_run {
                return stored(&key, &value, entry.revision);
            }
            let put = (!released).then(|| value.clone());
            match self.commit(&key, entry.revision, put, companion).await? {
                // As upstream: who takes the last finalizer away is shown the object as it was sent.
                Outcome::Committed(_) if released => return stored(&key, &value, entry.revision),
                Outcome::Committed(revision) => return stored(&key, &value, revision),
                Outcome::Conflict => self.cache.consistent().await?,
            }
        }
        Err(contended(resource, name))
    }
}

/// What is stored at `revision`, changed as the client means it.
fn applied(mut value: Value, revision: Revision, change: &Change) -> Result<Decoded, ApiError> {
    match change {
        Change::Replace(body) => Ok(Decoded {
            value: body.value.clone(),
            duplicates: body.duplicates.clone(),
        }),
        Change::Patch(Patch::Merge(patch)) => {
            json_patch::merge(&mut value, &patch.value);
            let given = patch.value.pointer("/metadata/resourceVersion").cloned();
            set_resource_version(&mut value, given);
            Ok(Decoded {
                value,
                duplicates: patch.duplicates.clone(),
            })
        },
        Change::Patch(Patch::Json(patch)) => {
            super::json_patch::apply(&mut value, patch)?;
            let given = value
                .pointer("/metadata/resourceVersion")
                .filter(|rv| rv.as_str() != Some(&revision.to_string()))
                .cloned();
            set_resource_version(&mut value, given);
            Ok(Decoded {
                value,
                duplicates: Vec::new(),
            })
        },
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

/// The stored object with the given status. Of the given metadata only what says which object is meant,
/// and in which version, counts, as for CustomResourceDefinitions
/// (`k8s.io/apiextensions-apiserver/pkg/registry/customresource/status_strategy.go`).
fn with_status(mut stored: Value, given: &mut Value) -> Value {
    if let Some(object) = stored.as_object_mut() {
        match given.get_mut("status") {
            Some(status) => object.insert("status".to_owned(), status.take()),
            None => object.remove("status"),
        };
    }
    meant(stored, given)
}

/// The stored object with what `given` says about which object is meant, and in which version.
fn meant(mut stored: Value, given: &mut Value) -> Value {
    for name in ["name", "namespace", "uid", "resourceVersion"] {
        let given = given["metadata"].get_mut(name).map(Value::take);
        if let Some(metadata) = stored["metadata"].as_object_mut() {
            match given {
                Some(value) => metadata.insert(name.to_owned(), value),
                None => metadata.remove(name),
            };
        }
    }
    stored
}

fn set_resource_version(value: &mut Value, given: Option<Value>) {
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        match given {
            Some(given) => metadata.insert("resourceVersion".to_owned(), given),
            None => metadata.remove("resourceVersion"),
        };
    }
}

fn check_identity(
    declaration: &Declaration,
    new: &mut ObjectMeta,
    old: &ObjectMeta,
    name: &str,
    namespace: &str,
) -> Result<(), ApiError> {
    match new.name.as_deref() {
        None | Some("") => {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({name} based on URL) was undeterminable: name must be provided"
            )));
        },
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
