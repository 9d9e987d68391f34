//! The health engine: sends real traffic through every proxy and decides whether it works.
//!
//! It owns health *state*; the Proxy reconciler owns its *representation*. The reconciler tells the
//! engine what to probe ([`Engine::upsert`], [`Engine::remove`]) and reads [`Engine::verdict`];
//! the engine pokes the reconciler through [`Transitions`] when a verdict has changed. The engine
//! writes nothing to Kubernetes and reads nothing from it.

mod config;
mod failure;
mod metrics;
mod probe;
mod standing;
mod target;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::HashMap;
use std::convert::Infallible;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use crawl_api::conditions::REASON_PROBE_SUCCEEDED;
use crawl_api::proxy::Proxy;
use kube::runtime::reflector::ObjectRef;
use parking_lot::Mutex;
use prometheus::Registry;
use runtime_kit::Clock;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use url::Url;

pub use self::config::{Config, Error};
use self::failure::Failure;
use self::metrics::{Labels, Metrics};
use self::probe::{Learnt, Prober};
use self::standing::{Moment, Standing, Success, Thresholds};
pub use self::target::{Credentials, Target, Verdict};
use self::watch::Signals;

/// How many changed verdicts may wait for the reconciler. When it is full, a change counts as not
/// reported and is sent again.
const TRANSITIONS_BUFFER: usize = 1024;

/// Proxies whose verdict has changed.
pub type Transitions = mpsc::Receiver<ObjectRef<Proxy>>;

/// The health engine. Clones share one state.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Arc<dyn Clock>,
    prober: Prober,
    metrics: Metrics,
    entries: Mutex<HashMap<String, Entry>>,
    transitions: mpsc::Sender<ObjectRef<Proxy>>,
    /// A target was added.
    added: Notify,
}

/// What the engine keeps of one proxy.
struct Entry {
    target: Target,
    standing: Standing,
    /// What the reconciler was told last; lags behind `standing` while its channel is full.
    told: Verdict,
    /// Grows with each change of the target: a probe of an older one counts for nothing.
    revision: u64,
    /// Probes started, to take turns among several URLs.
    turn: usize,
    watched: bool,
    signals: Signals,
}

/// The next probe of a proxy.
struct Todo {
    target: Target,
    revision: u64,
    url: Result<Url, Failure>,
}

// === impl Engine ===

impl Engine {
    /// An engine that probes nothing until [`Self::run`] runs.
    ///
    /// # Errors
    /// A file that the flags name cannot be used, or a metric is registered already.
    pub fn new(
        clock: Arc<dyn Clock>,
        metrics: &Registry,
        config: Config,
    ) -> Result<(Self, Transitions), Error> {
        Self::with_buffer(clock, metrics, config, TRANSITIONS_BUFFER)
    }

    fn with_buffer(
        clock: Arc<dyn Clock>,
        metrics: &Registry,
        config: Config,
        buffer: usize,
    ) -> Result<(Self, Transitions), Error> {
        let (echo, tls) = config.load()?;
        let prober = Prober::new(tls, echo, Arc::clone(&clock));
        let (transitions, receiver) = mpsc::channel(buffer);
        let shared = Shared {
            clock,
            prober,
            metrics: Metrics::register(metrics)?,
            entries: Mutex::default(),
            transitions,
            added: Notify::new(),
        };
        Ok((
            Self {
                shared: Arc::new(shared),
            },
            receiver,
        ))
    }

    /// Adds a target, or changes how it is probed. Called on every reconcile: an equal target
    /// changes nothing and resets no counter; a changed endpoint is a new proxy to the engine; any
    /// other change keeps the verdict, counts from 0 and probes soon. The seed counts only for a
    /// UID that is not known.
    pub fn upsert(&self, target: Target) {
        let shared = &self.shared;
        let now = shared.clock.now();
        let mut entries = shared.entries.lock();
        let Some(entry) = entries.get_mut(&target.uid) else {
            let standing = match target.seed.clone() {
                Some(seed) => Standing::seeded(seed),
                None => Standing::unknown(now),
            };
            let entry = Entry {
                told: standing.verdict().clone(),
                standing,
                revision: 0,
                turn: 0,
                watched: false,
                signals: Signals::default(),
                target,
            };
            entries.insert(entry.target.uid.clone(), entry);
            drop(entries);
            shared.added.notify_one();
            return;
        };
        if entry.target.endpoint != target.endpoint {
            entry.standing = Standing::unknown(now);
            entry.told = entry.standing.verdict().clone();
        } else if entry.target.credentials != target.credentials
            || entry.target.check != target.check
        {
            entry.standing.restart();
        } else {
            return;
        }
        entry.target = target;
        entry.revision += 1;
        entry.turn = 0;
        entry.signals.wake.notify_one();
    }

