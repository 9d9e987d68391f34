//! Credentials on a real control plane: generated ones are rotated with their machine, a changed
//! Secret applies at once, and so does a changed credential of a provider.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "provider_contract/fake.rs"]
#[allow(dead_code, reason = "the contract suite uses all of it")]
mod fake;
#[path = "provider_contract/fake_gce.rs"]
#[allow(dead_code, reason = "the contract suite uses all of it")]
mod fake_gce;
mod support;

use self::fake::Fake;
use self::fake_gce::{FakeGce, key_file};
use crawl_api::proxy::{Auth, CloudInit, Proxy, ProxySpec, SecretRef};
use crawl_api::{conditions, names};
use data_encoding::BASE64;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use support::{Site, create, kubectl, proxy, ready, reason, uid_label, until};

const CLOUD_INIT: &str = "#cloud-config\n# {{proxy.usernamePlain}} {{proxy.passwordBase64}}\n";

async fn site(namespace: &'static str) -> Site {
    let site = Site::new(namespace).await;
    let role = "--clusterrole=proxy-operator-secrets";
    let account = "--serviceaccount=proxy-operator:proxy-operator";
    let bind = [
        "create",
        "rolebinding",
        "secrets",
        "-n",
        namespace,
        role,
        account,
    ];
    kubectl(site.cluster, &bind);
    site
}

fn secrets(site: &Site) -> Api<Secret> {
    Api::namespaced(site.client.clone(), site.namespace)
}

async fn merge(secrets: &Api<Secret>, name: &str, change: serde_json::Value) {
    let change = Patch::Merge(change);
    secrets
        .patch(name, &PatchParams::default(), &change)
        .await
        .unwrap();
}

fn generated() -> ProxySpec {
    let mut spec = ProxySpec::managed("local");
    spec.auth = Some(Auth {
        generate: true,
        rotate_seconds: Some(86_400),
        ..Auth::default()
    });
    spec.cloud_init = Some(CloudInit {
        inline: Some(CLOUD_INIT.into()),
        ..CloudInit::default()
    });
    spec
}

