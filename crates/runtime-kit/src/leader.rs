//! Leader election over a `coordination.k8s.io` Lease: of several replicas one acts.
//!
//! A binary campaigns with [`Candidate::campaign`], starts its work when that returns, and runs
//! [`Leadership::hold`] as a closing task. Losing the lease is an error that ends the process: what
//! it was doing cannot be taken back, a restarted process starts clean.
//!
//! The clocks of other machines are never compared with ours. A foreign lease is expired when this
//! process has *seen* its record unchanged for the record's duration, measured with its own
//! monotonic clock.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;

use crate::chain::chain;
use crate::class::{Class, Classify};
use crate::clock::Clock;

/// Which lease, as whom, and how fast.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderConfig {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Who this process is. It must differ from that of every other process, a former one of the
    /// same pod included.
    pub identity: String,
    /// How long others wait after our last renewal before they take over.
    pub lease_duration: Duration,
    /// How long we go on without a successful renewal; shorter than `lease_duration`.
    pub renew_deadline: Duration,
    /// Time between attempts; up to half of it is added at random.
    pub retry_period: Duration,
}

impl LeaderConfig {
    /// The usual times: 15 s lease, 10 s to renew, an attempt every 2 s. A random part is appended
    /// to `host`, so that a restarted process is somebody else.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, host: &str) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            identity: format!("{host}_{:08x}", rand::random::<u32>()),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

/// Why leadership ended without being given up.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    /// Another process holds the lease.
    #[error("leadership was taken over by {holder}")]
    TakenOver {
        /// Its identity.
        holder: String,
    },
    /// No renewal succeeded in time.
    #[error("leadership could not be renewed within {} s", deadline.as_secs())]
    NotRenewed {
        /// How long it was tried.
        deadline: Duration,
        /// What the last attempt ended with; none when it was still waiting.
        #[source]
        source: Option<kube::Error>,
    },
}

/// What a candidate does next.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// There is no lease.
    Create,
    /// The lease is free, ours, or expired.
    Take,
    /// Somebody holds it for at least this long.
    Wait(Duration),
}

fn plan_step(
    found: Option<&LeaseSpec>,
    unchanged_for: Duration,
    identity: &str,
    default_duration: Duration,
) -> Step {
    let Some(spec) = found else {
        return Step::Create;
    };
    let holder = spec.holder_identity.as_deref().unwrap_or_default();
    if holder.is_empty() || holder == identity {
        return Step::Take;
    }
    let duration = spec
        .lease_duration_seconds
        .and_then(|seconds| u64::try_from(seconds).ok())
        .map_or(default_duration, Duration::from_secs);
    match duration.checked_sub(unchanged_for) {
        Some(left) if !left.is_zero() => Step::Wait(left),
        _ => Step::Take,
    }
}

/// A process that would lead.
#[derive(Debug)]
pub struct Candidate {
    lease: LeaseRecord,
}

/// The leader's hold on the lease.
#[derive(Debug)]
#[must_use = "leadership that is not held expires"]
pub struct Leadership {
    lease: LeaseRecord,
    held: Lease,
    /// Monotonic time at which the last successful renewal was sent.
    renewed: Duration,
}

struct LeaseRecord {
    api: Api<Lease>,
    config: LeaderConfig,
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for LeaseRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeaseRecord")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Candidate {
    /// The client should not retry by itself: attempts have their own times.
    pub fn new(client: Client, config: LeaderConfig, clock: Arc<dyn Clock>) -> Self {
        let api = Api::namespaced(client, &config.namespace);
        Self {
            lease: LeaseRecord { api, config, clock },
        }
    }

    /// Waits until this process leads; `None` when `shutdown` came first. Errors of the API server
    /// are logged and tried again: a standby has nothing better to do.
    pub async fn campaign(self, shutdown: &CancellationToken) -> Option<Leadership> {
        shutdown
            .run_until_cancelled(Box::pin(self.campaign_forever()))
            .await
    }

