//! Reads everything that one pass over a Proxy needs, and decides nothing.
//!
//! [`observe`] asks the provider, the Secrets, the lease API and the health engine;
//! [`Observation::situation`] condenses the answers to what the action table knows.

use std::time::Duration;

use crawl_api::proxy::{CloudInit, DeletionPolicy, Proxy, Setback};
use crawl_api::{conditions, names};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt};
use runtime_kit::{Class, Classify};

use super::bootstrap;
use super::budget::Withheld;
use super::cloud_init::{self, Values};
use super::drain::{self, Drain, LeaseView};
use super::dry_run;
use super::fleet::Request;
use super::hash::{self, Drift};
use super::memory::Heard;
use super::naming;
use super::plan::{Identity, Lacking, Leases, Life, Permit, Sight, Situation, Standing};
use super::{Ctx, Failure};
use crate::health::{Credentials, Verdict};
use crate::providers::{Instance, InstanceRequest, InstanceState, Provider, Sighting, Tags};

/// What was read in one pass.
#[derive(Clone, Debug)]
pub(super) struct Observation {
    /// Whether the Proxy may be acted on.
    pub standing: Standing,
    /// The create request that the spec asks for. Not built for an object that is being deleted.
    pub wanted: Option<InstanceRequest>,
    /// The instance, by id or by tag.
    pub instance: Option<Instance>,
    /// It was not found, and may have been requested so lately that reads do not show it.
    pub unseen: bool,
    /// What cloud-init says of its failure on a machine that never answered a probe.
    pub bootstrap_failure: Option<String>,
    /// How far the drain is.
    pub drain: Drain,
    /// What the health engine knows.
    pub verdict: Option<Verdict>,
    /// What the proxy asks its clients for.
    pub credentials: Option<Credentials>,
    /// Credentials are to be generated first.
    pub credentials_to_generate: bool,
    /// Why what would be done to the instance is not done.
    pub withheld: Option<Withheld>,
    /// The generated credentials are to be changed, which takes another instance.
    pub rotation_due: bool,
}

/// Reads everything.
///
/// # Errors
/// The provider or a Secret failed; the action table is not consulted then.
pub(super) async fn observe(
    ctx: &Ctx,
    proxy: &Proxy,
    now: Timestamp,
) -> Result<Observation, Failure> {
    let provider = proxy
        .spec
        .provider
        .as_deref()
        .and_then(|name| ctx.providers.get(name));
    let deleting = proxy.metadata.deletion_timestamp.is_some();
    let found = if deleting {
        Found::Nothing
    } else {
        credentials(ctx, proxy, now).await?
    };
    let cloud_init = if proxy.is_managed() && provider.is_some() && !deleting && !proxy.spec.paused
    {
        cloud_init(ctx, proxy, &found).await?
    } else {
        None
    };
    let _was_held = ctx.memory.lift(proxy, is_about_secrets);
    let standing = standing(ctx, proxy, provider.is_some());
    let mut observation = Observation {
        verdict: ctx.health.verdict(&proxy.uid().unwrap_or_default()),
        drain: drain::judge(proxy, &lease_view(ctx, proxy).await, now),
        ..Observation::nothing(standing)
    };
    match found {
        Found::Credentials(credentials) => observation.credentials = Some(credentials),
        Found::Nothing => {},
        Found::ToGenerate => observation.credentials_to_generate = true,
        Found::ToRotate(credentials) => {
            observation.credentials = Some(credentials);
            observation.rotation_due = true;
            observation.credentials_to_generate = true;
        },
    }
    // Why: an object that leaves its instance behind must be able to go when the provider cannot be
    // asked, which is what the policy is for.
    let abandoned = deleting && proxy.spec.deletion_policy == DeletionPolicy::Abandon;
    if let (Standing::Managed, Some(provider), false) = (standing, provider, abandoned) {
        if !deleting {
            let auth = observation.credentials.clone();
            observation.wanted = Some(build_request(ctx, proxy, cloud_init, auth));
        }
        observation.instance = instance(ctx, proxy, provider.as_ref(), &observation, now).await?;
        observation.unseen = observation.instance.is_none()
            && may_be_on_its_way(proxy)
            && ctx.memory.missing(proxy, ctx.clock.elapsed()) < provider.reads_lag();
        observation.bootstrap_failure =
            bootstrap_failure(ctx, proxy, provider.as_ref(), &observation).await;
        if replacement_begun(proxy) {
            ctx.fleets.shown(proxy);
        }
        observation.withheld = observation.request(proxy, now).and_then(|request| {
            if ctx.settings.dry_run {
                return Some(dry_run::undecided());
            }
            ctx.fleets.ask(proxy, request, &*ctx.clock).err()
        });
    }
    Ok(observation)
}