fn provider_id(proxy: &Proxy) -> Option<String> {
    proxy.status.as_ref()?.provider_id.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn generated_credentials_are_rotated_with_their_machine() {
    let site = site("rotation").await;
    let _operator = site.operator();
    let (proxies, secrets) = (site.proxies(), secrets(&site));
    create(&proxies, &proxy("p", generated())).await;
    let before = until(&proxies, "p", "the proxy to be ready", ready).await;
    let old = secrets.get("p-proxy-auth").await.unwrap();

    // As old as if the day were over.
    let long_ago = json!({"metadata": {"annotations": {
        names::ANNOTATION_ROTATED_AT: "2001-01-01T00:00:00Z"}}});
    merge(&secrets, "p-proxy-auth", long_ago).await;
    let replaced = |found: Option<&Proxy>| {
        let found = ready(found)?;
        (provider_id(&found) != provider_id(&before)).then_some(found)
    };
    let after = until(&proxies, "p", "another machine", replaced).await;
    assert_ne!(
        after.metadata.annotations.unwrap()[names::ANNOTATION_SPEC_HASH],
        before.metadata.annotations.unwrap()[names::ANNOTATION_SPEC_HASH]
    );
    let new = secrets.get("p-proxy-auth").await.unwrap();
    assert_ne!(new.data, old.data);
    assert_eq!(
        new.metadata.uid, old.metadata.uid,
        "the Secret itself stays"
    );
}

/// Who shares a Secret shares a budget too: one machine after the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_secret_replaces_its_machines_one_after_the_other() {
    let site = site("shared").await;
    let _operator = site.operator();
    let (proxies, secrets) = (site.proxies(), secrets(&site));
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "shared"},
        "stringData": {"username": "me", "password": "first"}});
    create(&secrets, &serde_json::from_value(secret).unwrap()).await;
    let mut spec = generated();
    spec.auth = Some(Auth {
        secret_ref: Some(SecretRef {
            name: "shared".into(),
        }),
        ..Auth::default()
    });
    let names = ["a", "b"];
    let mut before = Vec::new();
    for name in names {
        create(&proxies, &proxy(name, spec.clone())).await;
    }
    for name in names {
        before.push(until(&proxies, name, "the proxy to be ready", ready).await);
    }
    merge(
        &secrets,
        "shared",
        json!({"stringData": {"password": "second"}}),
    )
    .await;
    let mut lives = Vec::new();
    for (name, old) in names.iter().zip(&before) {
        let replaced = |found: Option<&Proxy>| {
            ready(found).filter(|found| provider_id(found) != provider_id(old))
        };
        until(&proxies, name, "another machine", replaced).await;
        let books = site.cloud.client.ever_created(&uid_label(old)).await;
        let books = books.unwrap();
        assert_eq!(books.len(), 2, "{books:?}");
        lives.push((books[0].deleted_at.unwrap(), books[1].created_at));
    }
    lives.sort();
    assert!(lives[0].1 <= lives[1].0, "two at once: {lives:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_secret_of_an_external_proxy_applies_at_once() {
    let site = site("changed").await;
    let _operator = site.operator();
    let (proxies, secrets) = (site.proxies(), secrets(&site));
    create(&proxies, &proxy("machine", generated())).await;
    let machine = until(&proxies, "machine", "the proxy to be ready", ready).await;
    let right = secrets.get("machine-proxy-auth").await.unwrap().data;

    let wrong = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "vendor"},
        "stringData": {"username": "me", "password": "wrong"}});
    create(&secrets, &serde_json::from_value(wrong).unwrap()).await;
    let mut spec = ProxySpec::external(machine.endpoint().unwrap().clone());
    spec.auth = Some(Auth {
        secret_ref: Some(SecretRef {
            name: "vendor".into(),
        }),
        ..Auth::default()
    });
    create(&proxies, &proxy("bought", spec)).await;
    let refused = |found: Option<&Proxy>| {
        (reason(found?, conditions::HEALTHY) == conditions::REASON_PROXY_AUTH_FAILED).then_some(())
    };
    until(&proxies, "bought", "its credentials to be refused", refused).await;

    // Why this shows the watch: nothing else looks at an External proxy that did not change.
    merge(&secrets, "vendor", json!({"data": right})).await;
    until(&proxies, "bought", "the new credentials to be used", ready).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_created_that_would_be_an_open_relay() {
    let site = site("relay").await;
    let _operator = site.operator();
    let (proxies, secrets) = (site.proxies(), secrets(&site));
    let spec = ProxySpec {
        auth: None,
        ..generated()
    };
    create(&proxies, &proxy("open", spec)).await;
    let bad = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "mine"},
        "stringData": {"username": "me", "password": "ends with a line break\n"}});
    create(&secrets, &serde_json::from_value(bad).unwrap()).await;
    let mut spec = generated();
    spec.auth = Some(Auth {
        secret_ref: Some(SecretRef {
            name: "mine".into(),
        }),
        ..Auth::default()
    });
    create(&proxies, &proxy("odd", spec)).await;
    for (name, says) in [("open", "auth.generate"), ("odd", "control characters")] {
        let refused = |found: Option<&Proxy>| {
            let condition = found?.condition(conditions::PROVISIONED)?;
            let invalid = condition.reason == conditions::REASON_CLOUD_INIT_INVALID;
            (invalid && condition.message.contains(says)).then_some(())
        };
        until(&proxies, name, "the refusal", refused).await;
        assert_eq!(provider_id(&proxies.get(name).await.unwrap()), None);
    }
    merge(
        &secrets,
        "mine",
        json!({"stringData": {"password": "'\"$`\\;%@: #"}}),
    )
    .await;
    until(&proxies, "odd", "the proxy to be ready", ready).await;
}

/// Case 70 of the public reports: rotated credentials of a cloud are used without a restart, and what
/// was refused because of the old ones is tried again at once, not after `--quota-retry`.
#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_was_refused_is_tried_again_when_the_credentials_of_its_provider_change() {
    let mut site = Site::new("provider-key").await;
    let fake = FakeGce::start(&[]);
    fake.accept_keys(&["key-2"]).await;
    let key = site.cluster.dir().join("key.json");
    std::fs::write(&key, key_file("key-1")).unwrap();
    let providers = site.cluster.dir().join("gcp-providers.yaml");
    let text = format!(
        "providers:\n- name: gcp\n  type: gcp\n  gcp:\n    project: p-1\n    zones: [europe-west1-b]\n    \
         credentialsFile: {}\n    endpoint: {}\n",
        key.display(),
        fake.url
    );
    std::fs::write(&providers, text).unwrap();
    site.set_flag("--providers-config", providers.to_str().unwrap());
    let _operator = site.operator();
    let proxies = site.proxies();
    create(&proxies, &proxy("p", ProxySpec::managed("gcp"))).await;
    until(&proxies, "p", "a refusal", |proxy| {
        proxy.filter(|proxy| {
            reason(proxy, conditions::PROVISIONED) == conditions::REASON_CREDENTIALS_REJECTED
        })?;
        Some(())
    })
    .await;
    assert_eq!(fake.created().await.len(), 0);
    // As a mounted Secret changes: another file takes the name.
    let fresh = site.cluster.dir().join("fresh.json");
    std::fs::write(&fresh, key_file("key-2")).unwrap();
    std::fs::rename(&fresh, &key).unwrap();
    until(&proxies, "p", "an instance", |proxy| provider_id(proxy?)).await;
    assert_eq!(fake.created().await.len(), 1);
}

