//! An hour in which nothing happens: no mutating call to the cloud, no write to the API server, no
//! event. The passes are real; the API server and the cloud count.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use crawl_api::conditions::{self as c, Statement};
use crawl_api::proxy::{Phase, ProxySpec};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use jiff::Timestamp;
use kube::runtime::{reflector, watcher};
use parking_lot::Mutex;
use prometheus::Registry;
use runtime_kit::SteppedClock;
use serde_json::{Value, json};

use super::*;
use crate::health;
use crate::providers::{
    Created, Instance, InstanceRequest, InstanceState, Listing, Provider, Tags,
};

/// One Proxy and who wrote what.
#[derive(Default)]
struct Server {
    proxy: Mutex<Value>,
    version: AtomicUsize,
    writes: AtomicUsize,
    events: AtomicUsize,
}

impl Server {
    fn answer(&self, method: &Method, path: &str, body: &[u8]) -> (u16, Value) {
        let sent: Value = serde_json::from_slice(body).unwrap_or_default();
        if path.contains("/events") {
            self.events.fetch_add(1, Ordering::Relaxed);
            return (201, sent);
        }
        if !path.contains("/proxies/p") {
            return (
                404,
                json!({"kind": "Status", "code": 404, "reason": "NotFound"}),
            );
        }
        let mut proxy = self.proxy.lock();
        if *method == Method::PUT && path.ends_with("/status") {
            proxy["status"] = sent["status"].clone();
        } else if *method == Method::PATCH {
            for (key, value) in sent["metadata"].as_object().unwrap() {
                proxy["metadata"][key] = value.clone();
            }
        } else {
            panic!("{method} {path}");
        }
        self.writes.fetch_add(1, Ordering::Relaxed);
        let version = self.version.fetch_add(1, Ordering::Relaxed) + 1;
        proxy["metadata"]["resourceVersion"] = json!(version.to_string());
        (200, proxy.clone())
    }

    fn read(&self) -> Arc<Proxy> {
        Arc::new(serde_json::from_value(self.proxy.lock().clone()).unwrap())
    }

    fn counts(&self) -> (usize, usize) {
        let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        (count(&self.writes), count(&self.events))
    }
}