fn standing(ctx: &Ctx, proxy: &Proxy, provider_known: bool) -> Standing {
    if !proxy.is_managed() {
        return Standing::External;
    }
    let deleting = proxy.metadata.deletion_timestamp.is_some();
    let refused = proxy
        .condition(conditions::PROVISIONED)
        .is_some_and(|condition| {
            condition.reason == conditions::REASON_INVALID_SPEC
                && condition.observed_generation == proxy.metadata.generation
        });
    if proxy.spec.paused {
        Standing::Paused
    } else if !provider_known {
        Standing::UnknownProvider
    } else if refused && !deleting {
        Standing::AwaitingChange
    } else if ctx.memory.held(proxy, ctx.clock.elapsed()).is_some() {
        Standing::Held
    } else {
        Standing::Managed
    }
}

async fn lease_view(ctx: &Ctx, proxy: &Proxy) -> LeaseView {
    if drain::needs_lease_view(proxy) {
        ctx.leases.view(proxy).await
    } else {
        LeaseView::NotAsked
    }
}

/// No look is older.
const MAX_AGE: Duration = Duration::from_secs(5);

/// The instance, by id or by tag.
///
/// A listing that many proxies share answers for one that goes on as its object tells. Whatever
/// would make a difference is asked of the provider by itself: nothing is ever done, or written,
/// because of a listing.
async fn instance(
    ctx: &Ctx,
    proxy: &Proxy,
    provider: &dyn Provider,
    before: &Observation,
    now: Timestamp,
) -> Result<Option<Instance>, Failure> {
    if let Some(id) = proxy
        .status
        .as_ref()
        .and_then(|status| status.provider_id.as_deref())
    {
        if is_in_motion(proxy) {
            return Ok(provider.get(id).await?);
        }
        let cluster = ctx.settings.cluster_id.clone();
        let tags = Tags::from([(names::TAG_CLUSTER.to_owned(), cluster)]);
        return Ok(match provider.glance(id, &tags, age(ctx, proxy)).await? {
            Sighting::Asked(instance) => instance,
            Sighting::Listed(instance) if before.goes_on(proxy, &instance, now) => Some(instance),
            Sighting::Listed(_) => provider.get(id).await?,
        });
    }
    // Why: without our finalizer nothing was ever requested, and nothing has to be looked for. One
    // that lives is looked for all the same: an account that cannot be asked gets no finalizer, so
    // that the object can be deleted.
    if !has_finalizer(proxy) && proxy.metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    let found = provider.list(&identity_tags(ctx, proxy)).await?;
    Ok(found
        .into_iter()
        .min_by_key(|instance| (instance.created, instance.id.clone())))
}

/// How old a look may be: less than the time to the next one.
fn age(ctx: &Ctx, proxy: &Proxy) -> Duration {
    let polls = &ctx.settings.polls;
    let poll = if proxy.endpoint().is_some() {
        polls.drift
    } else {
        polls.provisioning
    };
    (poll / 2).min(MAX_AGE)
}

