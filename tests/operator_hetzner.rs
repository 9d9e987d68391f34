//! The operator and Hetzner Cloud, on a real control plane: a proxy from its creation to its end, with
//! servers of the fake that are real proxies.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::net::SocketAddr;
use std::process::Command;

use bytes::Bytes;
use crawl_api::conditions as c;
use crawl_api::proxy::{Phase, Placement, Proxy, ProxySpec};
use devcluster::Process;
use http::Method;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioExecutor;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use support::{Site, TIMEOUT, binary, create, gone, proxy, ready, until};

/// The port on which the servers' proxies listen.
const PORT: u16 = 3128;

/// The fake as a process.
struct Fake {
    _process: Process,
    address: SocketAddr,
}

impl Fake {
    async fn start(site: &Site) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], site.cluster.free_port().unwrap()));
        let mut command = Command::new(binary("fake-clouds", "fake-hetzner"));
        command.args(["--listen", &address.to_string()]);
        command.args(["--proxy-port", &PORT.to_string()]);
        let process = site.cluster.spawn("fake-hetzner", command).unwrap();
        process.wait_for_log("listening on", TIMEOUT).await.unwrap();
        Self {
            _process: process,
            address,
        }
    }

    async fn call(&self, method: Method, path: &str) -> Value {
        let client = hyper_util::client::legacy::Client::builder(TokioExecutor::new());
        let client = client.build_http::<Empty<Bytes>>();
        let request = http::Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address))
            .header("authorization", "Bearer test")
            .body(Empty::new())
            .unwrap();
        let answer = client.request(request).await.unwrap();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        serde_json::from_slice(&body).unwrap()
    }

    /// Everything that was ever created.
    async fn created(&self) -> Vec<Value> {
        let created = self.call(Method::GET, "/fake/created").await;
        created.as_array().unwrap().clone()
    }
}

fn id(proxy: &Proxy) -> String {
    proxy.status.as_ref().unwrap().provider_id.clone().unwrap()
}

fn placed(placement: Placement) -> ProxySpec {
    let mut spec = ProxySpec::managed("hetzner");
    spec.port = PORT;
    spec.placement = Some(placement);
    spec
}

fn replaced(first: &Proxy) -> impl Fn(Option<&Proxy>) -> Option<Proxy> {
    let first = id(first);
    move |proxy| ready(proxy).filter(|proxy| id(proxy) != first)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_on_hetzner_cloud_is_created_replaced_and_deleted() {
    let mut site = Site::new("hetzner").await;
    let fake = Fake::start(&site).await;
    let token = site.cluster.dir().join("hetzner-token");
    std::fs::write(&token, "a-secret-token\n").unwrap();
    let providers = site.cluster.dir().join("hetzner-providers.yaml");
    let text = json!({"providers": [{
        "name": "hetzner",
        "type": "hetzner",
        "hetzner": {
            "tokenFile": token,
            "locations": ["fsn1", "nbg1"],
            "endpoint": format!("http://{}", fake.address),
        },
    }]});
    std::fs::write(&providers, text.to_string()).unwrap();
    site.set_flag("--providers-config", providers.to_str().unwrap());
    let operator = site.operator();
    let proxies = site.proxies();

    let in_nuremberg = placed(Placement {
        zone: Some("nbg1".into()),
        ..Placement::default()
    });
    create(&proxies, &proxy("p", in_nuremberg)).await;
    let first = until(&proxies, "p", "the proxy to be ready", ready).await;
    assert!(id(&first).starts_with("hcloud://nbg1/"), "{}", id(&first));
    let created = fake.created().await;
    assert_eq!(created.len(), 1);
    assert_eq!(created[0]["labels"]["crawl-namespace"], "hetzner");
    assert_eq!(created[0]["labels"]["crawl-name"], "p");

    let patch = json!({"spec": {"placement": {"zone": "fsn1"}}});
    let params = PatchParams::default();
    proxies
        .patch("p", &params, &Patch::Merge(patch))
        .await
        .unwrap();
    let second = until(
        &proxies,
        "p",
        "a server in the other place",
        replaced(&first),
    )
    .await;
    assert!(id(&second).starts_with("hcloud://fsn1/"), "{}", id(&second));
    // The name is the same, so the first one had to be gone.
    let created = fake.created().await;
    assert_eq!(created.len(), 2);
    assert_eq!(created[0]["name"], created[1]["name"]);

    let name = created[1]["name"].as_str().unwrap();
    let path = format!("/fake/switch-off?server={name}");
    assert_eq!(fake.call(Method::POST, &path).await, json!({}));
    until(&proxies, "p", "another server", replaced(&second)).await;

    let spot = placed(Placement {
        spot: true,
        ..Placement::default()
    });
    create(&proxies, &proxy("spot", spot)).await;
    let refused = |proxy: Option<&Proxy>| {
        let proxy = proxy.filter(|proxy| proxy.phase() == Phase::Failed)?;
        proxy.condition(c::PROVISIONED).cloned()
    };
    let told = until(&proxies, "spot", "a refusal", refused).await;
    assert_eq!(told.reason, c::REASON_INVALID_SPEC);
    assert!(told.message.contains("placement.spot"), "{}", told.message);

    for name in ["p", "spot"] {
        proxies
            .delete(name, &DeleteParams::default())
            .await
            .unwrap();
        until(&proxies, name, "its end", gone).await;
    }
    assert_eq!(fake.created().await.len(), 3);
    let left = fake.call(Method::GET, "/v1/servers").await;
    assert_eq!(left["servers"], json!([]));
    let violations = fake.call(Method::GET, "/fake/violations").await;
    assert_eq!(violations, json!([]));
    let logs = operator.process.log();
    assert!(!logs.contains("a-secret-token"));
}
