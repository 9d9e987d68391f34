//! The controller of Proxy: observe -> plan -> act -> status, once per pass.
//!
//! [`reconcile`] is called by the controller in `app`, on changes of the object, on verdicts of the
//! health engine and when a pass asked for it. Only `observe` and `act` do I/O; `plan` is the
//! action table and `status` the only place that decides what status says.

mod act;
mod bootstrap;
mod budget;
pub mod cloud_init;
mod drain;
mod dry_run;
mod fleet;
mod hash;
mod leases;
mod memory;
mod naming;
mod observe;
mod plan;
mod status;
#[cfg(test)]
mod status_tests;
#[cfg(test)]
mod steady_tests;
mod view;

use std::sync::Arc;
use std::time::Duration;

use crawl_api::conditions;
use crawl_api::pool::ProxyPool;
use crawl_api::proxy::{Proxy, ProxyStatus};
use kube::runtime::controller::Action as Next;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client, ResourceExt};
use runtime_kit::backoff::Backoff;
use runtime_kit::{Class, Classify, Clock};
use tracing::Instrument;

use self::act::{Acted, Effect};
use self::fleet::Fleets;
pub use self::fleet::withheld_members;
pub(crate) use self::hash::{Drift, digest, drift};
pub(crate) use self::leases::Counts;
pub use self::leases::LeaseApi;
use self::memory::Memory;
use self::observe::Observation;
use self::plan::{Action, Standing};
use self::status::Pass;
use crate::events::Events;
use crate::health::{Engine, Hold, Location, Target, Verdict};
use crate::post_params;
use crate::providers::{self, Providers};

/// When a Proxy is looked at again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Polls {
    /// While an instance starts.
    pub provisioning: Duration,
    /// While an instance is drained or deleted.
    pub deletion: Duration,
    /// While nothing is to be done.
    pub drift: Duration,
    /// After quota, stock, credentials or permissions were lacking.
    pub quota: Duration,
}

/// What is the same for every Proxy of this installation.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The UID of the namespace `kube-system`: which cluster an instance belongs to.
    pub cluster_id: String,
    /// What the names of instances begin with.
    pub name_prefix: String,
    /// Whether what would be created or deleted is only told.
    pub dry_run: bool,
    /// When a Proxy is looked at again.
    pub polls: Polls,
}

/// What a pass needs.
pub struct Ctx {
    client: Client,
    fleets: Fleets,
    providers: Providers,
    health: Engine,
    leases: LeaseApi,
    events: Events,
    clock: Arc<dyn Clock>,
    settings: Settings,
    memory: Memory,
    backoff: Backoff<String>,
}

/// A failed pass. What a provider refuses is no failed pass: it goes into status.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused a write.
    #[error("cannot write to the API server")]
    Write(#[source] kube::Error),
}

/// Why a provider, or a Secret, stands in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Decides what happens next.
    pub class: Class,
    /// The reason of the condition Provisioned.
    pub reason: &'static str,
    /// What went wrong, with its sources.
    pub message: String,
    /// When the provider wants to be asked again, if it said so.
    pub wait: Option<Duration>,
}

impl From<providers::Error> for Failure {
    fn from(error: providers::Error) -> Self {
        Self {
            class: error.class(),
            reason: error.reason(),
            message: runtime_kit::chain(&error).to_string(),
            wait: error.wait(),
        }
    }
}

// === impl Ctx ===

/// How many failing objects are remembered for backoff.
const BACKOFF_CAPACITY: usize = 100_000;

