//! The health engine: sends real traffic through every proxy and decides whether it works.
//!
//! It owns health *state*; the Proxy reconciler owns its *representation*. The reconciler tells the
//! engine what to probe ([`Engine::upsert`], [`Engine::remove`]) and reads [`Engine::verdict`];
//! the engine pokes the reconciler through [`Transitions`] when a verdict has changed. The engine
//! writes nothing to Kubernetes and reads nothing from it; what clients report of a proxy it asks of
//! [`Reports`], when a verdict depends on it.

mod config;
mod control;
mod doubt;
mod failure;
mod geo;
mod lanes;
mod metrics;
mod probe;
mod reports;
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

use crawl_api::conditions::{
    REASON_CONTROL_PROBE_FAILED, REASON_PROBE_SUCCEEDED, REASON_PROXY_AUTH_FAILED,
    REASON_VENDOR_FAILING,
};
use crawl_api::proxy::Proxy;
use kube::runtime::reflector::ObjectRef;
use parking_lot::Mutex;
use prometheus::Registry;
use runtime_kit::Clock;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use url::Url;

use self::config::Loaded;
pub use self::config::{Config, Error};
use self::control::{Blame, Control};
use self::doubt::Doubt;
use self::failure::Failure;
use self::geo::GeoIp;
pub use self::geo::{GeoIpError, Location};
use self::lanes::Lanes;
use self::metrics::{Labels, Metrics};
use self::probe::{Known, Learnt, Prober};
pub use self::reports::Reports;
use self::standing::{Finding, Moment, Standing, Success, Thresholds};
pub use self::target::{Credentials, Hold, Target, Verdict};
use self::watch::Signals;

/// How many changed verdicts may wait for the reconciler. When it is full, a change counts as not
/// reported and is sent again.
const TRANSITIONS_BUFFER: usize = 1024;
/// A verdict that flaps is told at most this often.
const FLAPPING_PAUSE: Duration = Duration::from_mins(1);
/// A proxy that refuses its credentials is probed at most this often: asking again changes nothing,
/// and some lock the account. Other credentials are tried at once.
const REFUSED_PAUSE: Duration = Duration::from_mins(5);
/// So many proxies with one Secret, and more than half of them failing, are the vendor's fault.
const VENDOR_MINIMUM: usize = 3;

/// Proxies whose verdict has changed.
pub type Transitions = mpsc::Receiver<ObjectRef<Proxy>>;

/// The health engine. Clones share one state.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Arc<dyn Clock>,
    geoip: Option<Arc<GeoIp>>,
    prober: Prober,
    control: Control,
    reports: Arc<dyn Reports>,
    lanes: Lanes,
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
    doubt: Doubt,
    /// What the reconciler was told last; lags behind `standing` while its channel is full.
    told: Verdict,
    told_at: Option<Duration>,
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

