//! The server without a network, a cluster that is a few tables, and callers by name.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "helpers of tests; not every test file uses all of them"
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aggregated_api::admission::StaticNamespaces;
use aggregated_api::auth::testing::{ListAuthorizer, Pattern};
use aggregated_api::auth::{AuthError, Authenticator, User};
use aggregated_api::http::service::ApiServer;
use aggregated_api::store::redb::{Options, RedbStore};
use aggregated_api::store::{Event, Store};
use async_trait::async_trait;
use bytes::Bytes;
use crawl_api::pool::ProxyPool;
use crawl_api::proxy::NotAccepting;
use futures::StreamExt;
use http::{Request, request};
use http_body_util::{BodyExt, Full};
use lease_apiserver::allocator::facts::{Fate, PoolKey, ProxyFacts};
use lease_apiserver::allocator::record::{GrantsRecord, PREFIX};
use lease_apiserver::allocator::testing;
use lease_apiserver::app::{self, Parts, Trust};
use lease_apiserver::known::{AskError, Cluster, Known, Pod, Watched};
use lease_apiserver::tasks::Desk;
use prometheus::Registry;
use prometheus::proto::{Counter, Metric, MetricFamily};
use runtime_kit::admin::Health;
use runtime_kit::clock::Clock;
use runtime_kit::{SteppedClock, Supervisor};
use serde_json::{Value, json};
use tower::ServiceExt;

const DEADLINE: Duration = Duration::from_secs(20);
const LEASES: &str = "/apis/leases.crawl.example.com/v1alpha1/namespaces/crawlers/proxyleases";
const VIEWS: &str = "/apis/leases.crawl.example.com/v1alpha1/namespaces/crawlers/proxyendpoints";

/// Who calls.
#[derive(Clone, Copy)]
pub struct Caller {
    name: &'static str,
    pod: Option<(&'static str, &'static str)>,
}

impl Caller {
    pub const fn named(name: &'static str) -> Self {
        Self { name, pod: None }
    }

    /// With a token that is bound to a pod.
    pub const fn in_pod(self, name: &'static str, uid: &'static str) -> Self {
        Self {
            pod: Some((name, uid)),
            ..self
        }
    }
}

/// Believes the request.
struct Believer;

#[async_trait]
impl Authenticator for Believer {
    async fn authenticate(&self, req: &request::Parts) -> Result<Option<User>, AuthError> {
        let header = |name| req.headers.get(name).and_then(|value| value.to_str().ok());
        let mut extra = BTreeMap::new();
        for (header_name, key) in [("x-pod", "pod-name"), ("x-pod-uid", "pod-uid")] {
            if let Some(value) = header(header_name) {
                let key = format!("authentication.kubernetes.io/{key}");
                extra.insert(key, vec![value.to_owned()]);
            }
        }
        Ok(header("x-user").map(|name| User {
            name: name.to_owned(),
            extra,
            ..User::default()
        }))
    }
}

/// A cluster in which nothing exists that the watches do not know.
struct NoCluster;

#[async_trait]
impl Cluster for NoCluster {
    async fn running_pod(&self, _: &str, _: &str) -> Result<Option<String>, AskError> {
        Ok(None)
    }

    async fn pool(&self, _: &PoolKey) -> Result<Option<ProxyPool>, AskError> {
        Ok(None)
    }

    async fn namespace_labels(&self, _: &str) -> Result<BTreeMap<String, String>, AskError> {
        Ok(BTreeMap::new())
    }
}

#[derive(Clone)]
pub struct Server {
    service: ApiServer,
    desk: Desk,
    known: Arc<Known>,
    pub clock: SteppedClock,
    registry: Registry,
    _tasks: Arc<Supervisor>,
}

/// A lease object of the namespace `crawlers`.
pub fn lease(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "leases.crawl.example.com/v1alpha1", "kind": "ProxyLease",
        "metadata": {"name": name}, "spec": spec,
    })
}

impl Server {
    /// Everybody may do everything, except that only `manager` may `manage`.
    pub async fn start() -> Self {
        let store = Arc::new(RedbStore::in_memory(Options::default()).unwrap());
        Self::start_on(store, SteppedClock::default()).await
    }

