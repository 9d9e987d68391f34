//! Creates, deletes and changes members. Decides nothing.

use std::collections::BTreeMap;

use crawl_api::conditions as c;
use crawl_api::names;
use crawl_api::pool::{PoolPlacement, ProxyPool, ProxyTemplate, TemplateMetadata};
use crawl_api::proxy::Proxy;
use kube::api::{DeleteParams, ObjectMeta, Patch, Preconditions};
use kube::{Api, Resource, ResourceExt};
use rand::RngExt;
use runtime_kit::{Class, Classify};

use crate::{patch_params, post_params};

use super::member::{Member, Template, Update};
use super::placement;
use super::plan::{Action, Cause};
use super::{Ctx, Error};

/// Up to so many deleted members are named in the event.
const NAMED: usize = 5;

/// Carries out an action and tells what was done.
///
/// # Errors
/// The first write that was refused. What is refused for one member is not for the others: they are
/// deleted or changed all the same. A refused creation ends it, since the next would be refused too.
pub(super) async fn act(ctx: &Ctx, pool: &ProxyPool, action: Action) -> Result<(), Error> {
    let api: Api<Proxy> =
        Api::namespaced(ctx.client.clone(), &pool.namespace().unwrap_or_default());
    match action {
        Action::Rest | Action::CountLeases | Action::AwaitLeases => Ok(()),
        Action::Create(count, place) => {
            let mut result = Ok(());
            let mut created = 0;
            while created < count && result.is_ok() {
                result = create(ctx, pool, &api, place.as_ref()).await;
                created += usize::from(result.is_ok());
            }
            if created > 0 {
                let note = format!("created {created} members");
                ctx.events
                    .done(pool, "Create", c::REASON_MEMBERS_CREATED, note)
                    .await;
            }
            result
        },
        Action::Delete(cause, members) => {
            let mut done = Done::default();
            for member in &members {
                done.note(member, delete(ctx, pool, &api, member).await);
            }
            let why = match cause {
                Cause::TooMany => "there are more than replicas asks for",
                Cause::NoCapacity => "there is no machine for them where they are",
                Cause::Outdated => "newer ones take their place",
            };
            if let Some(names) = done.names() {
                let note = format!("deleted {names}: {why}");
                ctx.events
                    .done(pool, "Delete", c::REASON_MEMBERS_DELETED, note)
                    .await;
            }
            done.result
        },
        Action::Update(members) => {
            let mut done = Done::default();
            for (member, update) in &members {
                done.note(member, write(ctx, pool, &api, member, update).await);
            }
            let adopted = members.iter().all(|(_, update)| update.adopts);
            if let Some(names) = done.names() {
                let note = if adopted {
                    format!("wrote the missing records of membership into {names}")
                } else {
                    format!("wrote the changed template into {names}")
                };
                ctx.events
                    .done(pool, "Update", c::REASON_MEMBERS_UPDATED, note)
                    .await;
            }
            done.result
        },
    }
}

/// What came of the writes of an action.
struct Done<'a> {
    members: Vec<&'a Member>,
    result: Result<(), Error>,
}

impl Default for Done<'_> {
    fn default() -> Self {
        Self {
            members: Vec::new(),
            result: Ok(()),
        }
    }
}

impl<'a> Done<'a> {
    /// The first failure is kept.
    fn note(&mut self, member: &'a Member, result: Result<(), Error>) {
        match result {
            Ok(()) => self.members.push(member),
            Err(error) if self.result.is_ok() => self.result = Err(error),
            Err(error) => {
                let error = runtime_kit::chain(&error).to_string();
                tracing::debug!(member = member.name, error, "refused as well");
            },
        }
    }

    /// The members whose write succeeded, if there are any.
    fn names(&self) -> Option<String> {
        (!self.members.is_empty()).then(|| list(&self.members))
    }
}