/// What came of a probe.
struct Probed {
    /// `None`: the check names none that can be asked.
    url: Option<Url>,
    finding: Finding,
    hold: Option<Hold>,
    /// When it ended.
    at: Moment,
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
        reports: Arc<dyn Reports>,
    ) -> Result<(Self, Transitions), Error> {
        Self::with_buffer(clock, metrics, config, reports, TRANSITIONS_BUFFER)
    }

    fn with_buffer(
        clock: Arc<dyn Clock>,
        metrics: &Registry,
        config: Config,
        reports: Arc<dyn Reports>,
        buffer: usize,
    ) -> Result<(Self, Transitions), Error> {
        let Loaded {
            echo,
            tls,
            geoip,
            max_concurrent_probes,
        } = config.load()?;
        let known = Known {
            echo,
            geoip: geoip.clone(),
        };
        let prober = Prober::new(tls, known, Arc::clone(&clock));
        let (transitions, receiver) = mpsc::channel(buffer);
        let shared = Shared {
            control: Control::new(prober.clone(), Arc::clone(&clock)),
            reports,
            lanes: Lanes::new(max_concurrent_probes),
            clock,
            geoip,
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
                told_at: None,
                standing,
                doubt: Doubt::default(),
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
            // What changes no probe takes effect with the next one.
            entry.target.secret = target.secret;
            entry.target.patience = target.patience;
            entry.target.report_limit = target.report_limit;
            return;
        }
        entry.doubt = Doubt::default();
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
        if let Some(geoip) = shared.geoip.clone() {
            watches.spawn(geoip.follow(Arc::clone(&shared.clock)));
        }
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

    /// Whether the last verdict that was told is a good one.
    fn is_healthy(&self, uid: &str) -> bool {
        let entries = self.entries.lock();
        entries
            .get(uid)
            .is_some_and(|entry| entry.told.healthy == Some(true))
    }

    /// What a probe's result says of its proxy, and whether the proxy is to be held.
    async fn weigh(
        &self,
        target: &Target,
        url: &Url,
        result: Result<Learnt, Failure>,
        took: Duration,
    ) -> (Finding, Option<Hold>) {
        let check = &target.check;
        let Learnt {
            exit_ip,
            location,
            reason,
            remark,
        } = match result {
            Ok(learnt) => learnt,
            Err(failure) => {
                return match self
                    .control
                    .blame(&failure, url, check, &target.proxy)
                    .await
                {
                    Blame::Proxy => (Finding::Fails(failure), None),
                    Blame::Target => (Finding::TargetFails(failure), None),
                    Blame::Unknown => (Finding::Fails(failure), Some(control_failed(url))),
                };
            },
        };
        // Somebody who expects the operator's own address knows better.
        let expected = check.expect.as_ref().is_some_and(|e| e.exit_ip.is_some());
        if let Some(exit) = exit_ip
            && !expected
            && self.control.own_ip(url, check).await == Some(exit)
        {
            return (Finding::Fails(Failure::ExitIpIsOwn(exit)), None);
        }
        let success = Success {
            latency: took,
            exit_ip,
            location,
            reason,
            remark,
        };
        (Finding::Works(success), None)
    }

    /// What is left of a failure at `url` after clients were asked. They are only asked when a verdict
    /// depends on it.
    async fn ask_clients(&self, uid: &str, url: &Url, failure: Failure, at: Moment) -> Finding {
        let Some(target) = self.depends_on_clients(uid, url, &failure, at) else {
            return Finding::Fails(failure);
        };
        let reported = self.reports.last_success(&target.proxy, uid).await;
        let interval = target.check.interval();
        match reported {
            Some(time) if doubt::is_recent(time, interval, at.wall) => {
                Finding::Disputed(failure, url.clone())
            },
            Some(_) | None => Finding::Fails(failure),
        }
    }

    /// The target, if this failure makes it unhealthy unless clients report otherwise.
    fn depends_on_clients(
        &self,
        uid: &str,
        url: &Url,
        failure: &Failure,
        at: Moment,
    ) -> Option<Target> {
        let entries = self.entries.lock();
        let entry = entries.get(uid)?;
        let limit = entry.target.report_limit;
        let depends = entry
            .standing
            .is_at_the_brink(thresholds(&entry.target), at)
            && entry.doubt.is_left(url, failure, limit, at.elapsed);
        depends.then(|| entry.target.clone())
    }

    /// The present time, on both clocks.
    fn moment(&self) -> Moment {
        Moment {
            wall: self.clock.now(),
            elapsed: self.clock.elapsed(),
        }
    }

    /// Adds what a probe found, unless its target is gone or has changed meanwhile.
    fn record(&self, uid: &str, revision: u64, probed: &Probed) {
        let Probed {
            url,
            finding,
            hold,
            at,
        } = probed;
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(uid).filter(|e| e.revision == revision) else {
            return;
        };
        let of = labels(&entry.target);
        match finding {
            Finding::Works(success) => {
                self.metrics
                    .ended(of, REASON_PROBE_SUCCEEDED, Some(success.latency));
            },
            Finding::Fails(failure)
            | Finding::Disputed(failure, _)
            | Finding::TargetFails(failure) => {
                tracing::debug!(proxy = %entry.target.proxy, uid, reason = failure.reason(), %failure, "probe failed");
                self.metrics.ended(of, failure.reason(), None);
            },
        }
        if let Some(url) = url {
            entry.doubt.record(url, finding, at.elapsed);
        }
        let thresholds = thresholds(&entry.target);
        let changed = entry.standing.record(finding, thresholds, *at);
        let unhealthy = entry.standing.verdict().healthy == Some(false);
        let group = (
            entry.target.proxy.namespace.clone(),
            entry.target.secret.clone(),
        );
        let hold = match (hold.clone(), group) {
            (None, (namespace, Some(secret))) if unhealthy => {
                vendor_failing(&entries, namespace.as_deref(), &secret)
            },
            (hold, _) => hold,
        };
        let Some(entry) = entries.get_mut(uid) else {
            return;
        };
        if entry.standing.hold(hold) || changed {
            let Verdict {
                healthy,
                reason,
                hold,
                ..
            } = entry.standing.verdict();
            let hold = hold.as_ref().map(|hold| hold.reason.as_str());
            tracing::info!(proxy = %entry.target.proxy, uid, ?healthy, reason, hold, "verdict changed");
        }
    }

    /// How long after a probe was due the next one is.
    fn pause(&self, uid: &str, finding: &Finding) -> Option<Duration> {
        let entries = self.entries.lock();
        let entry = entries.get(uid)?;
        let interval = entry.target.check.interval();
        if *finding == Finding::Fails(Failure::ProxyAuth)
            && entry.standing.verdict().reason == REASON_PROXY_AUTH_FAILED
        {
            Some(interval.max(REFUSED_PAUSE))
        } else {
            Some(interval)
        }
    }

    /// Tells the reconciler of a verdict it does not know; false when its channel is full. The
    /// verdict it reads changes in the same step.
    fn tell(&self, uid: &str) -> bool {
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(uid) else {
            return true;
        };
        let verdict = entry.standing.verdict();
        if entry.told == *verdict {
            return true;
        }
        let now = self.clock.elapsed();
        let pause = |told: Duration| now.saturating_sub(told) < FLAPPING_PAUSE;
        if (verdict.flapping || entry.told.flapping) && entry.told_at.is_some_and(pause) {
            return false;
        }
        let told = self
            .transitions
            .try_send(entry.target.proxy.clone())
            .is_ok();
        if told {
            entry.told = entry.standing.verdict().clone();
            entry.told_at = Some(now);
        }
        told
    }
}

