//! What the cluster's API server publishes about itself in ConfigMap
//! `kube-system/extension-apiserver-authentication`: the CA of its clients, the CA of its front
//! proxy, and the headers that the front proxy sets.
//!
//! [`DelegatedConfig`] holds the current state; [`DelegatedConfig::run`] follows the ConfigMap.
//! The authenticators read it at every request and the TLS layer at every handshake, so a
//! rotation needs no restart.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use arc_swap::{ArcSwap, Guard};
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    runtime::{WatchStreamExt, watcher},
};
use runtime_kit::{Clock, chain};
use tokio::{sync::watch, time::MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::trust::{PROXY_CA, Trust, read};

const NAMESPACE: &str = "kube-system";
const NAME: &str = "extension-apiserver-authentication";
/// The ConfigMap is read this often even when the watch says nothing.
const REREAD: Duration = Duration::from_mins(1);

/// How far following the ConfigMap has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigState {
    /// Nothing is known yet: not ready.
    Pending,
    /// The ConfigMap was read.
    Loaded,
    /// There is no such ConfigMap: callers are authenticated by token only.
    Absent,
    /// This server may not read it: not ready.
    Forbidden,
    /// The API server could not be asked: not ready.
    Unreachable(String),
}

impl ConfigState {
    /// Whether requests can be authenticated as well as they ever will be.
    pub fn is_settled(&self) -> bool {
        matches!(self, Self::Loaded | Self::Absent)
    }
}

/// The trust in force, and its changes.
#[derive(Debug)]
pub struct DelegatedConfig {
    trust: ArcSwap<Trust>,
    revision: watch::Sender<u64>,
    state: watch::Sender<ConfigState>,
    clock: Arc<dyn Clock>,
}

impl DelegatedConfig {
    fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            trust: ArcSwap::default(),
            revision: watch::Sender::new(0),
            state: watch::Sender::new(ConfigState::Pending),
        }
    }

    /// Nobody trusted yet, for [`DelegatedConfig::run`] to fill; certificates are valid or not by
    /// the wall time of `clock`.
    pub fn pending(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self::new(clock))
    }

    /// A trust that comes from elsewhere than the ConfigMap.
    pub fn fixed(trust: Trust, clock: Arc<dyn Clock>) -> Arc<Self> {
        let config = Self::new(clock);
        config.replace(trust);
        config.state.send_replace(ConfigState::Loaded);
        Arc::new(config)
    }

    /// The trust in force.
    pub fn trust(&self) -> Guard<Arc<Trust>> {
        self.trust.load()
    }

    /// How far the ConfigMap is known; for `readyz`.
    pub fn state(&self) -> ConfigState {
        self.state.borrow().clone()
    }

    /// Notifies of every change of the trust.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    /// Waits until [`ConfigState::is_settled`].
    pub async fn settled(&self) {
        let mut state = self.state.subscribe();
        if state.wait_for(ConfigState::is_settled).await.is_err() {
            // The sender is a field of self, which is borrowed here.
            std::future::pending::<()>().await;
        }
    }

    /// Puts another trust into force.
    pub fn replace(&self, trust: Trust) {
        self.trust.store(Arc::new(trust));
        self.revision.send_modify(|revision| *revision += 1);
    }

    /// Follows the ConfigMap until `stop`. Never gives up: a cluster that forbids the read today
    /// may allow it tomorrow, and meanwhile [`DelegatedConfig::state`] says why.
    pub async fn run(&self, client: Client, stop: CancellationToken) {
        let api: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
        // Why: the Role grants this one name, which for list and watch means a field selector.
        let only_ours = watcher::Config::default().fields(&format!("metadata.name={NAME}"));
        let mut events = watcher(api.clone(), only_ours).default_backoff().boxed();
        let mut reread = tokio::time::interval(REREAD);
        reread.set_missed_tick_behavior(MissedTickBehavior::Delay);
        reread.reset();
        let mut listed = false;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                event = events.next() => match event {
                    None => return,
                    Some(Ok(watcher::Event::Init)) => listed = false,
                    Some(Ok(watcher::Event::InitApply(map) | watcher::Event::Apply(map))) => {
                        listed = true;
                        self.load(&map);
                    },
                    Some(Ok(watcher::Event::InitDone)) if listed => {},
                    Some(Ok(watcher::Event::InitDone | watcher::Event::Delete(_))) => {
                        self.set_absent();
                    },
                    Some(Err(err)) => self.set_failed(&err, watch_is_forbidden(&err)),
                },
                _ = reread.tick() => match api.get_opt(NAME).await {
                    Ok(Some(map)) => self.load(&map),
                    Ok(None) => self.set_absent(),
                    Err(err) => self.set_failed(&err, is_forbidden(&err)),
                },
            }
        }
    }

    fn load(&self, map: &ConfigMap) {
        let empty = BTreeMap::new();
        let before = self.trust.load_full();
        let after = read(map.data.as_ref().unwrap_or(&empty), &before, &self.clock);
        if !before.is_same(&after) {
            tracing::info!(
                client_ca = after.client_ca.is_some(),
                front_proxy = after.request_header.is_some(),
                "{NAMESPACE}/{NAME} read"
            );
            if after.request_header.is_none() {
                tracing::warn!(
                    "{NAMESPACE}/{NAME} has no {PROXY_CA}: requests that come through the \
                     aggregator cannot be authenticated; set --requestheader-client-ca-file on \
                     kube-apiserver"
                );
            }
            self.replace(after);
        }
        self.enter(ConfigState::Loaded);
    }

    fn set_absent(&self) {
        if self.enter(ConfigState::Absent) {
            tracing::warn!(
                "ConfigMap {NAMESPACE}/{NAME} does not exist: what was known of client \
                 certificates and of the front proxy stays in force, new ones are not learnt; \
                 kube-apiserver writes it at its start"
            );
        }
    }

    fn set_failed(&self, err: &(dyn std::error::Error + 'static), forbidden: bool) {
        // Why: what was loaded stays in force, and a watch that breaks must not turn readyz red.
        if self.state.borrow().is_settled() {
            tracing::debug!(error = %chain(err), "{NAMESPACE}/{NAME} cannot be followed at the moment");
            return;
        }
        if !forbidden {
            if self.enter(ConfigState::Unreachable(chain(err).to_string())) {
                tracing::warn!(error = %chain(err), "{NAMESPACE}/{NAME} cannot be read, trying again");
            }
        } else if self.enter(ConfigState::Forbidden) {
            tracing::error!(
                "this server may not read ConfigMap {NAMESPACE}/{NAME}, without which nobody is \
                 authenticated through the aggregator; grant it: kubectl create rolebinding \
                 --namespace {NAMESPACE} NAME --role=extension-apiserver-authentication-reader \
                 --serviceaccount=NAMESPACE:SERVICEACCOUNT"
            );
        }
    }

    /// Changes the state; whether it was another before.
    fn enter(&self, next: ConfigState) -> bool {
        self.state.send_if_modified(|state| {
            let changed = *state != next;
            *state = next;
            changed
        })
    }
}

fn is_forbidden(err: &kube::Error) -> bool {
    matches!(err, kube::Error::Api(status) if status.code == 403)
}

fn watch_is_forbidden(err: &watcher::Error) -> bool {
    match err {
        watcher::Error::InitialListFailed(err)
        | watcher::Error::WatchStartFailed(err)
        | watcher::Error::WatchFailed(err) => is_forbidden(err),
        watcher::Error::WatchError(status) => status.code == 403,
        watcher::Error::NoResourceVersion => false,
    }
}

#[cfg(test)]
mod tests;