impl Ctx {
    /// Puts a context together.
    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of the program, each named by its type"
    )]
    pub fn new(
        client: Client,
        proxies: Store<Proxy>,
        pools: Store<ProxyPool>,
        providers: Providers,
        health: Engine,
        leases: LeaseApi,
        events: Events,
        clock: Arc<dyn Clock>,
        settings: Settings,
    ) -> Self {
        Self {
            client,
            fleets: Fleets::new(proxies, pools),
            providers,
            health,
            leases,
            events,
            clock,
            settings,
            memory: Memory::default(),
            backoff: Backoff::new(
                runtime_kit::backoff::BackoffPolicy::default(),
                BACKOFF_CAPACITY,
            ),
        }
    }

    /// The credentials of a provider have changed: what it refused because of the old ones may be
    /// tried again. The Proxies for which it is.
    pub fn lift_refusals(&self, provider: &str) -> Vec<ObjectRef<Proxy>> {
        let refused =
            |failure: &Failure| matches!(failure.class, Class::Unauthenticated | Class::Forbidden);
        let proxies = self.fleets.of_provider(provider);
        let lifted = proxies
            .iter()
            .filter(|proxy| self.memory.lift(proxy, refused));
        lifted
            .map(|proxy| ObjectRef::from_obj(proxy.as_ref()))
            .collect()
    }

    /// Forgets what is remembered of an object that is gone.
    pub fn forget(&self, uid: &str) {
        self.health.remove(uid);
        self.memory.forget(uid);
        self.backoff.reset(&uid.to_owned());
    }
}

/// One pass over a Proxy.
///
/// # Errors
/// The API server refused a write; the pass is repeated.
pub async fn reconcile(proxy: Arc<Proxy>, ctx: Arc<Ctx>) -> Result<Next, Error> {
    let span = tracing::info_span!(
        "proxy",
        namespace = proxy.namespace(),
        name = proxy.name_any(),
        uid = proxy.uid(),
        generation = proxy.metadata.generation,
    );
    // Why: what creates or deletes goes on when the account's calls run short; what runs can be
    // looked at later.
    let urgent = observe::is_in_motion(&proxy);
    let uid = proxy.uid().unwrap_or_default();
    let pass = pass(&ctx, &proxy).instrument(span);
    Box::pin(providers::on_behalf_of(&uid, urgent, pass)).await
}

/// When a failed pass is repeated.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the signature that the controller asks for"
)]
pub fn error_policy(proxy: Arc<Proxy>, error: &Error, ctx: Arc<Ctx>) -> Next {
    let uid = proxy.uid().unwrap_or_default();
    let delay = ctx.backoff.next(&uid);
    let Error::Write(source) = error;
    let text = runtime_kit::chain(error).to_string();
    let (namespace, name) = (proxy.namespace(), proxy.name_any());
    // Why: a conflict or a missing object means that the cache was behind, which is no fault.
    if matches!(source.class(), Class::Conflict | Class::NotFound) || ctx.backoff.failures(&uid) < 3
    {
        tracing::debug!(namespace, name, error = text, "pass repeated");
    } else {
        tracing::warn!(namespace, name, error = text, "pass failed");
    }
    Next::requeue(delay)
}

/// How long to wait for the watch to show our last write, which wakes the controller by itself.
const CATCH_UP: Duration = Duration::from_secs(1);

async fn pass(ctx: &Ctx, proxy: &Proxy) -> Result<Next, Error> {
    if ctx.memory.is_behind(proxy) {
        return Ok(Next::requeue(CATCH_UP));
    }
    let now = ctx.clock.now();
    let (observation, action, acted) = match Box::pin(observe::observe(ctx, proxy, now)).await {
        Ok(mut observation) => {
            let action = plan::plan(&observation.situation(proxy, now));
            let deletes = matches!(action, Action::Delete(_));
            if observation.is_dry_run() || (ctx.settings.dry_run && deletes) {
                observation.withheld = Some(dry_run::withheld(proxy, &observation, action));
            }
            let acted = Box::pin(act::act(ctx, proxy, &observation, action)).await?;
            (observation, action, acted)
        },
        Err(failure) => {
            let acted = Acted {
                effect: Effect::Nothing,
                failure: Some(failure),
                resource_version: proxy.metadata.resource_version.clone(),
            };
            (Observation::nothing(Standing::Held), Action::Rest, acted)
        },
    };
    tracing::debug!(?action, "decided");
    let next = if let Some(failure) = &acted.failure {
        settle(ctx, proxy, failure)
    } else {
        // Why: a pass within a hold asked nobody, so it proves no recovery.
        if observation.standing != Standing::Held {
            ctx.backoff.reset(&proxy.uid().unwrap_or_default());
        }
        next(ctx, proxy, &observation, action)
    };
    if matches!(acted.effect, Effect::LetGo) {
        ctx.health.remove(&proxy.uid().unwrap_or_default());
        return Ok(Next::await_change());
    }
    let held = ctx
        .memory
        .held(proxy, ctx.clock.elapsed())
        .map(|(_, failure)| failure);
    let pass = Pass {
        proxy,
        observation: &observation,
        action,
        effect: &acted.effect,
        // Why: a status write that was refused loses no failure while the hold lasts.
        failure: acted.failure.as_ref().or(held.as_ref()),
        providers: &ctx.providers.names().collect::<Vec<_>>().join(", "),
        now,
    };
    write_status(ctx, &pass, acted.resource_version).await?;
    Ok(next)
}

