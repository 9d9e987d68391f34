//! The lease API on a real control plane, as kubectl and pods see it.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "test code")]

mod common;

use common::{Stage, lease};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_created_shown_watched_renewed_and_deleted_with_kubectl() {
    let stage = Stage::start().await;
    let crawler = stage
        .cluster
        .service_account_kubeconfig("crawlers", "crawler")
        .await
        .unwrap();
    stage.proxy("a", 1, "203.0.113.1", &json!({"geo": "eu"}));
    stage.accepting("a").await;

    // Discovery and documentation.
    let resources = stage.kubectl(&["api-resources", "--api-group", common::GROUP]);
    assert!(
        resources.contains("pxl") && resources.contains("pxe"),
        "{resources}"
    );
    // kube-apiserver fetches the document of an aggregated API in the background.
    stage
        .until("kubectl explain to know the lease", || {
            let explained = stage.try_kubectl(&["explain", "proxyleases.spec"]);
            String::from_utf8_lossy(&explained.stdout)
                .contains("ttlSeconds")
                .then_some(())
        })
        .await;

    // Create, by somebody who may only lease.
    let file = stage.file(&lease(
        "shop-0",
        &json!({"target": "https://www.shop.example.co.uk/x"}),
    ));
    let file = file.to_str().unwrap();
    let printed = stage.kubectl_as(&crawler, &["create", "-f", file]);
    assert_eq!(
        printed,
        "proxylease.leases.crawl.example.com/shop-0 created\n"
    );
    let stored = stage.lease("shop-0").unwrap();
    assert_eq!(stored["status"]["target"], "example.co.uk");
    assert_eq!(stored["spec"]["ttlSeconds"], 300);
    assert_eq!(stored["status"]["phase"], "Bound");
    assert_eq!(stored["status"]["proxyURL"], "http://203.0.113.1:3128");
    assert_eq!(stored["status"]["exitIP"], "203.0.113.1");
    assert_eq!(stored["status"]["lastToken"], 1);
    assert_eq!(
        stored["status"]["holder"]["username"],
        "system:serviceaccount:crawlers:crawler"
    );
    stage.kubectl(&[
        "-n",
        "crawlers",
        "wait",
        "--for=condition=Bound",
        "pxl/shop-0",
        "--timeout=10s",
    ]);
    let table = stage.kubectl_as(&crawler, &["get", "pxl"]);
    assert!(table.contains("http://203.0.113.1:3128"), "{table}");

    // The same name again is the same lease; another spec is not.
    stage.kubectl_as(&crawler, &["create", "-f", file]);
    assert_eq!(
        stage.lease("shop-0").unwrap()["metadata"]["uid"],
        stored["metadata"]["uid"]
    );
    let other = stage.file(&lease("shop-0", &json!({"target": "other.example.com"})));
    let refused = stage.kubectl_fails(&crawler, &["create", "-f", other.to_str().unwrap()]);
    assert!(refused.contains("AlreadyExists"), "{refused}");

    // All slots are taken.
    let second = stage.file(&lease("shop-1", &json!({})));
    let denied = stage.kubectl_fails(&crawler, &["create", "-f", second.to_str().unwrap()]);
    assert!(
        denied.contains("NoProxyAvailable") && denied.contains("1 AtCapacity"),
        "{denied}"
    );

    // Renew.
    let renewal =
        json!({"apiVersion": "leases.crawl.example.com/v1alpha1", "kind": "LeaseRenewal"});
    let renewal = stage.file(&renewal);
    let path =
        "/apis/leases.crawl.example.com/v1alpha1/namespaces/crawlers/proxyleases/shop-0/renew";
    let renewed = stage.kubectl_as(
        &crawler,
        &["create", "--raw", path, "-f", renewal.to_str().unwrap()],
    );
    let renewed: Value = serde_json::from_str(&renewed).unwrap();
    assert_eq!(renewed["kind"], "LeaseRenewal");
    assert!(
        renewed["status"]["remainingSeconds"].as_i64().unwrap() >= 299,
        "{renewed}"
    );
    assert!(stage.lease("shop-0").unwrap()["status"]["renewedAt"].is_string());

    // The spec stays, metadata may change.
    let refused = stage.kubectl_fails(
        stage.cluster.kubeconfig_path(),
        &[
            "-n",
            "crawlers",
            "patch",
            "pxl",
            "shop-0",
            "--type=merge",
            "-p",
            r#"{"spec":{"ttlSeconds":60}}"#,
        ],
    );
    assert!(
        refused.contains("spec.ttlSeconds") && refused.contains("immutable"),
        "{refused}"
    );
    stage.kubectl(&["-n", "crawlers", "label", "pxl", "shop-0", "job=7"]);

    // Delete; a second time there is nothing.
    stage.kubectl_as(&crawler, &["delete", "pxl", "shop-0"]);
    let gone = stage.kubectl_fails(&crawler, &["delete", "pxl", "shop-0"]);
    assert!(gone.contains("NotFound"), "{gone}");
    stage.kubectl_as(&crawler, &["create", "-f", second.to_str().unwrap()]);
    assert_eq!(stage.lease("shop-1").unwrap()["status"]["lastToken"], 2);
    let metrics = stage.metrics();
    assert!(
        metrics.contains("lease_apiserver_leases_active 1"),
        "{metrics}"
    );
    assert!(metrics.contains(r#"lease_apiserver_denials_total{reason="AtCapacity"} 1"#));

    // Somebody who may not lease.
    stage.kubectl(&["-n", "crawlers", "create", "serviceaccount", "stranger"]);
    let stranger = stage
        .cluster
        .service_account_kubeconfig("crawlers", "stranger")
        .await
        .unwrap();
    let refused = stage.kubectl_fails(&stranger, &["create", "-f", file]);
    assert!(refused.contains("Forbidden"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn traffic_that_a_holder_reports_is_shown_by_the_proxys_endpoint() {
    let stage = Stage::start().await;
    let account = async |name: &str, role: &str| {
        if name != "crawler" {
            stage.kubectl(&["-n", "crawlers", "create", "serviceaccount", name]);
            let (role, account) = (
                format!("--role={role}"),
                format!("--serviceaccount=crawlers:{name}"),
            );
            stage.kubectl(&[
                "-n",
                "crawlers",
                "create",
                "rolebinding",
                name,
                &role,
                &account,
            ]);
        }
        let kubeconfig = stage.cluster.service_account_kubeconfig("crawlers", name);
        kubeconfig.await.unwrap()
    };
    stage.kubectl(&[
        "-n",
        "crawlers",
        "create",
        "role",
        "silent",
        "--verb=create",
        "--resource=proxyleases.leases.crawl.example.com",
    ]);
    let crawler = account("crawler", "").await;
    let silent = account("silent", "silent").await;
    stage.proxy("a", 2, "203.0.113.1", &json!({}));
    stage.accepting("a").await;

    let base = "/apis/leases.crawl.example.com/v1alpha1";
    let discovery: Value = serde_json::from_str(&stage.kubectl(&["get", "--raw", base])).unwrap();
    let resources = discovery["resources"].as_array().unwrap();
    let report = resources.iter().find(|r| r["name"] == "proxyleases/report");
    let report = report.expect("discovery names the subresource");
    assert_eq!(
        (&report["kind"], &report["verbs"]),
        (&json!("LeaseReport"), &json!(["create"]))
    );

    let reported = || {
        let path = "jsonpath={.status.lastSuccessReportTime}";
        let time = stage.kubectl(&["-n", "crawlers", "get", "pxe", "a", "-o", path]);
        (!time.is_empty()).then_some(time)
    };
    let send = |name: &str, sub: &str, body: &Value| {
        let file = stage.file(body);
        let path = format!("{base}/namespaces/crawlers/proxyleases/{name}/{sub}");
        let arguments = ["create", "--raw", &path, "-f", file.to_str().unwrap()];
        arguments.map(ToOwned::to_owned)
    };
    let of = |kind: &str, spec: Value| json!({"apiVersion": "leases.crawl.example.com/v1alpha1", "kind": kind, "spec": spec});
    for (name, holder) in [("mine", &crawler), ("theirs", &silent)] {
        let file = stage.file(&lease(name, &json!({})));
        stage.kubectl_as(holder, &["create", "-f", file.to_str().unwrap()]);
    }

    // It needs `create` on proxyleases/report besides the lease.
    let ok = of("LeaseReport", json!({"result": "OK"}));
    let arguments = send("theirs", "report", &ok);
    let refused = stage.kubectl_fails(&silent, &arguments.each_ref().map(String::as_str));
    assert!(
        refused.contains("Forbidden") && refused.contains("proxyleases/report"),
        "{refused}"
    );
    let banned = of("LeaseReport", json!({"result": "Banned"}));
    let arguments = send("mine", "report", &banned);
    let refused = stage.kubectl_fails(&crawler, &arguments.each_ref().map(String::as_str));
    assert!(refused.contains("supported values"), "{refused}");
    let failed = of("LeaseRenewal", json!({"errors": 2}));
    let arguments = send("mine", "renew", &failed);
    stage.kubectl_as(&crawler, &arguments.each_ref().map(String::as_str));
    assert_eq!(reported(), None, "nothing went through so far");

    let arguments = send("mine", "report", &ok);
    stage.kubectl_as(&crawler, &arguments.each_ref().map(String::as_str));
    let time = stage
        .until("the endpoint to show the report", reported)
        .await;
    assert!(time.parse::<jiff::Timestamp>().is_ok(), "{time}");
    let wide = stage.kubectl(&["-n", "crawlers", "get", "pxe", "-o", "wide"]);
    assert!(wide.contains("REPORTED"), "{wide}");
    let metrics = stage.metrics();
    for line in [
        r#"lease_apiserver_reported_requests_total{result="Error",status="none"} 2"#,
        r#"lease_apiserver_reported_requests_total{result="OK",status="none"} 1"#,
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    assert!(
        !metrics.contains("mine") && !metrics.contains("theirs"),
        "no series per lease"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_end_with_their_pod_and_their_namespace() {
    let stage = Stage::start().await;
    stage.proxy("a", 5, "203.0.113.1", &json!({}));
    stage.accepting("a").await;
    for pod in ["worker-0", "worker-1"] {
        stage.apply(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": pod, "namespace": "crawlers"},
            "spec": {
                "serviceAccountName": "crawler",
                "containers": [{"name": "c", "image": "none"}],
            },
        }));
    }
    let first = stage
        .cluster
        .pod_kubeconfig("crawlers", "worker-0")
        .await
        .unwrap();
    let second = stage
        .cluster
        .pod_kubeconfig("crawlers", "worker-1")
        .await
        .unwrap();

    let file = stage.file(&lease("mine", &json!({"ttlSeconds": 7200})));
    stage.kubectl_as(&first, &["create", "-f", file.to_str().unwrap()]);
    let mine = stage.lease("mine").unwrap();
    assert_eq!(mine["metadata"]["ownerReferences"][0]["kind"], "Pod");
    assert_eq!(mine["metadata"]["ownerReferences"][0]["name"], "worker-0");
    assert_eq!(mine["status"]["holder"]["podName"], "worker-0");

    // A restarted pod takes over.
    stage.kubectl_as(&second, &["create", "-f", file.to_str().unwrap()]);
    let taken = stage.lease("mine").unwrap();
    assert_eq!(taken["metadata"]["uid"], mine["metadata"]["uid"]);
    assert_eq!(taken["metadata"]["ownerReferences"][0]["name"], "worker-1");
    assert_eq!(
        taken["metadata"]["ownerReferences"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(taken["status"]["holder"]["podName"], "worker-1");

    stage.kubectl(&[
        "-n",
        "crawlers",
        "delete",
        "pod",
        "worker-0",
        "--grace-period=0",
        "--force",
    ]);
    assert!(stage.lease("mine").is_some());
    stage.kubectl(&[
        "-n",
        "crawlers",
        "delete",
        "pod",
        "worker-1",
        "--grace-period=0",
        "--force",
    ]);
    stage
        .until("the lease of a deleted pod to end", || {
            stage.lease("mine").is_none().then_some(())
        })
        .await;

    // A longer ttl needs a pod.
    let crawler = stage
        .cluster
        .service_account_kubeconfig("crawlers", "crawler")
        .await
        .unwrap();
    let refused = stage.kubectl_fails(&crawler, &["create", "-f", file.to_str().unwrap()]);
    assert!(
        refused.contains("spec.ttlSeconds") && refused.contains("86400"),
        "{refused}"
    );

    // A namespace goes with its leases, also with proxies in it.
    let plain = stage.file(&lease("plain", &json!({})));
    stage.kubectl_as(&crawler, &["create", "-f", plain.to_str().unwrap()]);
    stage.kubectl(&["delete", "namespace", "crawlers", "--timeout=60s"]);
    let left = stage.kubectl(&["get", "pxl,pxe", "-A", "-o", "name"]);
    assert_eq!(left, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_survive_kill_9_and_a_blind_repeat_takes_one_slot() {
    let mut stage = Stage::start().await;
    let crawler = stage
        .cluster
        .service_account_kubeconfig("crawlers", "crawler")
        .await
        .unwrap();
    stage.proxy("a", 2, "203.0.113.1", &json!({}));
    stage.accepting("a").await;
    let file = stage.file(&lease("kept", &json!({})));
    let file = file.to_str().unwrap();
    stage.kubectl_as(&crawler, &["create", "-f", file]);
    let mut before = stage.lease("kept").unwrap();

    stage.kill();
    stage.serve();
    stage.available().await;

    // Only its end moves: it was given its full ttl again.
    let mut after = stage.lease("kept").unwrap();
    let end = |lease: &Value| lease["status"]["expiresAt"].as_str().unwrap().to_owned();
    assert!(end(&after) >= end(&before), "{after}");
    for lease in [&mut before, &mut after] {
        lease["status"]["expiresAt"] = json!(null);
        lease["metadata"]["resourceVersion"] = json!(null);
        lease["metadata"]["managedFields"] = json!(null);
    }
    assert_eq!(after, before);
    stage.kubectl_as(&crawler, &["create", "-f", file]);
    let active = [
        "-n",
        "crawlers",
        "get",
        "pxe",
        "a",
        "-o",
        "jsonpath={.status.active}",
    ];
    stage
        .until("the view to count one lease", || {
            (stage.kubectl(&active) == "1").then_some(())
        })
        .await;
    let second = stage.file(&lease("second", &json!({})));
    stage.kubectl_as(&crawler, &["create", "-f", second.to_str().unwrap()]);
    assert_eq!(stage.lease("second").unwrap()["status"]["lastToken"], 2);
    let third = stage.file(&lease("third", &json!({})));
    let denied = stage.kubectl_fails(&crawler, &["create", "-f", third.to_str().unwrap()]);
    assert!(denied.contains("1 AtCapacity"), "{denied}");

    // A waiter gets the slot that becomes free.
    let waiting = stage.file(&lease("waiting", &json!({"waitSeconds": 60})));
    stage.kubectl_as(&crawler, &["create", "-f", waiting.to_str().unwrap()]);
    assert_eq!(
        stage.lease("waiting").unwrap()["status"]["phase"],
        "Pending"
    );
    stage.kubectl_as(&crawler, &["delete", "pxl", "second"]);
    stage.kubectl_as(
        &crawler,
        &[
            "wait",
            "--for=condition=Bound",
            "pxl/waiting",
            "--timeout=20s",
        ],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_proxy_stops_accepting_and_its_leases_are_told() {
    let stage = Stage::start().await;
    let crawler = stage
        .cluster
        .service_account_kubeconfig("crawlers", "crawler")
        .await
        .unwrap();
    stage.proxy("a", 2, "203.0.113.1", &json!({}));
    stage.accepting("a").await;
    let file = stage.file(&lease("old", &json!({})));
    stage.kubectl_as(&crawler, &["create", "-f", file.to_str().unwrap()]);

    let patch = r#"{"spec":{"drain":true,"drainTimeoutSeconds":600}}"#;
    let drained = stage.kubectl(&[
        "-n",
        "crawlers",
        "patch",
        "proxy",
        "a",
        "--type=merge",
        "-p",
        patch,
        "-o",
        "jsonpath={.metadata.resourceVersion}",
    ]);
    let drained: u64 = drained.parse().unwrap();
    let view = stage
        .until("the view to show the drain", || {
            let view = stage.kubectl(&["-n", "crawlers", "get", "pxe", "a", "-o", "json"]);
            let view: Value = serde_json::from_str(&view).unwrap();
            let seen = view["status"]["observedProxyResourceVersion"]
                .as_str()?
                .parse::<u64>();
            (view["status"]["accepting"] == false && seen.ok()? >= drained).then_some(view)
        })
        .await;
    assert_eq!(view["status"]["active"], 1);
    assert_eq!(view["status"]["reason"], "Draining");
    let new = stage.file(&lease("new", &json!({})));
    let denied = stage.kubectl_fails(&crawler, &["create", "-f", new.to_str().unwrap()]);
    assert!(denied.contains("1 Draining"), "{denied}");
    stage.kubectl(&[
        "-n",
        "crawlers",
        "wait",
        "--for=condition=Draining",
        "pxl/old",
        "--timeout=20s",
    ]);

    stage.kubectl_as(&crawler, &["delete", "pxl", "old"]);
    stage
        .until("the view to show that nothing is left", || {
            let path = "jsonpath={.status.active} {.status.accepting}";
            let view = stage.kubectl(&["-n", "crawlers", "get", "pxe", "a", "-o", path]);
            (view == "0 false").then_some(())
        })
        .await;

    // Leases of a proxy that is deleted are taken back, and the view goes.
    stage.kubectl(&[
        "-n",
        "crawlers",
        "patch",
        "proxy",
        "a",
        "--type=merge",
        "-p",
        r#"{"spec":{"drain":false}}"#,
    ]);
    stage.accepting("a").await;
    stage.kubectl_as(&crawler, &["create", "-f", file.to_str().unwrap()]);
    stage.kubectl(&["-n", "crawlers", "delete", "proxy", "a"]);
    stage
        .until("the lease to be revoked", || {
            let lease = stage.lease("old")?;
            (lease["status"]["phase"] == "Revoked").then_some(lease)
        })
        .await;
    stage
        .until("the view to go", || {
            let output = stage.try_kubectl(&["-n", "crawlers", "get", "pxe", "a"]);
            (!output.status.success()).then_some(())
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_custom_resources_the_server_is_ready_and_denies_with_the_cause() {
    let mut stage = Stage::without_crds().await;
    stage.serve();
    stage.available().await;
    let crawler = stage
        .cluster
        .service_account_kubeconfig("crawlers", "crawler")
        .await
        .unwrap();
    let file = stage.file(&lease("early", &json!({})));
    let file = file.to_str().unwrap();
    let denied = stage.kubectl_fails(&crawler, &["create", "-f", file]);
    assert!(
        denied.contains("NoProxyAvailable") && denied.contains("not installed"),
        "{denied}"
    );

    stage.install_crds();
    stage.proxy("a", 1, "203.0.113.1", &json!({}));
    stage.accepting("a").await;
    stage.kubectl_as(&crawler, &["create", "-f", file]);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_leases_are_refused_at_the_field_that_is_wrong() {
    let stage = Stage::start().await;
    stage.proxy("a", 9, "203.0.113.1", &json!({"geo": "eu"}));
    stage.accepting("a").await;
    let crawler = stage
        .cluster
        .service_account_kubeconfig("crawlers", "crawler")
        .await
        .unwrap();
    for (spec, expected) in [
        (json!({"target": "no host"}), "spec.target"),
        (json!({"ttlSeconds": 5}), "spec.ttlSeconds"),
        (json!({"ttlSeconds": 3601}), "spec.ttlSeconds"),
        (
            json!({"poolRef": {"name": "eu"}, "selector": {}}),
            "spec.selector",
        ),
        (json!({"poolRef": {"name": "eu"}}), "spec.poolRef.name"),
        (
            json!({"poolRef": {"name": "eu", "namespace": "fleet"}}),
            "Forbidden",
        ),
        (json!({"schemes": ["http", "http"]}), "spec.schemes[1]"),
        (json!({"unknown": 1}), "unknown"),
    ] {
        let file = stage.file(&lease("bad", &spec));
        let arguments = ["create", "-f", file.to_str().unwrap(), "--validate=strict"];
        let refused = stage.kubectl_fails(&crawler, &arguments);
        assert!(refused.contains(expected), "{spec}: {refused}");
    }
    let dry = stage.file(&lease(
        "dry",
        &json!({"selector": {"matchLabels": {"geo": "eu"}}}),
    ));
    stage.kubectl_as(
        &crawler,
        &["create", "--dry-run=server", "-f", dry.to_str().unwrap()],
    );
    assert!(stage.lease("dry").is_none());
    assert!(stage.metrics().contains("lease_apiserver_leases_active 0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_of_another_namespace_needs_to_be_open_or_the_verb_lease() {
    let stage = Stage::start().await;
    let crawler = stage
        .cluster
        .service_account_kubeconfig("crawlers", "crawler")
        .await
        .unwrap();
    let pool = |allowed: Value| {
        json!({
            "apiVersion": "crawl.example.com/v1alpha1", "kind": "ProxyPool",
            "metadata": {"name": "eu", "namespace": "fleet"},
            "spec": {
                "replicas": 0, "allowedNamespaces": allowed,
                "template": {"spec": {"provider": "local"}},
            },
        })
    };
    stage.apply(&pool(json!({"names": []})));
    let file = stage.file(&lease(
        "far",
        &json!({"poolRef": {"name": "eu", "namespace": "fleet"}}),
    ));
    let file = file.to_str().unwrap();
    let refused = stage.kubectl_fails(&crawler, &["create", "-f", file]);
    assert!(
        refused.contains("Forbidden") && refused.contains("not open"),
        "{refused}"
    );

    stage.apply(&pool(
        json!({"selector": {"matchLabels": {"kubernetes.io/metadata.name": "crawlers"}}}),
    ));
    stage
        .until("the pool to be open", || {
            let denied = stage.kubectl_fails(&crawler, &["create", "-f", file]);
            denied.contains("no proxies of pool fleet/eu").then_some(())
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn before_the_api_server_is_up_the_process_waits_and_says_so() {
    let mut stage = Stage::without_crds().await;
    let down = stage.file(&json!({
        "kind": "Config", "apiVersion": "v1", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }));
    stage.serve_with(&[&format!("--kubeconfig={}", down.to_str().unwrap())]);
    let (ready, text) = stage
        .until("the admin endpoints", || {
            stage
                .ready()
                .filter(|(_, text)| text.contains("127.0.0.1:1"))
        })
        .await;
    assert!(!ready, "{text}");
    stage
        .until("the log to say what is waited for", || {
            stage
                .log()
                .contains("waiting for the API server")
                .then_some(())
        })
        .await;
    assert!(stage.is_running(), "no crash loop: {}", stage.log());
}