/// Asks the console of a machine that never answered a probe, once.
async fn bootstrap_failure(
    ctx: &Ctx,
    proxy: &Proxy,
    provider: &dyn Provider,
    observation: &Observation,
) -> Option<String> {
    let instance = observation.instance.as_ref()?;
    let verdict = observation.verdict.as_ref()?;
    // Why the latency: it is the trace of a success.
    let never = verdict.healthy == Some(false) && verdict.latency.is_none();
    let out_of_patience = verdict.reason == conditions::REASON_PROBE_NEVER_SUCCEEDED
        || unhealthy_too_long(proxy, ctx.clock.now());
    if !never || !out_of_patience {
        return None;
    }
    let said = if let Some(said) = ctx.memory.console(proxy, &instance.id) {
        said
    } else {
        let said = read_console(provider, &instance.id, observation.credentials.as_ref());
        let said = said.await?;
        ctx.memory.heard(proxy, &instance.id, said.clone());
        said
    };
    match said {
        Heard::Failure(line) => Some(line),
        Heard::Nothing => None,
    }
}

/// `None`: it is worth asking again with the next look.
async fn read_console(
    provider: &dyn Provider,
    id: &str,
    credentials: Option<&Credentials>,
) -> Option<Heard> {
    match provider.console(id).await {
        Ok(console) => {
            let line = console.and_then(|console| bootstrap::failure(&console, credentials));
            Some(line.map_or(Heard::Nothing, Heard::Failure))
        },
        Err(error) => {
            let text = runtime_kit::chain(&error).to_string();
            tracing::warn!(id, error = text, "a console cannot be read");
            let passes = matches!(error.class(), Class::Transient | Class::RateLimited);
            (!passes).then_some(Heard::Nothing)
        },
    }
}

/// Whether an instance that was never seen may exist: one that was accepted, or, of an object that
/// goes, one whose create was sent by an operator that did not live to tell. Why not of an object
/// that stays: its create is repeated, and finds what there is.
fn may_be_on_its_way(proxy: &Proxy) -> bool {
    let status = proxy.status.as_ref();
    match status.and_then(|status| status.provider_id.as_ref()) {
        Some(_) => status.is_some_and(|status| status.operation.is_some()),
        None => proxy.metadata.deletion_timestamp.is_some() && has_finalizer(proxy),
    }
}

/// Whether our finalizer is on the object.
pub(super) fn has_finalizer(proxy: &Proxy) -> bool {
    proxy
        .finalizers()
        .iter()
        .any(|finalizer| finalizer == names::FINALIZER_INSTANCE)
}

/// The tags by which the instance of a Proxy is found.
pub(super) fn identity_tags(ctx: &Ctx, proxy: &Proxy) -> Tags {
    Tags::from([
        (
            names::TAG_CLUSTER.to_owned(),
            ctx.settings.cluster_id.clone(),
        ),
        (
            names::TAG_PROXY_UID.to_owned(),
            proxy.uid().unwrap_or_default(),
        ),
    ])
}

fn build_request(
    ctx: &Ctx,
    proxy: &Proxy,
    cloud_init: Option<String>,
    auth: Option<Credentials>,
) -> InstanceRequest {
    let mut tags = identity_tags(ctx, proxy);
    let namespace = proxy.namespace().unwrap_or_default();
    tags.insert(names::TAG_NAMESPACE.into(), naming::tag_value(&namespace));
    tags.insert(names::TAG_NAME.into(), naming::tag_value(&proxy.name_any()));
    let mut request = InstanceRequest {
        name: naming::instance_name(&ctx.settings.name_prefix, &proxy.uid().unwrap_or_default()),
        placement: proxy.spec.placement.clone().unwrap_or_default(),
        cloud_init,
        port: proxy.spec.port,
        auth,
        tags,
    };
    let hash = hash::to_tag(&hash::spec_hash(&request));
    request.tags.insert(names::TAG_SPEC_HASH.into(), hash);
    request
}

// === Secrets ===

enum Found {
    Credentials(Credentials),
    ToGenerate,
    /// Generated credentials that are older than rotateSeconds.
    ToRotate(Credentials),
    Nothing,
}