/// The members by name, or how many they are.
fn list(members: &[&Member]) -> String {
    if members.len() > NAMED {
        return format!("{} members", members.len());
    }
    let names: Vec<_> = members.iter().map(|member| member.name.as_str()).collect();
    names.join(", ")
}

async fn write(
    ctx: &Ctx,
    pool: &ProxyPool,
    api: &Api<Proxy>,
    member: &Member,
    update: &Update,
) -> Result<(), Error> {
    let Member { name, uid, .. } = member;
    let mut patch = update.patch.clone();
    // Why: another object of that name is none of ours; the API server refuses to change a UID.
    patch["metadata"]["uid"] = uid.as_str().into();
    ctx.pending
        .updating(pool, uid, &update.applied, ctx.clock.elapsed());
    match api.patch(name, &patch_params(), &Patch::Merge(patch)).await {
        Ok(_) => {
            tracing::info!(member = name, "member changed");
            Ok(())
        },
        Err(source) => {
            ctx.pending.refused(pool, "", uid);
            Err(Error::Update {
                name: name.clone(),
                source,
            })
        },
    }
}

async fn create(
    ctx: &Ctx,
    pool: &ProxyPool,
    api: &Api<Proxy>,
    place: Option<&PoolPlacement>,
) -> Result<(), Error> {
    let member = build_member(pool, place);
    let name = member.name_any();
    ctx.pending.creating(pool, &name, ctx.clock.elapsed());
    match api.create(&post_params(), &member).await {
        Ok(_) => {
            tracing::info!(member = name, "member created");
            Ok(())
        },
        Err(source) => {
            // Why: after a lost answer the member may exist; it stays pending until it is seen.
            if source.class() != Class::Transient {
                ctx.pending.refused(pool, &name, "");
            }
            Err(Error::Create { name, source })
        },
    }
}

async fn delete(
    ctx: &Ctx,
    pool: &ProxyPool,
    api: &Api<Proxy>,
    member: &Member,
) -> Result<(), Error> {
    let Member { name, uid, .. } = member;
    ctx.pending.deleting(pool, uid, ctx.clock.elapsed());
    let only_this = Preconditions {
        uid: Some(uid.clone()),
        resource_version: None,
    };
    let params = DeleteParams {
        preconditions: Some(only_this),
        ..DeleteParams::default()
    };
    match api.delete(name, &params).await {
        Ok(_) => {
            tracing::info!(member = name, "member deleted");
            Ok(())
        },
        Err(source) if source.class() == Class::NotFound => Ok(()),
        Err(source) => {
            ctx.pending.refused(pool, "", uid);
            Err(Error::Delete {
                name: name.clone(),
                source,
            })
        },
    }
}

/// A new member with a name of its own.
pub(super) fn build_member(pool: &ProxyPool, place: Option<&PoolPlacement>) -> Proxy {
    let ProxyTemplate {
        metadata: TemplateMetadata {
            labels,
            annotations,
        },
        spec,
    } = &pool.spec.template;
    let mut spec = spec.clone();
    if let Some(place) = place {
        spec.placement = Some(placement::resolve(spec.placement.as_ref(), place));
    }
    let template = Template::of(pool).annotations();
    let annotations: BTreeMap<_, _> = annotations.clone().into_iter().chain(template).collect();
    let pool_label = (names::LABEL_POOL.to_owned(), pool.name_any());
    let labels: BTreeMap<_, _> = labels.clone().into_iter().chain([pool_label]).collect();
    Proxy {
        metadata: ObjectMeta {
            name: Some(format!("{}-{}", pool.name_any(), suffix())),
            namespace: pool.namespace(),
            labels: Some(labels),
            annotations: Some(annotations),
            owner_references: pool.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec,
        status: None,
    }
}

/// Five characters without vowels, so that no word comes of it.
fn suffix() -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut rng = rand::rng();
    (0..5)
        .map(|_| char::from(ALPHABET[rng.random_range(0..ALPHABET.len())]))
        .collect()
}