fn thresholds(target: &Target) -> Thresholds {
    Thresholds {
        failures: target.check.failure_threshold,
        successes: target.check.success_threshold,
        patience: target.patience,
    }
}

fn control_failed(url: &Url) -> Hold {
    Hold {
        reason: REASON_CONTROL_PROBE_FAILED.into(),
        message: format!(
            "{url} cannot be reached without the proxy either: look at that target and at the \
             operator's own network"
        ),
    }
}

/// Whether most of the proxies that use a Secret fail. Why no numbers in the message: it would
/// change with every one of them.
fn vendor_failing(
    entries: &HashMap<String, Entry>,
    namespace: Option<&str>,
    secret: &str,
) -> Option<Hold> {
    let (mut all, mut failing) = (0, 0);
    for entry in entries.values() {
        if entry.target.secret.as_deref() == Some(secret)
            && entry.target.proxy.namespace.as_deref() == namespace
        {
            all += 1;
            failing += usize::from(entry.standing.verdict().healthy == Some(false));
        }
    }
    (all >= VENDOR_MINIMUM && failing * 2 > all).then(|| Hold {
        reason: REASON_VENDOR_FAILING.into(),
        message: format!(
            "more than half of the proxies that use Secret {secret} fail: look at the account and \
             the vendor before the proxies"
        ),
    })
}

fn labels(target: &Target) -> Labels<'_> {
    Labels {
        namespace: target.proxy.namespace.as_deref().unwrap_or_default(),
        name: &target.proxy.name,
    }
}
