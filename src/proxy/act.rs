//! Carries out the one action of a pass. Decides nothing, and leaves status to `status`.
//!
//! Every write names the resourceVersion it was decided on, so that a stale cache costs a repeated
//! pass and never a lost update.

use std::collections::BTreeMap;

use crawl_api::proxy::{DeletionPolicy, Proxy};
use crawl_api::{conditions, names};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ObjectMeta, Patch};
use kube::{Api, Resource, ResourceExt};
use rand::RngExt;
use runtime_kit::{Class, Classify};
use serde_json::{Value, json};

use super::observe::{Observation, has_finalizer, refused_secret, tagged_hash};
use super::plan::{Action, Cause};
use super::{Ctx, Error, Failure};
use super::{hash, naming};
use crate::providers::{Created, Instance, Provider};
use crate::{patch_params, post_params};

/// What an action changed, as far as status depends on it.
#[derive(Clone, Debug)]
pub(super) enum Effect {
    /// Nothing that status shows.
    Nothing,
    /// An instance is ours: created, or found.
    Holds {
        /// The instance.
        instance: Box<Instance>,
        /// The operation that creates it.
        operation: Option<String>,
    },
    /// The instance is gone and forgotten.
    Cleared,
    /// The object was let go; there is no status to write any more.
    LetGo,
}

/// The result of an action.
#[derive(Debug)]
pub(super) struct Acted {
    /// What it changed.
    pub effect: Effect,
    /// Why it did not succeed, or why the instance it forgot had never come up.
    pub failure: Option<Failure>,
    /// The object's resourceVersion after it.
    pub resource_version: Option<String>,
}

/// Carries out an action.
///
/// # Errors
/// The API server refused a write. What a provider refuses is in [`Acted::failure`].
pub(super) async fn act(
    ctx: &Ctx,
    proxy: &Proxy,
    observation: &Observation,
    action: Action,
) -> Result<Acted, Error> {
    let mut acting = Acting {
        ctx,
        proxy,
        resource_version: proxy.metadata.resource_version.clone(),
        failure: None,
    };
    let effect = match action {
        Action::Rest
        | Action::Serve
        | Action::Withhold
        | Action::AwaitRunning
        | Action::Drain(_)
        | Action::AwaitGone => Effect::Nothing,
        Action::AddFinalizer => {
            let mut finalizers = proxy.finalizers().to_vec();
            finalizers.push(names::FINALIZER_INSTANCE.into());
            acting
                .patch_metadata(json!({"finalizers": finalizers}))
                .await?;
            Effect::Nothing
        },
        Action::GenerateCredentials => {
            acting.generate_credentials(observation).await?;
            Effect::Nothing
        },
        Action::Create => acting.create(observation).await?,
        Action::Record => acting.record(observation).await?,
        Action::Adopt => {
            if let Some(wanted) = &observation.wanted {
                acting.store_hash(&hash::spec_hash(wanted)).await?;
            }
            Effect::Nothing
        },
        Action::Delete(_) if observation.is_dry_run() => Effect::Nothing,
        Action::Delete(cause) => {
            if cause == Cause::ProvisioningTimedOut {
                ctx.fleets.create_failed(proxy, ctx.clock.elapsed());
            }
            // Why not the observed one: reads may not show it yet.
            let status = proxy.status.as_ref();
            let id = status.and_then(|status| status.provider_id.as_deref());
            if let (Some(id), Some(provider)) = (id, acting.provider()) {
                let deleted = provider.delete(id).await;
                acting.failure = deleted.err().map(Failure::from);
            }
            Effect::Nothing
        },
        Action::Forget => acting.forget().await,
        Action::RemoveFinalizer => {
            acting.remove_finalizer().await?;
            Effect::LetGo
        },
    };
    let Acting {
        resource_version,
        failure,
        ..
    } = acting;
    Ok(Acted {
        effect,
        failure,
        resource_version,
    })
}

struct Acting<'a> {
    ctx: &'a Ctx,
    proxy: &'a Proxy,
    resource_version: Option<String>,
    failure: Option<Failure>,
}