    async fn campaign_forever(self) -> Leadership {
        let Self { lease } = self;
        let mut seen: Option<(LeaseSpec, Duration)> = None;
        let mut known_holder: Option<String> = None;
        let mut failing = false;
        loop {
            let started = lease.clock.elapsed();
            let wait = match lease.bounded(lease.try_acquire(&mut seen)).await {
                Ok(Attempt::Held(held)) => {
                    tracing::info!(identity = lease.config.identity, "leading");
                    return Leadership {
                        lease,
                        held: *held,
                        renewed: started,
                    };
                },
                Ok(Attempt::Busy(left)) => {
                    failing = false;
                    let holder = seen
                        .as_ref()
                        .and_then(|(spec, _)| spec.holder_identity.clone());
                    if holder != known_holder {
                        tracing::info!(holder = holder.as_deref(), "standing by");
                        known_holder = holder;
                    }
                    left.min(lease.retry_wait())
                },
                Err(error) => {
                    let error = error.map_or_else(|| "no answer".into(), |e| chain(&e).to_string());
                    if failing {
                        tracing::debug!(error, "cannot try for leadership still");
                    } else {
                        tracing::warn!(error, "cannot try for leadership, trying again");
                    }
                    failing = true;
                    lease.retry_wait()
                },
            };
            lease.clock.sleep(wait).await;
        }
    }
}

enum Attempt {
    Held(Box<Lease>),
    Busy(Duration),
}

impl LeaseRecord {
    /// `Err(None)`: there was no answer within the renew deadline.
    async fn bounded<T>(
        &self,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, Option<kube::Error>> {
        self.bounded_by(self.config.renew_deadline, call).await
    }

    async fn bounded_by<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, Option<kube::Error>> {
        tokio::select! {
            answer = call => answer.map_err(Some),
            () = self.clock.sleep(limit) => Err(None),
        }
    }

    fn retry_wait(&self) -> Duration {
        self.config
            .retry_period
            .mul_f64(1.0 + 0.5 * rand::random::<f64>())
    }

    async fn try_acquire(
        &self,
        seen: &mut Option<(LeaseSpec, Duration)>,
    ) -> Result<Attempt, kube::Error> {
        let found = self.api.get_opt(&self.config.name).await?;
        let spec = found
            .as_ref()
            .map(|lease| lease.spec.clone().unwrap_or_default());
        let now = self.clock.elapsed();
        let unchanged_for = match (&spec, &*seen) {
            (Some(spec), Some((known, since))) if spec == known => now.saturating_sub(*since),
            (spec, _) => {
                *seen = spec.clone().map(|spec| (spec, now));
                Duration::ZERO
            },
        };
        let identity = &self.config.identity;
        let step = plan_step(
            spec.as_ref(),
            unchanged_for,
            identity,
            self.config.lease_duration,
        );
        let written = match (step, found) {
            (Step::Wait(left), _) => return Ok(Attempt::Busy(left)),
            (Step::Take, Some(found)) => self.write(found, true).await,
            (Step::Take | Step::Create, _) => self.create().await,
        };
        match written {
            Ok(held) => Ok(Attempt::Held(Box::new(held))),
            // Why: another candidate was faster; its record is read at the next attempt.
            Err(error) if matches!(error.class(), Class::Conflict | Class::AlreadyExists) => {
                Ok(Attempt::Busy(self.config.retry_period))
            },
            Err(error) => Err(error),
        }
    }

    async fn create(&self) -> Result<Lease, kube::Error> {
        let metadata = ObjectMeta {
            name: Some(self.config.name.clone()),
            namespace: Some(self.config.namespace.clone()),
            ..ObjectMeta::default()
        };
        let spec = Some(self.build_spec(&LeaseSpec::default(), true));
        self.api
            .create(&PostParams::default(), &Lease { metadata, spec })
            .await
    }

    /// Writes our record over `read`, only if nobody has changed it since it was read.
    async fn write(&self, mut read: Lease, acquired: bool) -> Result<Lease, kube::Error> {
        read.spec = Some(self.build_spec(&read.spec.take().unwrap_or_default(), acquired));
        self.api
            .replace(&self.config.name, &PostParams::default(), &read)
            .await
    }

    fn build_spec(&self, previous: &LeaseSpec, acquired: bool) -> LeaseSpec {
        let now = Some(MicroTime(self.clock.now()));
        let transitions = previous.lease_transitions.unwrap_or(0);
        LeaseSpec {
            holder_identity: Some(self.config.identity.clone()),
            lease_duration_seconds: i32::try_from(self.config.lease_duration.as_secs()).ok(),
            acquire_time: if acquired {
                now.clone()
            } else {
                previous.acquire_time.clone()
            },
            lease_transitions: Some(transitions.saturating_add(i32::from(acquired))),
            renew_time: now,
            ..previous.clone()
        }
    }
}

impl Leadership {
    /// Renews until `release`, then gives the lease up so that another replica leads at once.
    /// `release` must come only when nothing acts as leader any more.
    pub async fn hold(mut self, release: CancellationToken) -> Result<(), Lost> {
        loop {
            let pause = self.lease.clock.sleep(self.lease.config.retry_period);
            if release.run_until_cancelled(pause).await.is_none() {
                Box::pin(self.release()).await;
                return Ok(());
            }
            Box::pin(self.renew()).await?;
        }
    }

