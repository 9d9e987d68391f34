//! NamespaceLifecycle: nothing is created in a namespace that does not exist or is going away.
//! Without it objects appear behind the namespace controller's back and leak, or block deletion.
//!
//! Called for creates only; updates and deletes are always allowed.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client, ResourceExt,
    runtime::{WatchStreamExt, watcher},
};
use parking_lot::RwLock;
use runtime_kit::chain;
use thiserror::Error;
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;

/// A namespace that was created a moment ago gets this long to arrive on the watch.
const GRACE: Duration = Duration::from_millis(50);
/// Limit of the live read.
const LIVE_READ: Duration = Duration::from_secs(10);

/// Why nothing may be created in a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NamespaceError {
    /// There is no such namespace: 404 for `namespaces "x"`.
    #[error("namespace {0} does not exist")]
    NotFound(String),
    /// It is being deleted: 403 with cause `NamespaceTerminating` at `metadata.namespace`.
    #[error("namespace {0} is being terminated")]
    Terminating(String),
    /// It is not known here and the API server could not be asked: 500.
    #[error("namespace {namespace} could not be looked up: {cause}")]
    Unavailable {
        /// Name of the namespace.
        namespace: String,
        /// Why it failed, for the log.
        cause: Arc<str>,
    },
}

/// Says whether objects may be created in a namespace.
#[async_trait]
pub trait NamespaceLifecycle: Send + Sync {
    /// Checks `namespace` for a create.
    ///
    /// # Errors
    /// [`NamespaceError`] when the create must be refused.
    async fn check_create(&self, namespace: &str) -> Result<(), NamespaceError>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Active,
    Terminating,
}

impl Phase {
    fn of(namespace: &Namespace) -> Self {
        let terminating = namespace.metadata.deletion_timestamp.is_some()
            || namespace
                .status
                .as_ref()
                .and_then(|status| status.phase.as_deref())
                .is_some_and(|phase| phase == "Terminating");
        if terminating {
            Self::Terminating
        } else {
            Self::Active
        }
    }

    fn check(self, namespace: &str) -> Result<(), NamespaceError> {
        match self {
            Self::Active => Ok(()),
            Self::Terminating => Err(NamespaceError::Terminating(namespace.to_owned())),
        }
    }
}

/// The cluster's namespaces, followed by a watch; only names and phases are kept.
pub struct KubeNamespaces {
    api: Api<Namespace>,
    known: RwLock<HashMap<String, Phase>>,
    changes: watch::Sender<u64>,
    synced: AtomicBool,
}

impl KubeNamespaces {
    /// Knows nothing until [`KubeNamespaces::run`] runs; every check is a live read until then.
    pub fn new(client: Client) -> Arc<Self> {
        Arc::new(Self {
            api: Api::all(client),
            known: RwLock::default(),
            changes: watch::Sender::new(0),
            synced: AtomicBool::new(false),
        })
    }

    /// Whether the namespaces have been listed; for `readyz`.
    pub fn is_synced(&self) -> bool {
        self.synced.load(Ordering::Acquire)
    }

    /// Follows the namespaces until `stop`.
    pub async fn run(&self, stop: CancellationToken) {
        let mut events = watcher(self.api.clone(), watcher::Config::default())
            .default_backoff()
            .boxed();
        let mut listing = HashMap::new();
        let mut failing = false;
        loop {
            let event = tokio::select! {
                () = stop.cancelled() => return,
                event = events.next() => event,
            };
            let event = match event {
                None => return,
                Some(Ok(event)) => event,
                Some(Err(err)) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(
                            error = %chain(&err),
                            "namespaces cannot be followed, trying again; creates read them one \
                             by one meanwhile (needed: get, list and watch on namespaces)"
                        );
                    }
                    continue;
                },
            };
            failing = false;
            match event {
                watcher::Event::Init => listing = HashMap::new(),
                watcher::Event::InitApply(namespace) => {
                    listing.insert(namespace.name_any(), Phase::of(&namespace));
                },
                watcher::Event::InitDone => {
                    *self.known.write() = std::mem::take(&mut listing);
                    self.synced.store(true, Ordering::Release);
                },
                watcher::Event::Apply(namespace) => {
                    let phase = Phase::of(&namespace);
                    self.known.write().insert(namespace.name_any(), phase);
                },
                watcher::Event::Delete(namespace) => {
                    self.known.write().remove(&namespace.name_any());
                },
            }
            self.changes
                .send_modify(|changes| *changes = changes.wrapping_add(1));
        }
    }

    fn known(&self, namespace: &str) -> Option<Phase> {
        self.known.read().get(namespace).copied()
    }

    /// Gives the watch a moment to deliver a namespace that is not known.
    async fn wait_for(&self, namespace: &str) -> Option<Phase> {
        let mut changes = self.changes.subscribe();
        timeout(GRACE, async {
            loop {
                if let Some(phase) = self.known(namespace) {
                    return Some(phase);
                }
                if changes.changed().await.is_err() {
                    return None;
                }
            }
        })
        .await
        .unwrap_or_default()
    }

    async fn read_live(&self, namespace: &str) -> Result<Phase, NamespaceError> {
        let unavailable = |cause: String| NamespaceError::Unavailable {
            namespace: namespace.to_owned(),
            cause: cause.into(),
        };
        match timeout(LIVE_READ, self.api.get_opt(namespace)).await {
            Ok(Ok(Some(found))) => Ok(Phase::of(&found)),
            Ok(Ok(None)) => Err(NamespaceError::NotFound(namespace.to_owned())),
            Ok(Err(err)) => Err(unavailable(chain(&err).to_string())),
            Err(_) => Err(unavailable(
                "the API server did not answer in time".to_owned(),
            )),
        }
    }
}

#[async_trait]
impl NamespaceLifecycle for KubeNamespaces {
    async fn check_create(&self, namespace: &str) -> Result<(), NamespaceError> {
        if let Some(phase) = self.known(namespace) {
            return phase.check(namespace);
        }
        if let Some(phase) = self.wait_for(namespace).await {
            return phase.check(namespace);
        }
        self.read_live(namespace).await?.check(namespace)
    }
}

/// A set of namespaces, for tests and for servers without a cluster.
#[derive(Debug, Default)]
pub struct StaticNamespaces {
    phases: RwLock<HashMap<String, Phase>>,
    everything: bool,
}

impl StaticNamespaces {
    /// Every namespace exists, except those marked otherwise.
    pub fn all() -> Self {
        Self {
            everything: true,
            ..Self::default()
        }
    }

    /// These namespaces exist.
    pub fn of<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let namespaces = Self::default();
        for name in names {
            namespaces.set_active(name);
        }
        namespaces
    }

    /// Adds a namespace.
    pub fn set_active(&self, name: &str) {
        self.phases.write().insert(name.to_owned(), Phase::Active);
    }

    /// Marks a namespace as going away.
    pub fn set_terminating(&self, name: &str) {
        self.phases
            .write()
            .insert(name.to_owned(), Phase::Terminating);
    }

    /// Removes a namespace that was added.
    pub fn remove(&self, name: &str) {
        self.phases.write().remove(name);
    }
}

#[async_trait]
impl NamespaceLifecycle for StaticNamespaces {
    async fn check_create(&self, namespace: &str) -> Result<(), NamespaceError> {
        match self.phases.read().get(namespace) {
            Some(phase) => phase.check(namespace),
            None if self.everything => Ok(()),
            None => Err(NamespaceError::NotFound(namespace.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests;