    /// Another process on the same store, which starts this much later. The first must be left
    /// alone from then on; its clock stands still.
    pub async fn restarted(&self, later: Duration) -> Self {
        let clock = SteppedClock::new(self.clock.now() + later);
        Self::start_on(Arc::clone(&self.desk.store), clock).await
    }

    /// As [`Server::start`], on this store.
    pub async fn start_on(store: Arc<dyn Store>, clock: SteppedClock) -> Self {
        let shared: Arc<dyn Clock> = Arc::new(clock.clone());
        let authorizer = ListAuthorizer::allow_all()
            .allow(Pattern::user("manager"))
            .deny(Pattern::default().verb("manage"), "not a manager");
        let trust = Trust {
            authenticator: Arc::new(Believer),
            authorizer: Arc::new(authorizer),
            namespaces: Arc::new(StaticNamespaces::all()),
            cluster: Arc::new(NoCluster),
        };
        let day = Duration::from_hours(24);
        let registry = Registry::new();
        let built = app::build(store, shared, trust, &registry, &Health::new(), day)
            .await
            .unwrap();
        let Parts {
            desk,
            known,
            server,
        } = built;
        known.set_proxies(Watched::Synced);
        known.set_pools_watched(Watched::Synced);
        let tasks = Supervisor::new();
        desk.spawn(&tasks.spawner());
        Self {
            service: server,
            desk,
            known,
            clock,
            registry,
            _tasks: Arc::new(tasks),
        }
    }

    // --- the cluster ---

    fn facts(name: &str, max_leases: usize) -> ProxyFacts {
        let mut facts = testing::facts(name, max_leases);
        facts.namespace = "crawlers".into();
        facts.pool = None;
        facts
    }

    pub fn proxy(&self, name: &str, max_leases: usize) {
        self.desk
            .allocator
            .observe_proxy(Self::facts(name, max_leases));
    }

    pub fn drain(&self, name: &str, resource_version: u64) {
        let mut facts = Self::facts(name, 64);
        facts.resource_version = resource_version;
        facts.accepting = Err(NotAccepting::Draining);
        let deadline = self.clock.now() + Duration::from_mins(15);
        facts.fate = Fate::Drain { deadline };
        self.desk.allocator.observe_proxy(facts);
    }

    pub fn pod(&self, name: &str, uid: &str) {
        let pod = Pod {
            namespace: "crawlers".to_owned(),
            name: name.to_owned(),
        };
        self.known.set_pod(&uid.into(), Some(pod));
    }

    // --- requests ---