    /// Forgets a target and its metrics.
    pub fn remove(&self, uid: &str) {
        let removed = self.shared.entries.lock().remove(uid);
        if let Some(entry) = removed {
            entry.signals.stop.cancel();
            self.shared.metrics.forget(labels(&entry.target));
        }
    }

    /// What is known of a target. The value changes only together with a message on
    /// [`Transitions`] (or by [`Self::upsert`] of another endpoint), so the reconciler can copy it
    /// into status as it is.
    pub fn verdict(&self, uid: &str) -> Option<Verdict> {
        let entries = self.shared.entries.lock();
        entries.get(uid).map(|entry| entry.told.clone())
    }

    /// Probes until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Infallible> {
        let Self { shared } = self;
        // Dropped at the end, and every probe with it.
        let mut watches = JoinSet::new();
        loop {
            for (uid, signals) in shared.unwatched() {
                watches.spawn(watch::watch(Arc::clone(&shared), uid, signals));
            }
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                () = shared.added.notified() => {},
                Some(ended) = watches.join_next(), if !watches.is_empty() => {
                    if let Err(error) = ended && error.is_panic() {
                        resume_unwind(error.into_panic());
                    }
                },
            }
        }
    }
}

// === impl Shared ===

impl Shared {
    /// The targets that have no watch yet; they are taken to have one from now on.
    fn unwatched(&self) -> Vec<(String, Signals)> {
        let mut entries = self.entries.lock();
        let unwatched = entries.iter_mut().filter(|(_, entry)| !entry.watched);
        unwatched
            .map(|(uid, entry)| {
                entry.watched = true;
                (uid.clone(), entry.signals.clone())
            })
            .collect()
    }

    /// The interval of a target whose health is known.
    fn interval_if_known(&self, uid: &str) -> Option<Duration> {
        let entries = self.entries.lock();
        let entry = entries.get(uid)?;
        entry.told.healthy.map(|_| entry.target.check.interval())
    }

    fn todo(&self, uid: &str) -> Option<Todo> {
        let mut entries = self.entries.lock();
        let entry = entries.get_mut(uid)?;
        let url = self.prober.urls(&entry.target.check).and_then(|urls| {
            let index = entry.turn.checked_rem(urls.len()).unwrap_or_default();
            let none = || Failure::InvalidCheck("it has no URL".into());
            urls.into_iter().nth(index).ok_or_else(none)
        });
        entry.turn = entry.turn.wrapping_add(1);
        Some(Todo {
            target: entry.target.clone(),
            revision: entry.revision,
            url,
        })
    }

    /// Adds a probe's result, unless its target is gone or has changed meanwhile.
    fn record(&self, uid: &str, revision: u64, result: Result<Learnt, Failure>, took: Duration) {
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(uid).filter(|e| e.revision == revision) else {
            return;
        };
        let of = labels(&entry.target);
        let result = result.map(|Learnt { exit_ip, remark }| Success {
            latency: took,
            exit_ip,
            remark,
        });
        match &result {
            Ok(_) => self.metrics.ended(of, REASON_PROBE_SUCCEEDED, Some(took)),
            Err(failure) => {
                tracing::debug!(proxy = %entry.target.proxy, uid, reason = failure.reason(), %failure, "probe failed");
                self.metrics.ended(of, failure.reason(), None);
            },
        }
        let check = &entry.target.check;
        let thresholds = Thresholds {
            failures: check.failure_threshold,
            successes: check.success_threshold,
        };
        let at = Moment {
            wall: self.clock.now(),
            elapsed: self.clock.elapsed(),
        };
        if entry.standing.record(&result, thresholds, at) {
            let Verdict {
                healthy, reason, ..
            } = entry.standing.verdict();
            tracing::info!(proxy = %entry.target.proxy, uid, ?healthy, reason, "verdict changed");
        }
    }

    /// Tells the reconciler of a verdict it does not know; false when its channel is full. The
    /// verdict it reads changes in the same step.
    fn tell(&self, uid: &str) -> bool {
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(uid) else {
            return true;
        };
        if entry.told == *entry.standing.verdict() {
            return true;
        }
        let told = self
            .transitions
            .try_send(entry.target.proxy.clone())
            .is_ok();
        if told {
            entry.told = entry.standing.verdict().clone();
        }
        told
    }
}

fn labels(target: &Target) -> Labels<'_> {
    Labels {
        namespace: target.proxy.namespace.as_deref().unwrap_or_default(),
        name: &target.proxy.name,
    }
}