/// Turns a failure into a hold, a log line, and the next wake-up.
fn settle(ctx: &Ctx, proxy: &Proxy, failure: &Failure) -> Next {
    let uid = proxy.uid().unwrap_or_default();
    let Failure {
        class,
        reason,
        message,
        wait,
    } = failure;
    let told = proxy
        .condition(conditions::PROVISIONED)
        .is_some_and(|condition| condition.reason == *reason);
    let slow = ctx.settings.polls.quota;
    let wait = match class {
        Class::Quota => {
            if !told {
                tracing::info!(reason, error = message, "the provider has no capacity");
            }
            Some(slow)
        },
        Class::RateLimited => {
            if !told {
                tracing::info!(reason, error = message, "the provider asks for patience");
            }
            Some(wait.unwrap_or_else(|| ctx.backoff.next(&uid)))
        },
        Class::Unauthenticated | Class::Forbidden | Class::Conflict => {
            if !told {
                tracing::warn!(reason, error = message, "the provider refuses");
            }
            Some(slow)
        },
        Class::Invalid => {
            if !told {
                tracing::warn!(reason, error = message, "the provider refuses the spec");
            }
            None
        },
        Class::NotFound | Class::AlreadyExists | Class::Transient => {
            let wait = wait.unwrap_or_else(|| ctx.backoff.next(&uid));
            if ctx.backoff.failures(&uid) == 3 {
                tracing::warn!(reason, error = message, "the provider keeps failing");
            } else {
                tracing::debug!(reason, error = message, "the provider failed");
            }
            Some(wait)
        },
    };
    let Some(wait) = wait else {
        return Next::await_change();
    };
    ctx.memory
        .hold(proxy, ctx.clock.elapsed() + wait, failure.clone());
    Next::requeue(wait)
}

fn next(ctx: &Ctx, proxy: &Proxy, observation: &Observation, action: Action) -> Next {
    let polls = &ctx.settings.polls;
    let tick = to_tick(ctx.clock.elapsed(), polls.drift);
    if observation.is_dry_run() {
        return Next::requeue(tick);
    }
    let delay = match action {
        Action::Create | Action::Record | Action::AwaitRunning => polls.provisioning,
        Action::Drain(_) | Action::Delete(_) | Action::AwaitGone => polls.deletion,
        Action::Serve if proxy.spec.drain => polls.deletion,
        Action::Serve if !proxy.is_managed() => return Next::await_change(),
        Action::Serve | Action::Withhold => wait_withheld(observation, tick),
        // Why: each of these is followed by the next row, and its own write wakes the controller;
        // the delay covers a write that changed nothing.
        Action::AddFinalizer
        | Action::GenerateCredentials
        | Action::Adopt
        | Action::Forget
        | Action::RemoveFinalizer => Duration::from_millis(100),
        Action::Rest => match observation.standing {
            Standing::Held => {
                let held = ctx.memory.held(proxy, ctx.clock.elapsed());
                held.map_or(polls.provisioning, |(left, _)| left)
            },
            Standing::UnknownProvider
            | Standing::Paused
            | Standing::AwaitingChange
            | Standing::Managed
            | Standing::External => return Next::await_change(),
        },
    };
    Next::requeue(delay)
}

/// How long until the next of the times at which all proxies are looked at. Why together: they
/// share a listing then. Once in a while means at least half of it, and less than one and a half.
fn to_tick(elapsed: Duration, poll: Duration) -> Duration {
    let since = elapsed.as_nanos() % poll.as_nanos().max(1);
    let since = Duration::from_nanos(u64::try_from(since).unwrap_or_default());
    let left = poll.saturating_sub(since);
    if left < poll / 2 { left + poll } else { left }
}

