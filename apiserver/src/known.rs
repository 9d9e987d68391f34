//! What is known of the cluster around the leases: pools, pods, and whether the watches have seen
//! everything once. Written by `inputs` and `pods`, read by the rules.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use crawl_api::pool::ProxyPool;
use parking_lot::RwLock;

use crate::allocator::facts::PoolKey;

/// How far the watch of a kind is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Watched {
    /// Nothing was seen yet.
    #[default]
    Starting,
    /// The API server does not know the kind.
    NotInstalled,
    /// Everything was seen at least once.
    Synced,
}

/// A pod that runs, as far as the watch knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// What is known.
#[derive(Debug, Default)]
pub struct Known {
    proxies: RwLock<Watched>,
    pools_watched: RwLock<Watched>,
    pods_watched: RwLock<Watched>,
    pools: RwLock<HashMap<PoolKey, Arc<ProxyPool>>>,
    pods: RwLock<HashMap<Arc<str>, Pod>>,
}

/// Why the cluster could not be asked.
#[derive(Debug, thiserror::Error)]
#[error("the API server could not be asked for {what}")]
pub struct AskError {
    /// What for.
    pub what: String,
    /// What failed.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// Live questions, for what the watches do not (yet) know.
#[async_trait]
pub trait Cluster: Send + Sync {
    /// Uid of the pod of a name, if there is one that has not ended.
    async fn running_pod(&self, namespace: &str, name: &str) -> Result<Option<String>, AskError>;

    /// A pool.
    async fn pool(&self, key: &PoolKey) -> Result<Option<ProxyPool>, AskError>;

    /// Labels of a namespace; empty when it does not exist.
    async fn namespace_labels(&self, name: &str) -> Result<BTreeMap<String, String>, AskError>;
}

// === impl Known ===

impl Known {
    /// Whether proxies and pools are known: the least of the two.
    pub fn fleet(&self) -> Watched {
        match (*self.proxies.read(), *self.pools_watched.read()) {
            (Watched::NotInstalled, _) | (_, Watched::NotInstalled) => Watched::NotInstalled,
            (Watched::Starting, _) | (_, Watched::Starting) => Watched::Starting,
            (Watched::Synced, Watched::Synced) => Watched::Synced,
        }
    }

    /// Whether pods are known.
    pub fn pods_synced(&self) -> bool {
        *self.pods_watched.read() == Watched::Synced
    }

    /// Takes note of the watch of proxies.
    pub fn set_proxies(&self, watched: Watched) {
        *self.proxies.write() = watched;
    }

    /// Takes note of the watch of pools.
    pub fn set_pools_watched(&self, watched: Watched) {
        *self.pools_watched.write() = watched;
    }

    /// Takes note of the watch of pods.
    pub fn set_pods_watched(&self, watched: Watched) {
        *self.pods_watched.write() = watched;
    }

    /// A pool, if it is known.
    pub fn pool(&self, key: &PoolKey) -> Option<Arc<ProxyPool>> {
        self.pools.read().get(key).cloned()
    }

    /// All pools known.
    pub fn pool_keys(&self) -> Vec<PoolKey> {
        self.pools.read().keys().cloned().collect()
    }

    /// Takes note of a pool; `None`: it is gone.
    pub fn set_pool(&self, key: &PoolKey, pool: Option<ProxyPool>) {
        let mut pools = self.pools.write();
        match pool {
            Some(pool) => pools.insert(key.clone(), Arc::new(pool)),
            None => pools.remove(key),
        };
    }

    /// Whether this very pod runs, as far as the watch knows.
    pub fn pod_runs(&self, namespace: &str, name: &str, uid: &str) -> bool {
        let pods = self.pods.read();
        pods.get(uid)
            .is_some_and(|pod| (&*pod.namespace, &*pod.name) == (namespace, name))
    }

    /// Whether a pod of this uid runs, as far as the watch knows.
    pub fn has_pod(&self, uid: &str) -> bool {
        self.pods.read().contains_key(uid)
    }

    /// Takes note of a pod; `None`: it ended.
    pub fn set_pod(&self, uid: &Arc<str>, pod: Option<Pod>) {
        let mut pods = self.pods.write();
        match pod {
            Some(pod) => pods.insert(Arc::clone(uid), pod),
            None => pods.remove(uid),
        };
    }

    /// All pods, anew.
    pub fn replace_pods(&self, pods: HashMap<Arc<str>, Pod>) {
        *self.pods.write() = pods;
    }
}
