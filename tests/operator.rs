//! The operator as a process on a real control plane, with a cloud as a process whose instances are
//! real proxies.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use crawl_api::conditions;
use crawl_api::proxy::{Phase, Proxy, ProxySpec};
use kube::Api;
use support::{Cloud, Operator, cluster, create, namespace, proxy, until};

fn provisioned(proxy: Option<&Proxy>) -> Option<Proxy> {
    let proxy = proxy?;
    let condition = proxy.condition(conditions::PROVISIONED)?;
    (condition.status == "True" && proxy.endpoint().is_some()).then(|| proxy.clone())
}

fn ready(proxy: Option<&Proxy>) -> Option<Proxy> {
    proxy.filter(|proxy| proxy.phase() == Phase::Ready).cloned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_managed_proxy_gets_an_instance() {
    let cluster = cluster().await;
    let client = cluster.client().await.unwrap();
    namespace(&client, "managed").await;
    let cloud = Cloud::start(cluster, "managed").await;
    let _operator = Operator::start(cluster, "managed", &cloud).await;
    let proxies: Api<Proxy> = Api::namespaced(client, "managed");
    create(&proxies, &proxy("p", ProxySpec::managed("local"))).await;
    let proxy = until(&proxies, "p", "the proxy to be provisioned", provisioned).await;
    println!("{}", serde_json::to_string_pretty(&proxy).unwrap());
    println!("{}", _operator.process.log());
}