impl Acting<'_> {
    fn provider(&self) -> Option<&dyn Provider> {
        let name = self.proxy.spec.provider.as_deref()?;
        self.ctx.providers.get(name).map(AsRef::as_ref)
    }

    fn api(&self) -> Api<Proxy> {
        let namespace = self.proxy.namespace().unwrap_or_default();
        Api::namespaced(self.ctx.client.clone(), &namespace)
    }

    async fn patch_metadata(&mut self, mut changes: Value) -> Result<(), Error> {
        if let (Some(changes), Some(version)) = (changes.as_object_mut(), &self.resource_version) {
            changes.insert("resourceVersion".into(), json!(version));
        }
        let patch = Patch::Merge(json!({"metadata": changes}));
        let (api, name) = (self.api(), self.proxy.name_any());
        let patched = api.patch_metadata(&name, &patch_params(), &patch).await;
        self.resource_version = patched.map_err(Error::Write)?.metadata.resource_version;
        self.ctx
            .memory
            .wrote(self.proxy, self.resource_version.as_deref());
        Ok(())
    }

    async fn store_hash(&mut self, hash: &str) -> Result<(), Error> {
        if self
            .proxy
            .annotations()
            .get(names::ANNOTATION_SPEC_HASH)
            .is_some_and(|old| old == hash)
        {
            return Ok(());
        }
        self.patch_metadata(json!({"annotations": {names::ANNOTATION_SPEC_HASH: hash}}))
            .await
    }

    async fn create(&mut self, observation: &Observation) -> Result<Effect, Error> {
        let (Some(wanted), Some(provider)) = (&observation.wanted, self.provider()) else {
            return Ok(Effect::Nothing);
        };
        match provider.create(wanted).await {
            Ok(Created {
                instance,
                operation,
            }) => {
                // Why: an earlier, lost request may have been another one; its own tag knows.
                let sent = tagged_hash(&instance).unwrap_or_else(|| hash::spec_hash(wanted));
                self.store_hash(&sent).await?;
                Ok(Effect::Holds {
                    instance: Box::new(instance),
                    operation,
                })
            },
            Err(error) => {
                let failure = Failure::from(error);
                if tells_of_creates(failure.class) {
                    let elapsed = self.ctx.clock.elapsed();
                    self.ctx.fleets.create_failed(self.proxy, elapsed);
                }
                self.failure = Some(failure);
                Ok(Effect::Nothing)
            },
        }
    }

    async fn record(&mut self, observation: &Observation) -> Result<Effect, Error> {
        let Some(instance) = &observation.instance else {
            return Ok(Effect::Nothing);
        };
        if let Some(sent) = tagged_hash(instance) {
            self.store_hash(&sent).await?;
        }
        Ok(Effect::Holds {
            instance: Box::new(instance.clone()),
            operation: None,
        })
    }

    async fn forget(&mut self) -> Effect {
        let provisioned = self.proxy.condition(conditions::PROVISIONED);
        if provisioned.is_some_and(|condition| {
            condition.status == "True" || condition.reason == conditions::REASON_INSTANCE_LOST
        }) {
            self.ctx.fleets.lost(self.proxy, &*self.ctx.clock);
        }
        let operation = self
            .proxy
            .status
            .as_ref()
            .and_then(|status| status.operation.as_deref());
        if let (Some(operation), Some(provider)) = (operation, self.provider()) {
            match provider.operation_error(operation).await {
                Ok(error) => {
                    self.failure = error.map(Failure::from);
                    if self.failure.is_some() {
                        let elapsed = self.ctx.clock.elapsed();
                        self.ctx.fleets.create_failed(self.proxy, elapsed);
                    }
                },
                // Why: asked once; what cannot be asked is not worth waiting for.
                Err(error) => {
                    let error = runtime_kit::chain(&error).to_string();
                    tracing::debug!(operation, error, "operation cannot be read");
                },
            }
        }
        Effect::Cleared
    }

    async fn remove_finalizer(&mut self) -> Result<(), Error> {
        if !has_finalizer(self.proxy) {
            return Ok(());
        }
        if self.proxy.spec.deletion_policy == DeletionPolicy::Abandon {
            let left = left_behind(self.ctx, self.proxy);
            tracing::warn!(left, "an instance is left behind");
            let events = &self.ctx.events;
            events
                .warn(self.proxy, "Delete", conditions::REASON_ABANDONED, left)
                .await;
        }
        let others = self.proxy.finalizers().iter();
        let others: Vec<_> = others
            .filter(|finalizer| *finalizer != names::FINALIZER_INSTANCE)
            .collect();
        match self.patch_metadata(json!({"finalizers": others})).await {
            Err(Error::Write(error)) if error.class() == Class::NotFound => Ok(()),
            result => result,
        }
    }

    async fn generate_credentials(&mut self, observation: &Observation) -> Result<(), Error> {
        let Some(name) = self.proxy.credentials_secret() else {
            return Ok(());
        };
        let namespace = self.proxy.namespace().unwrap_or_default();
        let secrets: Api<Secret> = Api::namespaced(self.ctx.client.clone(), &namespace);
        let owner = self.proxy.controller_owner_ref(&());
        let secret = build_secret(name.clone(), owner);
        let written = if observation.rotation_due {
            let rotated = json!({
                "metadata": {"annotations": {
                    names::ANNOTATION_ROTATED_AT: conditions::api_time(self.ctx.clock.now()),
                }},
                "data": secret.data,
            });
            secrets
                .patch(&name, &patch_params(), &Patch::Merge(rotated))
                .await
        } else {
            secrets.create(&post_params(), &secret).await
        };
        match written {
            Ok(_) => Ok(()),
            Err(error) if error.class() == Class::AlreadyExists => Ok(()),
            Err(error) if error.class() == Class::Forbidden => {
                self.failure = Some(refused_secret(self.proxy, &name, &error));
                Ok(())
            },
            Err(error) => Err(Error::Write(error)),
        }
    }
}

