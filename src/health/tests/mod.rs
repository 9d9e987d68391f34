//! The engine against real sockets: proxies of the mock cloud, evil ones of our own, and the echo
//! target. The engine's clock moves only when a test moves it.

mod control;
mod engine;
mod evil;
mod misbehaviour;
mod reasons;
mod reports;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crawl_api::address::Endpoint;
use crawl_api::proxy::{Expectations, HealthCheck};
use crawl_api::scheme::Scheme;
use kube::runtime::reflector::ObjectRef;
use mock_cloud::faults::Behaviour;
use mock_cloud::model::{CreateInstance, InstanceState, Labels, ProxyAuth};
use prometheus::Registry;
use runtime_kit::{Clock, SteppedClock, SystemClock};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use url::Url;

use self::reports::Clients;
use super::{Config, Credentials, Engine, Target, Transitions, Verdict};
use crate::echo::answer::{Answer, Key};
use crate::echo::{Args, Echo, self_signed};

/// Far longer than anything here takes; only a broken test meets it.
const DEADLINE: Duration = Duration::from_secs(20);
const ZONE: &str = "mock-a";
/// Where, within a world's files, the certificates of those proxies are that are spoken to in TLS.
const PROXIES: &str = "proxies";

struct World {
    cloud: mock_cloud::Running,
    echo: SocketAddr,
    clock: SteppedClock,
    registry: Registry,
    engine: Engine,
    transitions: Transitions,
    clients: Arc<Clients>,
    targets: usize,
    _stop: DropGuard,
    files: tempfile::TempDir,
}

impl World {
    async fn new() -> Self {
        Self::with_buffer(16).await
    }

    async fn with_buffer(buffer: usize) -> Self {
        Self::with(buffer, Config::default()).await
    }

    /// With these settings and the echo target.
    async fn with(buffer: usize, config: Config) -> Self {
        Self::with_echo_at(Ipv4Addr::LOCALHOST.into(), buffer, config).await
    }

    /// The same, with the echo target at this address.
    async fn with_echo_at(listen: IpAddr, buffer: usize, config: Config) -> Self {
        runtime_kit::tls::install_default_provider();
        let files = tempfile::tempdir().unwrap();
        let stop = CancellationToken::new();
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let args = Args {
            listen: SocketAddr::from((listen, 0)),
            tls_cert: None,
            tls_key: None,
            key_file: None,
            self_signed_dir: Some(files.path().to_owned()),
            self_signed_names: match listen {
                IpAddr::V4(_) => names.to_vec(),
                IpAddr::V6(ip) => vec![ip.to_string()],
            },
        };
        let echo = Echo::bind(args, SystemClock::shared()).await.unwrap();
        let address = echo.address().unwrap();
        tokio::spawn(echo.serve(stop.clone()));

        let instances = mock_cloud::Config {
            provision_delay: Some(Duration::ZERO),
            delete_delay: Some(Duration::ZERO),
            ..mock_cloud::Config::default()
        };
        let cloud = mock_cloud::start(instances, any, SystemClock::shared())
            .await
            .unwrap();

        let clock = SteppedClock::default();
        let registry = Registry::new();
        let proxies = self_signed::ensure(&files.path().join(PROXIES), &names).unwrap();
        let config = Config {
            echo_url: vec![Url::parse(&format!("https://{address}/")).unwrap()],
            echo_key_file: Some(files.path().join("echo.key")),
            probe_ca_file: Some(files.path().join("ca.crt")),
            proxy_ca_file: Some(proxies.ca),
            ..config
        };
        let clients = Arc::new(Clients::default());
        let reports: Arc<Clients> = Arc::clone(&clients);
        let (engine, transitions) =
            Engine::with_buffer(Arc::new(clock.clone()), &registry, config, reports, buffer)
                .unwrap();
        tokio::spawn(engine.clone().run(stop.clone()));
        Self {
            cloud,
            echo: address,
            clock,
            registry,
            engine,
            transitions,
            clients,
            targets: 0,
            _stop: stop.drop_guard(),
            files,
        }
    }

    /// A running instance of the mock cloud.
    async fn instance(
        &self,
        name: &str,
        auth: Option<ProxyAuth>,
        behaviour: Behaviour,
    ) -> Endpoint {
        let client = self.cloud.client();
        let request = CreateInstance {
            name: name.into(),
            labels: Labels::new(),
            metadata: Labels::new(),
            cloud_init: None,
            port: 3128,
            auth,
        };
        client.create(ZONE, &request).await.unwrap();
        client.set_behaviour(ZONE, name, &behaviour).await.unwrap();
        let instance = client.get(ZONE, name).await.unwrap();
        assert_eq!(instance.state, InstanceState::Running);
        endpoint(SocketAddr::from((instance.ip.unwrap(), instance.port)))
    }