/// Every level of logs, everything that is written for people, and clouds that quote what they refuse.
#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_in_no_log_no_status_no_event_and_no_answer() {
    const PASSWORD: &str = "correct-horse-battery";
    const TOKEN: &str = "a-token-of-a-project";
    let mut site = site("unseen").await;
    let clouds = [Fake::start("hetzner", &[]), Fake::start("gce", &[])];
    for (cloud, reason) in clouds.iter().zip(["unavailable", "backendError"]) {
        let message = format!("cannot take '{PASSWORD}'");
        let fault = json!({"type": "refuse", "status": 503, "reason": reason, "message": message});
        let rule = json!({"op": "create", "times": 2, "fault": fault});
        cloud.apply(json!({"faults": [rule]})).await;
    }
    let file = |name: &str, text: &str| {
        let path = site.cluster.dir().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let key = key_file("key-1");
    let providers = json!({"providers": [
        {"name": "local", "type": "mock", "mock": {"url": format!("http://{}", site.cloud.address)}},
        {"name": "hetzner", "type": "hetzner", "hetzner": {
            "tokenFile": file("unseen-token", TOKEN), "locations": ["fsn1"],
            "endpoint": clouds[0].url}},
        {"name": "gcp", "type": "gcp", "gcp": {
            "project": "p-1", "zones": ["europe-west1-b"],
            "credentialsFile": file("unseen-key", &key), "endpoint": clouds[1].url}},
    ]});
    let providers = file("unseen-providers.yaml", &providers.to_string());
    site.set_flag("--providers-config", providers.to_str().unwrap());
    site.set_flag("--log-level", "trace");
    let operator = site.operator();
    let (proxies, secrets) = (site.proxies(), secrets(&site));
    let mine = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "mine"},
        "stringData": {"username": "me", "password": PASSWORD}});
    create(&secrets, &serde_json::from_value(mine).unwrap()).await;
    create(&proxies, &proxy("local", generated())).await;
    for provider in ["hetzner", "gcp"] {
        let spec = ProxySpec {
            provider: Some(provider.into()),
            auth: Some(Auth {
                secret_ref: Some(SecretRef {
                    name: "mine".into(),
                }),
                ..Auth::default()
            }),
            ..generated()
        };
        create(&proxies, &proxy(provider, spec)).await;
        let refused = |found: Option<&Proxy>| {
            let told = found?.condition(conditions::PROVISIONED)?;
            told.message.contains("not shown").then_some(())
        };
        until(&proxies, provider, "the refusal", refused).await;
        until(&proxies, provider, "an instance", |found| {
            provider_id(found?)
        })
        .await;
    }
    until(&proxies, "local", "the proxy to be ready", ready).await;

    let data = secrets.get("local-proxy-auth").await.unwrap().data.unwrap();
    let made = String::from_utf8(data["password"].0.clone()).unwrap();
    let user = String::from_utf8(data["username"].0.clone()).unwrap();
    let line = key.split("\\n").nth(3).unwrap().to_owned();
    let hidden = [
        TOKEN.to_owned(),
        line,
        PASSWORD.into(),
        BASE64.encode(PASSWORD.as_bytes()),
        BASE64.encode(format!("{user}:{made}").as_bytes()),
        BASE64.encode(made.as_bytes()),
        made,
        // How a token begins that is signed, as those of ServiceAccounts.
        "eyJ".into(),
    ];
    let get = |what| kubectl(site.cluster, &["get", what, "-n", "unseen", "-o", "yaml"]);
    let mut shown = vec![
        ("log".to_owned(), operator.process.log()),
        ("events".into(), get("events")),
        ("proxies".into(), get("proxies")),
    ];
    for path in ["/metrics", "/providers", "/proxies/unseen/local"] {
        let (code, text) = operator.get(path).await;
        assert_eq!(code, 200, "{path}: {text}");
        shown.push((path.into(), text));
    }
    assert!(shown[0].1.contains("TRACE"), "the level is the lowest");
    for (place, text) in shown {
        for secret in &hidden {
            let found = text.lines().find(|line| line.contains(secret.as_str()));
            assert_eq!(found, None, "{secret} in {place}");
        }
    }
}