/// Whether a refusal says something about creates, and not about the account as a whole.
fn tells_of_creates(class: Class) -> bool {
    match class {
        Class::Quota | Class::Invalid | Class::Conflict | Class::Forbidden | Class::Transient => {
            true
        },
        Class::NotFound | Class::AlreadyExists | Class::RateLimited | Class::Unauthenticated => {
            false
        },
    }
}

/// What may be left at the provider of an object that goes without its instance.
fn left_behind(ctx: &Ctx, proxy: &Proxy) -> String {
    let provider = proxy.spec.provider.as_deref().unwrap_or_default();
    let uid = proxy.uid().unwrap_or_default();
    let name = naming::instance_name(&ctx.settings.name_prefix, &uid);
    let status = proxy.status.as_ref();
    match status.and_then(|status| status.provider_id.as_deref()) {
        Some(id) => format!(
            "deletionPolicy is Abandon: instance {id} (name {name}) is left at provider {provider} \
             and costs money until you delete it there"
        ),
        None => format!(
            "deletionPolicy is Abandon: if an instance named {name} (tag {}={uid}) exists at \
             provider {provider}, it is left there",
            names::TAG_PROXY_UID
        ),
    }
}

fn build_secret(name: String, owner: Option<OwnerReference>) -> Secret {
    let text = |alphabet: &[u8], length| -> ByteString {
        let mut rng = rand::rng();
        ByteString(
            (0..length)
                .map(|_| alphabet[rng.random_range(0..alphabet.len())])
                .collect(),
        )
    };
    let letters = b"abcdefghijkmnpqrstuvwxyz";
    let all = b"abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789";
    Secret {
        metadata: ObjectMeta {
            name: Some(name),
            owner_references: owner.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([
            // Why only letters: some servers make a system user of it.
            ("username".into(), text(letters, 12)),
            ("password".into(), text(all, 32)),
        ])),
        ..Secret::default()
    }
}
