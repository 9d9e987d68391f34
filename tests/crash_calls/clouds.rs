//! The clouds that the operator is killed against, and what is their own.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crawl_api::names;
use crawl_api::proxy::{Placement, Proxy, ProxySpec};
use http::Method;
use jiff::Timestamp;
use kube::ResourceExt;
use mock_cloud::model::{CreateInstance, Labels};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::fake_gce::{FakeGce, key_file};
use crate::support::{Site, proxy, ready};

/// A cluster whose machines are none of our business.
const FOREIGN: &str = "another-cluster";

/// A machine there is or was.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) created: Timestamp,
    /// When it was gone.
    pub(crate) gone: Option<Timestamp>,
}

impl Machine {
    pub(crate) fn is_foreign(&self) -> bool {
        self.labels[names::TAG_CLUSTER] == FOREIGN
    }
}

/// A cloud for one operator.
pub(crate) trait Cloud: Sized {
    /// The namespaces of its operators, which live at the same time.
    const NAMESPACES: [&str; 4];
    /// What may be wrong with it, each for the whole of a life.
    const TROUBLES: usize;

    async fn start(site: &Site) -> Self;
    fn address(&self) -> SocketAddr;
    /// Its account in the providers file, with the API at this URL.
    fn account(&self, url: &str) -> Value;
    /// What a call does; `None`: it is none of the operator's business.
    fn call(method: &Method, path: &str) -> Option<String>;
    /// The Proxy of a life, and the change that takes another machine.
    fn proxy(name: &str) -> Proxy;
    fn change() -> Value;
    /// The Proxy, once it is as far as it gets on this cloud.
    fn up(proxy: Option<&Proxy>) -> Option<Proxy>;
    async fn trouble(&self, which: usize);
    /// Puts in two machines of another cluster: one that has the name of this Proxy's, in another
    /// zone, and one that has another.
    async fn plant(&self, proxy: &Proxy);
    /// Every machine that ever carried the UID of this Proxy, oldest first.
    async fn books(&self, proxy: &Proxy) -> Vec<Machine>;
    /// Checks what holds at the end.
    async fn check(&self);
}

/// The name of an instance, as docs/proxies.md says it.
fn instance_name(uid: &str) -> String {
    let digest = Sha256::digest(uid.as_bytes());
    let text = data_encoding::BASE32_NOPAD.encode(&digest).to_lowercase();
    format!("proxy-{}", &text[..16])
}

fn foreign_labels(uid: &str) -> Labels {
    Labels::from([
        (names::TAG_CLUSTER.to_owned(), FOREIGN.to_owned()),
        (names::TAG_PROXY_UID.to_owned(), uid.to_owned()),
    ])
}

/// The mock cloud: its machines are real proxies, and its reads follow its writes.
pub(crate) struct Mock {
    address: SocketAddr,
    client: mock_cloud::client::Client,
}

impl Cloud for Mock {
    const NAMESPACES: [&str; 4] = ["mock-1", "mock-2", "mock-3", "mock-4"];
    const TROUBLES: usize = 1;

    async fn start(site: &Site) -> Self {
        Self {
            address: site.cloud.address,
            client: site.cloud.client.clone(),
        }
    }

    fn address(&self) -> SocketAddr {
        self.address
    }

    fn account(&self, url: &str) -> Value {
        json!({"name": "cloud", "type": "mock", "mock": {"url": url, "zone": "here"}})
    }

    fn call(method: &Method, path: &str) -> Option<String> {
        let parts: Vec<_> = path.trim_matches('/').split('/').collect();
        let what = match parts.as_slice() {
            ["admin", ..] => return None,
            ["v1", "instances"] => "instances",
            ["v1", "zones", _, "instances"] => "instance",
            ["v1", "zones", _, "instances", _] => "one instance",
            ["v1", "zones", _, "instances", _, "console"] => "console",
            ["v1", "operations", _] => "operation",
            other => panic!("unknown call to the cloud: {other:?}"),
        };
        Some(format!("cloud {method} {what}"))
    }

    fn proxy(name: &str) -> Proxy {
        let mut spec = ProxySpec::managed("cloud");
        spec.port = 3200;
        proxy(name, spec)
    }

    fn change() -> Value {
        json!({"spec": {"port": 3201}})
    }

    fn up(proxy: Option<&Proxy>) -> Option<Proxy> {
        ready(proxy)
    }

    async fn trouble(&self, _: usize) {}

    async fn plant(&self, proxy: &Proxy) {
        let uid = proxy.uid().unwrap();
        for (zone, name) in [
            ("elsewhere", instance_name(&uid)),
            ("here", proxy.name_any()),
        ] {
            let request = CreateInstance {
                name,
                labels: foreign_labels(&uid),
                metadata: Labels::new(),
                cloud_init: None,
                port: 3210,
                auth: None,
            };
            self.client.create(zone, &request).await.unwrap();
        }
    }

