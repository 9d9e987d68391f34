//! Proxies and pools, as they are told to the allocator.

use std::collections::HashSet;
use std::sync::Arc;

use crawl_api::pool::ProxyPool;
use crawl_api::proxy::Proxy;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client};
use runtime_kit::admin::ReadyFlag;
use runtime_kit::clock::Clock;

use super::{Input, follow};
use crate::allocator::Allocator;
use crate::allocator::facts::{PoolFacts, PoolKey, ProxyFacts};
use crate::known::{Known, Watched};
use crate::status::REASON_PROXY_GONE;
use crate::tasks::Desk;

/// Tells the allocator of proxies.
pub struct ProxyInput {
    desk: Desk,
    known: Arc<Known>,
    listed: HashSet<Arc<str>>,
}

/// Tells the allocator of pools.
pub struct PoolInput {
    allocator: Arc<Allocator>,
    known: Arc<Known>,
    listed: HashSet<PoolKey>,
}

// === impl ProxyInput ===

impl ProxyInput {
    /// Tells the allocator of `desk`.
    pub fn new(desk: Desk, known: Arc<Known>) -> Self {
        Self {
            desk,
            known,
            listed: HashSet::new(),
        }
    }

    /// Follows all proxies for ever.
    pub async fn run(self, client: Client, ready: ReadyFlag) {
        let api: Api<Proxy> = Api::all(client);
        follow(watcher(api, watcher::Config::default()), self, ready).await;
    }
}

impl Input<Proxy> for ProxyInput {
    const WHAT: &'static str = "proxies";

    async fn seen(&mut self, proxy: Proxy) {
        let Some(uid) = proxy.metadata.uid.as_deref() else {
            return;
        };
        let allocator = &self.desk.allocator;
        let known = allocator.fate_of(uid);
        let facts = ProxyFacts::of(&proxy, known.as_ref(), self.desk.clock.now());
        if let Some(facts) = facts {
            self.listed.insert(Arc::clone(&facts.uid));
            allocator.observe_proxy(facts);
        } else {
            tracing::warn!(uid, "a proxy without name or version was ignored");
        }
    }

    async fn gone(&mut self, proxy: Proxy) {
        if let Some(uid) = &proxy.metadata.uid {
            self.desk.allocator.forget_proxy(uid, REASON_PROXY_GONE);
        }
    }

    fn listing(&mut self) {
        self.listed.clear();
    }

    async fn listed(&mut self) {
        for uid in self.desk.allocator.proxy_uids() {
            if !self.listed.contains(&uid) {
                self.desk.allocator.forget_proxy(&uid, REASON_PROXY_GONE);
            }
        }
        self.listed.clear();
        if let Err(error) = self.desk.drop_stale_endpoints().await {
            tracing::warn!(error = %runtime_kit::chain(&error), "stale proxyendpoints stay");
        }
    }

    fn watched(&self, watched: Watched) {
        self.known.set_proxies(watched);
    }
}

// === impl PoolInput ===

impl PoolInput {
    /// Tells `allocator` and `known`.
    pub fn new(allocator: Arc<Allocator>, known: Arc<Known>) -> Self {
        Self {
            allocator,
            known,
            listed: HashSet::new(),
        }
    }

    /// Follows all pools for ever.
    pub async fn run(self, client: Client, ready: ReadyFlag) {
        let api: Api<ProxyPool> = Api::all(client);
        follow(watcher(api, watcher::Config::default()), self, ready).await;
    }
}

fn key_of(pool: &ProxyPool) -> Option<PoolKey> {
    Some(PoolKey {
        namespace: pool.metadata.namespace.as_deref()?.into(),
        name: pool.metadata.name.as_deref()?.into(),
    })
}

impl Input<ProxyPool> for PoolInput {
    const WHAT: &'static str = "proxypools";

    async fn seen(&mut self, pool: ProxyPool) {
        let Some(key) = key_of(&pool) else { return };
        self.allocator
            .observe_pool(&key, Some(PoolFacts::of(&pool)));
        self.known.set_pool(&key, Some(pool));
        self.listed.insert(key);
    }

    async fn gone(&mut self, pool: ProxyPool) {
        if let Some(key) = key_of(&pool) {
            self.allocator.observe_pool(&key, None);
            self.known.set_pool(&key, None);
        }
    }

    fn listing(&mut self) {
        self.listed.clear();
    }

    async fn listed(&mut self) {
        for key in self.known.pool_keys() {
            if !self.listed.contains(&key) {
                self.allocator.observe_pool(&key, None);
                self.known.set_pool(&key, None);
            }
        }
        self.listed.clear();
    }

    fn watched(&self, watched: Watched) {
        self.known.set_pools_watched(watched);
    }
}