async fn credentials(ctx: &Ctx, proxy: &Proxy, now: Timestamp) -> Result<Found, Failure> {
    let Some(name) = proxy.credentials_secret() else {
        return Ok(Found::Nothing);
    };
    let generate = proxy.spec.auth.as_ref().is_some_and(|auth| auth.generate);
    match read_secret(ctx, proxy, &name).await? {
        Some(secret) => {
            let credentials = Credentials {
                username: field(&secret, &name, "username")?,
                password: field(&secret, &name, "password")?,
            };
            if generate && rotation_due(proxy, &secret, now) {
                Ok(Found::ToRotate(credentials))
            } else {
                Ok(Found::Credentials(credentials))
            }
        },
        None if generate && proxy.is_managed() => Ok(Found::ToGenerate),
        None => Err(missing_secret(format!(
            "Secret {name} does not exist: create it with the keys username and password"
        ))),
    }
}

/// Whether generated credentials are older than rotateSeconds. Ours are those whose Secret the
/// Proxy controls: what somebody else put under its name is used and left alone.
pub(super) fn rotation_due(proxy: &Proxy, secret: &Secret, now: Timestamp) -> bool {
    let seconds = proxy
        .spec
        .auth
        .as_ref()
        .and_then(|auth| auth.rotate_seconds);
    let Some(seconds) = seconds.filter(|_| is_controlled_by(proxy, secret)) else {
        return false;
    };
    let rotated = secret.annotations().get(names::ANNOTATION_ROTATED_AT);
    let rotated = rotated.and_then(|at| at.parse::<Timestamp>().ok());
    let made = secret.metadata.creation_timestamp.as_ref().map(|at| at.0);
    rotated.or(made).is_some_and(|since| {
        now.duration_since(since) >= SignedDuration::from_secs(i64::from(seconds))
    })
}

fn is_controlled_by(proxy: &Proxy, secret: &Secret) -> bool {
    secret.owner_references().iter().any(|owner| {
        owner.controller == Some(true) && Some(&owner.uid) == proxy.metadata.uid.as_ref()
    })
}

async fn cloud_init(ctx: &Ctx, proxy: &Proxy, found: &Found) -> Result<Option<String>, Failure> {
    let Some(CloudInit { inline, secret_ref }) = &proxy.spec.cloud_init else {
        return Ok(None);
    };
    let template = match secret_ref {
        None => inline.clone(),
        Some(reference) => {
            let name = &reference.name;
            let secret = read_secret(ctx, proxy, name).await?.ok_or_else(|| {
                missing_secret(format!(
                    "Secret {name} of cloudInit does not exist: create it"
                ))
            })?;
            Some(field(&secret, name, &reference.key)?)
        },
    };
    let credentials = match found {
        Found::Credentials(credentials) | Found::ToRotate(credentials) => Some(credentials),
        Found::Nothing => None,
        // Why: they are made before anything is created.
        Found::ToGenerate => return Ok(template),
    };
    let auth = proxy.spec.auth.as_ref();
    let values = Values {
        port: proxy.spec.port,
        credentials,
        allowed_cidrs: auth.map_or(&[], |auth| auth.allowed_cidrs.as_slice()),
    };
    template
        .map(|template| cloud_init::render(&template, &values))
        .transpose()
        .map_err(|refusal| {
            secret_failure(conditions::REASON_CLOUD_INIT_INVALID, refusal.to_string())
        })
}

async fn read_secret(ctx: &Ctx, proxy: &Proxy, name: &str) -> Result<Option<Secret>, Failure> {
    let secrets: Api<Secret> =
        Api::namespaced(ctx.client.clone(), &proxy.namespace().unwrap_or_default());
    secrets
        .get_opt(name)
        .await
        .map_err(|error| refused_secret(proxy, name, &error))
}

fn field(secret: &Secret, name: &str, key: &str) -> Result<String, Failure> {
    let value = secret
        .data
        .as_ref()
        .and_then(|data| data.get(key))
        .ok_or_else(|| missing_secret(format!("Secret {name} has no key {key}: add it")))?;
    String::from_utf8(value.0.clone())
        .map_err(|_| missing_secret(format!("key {key} of Secret {name} is not UTF-8 text")))
}

