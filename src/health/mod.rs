//! The health engine: sends real traffic through every proxy and decides whether it works.
//!
//! It owns health *state*; the Proxy reconciler owns its *representation*. The reconciler tells the
//! engine what to probe ([`Engine::upsert`], [`Engine::remove`]) and reads [`Engine::verdict`];
//! the engine pokes the reconciler through [`Transitions`] when a verdict has changed. The engine
//! writes nothing to Kubernetes and reads nothing from it.

mod target;

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;

use crawl_api::proxy::Proxy;
use kube::runtime::reflector::ObjectRef;
use parking_lot::Mutex;
use prometheus::Registry;
use runtime_kit::Clock;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub use self::target::{Credentials, Target, Verdict};

/// How many changed verdicts may wait for the reconciler. When it is full, a change counts as not
/// reported and is sent again.
const TRANSITIONS_BUFFER: usize = 1024;

/// The flags of the health engine.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Config {}

/// Proxies whose verdict has changed.
pub type Transitions = mpsc::Receiver<ObjectRef<Proxy>>;

/// The health engine. Clones share one state.
#[derive(Clone)]
pub struct Engine {
    targets: Arc<Mutex<HashMap<String, Target>>>,
    _transitions: mpsc::Sender<ObjectRef<Proxy>>,
}

// === impl Engine ===

impl Engine {
    /// An engine that probes nothing until [`Self::run`] runs.
    ///
    /// # Errors
    /// A metric of the same name is registered already.
    pub fn new(
        clock: Arc<dyn Clock>,
        metrics: &Registry,
        config: Config,
    ) -> Result<(Self, Transitions), prometheus::Error> {
        let (transitions, receiver) = mpsc::channel(TRANSITIONS_BUFFER);
        let _unused = (clock, metrics, config);
        Ok((
            Self {
                targets: Arc::default(),
                _transitions: transitions,
            },
            receiver,
        ))
    }

    /// Adds a target, or changes how it is probed. Called on every reconcile: an equal target
    /// changes nothing and resets no counter; a changed endpoint is a new proxy to the engine.
    pub fn upsert(&self, target: Target) {
        self.targets.lock().insert(target.uid.clone(), target);
    }

    /// Forgets a target and its metrics.
    pub fn remove(&self, uid: &str) {
        self.targets.lock().remove(uid);
    }

    /// What is known of a target. The value changes only together with a message on
    /// [`Transitions`], so the reconciler can copy it into status as it is.
    pub fn verdict(&self, uid: &str) -> Option<Verdict> {
        self.targets.lock().get(uid)?.seed.clone()
    }

    /// Probes until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Infallible> {
        shutdown.cancelled().await;
        Ok(())
    }
}