/// When what is withheld is looked at again.
fn wait_withheld(observation: &Observation, poll: Duration) -> Duration {
    let told = observation.withheld.as_ref();
    told.and_then(|withheld| withheld.wait)
        .map_or(poll, |wait| wait.min(poll))
}

async fn write_status(
    ctx: &Ctx,
    pass: &Pass<'_>,
    resource_version: Option<String>,
) -> Result<(), Error> {
    let proxy = pass.proxy;
    let status = status::compute(pass);
    if proxy.status.as_ref() != Some(&status) {
        let mut changed = proxy.clone();
        changed.metadata.resource_version = resource_version;
        changed.metadata.managed_fields = None;
        changed.status = Some(status.clone());
        let api: Api<Proxy> =
            Api::namespaced(ctx.client.clone(), &proxy.namespace().unwrap_or_default());
        let written = api
            .replace_status(&proxy.name_any(), &post_params(), &changed)
            .await;
        let written = written.map_err(Error::Write)?;
        ctx.memory
            .wrote(proxy, written.metadata.resource_version.as_deref());
        let before = proxy
            .status
            .as_ref()
            .map(|status| status.conditions.as_slice());
        ctx.events
            .transitions(proxy, before.unwrap_or_default(), &status.conditions)
            .await;
    }
    tell_health(ctx, proxy, pass.observation, &status);
    Ok(())
}

/// Why after the write: the engine's seed and the status must not differ for longer than a pass.
fn tell_health(ctx: &Ctx, proxy: &Proxy, observation: &Observation, status: &ProxyStatus) {
    let uid = proxy.uid().unwrap_or_default();
    let Some(endpoint) = status.endpoint.clone() else {
        ctx.health.remove(&uid);
        return;
    };
    // Why: after a failed observation, or while the object goes, the credentials were not read.
    let deleting = proxy.metadata.deletion_timestamp.is_some();
    let unread = proxy.credentials_secret().is_some() && observation.credentials.is_none();
    if deleting || unread {
        return;
    }
    // Why: a machine that is still to be replaced asks for those it was created with.
    let replaced_first = observation.drift(proxy) == Drift::Changed;
    let credentials = observation.credentials.clone();
    let credentials = ctx.memory.credentials(proxy, credentials, replaced_first);
    ctx.health.upsert(Target {
        uid,
        proxy: ObjectRef::from_obj(proxy),
        endpoint,
        credentials,
        secret: proxy.credentials_secret(),
        patience: Duration::from_secs(u64::from(proxy.spec.provisioning_timeout_seconds)),
        report_limit: Duration::from_secs(u64::from(proxy.spec.unhealthy_timeout_seconds)),
        check: proxy.spec.health_check.clone(),
        seed: seed(status),
    });
}

/// The verdict that a status holds, for an engine that has just started.
fn seed(status: &ProxyStatus) -> Option<Verdict> {
    let healthy = conditions::find(&status.conditions, conditions::HEALTHY)?;
    Some(Verdict {
        healthy: match healthy.status.as_str() {
            "True" => Some(true),
            "False" => Some(false),
            _ => None,
        },
        // Why: what a console says is no verdict of the engine's.
        reason: if healthy.reason == conditions::REASON_BOOTSTRAP_FAILED {
            conditions::REASON_PROBE_NEVER_SUCCEEDED.into()
        } else {
            healthy.reason.clone()
        },
        message: bootstrap::without_line(&healthy.message).into(),
        exit_ip: status.exit_ip.clone(),
        location: Location {
            country: status.country.clone(),
            asn: status.asn,
        },
        flapping: conditions::is_true(&status.conditions, conditions::FLAPPING),
        hold: conditions::find(&status.conditions, conditions::CORRELATED).map(|held| Hold {
            reason: held.reason.clone(),
            message: held.message.clone(),
        }),
        latency: status
            .latency_milliseconds
            .and_then(|latency| u64::try_from(latency).ok())
            .map(Duration::from_millis),
        since: healthy.last_transition_time.0,
        last_probe: status.last_health_check_time.as_ref().map(|time| time.0),
    })
}