/// Whether a failure is over once the Secrets of a Proxy could be read and used.
fn is_about_secrets(failure: &Failure) -> bool {
    [
        conditions::REASON_SECRET_NOT_FOUND,
        conditions::REASON_SECRET_FORBIDDEN,
        conditions::REASON_SECRET_UNREADABLE,
        conditions::REASON_CLOUD_INIT_INVALID,
    ]
    .contains(&failure.reason)
}

fn missing_secret(message: String) -> Failure {
    secret_failure(conditions::REASON_SECRET_NOT_FOUND, message)
}

/// The API server refused access to a Secret, or did not answer.
pub(super) fn refused_secret(proxy: &Proxy, name: &str, error: &kube::Error) -> Failure {
    let text = runtime_kit::chain(error);
    if error.class() != Class::Forbidden {
        let message = format!("Secret {name} cannot be read: {text}");
        return secret_failure(conditions::REASON_SECRET_UNREADABLE, message);
    }
    let namespace = proxy.namespace().unwrap_or_default();
    let message = format!(
        "the operator may not use Secret {name}: {text}; allow it with: kubectl create \
         rolebinding proxy-operator-secrets -n {namespace} --clusterrole=proxy-operator-secrets \
         --serviceaccount=proxy-operator:proxy-operator"
    );
    secret_failure(conditions::REASON_SECRET_FORBIDDEN, message)
}

/// Why Transient: whoever repairs the Secret or the permission changes nothing that is watched, so
/// only asking again finds out.
fn secret_failure(reason: &'static str, message: String) -> Failure {
    Failure {
        class: Class::Transient,
        reason,
        message,
        wait: None,
    }
}

// === impl Observation ===

impl Observation {
    /// Nothing was read.
    pub(super) fn nothing(standing: Standing) -> Self {
        Self {
            standing,
            wanted: None,
            instance: None,
            unseen: false,
            bootstrap_failure: None,
            drain: Drain::Unmarked,
            verdict: None,
            credentials: None,
            credentials_to_generate: false,
            withheld: None,
            rotation_due: false,
        }
    }

    /// How what was sent compares with what is wanted.
    pub(super) fn drift(&self, proxy: &Proxy) -> Drift {
        let Some(wanted) = &self.wanted else {
            return Drift::Unknown;
        };
        let wanted = hash::spec_hash(wanted);
        match (
            hash::drift(self.stored_hash(proxy).as_deref(), &wanted),
            proxy
                .annotations()
                .contains_key(names::ANNOTATION_SPEC_HASH),
        ) {
            // Why: adopting puts the annotation back that somebody took away.
            (Drift::Same, false) => Drift::Unknown,
            (Drift::Same, true) if self.rotation_due => Drift::Changed,
            (drift, true | false) => drift,
        }
    }

    /// Whether something is withheld because of `--dry-run`.
    pub(super) fn is_dry_run(&self) -> bool {
        let withheld = self.withheld.as_ref();
        withheld.is_some_and(|withheld| withheld.reason == conditions::REASON_DRY_RUN)
    }

    /// Whether an instance that was seen is in the state that the object tells of, and nothing is to
    /// be done about it.
    fn goes_on(&self, proxy: &Proxy, instance: &Instance, now: Timestamp) -> bool {
        let seen = Self {
            instance: Some(instance.clone()),
            ..self.clone()
        };
        let provisioned = proxy.condition(conditions::PROVISIONED);
        let runs = provisioned.is_some_and(|condition| condition.status == "True");
        let told = proxy.status.as_ref().and_then(|status| status.ip.as_ref());
        match (seen.drift(proxy), seen.sight(proxy, now)) {
            (Drift::Same, Sight::Running { failing: false }) => {
                runs && instance.ip.as_ref() == told
            },
            (Drift::Same, Sight::Starting { overdue: false }) => !runs && told.is_none(),
            (
                Drift::Same | Drift::Changed | Drift::Unknown,
                Sight::Missing
                | Sight::Unseen
                | Sight::Reissued
                | Sight::Starting { .. }
                | Sight::Running { .. }
                | Sight::Stopping
                | Sight::Stopped,
            ) => false,
        }
    }