async fn serve(server: Arc<Server>) -> Client {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let server = Arc::clone(&server);
            let service = service_fn(move |request: Request<Incoming>| {
                let server = Arc::clone(&server);
                async move {
                    let (parts, body) = request.into_parts();
                    let body = body.collect().await.unwrap().to_bytes();
                    let (code, value) = server.answer(&parts.method, parts.uri.path(), &body);
                    let body = Full::new(Bytes::from(value.to_string()));
                    let answer = Response::builder().status(code).body(body).unwrap();
                    Ok::<_, Infallible>(answer)
                }
            });
            let http = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            tokio::spawn(async move {
                let _closed = http.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap()
}

/// A cloud with room for one instance.
struct Cloud {
    clock: SteppedClock,
    instance: Mutex<Option<Instance>>,
    mutations: AtomicUsize,
    reads: AtomicUsize,
}

#[async_trait]
impl Provider for Cloud {
    async fn create(&self, request: &InstanceRequest) -> Result<Created, providers::Error> {
        self.mutations.fetch_add(1, Ordering::Relaxed);
        let instance = Instance {
            id: "cloud://a/1".into(),
            name: request.name.clone(),
            tags: request.tags.clone(),
            created: self.clock.now(),
            state: InstanceState::Running,
            ip: Some("127.1.2.3".into()),
            port: None,
            zone: "a".into(),
        };
        *self.instance.lock() = Some(instance.clone());
        Ok(Created {
            instance,
            operation: None,
        })
    }

    async fn get(&self, _: &str) -> Result<Option<Instance>, providers::Error> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        Ok(self.instance.lock().clone())
    }

    async fn delete(&self, _: &str) -> Result<(), providers::Error> {
        self.mutations.fetch_add(1, Ordering::Relaxed);
        *self.instance.lock() = None;
        Ok(())
    }

    async fn survey(&self, _: &Tags) -> Result<Listing, providers::Error> {
        Ok(Listing {
            instances: self.instance.lock().iter().cloned().collect(),
            unread: Vec::new(),
        })
    }

    async fn operation_error(&self, _: &str) -> Result<Option<providers::Error>, providers::Error> {
        Ok(None)
    }

    async fn check(&self) -> Result<(), providers::Error> {
        Ok(())
    }
}

const DRIFT: Duration = Duration::from_mins(1);

/// An operator that has just started, on the present state of the object.
fn start(client: &Client, cloud: &Arc<Cloud>, server: &Server) -> Arc<Ctx> {
    let provider: Arc<dyn Provider> = Arc::<Cloud>::clone(cloud);
    start_on(client, &cloud.clock, provider, &[server.read()])
}

fn start_on(
    client: &Client,
    clock: &SteppedClock,
    provider: Arc<dyn Provider>,
    objects: &[Arc<Proxy>],
) -> Arc<Ctx> {
    let clock: Arc<dyn Clock> = Arc::new(clock.clone());
    let (proxies, mut writer) = reflector::store();
    for object in objects {
        writer.apply_watcher_event(&watcher::Event::Apply((**object).clone()));
    }
    let (pools, _) = reflector::store();
    let providers = [("local".to_owned(), provider)].into_iter().collect();
    let health = health::Config::default();
    let leases = LeaseApi::new(client.clone());
    let reports = Arc::new(leases.clone());
    let (engine, _) = Engine::new(Arc::clone(&clock), &Registry::new(), health, reports).unwrap();
    let poll = Duration::from_secs(5);
    Arc::new(Ctx::new(
        client.clone(),
        proxies,
        pools,
        providers,
        engine,
        leases,
        Events::new(client.clone(), "test".into()),
        clock,
        Settings {
            cluster_id: "cluster".into(),
            name_prefix: "proxy-".into(),
            dry_run: false,
            polls: Polls {
                provisioning: poll,
                deletion: poll,
                drift: DRIFT,
                quota: poll,
            },
        },
    ))
}

/// A Proxy that is ready, the API server and the cloud that have it, and an operator that has taken
/// over.
async fn settled() -> (Client, Arc<Server>, Arc<Cloud>, Arc<Ctx>) {
    let mut proxy = Proxy::new("p", ProxySpec::managed("local"));
    proxy.metadata.namespace = Some("fleet".into());
    proxy.metadata.uid = Some("uid".into());
    proxy.metadata.generation = Some(1);
    proxy.metadata.resource_version = Some("0".into());
    let server = Arc::new(Server::default());
    *server.proxy.lock() = serde_json::to_value(&proxy).unwrap();
    let client = serve(Arc::clone(&server)).await;
    let cloud = Arc::new(Cloud {
        clock: SteppedClock::new(Timestamp::from_second(1_000_000).unwrap()),
        instance: Mutex::default(),
        mutations: AtomicUsize::new(0),
        reads: AtomicUsize::new(0),
    });

    let first = start(&client, &cloud, &server);
    while server.read().endpoint().is_none() {
        reconcile(server.read(), Arc::clone(&first)).await.unwrap();
    }
    // Probes have succeeded, and another replica takes over.
    let mut healthy = Proxy::clone(&server.read());
    let good = Statement::new(c::HEALTHY, true, c::REASON_PROBE_SUCCEEDED, "");
    let status = healthy.status.get_or_insert_default();
    c::set(&mut status.conditions, good, Some(1), cloud.clock.now());
    *server.proxy.lock() = serde_json::to_value(&healthy).unwrap();
    let second = start(&client, &cloud, &server);
    for _ in 0..3 {
        reconcile(server.read(), Arc::clone(&second)).await.unwrap();
    }
    assert_eq!(server.read().phase(), Phase::Ready);
    (client, server, cloud, second)
}

#[tokio::test]
async fn an_hour_in_which_nothing_happens_changes_nothing_anywhere() {
    let (_client, server, cloud, second) = settled().await;
    let before = (server.counts(), cloud.mutations.load(Ordering::Relaxed));
    let reads = cloud.reads.load(Ordering::Relaxed);
    for _ in 0..60 {
        cloud.clock.advance(DRIFT);
        let next = reconcile(server.read(), Arc::clone(&second)).await.unwrap();
        assert_eq!(next, Next::requeue(DRIFT));
    }
    let after = (server.counts(), cloud.mutations.load(Ordering::Relaxed));
    assert_eq!(after, before);
    assert_eq!(cloud.reads.load(Ordering::Relaxed), reads + 60, "it looked");
    assert_eq!(before.1, 1);
    // The counters count: a changed spec is written about.
    server.proxy.lock()["spec"]["port"] = json!(3200);
    server.proxy.lock()["metadata"]["generation"] = json!(2);
    reconcile(server.read(), second).await.unwrap();
    assert!(server.counts().0 > before.0.0 && server.counts().1 > before.0.1);
}

/// A project with many instances; it counts requests, and refuses what its account does not allow.
struct Region {
    instances: std::collections::BTreeMap<String, Instance>,
    allowance: providers::Allowance,
    requests: AtomicUsize,
}

/// Instances on a page of a list.
const PAGE: usize = 500;

impl Region {
    fn request(&self) -> Result<(), providers::Error> {
        self.allowance.take()?;
        self.requests.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

#[async_trait]
impl Provider for Region {
    async fn create(&self, request: &InstanceRequest) -> Result<Created, providers::Error> {
        panic!("{request:?}")
    }

    async fn get(&self, id: &str) -> Result<Option<Instance>, providers::Error> {
        self.request()?;
        Ok(self.instances.get(id).cloned())
    }

    async fn delete(&self, id: &str) -> Result<(), providers::Error> {
        panic!("{id}")
    }

    async fn survey(&self, tags: &Tags) -> Result<Listing, providers::Error> {
        for _ in 0..self.instances.len().div_ceil(PAGE) {
            self.request()?;
        }
        let fits = |instance: &&Instance| {
            tags.iter()
                .all(|tag| instance.tags.iter().any(|t| t == tag))
        };
        Ok(Listing {
            instances: self.instances.values().filter(fits).cloned().collect(),
            unread: Vec::new(),
        })
    }

    async fn operation_error(&self, _: &str) -> Result<Option<providers::Error>, providers::Error> {
        Ok(None)
    }

    async fn check(&self) -> Result<(), providers::Error> {
        Ok(())
    }
}

/// Case 63 of the public reports: asked for one by one, a thousand proxies need 60,000 calls an hour,
/// and a project has 3,600.
#[tokio::test]
async fn an_hour_of_a_thousand_proxies_costs_a_listing_a_minute() {
    const PROXIES: usize = 1_000;
    let (client, server, cloud, _) = settled().await;
    let one = server.read();
    let instance = cloud.instance.lock().clone().unwrap();
    let mut objects = Vec::new();
    let mut instances = std::collections::BTreeMap::new();
    for index in 0..PROXIES {
        let (uid, id) = (format!("uid-{index}"), format!("cloud://a/{index}"));
        let mut proxy = Proxy::clone(&one);
        proxy.metadata.name = Some(format!("p-{index}"));
        proxy.metadata.uid = Some(uid.clone());
        let status = proxy.status.get_or_insert_default();
        status.provider_id = Some(id.clone());
        let runs = Statement::new(
            c::PROVISIONED,
            true,
            c::REASON_CREATED,
            format!("instance {id} runs"),
        );
        c::set(&mut status.conditions, runs, Some(1), cloud.clock.now());
        objects.push(Arc::new(proxy));
        let mut instance = Instance {
            id: id.clone(),
            ..instance.clone()
        };
        instance
            .tags
            .insert(crawl_api::names::TAG_PROXY_UID.into(), uid);
        instances.insert(id, instance);
    }
    let clock: Arc<dyn Clock> = Arc::new(cloud.clock.clone());
    let limits = providers::Limits {
        calls: providers::Rate::new(3_600, Duration::from_hours(1), u32::MAX),
        creates: None,
    };
    let allowance = providers::Allowance::new("region", limits, Arc::clone(&clock));
    let region = Arc::new(Region {
        instances,
        allowance: allowance.clone(),
        requests: AtomicUsize::new(0),
    });
    let requests = providers::Requests::register(&Registry::new()).unwrap();
    let inner: Arc<dyn Provider> = Arc::<Region>::clone(&region);
    let metered = providers::Metered::new("local".into(), inner, requests, clock, allowance);
    let ctx = start_on(&client, &cloud.clock, Arc::new(metered), &objects);

    let before = server.counts();
    let polls = 60;
    for _ in 0..polls {
        cloud.clock.advance(DRIFT);
        for proxy in &objects {
            let next = reconcile(Arc::clone(proxy), Arc::clone(&ctx))
                .await
                .unwrap();
            assert_eq!(next, Next::requeue(DRIFT));
        }
    }
    assert_eq!(server.counts(), before, "nothing was written");
    let made = region.requests.load(Ordering::Relaxed);
    println!("{PROXIES} proxies, an hour, a look a minute: {made} requests to the provider");
    // One is asked for by itself before a listing pays.
    let allowed = polls * (PROXIES.div_ceil(PAGE) + 1);
    assert!((polls..=allowed).contains(&made), "{made}");
}