    async fn books(&self, proxy: &Proxy) -> Vec<Machine> {
        let labels = crate::support::uid_label(proxy);
        let ever = self.client.ever_created(&labels).await.unwrap();
        let read = |entry: mock_cloud::records::EverCreated| Machine {
            labels: entry.labels,
            created: entry.created_at,
            gone: entry.deleted_at,
        };
        ever.into_iter().map(read).collect()
    }

    async fn check(&self) {}
}

/// Compute Engine, eventually consistent: reads lag behind by more than a machine takes to start or
/// to go.
pub(crate) struct Gce {
    fake: FakeGce,
    key: std::path::PathBuf,
}

const ZONES: [&str; 2] = ["europe-west1-b", "europe-west1-c"];

impl Cloud for Gce {
    const NAMESPACES: [&str; 4] = ["gce-1", "gce-2", "gce-3", "gce-4"];
    const TROUBLES: usize = 2;

    async fn start(site: &Site) -> Self {
        let key = site
            .cluster
            .dir()
            .join(format!("{}-key.json", site.namespace));
        std::fs::write(&key, key_file("key-1")).unwrap();
        Self {
            fake: FakeGce::start(&[]),
            key,
        }
    }

    fn address(&self) -> SocketAddr {
        self.fake
            .url
            .strip_prefix("http://")
            .unwrap()
            .parse()
            .unwrap()
    }

    fn account(&self, url: &str) -> Value {
        json!({
            "name": "cloud",
            "type": "gcp",
            "callsPerHour": 10_000_000,
            "createsPerMinute": 100_000,
            "gcp": {
                "project": "p-1",
                "zones": ZONES,
                "credentialsFile": self.key,
                "endpoint": url,
            },
        })
    }

    fn call(method: &Method, path: &str) -> Option<String> {
        let parts: Vec<_> = path.trim_matches('/').split('/').collect();
        let what = match parts.as_slice() {
            ["compute", "v1", "projects", _, "zones", _, what @ ..] => what,
            other => panic!("unknown call to the cloud: {other:?}"),
        };
        let what = match what {
            ["instances"] => "instances",
            ["instances", _] => "one instance",
            ["instances", _, "serialPort"] => "console",
            ["operations", _] => "operation",
            other => panic!("unknown call to the cloud: {other:?}"),
        };
        Some(format!("cloud {method} {what}"))
    }

    /// Its addresses lead nowhere: nothing is to be learnt by probes.
    fn proxy(name: &str) -> Proxy {
        let mut spec = ProxySpec::managed("cloud");
        spec.placement = Some(Placement {
            zone: Some(ZONES[0].into()),
            ..Placement::default()
        });
        let mut proxy = proxy(name, spec);
        proxy.spec.health_check.interval_seconds = 3600;
        proxy
    }

    fn change() -> Value {
        json!({"spec": {"placement": {"machineType": "e2-small"}}})
    }

    fn up(proxy: Option<&Proxy>) -> Option<Proxy> {
        proxy.filter(|proxy| proxy.endpoint().is_some()).cloned()
    }

    /// The second kind: the first create and the first delete are carried out and their answers
    /// lost, and everything takes a moment.
    async fn trouble(&self, which: usize) {
        let faults = if which == 0 {
            json!([])
        } else {
            json!([
                {"op": "create", "zone": ZONES[0], "times": 1, "fault": {"type": "lostReply"}},
                {"op": "delete", "zone": ZONES[0], "times": 1, "fault": {"type": "lostReply"}},
                {"fault": {"type": "delay", "milliseconds": 50}},
            ])
        };
        let settings = json!({
            "bootMilliseconds": 200,
            "stopMilliseconds": 200,
            "readsLagMilliseconds": 500,
        });
        let script = json!({"settings": settings, "faults": faults});
        self.fake.apply(script).await;
    }

    async fn plant(&self, proxy: &Proxy) {
        let uid = proxy.uid().unwrap();
        // Why all in the other zone: the faults of this one are for the operator.
        for name in [instance_name(&uid), proxy.name_any()] {
            self.fake
                .insert("p-1", ZONES[1], &name, &foreign_labels(&uid))
                .await;
        }
    }

    async fn books(&self, proxy: &Proxy) -> Vec<Machine> {
        let uid = proxy.uid().unwrap();
        let created = self.fake.created().await;
        let ours = created.into_iter().map(|ever| Machine {
            labels: serde_json::from_value(ever["labels"].clone()).unwrap(),
            created: ever["created"].as_str().unwrap().parse().unwrap(),
            gone: ever["gone"].as_str().map(|gone| gone.parse().unwrap()),
        });
        ours.filter(|machine| machine.labels[names::TAG_PROXY_UID] == uid)
            .collect()
    }

    async fn check(&self) {
        assert_eq!(self.fake.violations().await, json!([]));
    }
}
