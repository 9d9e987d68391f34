//! `DELETE` of an object.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use super::super::capability::{Delete, Object};
use super::super::collection::{Collection, whole_seconds};
use super::super::context::RequestCtx;
use super::super::entry::Entry;
use super::{MAX_CONFLICTS, check_deadline, contended, encoded, stored};
use crate::http::options::{DeleteOptions, Propagation};
use crate::http::status::{ApiError, GroupResource};
use crate::schema::declaration::Declaration;
use crate::store::Outcome;

/// Finalizers with which the garbage collector is told what becomes of dependents.
const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

/// What a delete did.
pub(crate) enum Deleted {
    /// The object is gone.
    Gone(Arc<Entry>),
    /// Finalizers keep it; this is what it looks like now.
    Pending(Arc<Entry>),
}

impl<T: Object> Collection<T> {
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
            let old = self.versions.hub(&entry)?;
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
            rules.mark(ctx, &mut marked);
            let value = encoded(&mut marked)?;
            if dry_run {
                return Ok(Deleted::Pending(stored(&key, &value, entry.revision)?));
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