    /// What the budgets of the fleet have to be asked for, if anything. What has begun goes on.
    fn request(&self, proxy: &Proxy, now: Timestamp) -> Option<Request> {
        let status = proxy.status.as_ref();
        let identified = status.is_some_and(|status| status.provider_id.is_some());
        if proxy.metadata.deletion_timestamp.is_some() {
            return None;
        }
        if !identified {
            let due =
                self.instance.is_none() && has_finalizer(proxy) && !self.credentials_to_generate;
            return due.then_some(Request::Create);
        }
        if replacement_begun(proxy) {
            return None;
        }
        match (self.drift(proxy), self.sight(proxy, now)) {
            (Drift::Same, Sight::Starting { overdue: true } | Sight::Running { failing: true }) => {
                let bootstrap_failed = self.bootstrap_failure.is_some();
                Some(Request::Remediate { bootstrap_failed })
            },
            (Drift::Changed, Sight::Running { .. }) if proxy.is_healthy() => Some(Request::Replace),
            (
                Drift::Same | Drift::Changed | Drift::Unknown,
                Sight::Missing
                | Sight::Unseen
                | Sight::Starting { .. }
                | Sight::Running { .. }
                | Sight::Reissued
                | Sight::Stopping
                | Sight::Stopped,
            ) => None,
        }
    }

    /// The hash of what was sent: from the annotation, or from the instance itself when a crash
    /// came between the create and the annotation.
    pub(super) fn stored_hash(&self, proxy: &Proxy) -> Option<String> {
        let annotation = proxy
            .annotations()
            .get(names::ANNOTATION_SPEC_HASH)
            .cloned();
        annotation.or_else(|| self.instance.as_ref().and_then(tagged_hash))
    }

    /// What the action table knows of it.
    pub(super) fn situation(&self, proxy: &Proxy, now: Timestamp) -> Situation {
        let status = proxy.status.as_ref();
        let deleting = proxy.metadata.deletion_timestamp.is_some();
        let identified = status.is_some_and(|status| status.provider_id.is_some());
        Situation {
            standing: self.standing,
            life: if deleting { Life::Deleting } else { Life::Live },
            identity: if identified {
                Identity::Set
            } else {
                Identity::None
            },
            drift: self.drift(proxy),
            sight: self.sight(proxy, now),
            lacking: if !has_finalizer(proxy) {
                Lacking::Finalizer
            } else if self.credentials_to_generate {
                Lacking::Credentials
            } else {
                Lacking::Nothing
            },
            leases: match self.drain {
                Drain::Done(..) => Leases::Gone,
                Drain::Unmarked | Drain::Waiting(_) | Drain::Unavailable(_) => Leases::MayExist,
            },
            abandon: proxy.spec.deletion_policy == DeletionPolicy::Abandon,
            permit: match self.withheld {
                Some(_) => Permit::Withheld,
                None => Permit::Granted,
            },
        }
    }

    fn sight(&self, proxy: &Proxy, now: Timestamp) -> Sight {
        let Some(Instance {
            state, ip, created, ..
        }) = &self.instance
        else {
            return if self.unseen {
                Sight::Unseen
            } else {
                Sight::Missing
            };
        };
        match (state, ip) {
            (InstanceState::Provisioning, Some(_) | None) | (InstanceState::Running, None) => {
                let timeout = i64::from(proxy.spec.provisioning_timeout_seconds);
                let overdue = now.duration_since(*created) >= SignedDuration::from_secs(timeout);
                Sight::Starting { overdue }
            },
            (InstanceState::Running, Some(ip)) if is_reissued(proxy, ip, *created, now) => {
                Sight::Reissued
            },
            (InstanceState::Running, Some(_)) => Sight::Running {
                // Why: what fails is the target, the network or the vendor.
                failing: delete_sent(proxy, conditions::REASON_UNHEALTHY_TIMED_OUT)
                    || unhealthy_too_long(proxy, now)
                        && self.verdict.as_ref().is_none_or(|v| v.hold.is_none()),
            },
            (InstanceState::Stopping, Some(_) | None) => Sight::Stopping,
            (InstanceState::Stopped, Some(_) | None) => Sight::Stopped,
        }
    }
}

