//! Questions to the API server itself, for what the watches do not know (yet).

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use crawl_api::pool::ProxyPool;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{Api, Client};

use crate::allocator::facts::PoolKey;
use crate::known::{AskError, Cluster};

/// Longest wait for an answer: clients wait for theirs meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);

/// The cluster behind a client.
#[derive(Clone)]
pub struct LiveCluster(Client);

// === impl LiveCluster ===

impl LiveCluster {
    /// Asks through `client`, which should not retry.
    pub fn new(client: Client) -> Self {
        Self(client)
    }
}

async fn ask<T>(
    what: String,
    question: impl Future<Output = kube::Result<Option<T>>>,
) -> Result<Option<T>, AskError> {
    match tokio::time::timeout(PATIENCE, question).await {
        Ok(Ok(answer)) => Ok(answer),
        // Why: a kind that is not installed has no objects.
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(None),
        Ok(Err(error)) => Err(AskError {
            what,
            source: Box::new(error),
        }),
        Err(late) => Err(AskError {
            what,
            source: Box::new(late),
        }),
    }
}

#[async_trait]
impl Cluster for LiveCluster {
    async fn running_pod(&self, namespace: &str, name: &str) -> Result<Option<String>, AskError> {
        let api: Api<Pod> = Api::namespaced(self.0.clone(), namespace);
        let pod = ask(format!("pod {namespace}/{name}"), api.get_opt(name)).await?;
        Ok(pod.and_then(|pod| {
            let phase = pod
                .status
                .as_ref()
                .and_then(|status| status.phase.as_deref());
            let ended = matches!(phase, Some("Succeeded" | "Failed"));
            pod.metadata.uid.filter(|_| !ended)
        }))
    }

    async fn pool(&self, key: &PoolKey) -> Result<Option<ProxyPool>, AskError> {
        let api: Api<ProxyPool> = Api::namespaced(self.0.clone(), &key.namespace);
        let what = format!("pool {}/{}", key.namespace, key.name);
        ask(what, api.get_opt(&key.name)).await
    }

    async fn namespace_labels(&self, name: &str) -> Result<BTreeMap<String, String>, AskError> {
        let api: Api<Namespace> = Api::all(self.0.clone());
        let namespace = ask(format!("namespace {name}"), api.get_opt(name)).await?;
        Ok(namespace
            .and_then(|namespace| namespace.metadata.labels)
            .unwrap_or_default())
    }
}