    /// Adds a target and waits until the engine waits for its first probe.
    async fn add(&mut self, target: Target) {
        self.targets += 1;
        self.engine.upsert(target);
        let Self { clock, targets, .. } = self;
        until(async || clock.sleepers() >= *targets).await;
    }

    /// Adds a target and lets its first probe decide.
    async fn decide(&mut self, target: Target) -> Verdict {
        let uid = target.uid.clone();
        self.add(target).await;
        self.clock.advance(Duration::from_secs(1));
        self.told().await;
        self.engine.verdict(&uid).unwrap()
    }

    /// Lets an interval pass, and the probe that is due then end. For worlds with one target.
    async fn probe_again(&self) {
        let before = self.probes();
        until(async || self.clock.sleepers() == 1).await;
        self.clock.advance(Duration::from_secs(30));
        until(async || self.probes() > before).await;
    }

    /// A signed answer of the echo target to another request than any probe's.
    fn echo_answer(&self) -> String {
        let key = Key::read(&self.files.path().join("echo.key")).unwrap();
        let seen = "192.0.2.7".parse().unwrap();
        let answer = Answer::sign(&key, "0123456789abcdef".into(), seen, self.clock.now());
        serde_json::to_string(&answer).unwrap()
    }

    /// The URL of a target without TLS that answers 204.
    async fn plain_target(&self) -> String {
        let address = evil::answering("HTTP/1.1 204 No Content\r\n\r\n").await;
        format!("http://{address}/")
    }

    /// How far the engine's clock is.
    fn elapsed(&self) -> Duration {
        self.clock.elapsed()
    }

    /// How many probes have begun.
    fn lags(&self) -> u64 {
        self.lags_within(f64::INFINITY).0
    }

    /// How many probes have begun, and how many of them at most so many seconds after they were due.
    fn lags_within(&self, seconds: f64) -> (u64, u64) {
        let families = self.registry.gather();
        let lag = families
            .iter()
            .find(|family| family.name() == "proxy_operator_probe_lag_seconds")
            .unwrap();
        let histogram = lag.get_metric()[0].get_histogram();
        let within = histogram
            .get_bucket()
            .iter()
            .filter(|bucket| bucket.upper_bound() <= seconds)
            .map(prometheus::proto::Bucket::cumulative_count)
            .max();
        (histogram.get_sample_count(), within.unwrap_or_default())
    }

    /// How many probes have ended.
    fn probes(&self) -> f64 {
        let families = self.registry.gather();
        let probes = families
            .iter()
            .find(|f| f.name() == "proxy_operator_probes_total");
        let counters = probes
            .map(prometheus::proto::MetricFamily::get_metric)
            .unwrap_or_default();
        counters
            .iter()
            .map(|metric| metric.get_counter().get_value())
            .sum()
    }

    /// The name of the next proxy whose verdict has changed.
    async fn told(&mut self) -> String {
        let told = timeout(DEADLINE, self.transitions.recv()).await;
        told.expect("a verdict changes")
            .expect("the engine runs")
            .name
    }
}

fn endpoint(address: SocketAddr) -> Endpoint {
    Endpoint {
        scheme: Scheme::Http,
        host: address.ip().to_string(),
        port: address.port(),
    }
}

/// A target that one probe decides about.
fn target(uid: &str, endpoint: Endpoint) -> Target {
    Target {
        uid: uid.into(),
        proxy: ObjectRef::new(uid).within("crawlers"),
        endpoint,
        credentials: None,
        secret: None,
        patience: Duration::from_mins(10),
        report_limit: Duration::from_mins(5),
        check: HealthCheck {
            failure_threshold: 1,
            ..HealthCheck::default()
        },
        seed: None,
    }
}

/// The same, probed at this URL.
fn target_at(uid: &str, endpoint: Endpoint, url: &str) -> Target {
    let mut target = target(uid, endpoint);
    target.check.probes = vec![url.into()];
    target
}

fn expecting(exit_ip: &str) -> Expectations {
    Expectations {
        exit_ip: Some(exit_ip.into()),
        ..Expectations::default()
    }
}

fn credentials(password: &str) -> Credentials {
    Credentials {
        username: "crawler".into(),
        password: password.into(),
    }
}

fn auth(password: &str) -> ProxyAuth {
    ProxyAuth {
        username: "crawler".into(),
        password: password.into(),
    }
}

async fn until(mut holds: impl AsyncFnMut() -> bool) {
    timeout(DEADLINE, async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await
    .expect("it happens before the deadline");
}