    async fn call(
        &self,
        caller: &Caller,
        method: &str,
        path: &str,
        content_type: &str,
        body: Option<&Value>,
    ) -> (u16, Value) {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("x-user", caller.name)
            .header("content-type", content_type)
            .header("accept", "application/json");
        if let Some((name, uid)) = caller.pod {
            request = request.header("x-pod", name).header("x-pod-uid", uid);
        }
        let bytes = body
            .map(|body| Bytes::from(body.to_string()))
            .unwrap_or_default();
        let request = request.body(Full::new(bytes)).unwrap();
        let response = self.service.clone().oneshot(request).await.unwrap();
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice(&bytes).unwrap_or_default())
    }

    pub async fn create(&self, caller: &Caller, lease: &Value) -> (u16, Value) {
        self.create_at(caller, lease, "").await
    }

    pub async fn create_at(&self, caller: &Caller, lease: &Value, query: &str) -> (u16, Value) {
        let path = format!("{LEASES}{query}");
        self.call(caller, "POST", &path, "application/json", Some(lease))
            .await
    }

    pub async fn renew(&self, caller: &Caller, name: &str) -> (u16, Value) {
        self.renew_with(caller, name, &json!({})).await
    }

    pub async fn renew_with(&self, caller: &Caller, name: &str, body: &Value) -> (u16, Value) {
        let path = format!("{LEASES}/{name}/renew");
        self.call(caller, "POST", &path, "application/json", Some(body))
            .await
    }

    /// `name` may have a query behind it.
    pub async fn report(&self, caller: &Caller, name: &str, spec: &Value) -> (u16, Value) {
        let (name, query) = name.split_once('?').unwrap_or((name, ""));
        let path = format!("{LEASES}/{name}/report?{query}");
        let body = json!({"spec": spec});
        self.call(caller, "POST", &path, "application/json", Some(&body))
            .await
    }

    pub async fn patch(&self, caller: &Caller, name: &str, patch: &Value) -> (u16, Value) {
        let path = format!("{LEASES}/{name}");
        self.call(
            caller,
            "PATCH",
            &path,
            "application/merge-patch+json",
            Some(patch),
        )
        .await
    }

    pub async fn delete(&self, caller: &Caller, name: &str) -> (u16, Value) {
        self.call(
            caller,
            "DELETE",
            &format!("{LEASES}/{name}"),
            "application/json",
            None,
        )
        .await
    }

    async fn read(&self, path: &str) -> Option<Value> {
        let reader = Caller::named("reader");
        let (code, body) = self
            .call(&reader, "GET", path, "application/json", None)
            .await;
        (code == 200).then_some(body)
    }

    pub async fn get(&self, name: &str) -> Option<Value> {
        self.read(&format!("{LEASES}/{name}")).await
    }

    pub async fn view(&self, name: &str) -> Option<Value> {
        self.read(&format!("{VIEWS}/{name}")).await
    }

    pub async fn list(&self) -> Vec<Value> {
        let list = self.read(LEASES).await.unwrap();
        list["items"].as_array().unwrap().clone()
    }

    // --- what is behind ---

    /// Slots that are taken, in memory.
    pub fn active(&self) -> usize {
        self.desk.allocator.totals().active
    }

    /// Slots that are taken, in the store.
    pub async fn recorded(&self) -> usize {
        let listing = self
            .desk
            .store
            .list(PREFIX, None, None, None)
            .await
            .unwrap();
        let records = listing.records.iter();
        records
            .map(|record| GrantsRecord::decode(&record.value).unwrap().holders.len())
            .sum()
    }

    /// Revision and key of every create of a lease there has been.
    pub async fn created(&self) -> Vec<(u64, String)> {
        let events = self.events("/registry/leases.crawl.example.com/proxyleases/");
        let new = events.await.into_iter();
        new.filter(|event| event.previous.is_none() && event.current.is_some())
            .map(|event| (event.revision, event.key.to_string()))
            .collect()
    }

    /// How often the view of a proxy has been written.
    pub async fn views_written(&self, name: &str) -> usize {
        let key = format!("/registry/leases.crawl.example.com/proxyendpoints/crawlers/{name}");
        self.events(&key).await.len()
    }

    /// Everything that has happened to the keys with this prefix.
    async fn events(&self, prefix: &str) -> Vec<Event> {
        let until = self.desk.store.revision();
        let mut batches = self.desk.store.watch(prefix, 0);
        let mut events = Vec::new();
        while let Some(batch) = batches.next().await {
            let batch = batch.unwrap();
            events.extend(batch.events.iter().cloned());
            if batch.revision >= until {
                break;
            }
        }
        events
    }

    /// A counter of the process, with these labels; 0 while there is none.
    pub fn counted(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let families = self.registry.gather();
        let family = families.iter().find(|family| family.name() == name);
        let metrics = family.map(MetricFamily::get_metric).unwrap_or_default();
        let is_meant = |metric: &&Metric| {
            labels.iter().all(|(label, value)| {
                let mut pairs = metric.get_label().iter();
                pairs.any(|pair| pair.name() == *label && pair.value() == *value)
            })
        };
        let counter = metrics.iter().find(is_meant).map(Metric::get_counter);
        counter.map(Counter::get_value).unwrap_or_default()
    }

    /// Tries until something is there.
    pub async fn until<T>(&self, what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
        let waiting = async {
            loop {
                if let Some(value) = probe().await {
                    return value;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = tokio::time::timeout(DEADLINE, waiting).await;
        waited.unwrap_or_else(|_| panic!("waited in vain for {what}"))
    }
}