/// Whether an instance is to come or to go, as far as the object tells.
pub(super) fn is_in_motion(proxy: &Proxy) -> bool {
    let status = proxy.status.as_ref();
    let identified = status.is_some_and(|status| status.provider_id.is_some());
    proxy.metadata.deletion_timestamp.is_some() || !identified || replacement_begun(proxy)
}

/// Whether the instance is already being drained or deleted to be replaced.
fn replacement_begun(proxy: &Proxy) -> bool {
    proxy
        .condition(conditions::PROVISIONED)
        .is_some_and(|condition| {
            let reasons = [
                conditions::REASON_REPLACING,
                conditions::REASON_UNHEALTHY_TIMED_OUT,
                conditions::REASON_PROVISIONING_TIMED_OUT,
                conditions::REASON_ADDRESS_REISSUED,
            ];
            condition.status == "False" && reasons.contains(&condition.reason.as_str())
        })
}

/// Whether the delete for this reason was sent: the address is taken back then. Why it matters: the
/// delete may have failed, and a read that lags behind shows a machine that runs.
fn delete_sent(proxy: &Proxy, reason: &str) -> bool {
    proxy.endpoint().is_none()
        && proxy
            .condition(conditions::PROVISIONED)
            .is_some_and(|condition| condition.status == "False" && condition.reason == reason)
}

/// Whether an address is one that was given up, because it failed, so lately that it is no other
/// exit. Why only once in that time, and never one that serves: the provider may have no other, and
/// whether it works after all is what probes are for.
fn is_reissued(proxy: &Proxy, ip: &str, created: Timestamp, now: Timestamp) -> bool {
    if delete_sent(proxy, conditions::REASON_ADDRESS_REISSUED) {
        return true;
    }
    proxy.endpoint().is_none()
        && was_given_up(proxy, ip, created, now)
        && !lately(proxy, now).any(|setback| setback.reason == conditions::REASON_ADDRESS_REISSUED)
}

/// Whether this address failed lately, before an instance that has it was created.
pub(super) fn was_given_up(proxy: &Proxy, ip: &str, created: Timestamp, now: Timestamp) -> bool {
    lately(proxy, now).any(|setback| {
        setback.reason == conditions::REASON_UNHEALTHY_TIMED_OUT
            && setback.address.as_deref() == Some(ip)
            && setback.time.0 <= created
    })
}

/// An address that was given up is no new one for this long.
const QUARANTINE: SignedDuration = SignedDuration::from_mins(30);

fn lately(proxy: &Proxy, now: Timestamp) -> impl Iterator<Item = &Setback> {
    let setbacks = proxy.status.iter().flat_map(|status| &status.setbacks);
    setbacks.filter(move |setback| now.duration_since(setback.time.0) < QUARANTINE)
}

/// The hash in an instance's tags.
pub(super) fn tagged_hash(instance: &Instance) -> Option<String> {
    instance
        .tags
        .get(names::TAG_SPEC_HASH)
        .map(|tag| hash::from_tag(tag))
}

/// Why: refused credentials are a matter of the Secret; another machine would refuse them too. Nor
/// does one help against a check that cannot be carried out.
fn unhealthy_too_long(proxy: &Proxy, now: Timestamp) -> bool {
    let timeout = SignedDuration::from_secs(i64::from(proxy.spec.unhealthy_timeout_seconds));
    proxy
        .condition(conditions::HEALTHY)
        .is_some_and(|condition| {
            condition.status == "False"
                && condition.reason != conditions::REASON_PROXY_AUTH_FAILED
                && condition.reason != conditions::REASON_INVALID_HEALTH_CHECK
                && now.duration_since(condition.last_transition_time.0) >= timeout
        })
}

#[cfg(test)]
#[path = "observe_tests.rs"]
mod tests;
