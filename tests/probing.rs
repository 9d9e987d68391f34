//! What proxies speak and where they come out, on a real control plane.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use crawl_api::proxy::{Auth, Proxy, ProxySpec};
use crawl_api::scheme::Scheme;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use support::{Site, create, kubectl, proxy, ready, uid_label, until};

/// Lets the operator use the Secrets of a namespace, as docs/credentials.md says.
fn allow_secrets(site: &Site) {
    let role = "--clusterrole=proxy-operator-secrets";
    let account = "--serviceaccount=proxy-operator:proxy-operator";
    let bind = [
        "create",
        "rolebinding",
        "secrets",
        "-n",
        site.namespace,
        role,
        account,
    ];
    kubectl(site.cluster, &bind);
}

/// The Proxy, once it is Ready and published with this scheme.
fn ready_as(scheme: Scheme) -> impl Fn(Option<&Proxy>) -> Option<Proxy> {
    move |proxy| ready(proxy).filter(|proxy| proxy.endpoint().unwrap().scheme == scheme)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_managed_proxy_is_published_and_probed_as_its_scheme_says_and_kept_when_that_changes() {
    let site = Site::new("scheme").await;
    allow_secrets(&site);
    let _operator = site.operator();
    let proxies = site.proxies();
    let mut spec = ProxySpec::managed("local");
    spec.scheme = Some(Scheme::Socks5);
    spec.auth = Some(Auth {
        generate: true,
        ..Auth::default()
    });
    create(&proxies, &proxy("p", spec)).await;
    let first = until(&proxies, "p", "socks5", ready_as(Scheme::Socks5)).await;
    // The echo target tells where it came out, so it went through the proxy.
    assert_eq!(
        first.exit_ip(),
        Some(first.endpoint().unwrap().host.as_str())
    );

    let change = Patch::Merge(json!({"spec": {"scheme": null}}));
    let params = PatchParams::default();
    proxies.patch("p", &params, &change).await.unwrap();
    let second = until(&proxies, "p", "http", ready_as(Scheme::Http)).await;
    let id = |proxy: &Proxy| proxy.status.as_ref().unwrap().provider_id.clone();
    assert_eq!(id(&second), id(&first));
    let books = site.cloud.client.ever_created(&uid_label(&first)).await;
    assert_eq!(books.unwrap().len(), 1, "one machine, ever");
}