    /// Tries until a renewal succeeds or the deadline has passed.
    async fn renew(&mut self) -> Result<(), Lost> {
        let deadline = self.lease.config.renew_deadline;
        let mut last_error = None;
        loop {
            let started = self.lease.clock.elapsed();
            let left = deadline.saturating_sub(started.saturating_sub(self.renewed));
            if left.is_zero() {
                return Err(Lost::NotRenewed {
                    deadline,
                    source: last_error,
                });
            }
            match self.lease.bounded_by(left, self.try_renew()).await {
                Ok(Renewal::Done(held)) => {
                    self.held = *held;
                    self.renewed = started;
                    return Ok(());
                },
                Ok(Renewal::TakenOver(holder)) => return Err(Lost::TakenOver { holder }),
                Err(None) => {},
                Err(Some(error)) => {
                    let text = chain(&error).to_string();
                    if last_error.is_none() {
                        tracing::warn!(error = text, "cannot renew leadership, trying again");
                    } else {
                        tracing::debug!(error = text, "cannot renew leadership still");
                    }
                    last_error = Some(error);
                    let wait = self.lease.retry_wait().min(left);
                    self.lease.clock.sleep(wait).await;
                },
            }
        }
    }

    async fn try_renew(&self) -> Result<Renewal, kube::Error> {
        let error = match self.lease.write(self.held.clone(), false).await {
            Ok(held) => return Ok(Renewal::Done(Box::new(held))),
            Err(error) => error,
        };
        if !matches!(error.class(), Class::Conflict | Class::NotFound) {
            return Err(error);
        }
        // Why: a conflict may be our own renewal whose answer was lost, or somebody's label.
        let Some(current) = self.lease.api.get_opt(&self.lease.config.name).await? else {
            return self.lease.create().await.map(Box::new).map(Renewal::Done);
        };
        let holder = current
            .spec
            .as_ref()
            .and_then(|spec| spec.holder_identity.clone());
        if holder.as_ref() != Some(&self.lease.config.identity) {
            return Ok(Renewal::TakenOver(
                holder.unwrap_or_else(|| "nobody".to_owned()),
            ));
        }
        self.lease
            .write(current, false)
            .await
            .map(Box::new)
            .map(Renewal::Done)
    }

    async fn release(self) {
        let Self {
            lease,
            mut held,
            renewed: _,
        } = self;
        let spec = held.spec.get_or_insert_default();
        spec.holder_identity = None;
        spec.lease_duration_seconds = Some(1);
        spec.renew_time = Some(MicroTime(lease.clock.now()));
        let params = PostParams::default();
        let replace = lease.api.replace(&lease.config.name, &params, &held);
        match lease.bounded_by(lease.config.retry_period, replace).await {
            Ok(_) => tracing::info!("leadership released"),
            Err(error) => {
                let error = error.map_or_else(|| "no answer".into(), |e| chain(&e).to_string());
                tracing::warn!(error, "leadership not released, it will expire");
            },
        }
    }
}

enum Renewal {
    Done(Box<Lease>),
    TakenOver(String),
}

#[cfg(test)]
mod tests;
