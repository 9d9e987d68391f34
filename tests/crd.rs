//! The CustomResourceDefinitions on a real API server.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use crawl_api::pool::ProxyPool;
use crawl_api::proxy::Proxy;
use devcluster::wait_for;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use kube::api::{DynamicObject, ListParams, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use support::{TIMEOUT, cluster, kubectl, namespace, try_kubectl};

async fn dynamic(namespace: &str, kind: &str) -> Api<DynamicObject> {
    let client = cluster().await.client().await.unwrap();
    let plural = if kind == "Proxy" {
        "proxies"
    } else {
        "proxypools"
    };
    let gvk = GroupVersionKind::gvk("crawl.example.com", "v1alpha1", kind);
    Api::namespaced_with(
        client,
        namespace,
        &ApiResource::from_gvk_with_plural(&gvk, plural),
    )
}

fn object(kind: &str, name: &str, spec: &Value) -> DynamicObject {
    let value = json!({
        "apiVersion": "crawl.example.com/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    });
    serde_json::from_value(value).unwrap()
}

async fn dry_run(api: &Api<DynamicObject>, kind: &str, spec: &Value) -> Result<(), String> {
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let created = api.create(&params, &object(kind, "x", spec)).await;
    created.map(drop).map_err(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_default_is_materialised() {
    let client = cluster().await.client().await.unwrap();
    namespace(&client, "defaults").await;
    let proxies = dynamic("defaults", "Proxy").await;
    let made = proxies
        .create(
            &PostParams::default(),
            &object("Proxy", "p", &json!({"provider": "local"})),
        )
        .await
        .unwrap();
    assert_eq!(
        made.data["spec"],
        json!({
            "mode": "Managed",
            "provider": "local",
            "exit": {"mode": "Static"},
            "port": 3128,
            "maxLeases": 5,
            "healthCheck": {
                "probeUrl": "https://www.gstatic.com/generate_204",
                "intervalSeconds": 30,
                "timeoutSeconds": 5,
                "failureThreshold": 3,
                "successThreshold": 1,
                "expectedStatusCodes": [200, 204],
            },
            "cordoned": false,
            "drain": false,
            "paused": false,
            "drainTimeoutSeconds": 900,
            "provisioningTimeoutSeconds": 600,
            "unhealthyTimeoutSeconds": 300,
            "deletionPolicy": "Delete",
        })
    );
    // The parts of a part that is given.
    let partly = json!({
        "mode": "External",
        "endpoint": {"host": "203.0.113.7", "port": 3128},
        "healthCheck": {"intervalSeconds": 7},
        "auth": {"allowedCIDRs": ["198.51.100.0/24"]},
    });
    let made = proxies
        .create(&PostParams::default(), &object("Proxy", "q", &partly))
        .await
        .unwrap();
    assert_eq!(made.data["spec"]["endpoint"]["scheme"], "http");
    assert_eq!(made.data["spec"]["healthCheck"]["failureThreshold"], 3);
    assert_eq!(made.data["spec"]["auth"]["generate"], false);

    let pool = json!({"template": {"spec": {"provider": "local"}}});
    let pools = dynamic("defaults", "ProxyPool").await;
    let made = pools
        .create(&PostParams::default(), &object("ProxyPool", "p", &pool))
        .await
        .unwrap();
    assert_eq!(made.data["spec"]["replicas"], 1);
    assert_eq!(made.data["spec"]["leasePolicy"], "LeastLoaded");
    assert_eq!(made.data["spec"]["maxLeasesPerTarget"], 1);
    assert_eq!(
        made.data["spec"]["strategy"],
        json!({"maxSurge": "25%", "maxUnavailable": 0, "minReadySeconds": 0})
    );
    assert_eq!(
        made.data["spec"]["template"]["spec"]["healthCheck"]["timeoutSeconds"],
        5
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn zero_max_leases_survives_a_read_modify_write_by_a_typed_client() {
    let client = cluster().await.client().await.unwrap();
    namespace(&client, "zero").await;
    let spec = json!({"provider": "local", "maxLeases": 0});
    let untyped = dynamic("zero", "Proxy").await;
    untyped
        .create(&PostParams::default(), &object("Proxy", "p", &spec))
        .await
        .unwrap();
    let proxies: Api<Proxy> = Api::namespaced(client, "zero");
    let mut read = proxies.get("p").await.unwrap();
    assert_eq!(read.spec.max_leases, 0);
    read.labels_mut().insert("touched".into(), "yes".into());
    proxies
        .replace("p", &PostParams::default(), &read)
        .await
        .unwrap();
    let after = untyped.get("p").await.unwrap();
    assert_eq!(after.data["spec"]["maxLeases"], 0);
    assert_eq!(after.metadata.generation, Some(1));
}

fn managed(extra: Value) -> Value {
    merged(json!({"provider": "local"}), extra)
}

fn external(extra: Value) -> Value {
    let base = json!({"mode": "External", "endpoint": {"host": "203.0.113.7", "port": 3128}});
    merged(base, extra)
}

fn merged(mut base: Value, extra: Value) -> Value {
    let Value::Object(extra) = extra else {
        return base;
    };
    base.as_object_mut().unwrap().extend(extra);
    base
}

/// Case 17 among others: credentials in a host are no host.
#[tokio::test(flavor = "multi_thread")]
async fn each_rule_accepts_and_refuses_and_says_why() {
    let client = cluster().await.client().await.unwrap();
    namespace(&client, "rules").await;
    let proxies = dynamic("rules", "Proxy").await;
    let session = json!({"mode": "Session", "session": {"usernameTemplate": "c-{{session}}"}});
    for spec in [
        managed(json!({})),
        external(json!({})),
        managed(json!({"cloudInit": {"inline": "#cloud-config"}})),
        managed(json!({"cloudInit": {"secretRef": {"name": "s"}}})),
        managed(json!({"auth": {"generate": true, "rotateSeconds": 3600}})),
        managed(json!({"maxLeases": 0, "drainTimeoutSeconds": 0})),
        managed(json!({"scheme": "https"})),
        external(json!({"auth": {"secretRef": {"name": "s"}, "allowedCIDRs": ["2001:db8::/32"]}})),
        external(json!({"endpoint": {"scheme": "socks5", "host": "2001:db8::7", "port": 1080}})),
        external(json!({"exit": session})),
        external(json!({"exit": {"mode": "Rotating"}})),
    ] {
        assert_eq!(dry_run(&proxies, "Proxy", &spec).await, Ok(()), "{spec}");
    }
    let endpoint = |host: &str| external(json!({"endpoint": {"host": host, "port": 1}}));
    for (spec, message) in [
        (json!({}), "provider is required"),
        (
            json!({"mode": "Other", "provider": "x"}),
            "Unsupported value",
        ),
        (managed(json!({"provider": "A_b"})), "spec.provider"),
        (managed(json!({"provider": null})), "provider is required"),
        (
            external(json!({"provider": "local"})),
            "provider is forbidden",
        ),
        (json!({"mode": "External"}), "endpoint is required"),
        (
            managed(json!({"endpoint": {"host": "h", "port": 1}})),
            "endpoint is forbidden",
        ),
        (
            external(json!({"scheme": "http"})),
            "spec.scheme: Forbidden: scheme is forbidden when mode is External: say it in endpoint.scheme",
        ),
        (managed(json!({"scheme": "socks4"})), "Unsupported value"),
        (
            endpoint("u:p@203.0.113.7"),
            "host must be a DNS name or an IP address",
        ),
        (
            endpoint("http://203.0.113.7"),
            "host must be a DNS name or an IP address",
        ),
        (endpoint(""), "spec.endpoint.host"),
        (
            external(json!({"endpoint": {"host": "h", "port": 0}})),
            "spec.endpoint.port",
        ),
        (
            external(json!({"endpoint": {"host": "h", "port": 65536}})),
            "spec.endpoint.port",
        ),
        (
            managed(json!({"cloudInit": {}})),
            "exactly one of inline and secretRef",
        ),
        (
            managed(json!({"cloudInit": {"inline": "x", "secretRef": {"name": "s"}}})),
            "exactly one of inline and secretRef",
        ),
        (
            managed(json!({"auth": {"generate": true, "secretRef": {"name": "s"}}})),
            "secretRef and generate exclude each other",
        ),
        (
            managed(json!({"auth": {"rotateSeconds": 3600}})),
            "rotateSeconds needs generate",
        ),
        (
            managed(json!({"auth": {"allowedCIDRs": ["198.51.100.7"]}})),
            "CIDR notation",
        ),
        (
            external(json!({"auth": {"generate": true}})),
            "auth.generate is forbidden",
        ),
        (
            external(json!({"exit": {"mode": "Session"}})),
            "session is required",
        ),
        (
            external(json!({"exit": {"session": {"usernameTemplate": "c-{{session}}"}}})),
            "forbidden unless",
        ),
        (
            external(
                json!({"exit": {"mode": "Session", "session": {"usernameTemplate": "customer-x-y"}}}),
            ),
            "must contain {{session}}",
        ),
        (
            managed(json!({"healthCheck": {"intervalSeconds": 5, "timeoutSeconds": 6}})),
            "timeoutSeconds must not exceed intervalSeconds",
        ),
        (
            managed(json!({"healthCheck": {"probes": ["ftp://h"]}})),
            "spec.healthCheck.probes[0]",
        ),
        (
            managed(json!({"healthCheck": {"probeUrl": "ftp://x"}})),
            "probeUrl must be an http:// or https:// URL",
        ),
        (
            managed(json!({"healthCheck": {"expectedStatusCodes": []}})),
            "expectedStatusCodes",
        ),
        (managed(json!({"maxLeases": -1})), "spec.maxLeases"),
    ] {
        let refused = dry_run(&proxies, "Proxy", &spec)
            .await
            .expect_err(&spec.to_string());
        assert!(refused.contains(message), "{spec}: {refused}");
    }

    let pools = dynamic("rules", "ProxyPool").await;
    let template = json!({"template": {"spec": {"mode": "External"}}});
    let refused = dry_run(&pools, "ProxyPool", &template).await.unwrap_err();
    assert!(refused.contains("endpoint is required"), "{refused}");
    let with = |extra| merged(json!({"template": {"spec": {"provider": "local"}}}), extra);
    let strategy = |strategy| with(json!({"strategy": strategy}));
    for spec in [
        strategy(json!({"maxSurge": 0, "maxUnavailable": 1})),
        strategy(json!({"maxSurge": "100%", "maxUnavailable": "0%"})),
        strategy(json!({"maxSurge": 1, "minReadySeconds": 60})),
        with(json!({"limits": {"replicas": 0, "pricePerHour": "0.50"}})),
        with(json!({"placements": [{"pricePerHour": "0.0084"}], "maxAgeSeconds": 600})),
    ] {
        assert_eq!(dry_run(&pools, "ProxyPool", &spec).await, Ok(()), "{spec}");
    }
    for (spec, message) in [
        (
            strategy(json!({"maxSurge": 0})),
            "maxUnavailable may not be 0",
        ),
        (
            strategy(json!({"maxSurge": "0%", "maxUnavailable": "0%"})),
            "maxUnavailable may not be 0",
        ),
        (strategy(json!({"maxSurge": -1})), "maxSurge must be"),
        (strategy(json!({"maxSurge": "101%"})), "maxSurge must be"),
        (
            strategy(json!({"maxUnavailable": "5"})),
            "maxUnavailable must be",
        ),
        (strategy(json!({"minReadySeconds": -1})), "minReadySeconds"),
        (with(json!({"maxAgeSeconds": 599})), "spec.maxAgeSeconds"),
        (
            with(json!({"limits": {"pricePerHour": "1,50"}})),
            "spec.limits.pricePerHour",
        ),
        (
            with(json!({"placements": [{"pricePerHour": "-1"}]})),
            "spec.placements[0].pricePerHour",
        ),
    ] {
        let refused = dry_run(&pools, "ProxyPool", &spec).await;
        let refused = refused.expect_err(&spec.to_string());
        assert!(refused.contains(message), "{spec}: {refused}");
    }
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let spec = json!({"template": {"spec": {"provider": "local"}}});
    let long = object("ProxyPool", &"x".repeat(58), &spec);
    let refused = pools.create(&params, &long).await.unwrap_err().to_string();
    assert!(refused.contains("at most 57 characters"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn mode_and_provider_of_a_proxy_are_immutable_and_those_of_a_template_are_not() {
    let client = cluster().await.client().await.unwrap();
    namespace(&client, "immutable").await;
    let proxies = dynamic("immutable", "Proxy").await;
    let params = PostParams::default();
    proxies
        .create(
            &params,
            &object("Proxy", "p", &json!({"provider": "local"})),
        )
        .await
        .unwrap();
    let patch = async |change: Value| {
        let patch = kube::api::Patch::Merge(json!({"spec": change}));
        let patched = proxies.patch("p", &PatchParams::default(), &patch).await;
        patched.map(drop).map_err(|error| error.to_string())
    };
    for change in [
        json!({"port": 8080, "paused": true}),
        json!({"scheme": "socks5"}),
        json!({"scheme": null}),
    ] {
        assert_eq!(patch(change).await, Ok(()));
    }
    let refused = patch(json!({"provider": "other"})).await.unwrap_err();
    assert!(refused.contains("provider is immutable"), "{refused}");
    let external = json!({
        "mode": "External", "provider": null, "endpoint": {"host": "h", "port": 1},
    });
    let refused = patch(external).await.unwrap_err();
    assert!(refused.contains("mode is immutable"), "{refused}");

    let pools: Api<ProxyPool> = Api::namespaced(client, "immutable");
    let spec = json!({"template": {"spec": {"provider": "local"}}});
    let untyped = dynamic("immutable", "ProxyPool").await;
    untyped
        .create(&params, &object("ProxyPool", "pool", &spec))
        .await
        .unwrap();
    let change = json!({"spec": {"template": {"spec": {"provider": "other"}}}});
    let patch = kube::api::Patch::Merge(change);
    pools
        .patch("pool", &PatchParams::default(), &patch)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_explains_and_lists_our_kinds() {
    let cluster = cluster().await;
    let client = cluster.client().await.unwrap();
    namespace(&client, "kubectl").await;
    for (path, sentence) in [
        ("proxy.spec", "maxLeases\t<integer>"),
        (
            "proxy.spec",
            "How many leases may hold this proxy at once. 0: it is not leased at all.",
        ),
        ("proxy.spec", "enum: Managed, External"),
        (
            "px.spec.healthCheck.probeUrl",
            "The short form of probes: one URL.",
        ),
        (
            "pxp.spec.template.spec.exit",
            "How many exits stand behind the endpoint",
        ),
    ] {
        // kube-apiserver publishes the schema of a new kind in the background.
        wait_for(
            &format!("explain {path} to say {sentence:?}"),
            TIMEOUT,
            async || {
                let (ok, text) = try_kubectl(cluster, &["explain", path]);
                Ok((ok && text.contains(sentence)).then_some(()))
            },
        )
        .await
        .unwrap();
    }

    kubectl(
        cluster,
        &[
            "apply",
            "-n",
            "kubectl",
            "-f",
            "config/samples/proxy_external.yaml",
        ],
    );
    let text = kubectl(cluster, &["get", "px", "-n", "kubectl"]);
    let header: Vec<_> = text.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(
        header,
        ["NAME", "MODE", "PROVIDER", "PHASE", "IP", "HEALTHY", "AGE"]
    );
    let text = kubectl(cluster, &["get", "crawl", "-n", "kubectl", "-o", "wide"]);
    assert!(
        text.contains("EXIT") && text.contains("ZONE") && text.contains("REASON"),
        "{text}"
    );

    let api: Api<Proxy> = Api::namespaced(client, "kubectl");
    for (selector, count) in [("spec.mode=External", 1), ("spec.mode=Managed", 0)] {
        let list = api
            .list(&ListParams::default().fields(selector))
            .await
            .unwrap();
        assert_eq!(list.items.len(), count, "{selector}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn samples_pass_a_server_dry_run_with_strict_fields_and_without_warnings() {
    let cluster = cluster().await;
    for sample in [
        "proxy_mock",
        "proxy_gcp",
        "proxy_socks5",
        "proxy_allowlist",
        "proxy_external",
        "proxypool",
    ] {
        let file = format!("config/samples/{sample}.yaml");
        let flags = [
            "apply",
            "--dry-run=server",
            "--validate=strict",
            "-f",
            &file,
        ];
        let (ok, text) = try_kubectl(cluster, &flags);
        assert!(ok && !text.contains("Warning"), "{sample}: {text}");
    }
}

async fn may(verb: &str, group: &str, resource: &str, subresource: &str) -> bool {
    let client = cluster().await.client().await.unwrap();
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "metadata": {},
        "spec": {
            "user": "system:serviceaccount:proxy-operator:proxy-operator",
            "groups": ["system:serviceaccounts", "system:authenticated"],
            "resourceAttributes": {
                "verb": verb, "group": group, "resource": resource,
                "subresource": subresource, "namespace": "default",
            },
        },
    });
    let reviews: Api<SubjectAccessReview> = Api::all(client);
    let review = serde_json::from_value(review).unwrap();
    let answer = reviews
        .create(&PostParams::default(), &review)
        .await
        .unwrap();
    answer.status.unwrap().allowed
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_may_do_what_it_does_and_not_read_secrets_everywhere() {
    let (ours, leases) = ("crawl.example.com", "leases.crawl.example.com");
    for (verb, group, resource, subresource) in [
        ("update", ours, "proxies", "status"),
        ("update", ours, "proxypools", "status"),
        ("get", leases, "proxyendpoints", ""),
        ("list", leases, "proxyendpoints", ""),
    ] {
        assert!(
            may(verb, group, resource, subresource).await,
            "{verb} {resource}"
        );
    }
    for (verb, group, resource) in [
        ("get", "", "secrets"),
        ("list", "", "pods"),
        ("get", "", "namespaces"),
        ("create", leases, "proxyleases"),
        ("update", ours, "proxypools"),
        ("delete", ours, "proxypools"),
    ] {
        assert!(!may(verb, group, resource, "").await, "{verb} {resource}");
    }
}
