//! Pods, by their metadata: when one is deleted or completes, its leases end.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod as KubePod;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client};
use runtime_kit::admin::ReadyFlag;

use super::{Input, follow};
use crate::allocator::leases::LeaseKey;
use crate::known::{Known, Pod, Watched};
use crate::tasks::{Desk, Error};

/// Pods that have not ended. One that completes leaves the selection, which a watch shows as its
/// deletion.
const RUNNING: &str = "status.phase!=Succeeded,status.phase!=Failed";
/// How often leases are compared with the pods known.
const SWEEP: Duration = Duration::from_secs(30);

/// Ends the leases of pods that end.
pub struct PodInput {
    desk: Desk,
    known: Arc<Known>,
    listed: HashMap<Arc<str>, Pod>,
}

/// Ends leases of pods that ended unseen: before the watch knew them.
pub struct PodSweep {
    desk: Desk,
    known: Arc<Known>,
}

// === impl PodInput ===

impl PodInput {
    /// Ends leases through `desk`.
    pub fn new(desk: Desk, known: Arc<Known>) -> Self {
        Self {
            desk,
            known,
            listed: HashMap::new(),
        }
    }

    /// Follows all pods for ever.
    pub async fn run(self, client: Client, ready: ReadyFlag) {
        let api: Api<PartialObjectMeta<KubePod>> = Api::all(client);
        let config = watcher::Config::default().fields(RUNNING);
        follow(watcher(api, config), self, ready).await;
    }
}

impl Input<PartialObjectMeta<KubePod>> for PodInput {
    const WHAT: &'static str = "pods";

    async fn seen(&mut self, pod: PartialObjectMeta<KubePod>) {
        let Some(uid) = pod.metadata.uid.as_deref().map(Arc::from) else {
            return;
        };
        let pod = Pod {
            namespace: pod.metadata.namespace.unwrap_or_default(),
            name: pod.metadata.name.unwrap_or_default(),
        };
        self.listed.insert(Arc::clone(&uid), pod.clone());
        self.known.set_pod(&uid, Some(pod));
    }

    async fn gone(&mut self, pod: PartialObjectMeta<KubePod>) {
        let Some(uid) = pod.metadata.uid.as_deref().map(Arc::from) else {
            return;
        };
        self.known.set_pod(&uid, None);
        self.desk.end_leases_of(&uid).await;
    }

    fn listing(&mut self) {
        self.listed.clear();
    }

    async fn listed(&mut self) {
        self.known.replace_pods(std::mem::take(&mut self.listed));
        // Why: a lease of a pod that was read live and is not in this list yet must stay; the
        // sweep ends those of pods that do not appear.
    }

    fn watched(&self, watched: Watched) {
        self.known.set_pods_watched(watched);
    }
}

// === impl PodSweep ===

impl PodSweep {
    /// Ends leases through `desk`.
    pub fn new(desk: Desk, known: Arc<Known>) -> Self {
        Self { desk, known }
    }

    /// Runs for ever. A pod that two sweeps in a row do not know is gone; the first sweep after
    /// the start counts for both, since leases from before the start name pods of before the start.
    pub async fn run(self) {
        let mut missing: HashSet<Arc<str>> = self.desk.allocator.pods().into_iter().collect();
        while !self.known.pods_synced() {
            self.desk.clock.sleep(Duration::from_millis(100)).await;
        }
        loop {
            if self.known.pods_synced() {
                let unknown: HashSet<_> = self
                    .desk
                    .allocator
                    .pods()
                    .into_iter()
                    .filter(|uid| !self.known.has_pod(uid))
                    .collect();
                for uid in unknown.intersection(&missing) {
                    self.desk.end_leases_of(uid).await;
                }
                missing = unknown;
            }
            self.desk.clock.sleep(SWEEP).await;
        }
    }
}

// === impl Desk ===

impl Desk {
    /// Deletes the leases of a pod that ended. What fails is tried again by the sweep.
    async fn end_leases_of(&self, pod_uid: &Arc<str>) {
        for key in self.allocator.leases_of_pod(pod_uid) {
            match self.end_lease_of(&key, pod_uid).await {
                Ok(()) => tracing::debug!(
                    namespace = %key.namespace, lease = %key.name, %pod_uid, "its pod has ended"
                ),
                Err(error) => tracing::warn!(
                    error = %runtime_kit::chain(&error), namespace = %key.namespace,
                    lease = %key.name, %pod_uid, "a lease outlives its pod for now"
                ),
            }
        }
    }

    async fn end_lease_of(&self, key: &LeaseKey, pod_uid: &str) -> Result<(), Error> {
        loop {
            let lease = self.leases.get_latest(&key.namespace, &key.name).await?;
            let still_its = lease.filter(|lease| {
                let holder = lease
                    .status
                    .as_ref()
                    .and_then(|status| status.holder.as_ref());
                lease.metadata.uid.as_deref() == Some(&*key.uid)
                    && holder.is_some_and(|holder| holder.pod_uid.as_deref() == Some(pod_uid))
            });
            let Some(lease) = still_its else {
                return Ok(());
            };
            if self.remove(&lease).await? {
                return Ok(());
            }
        }
    }
}
