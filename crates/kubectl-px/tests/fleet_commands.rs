//! `kubectl px cordon`, `uncordon`, `drain`, `resume` and `doctor` as kubectl runs them, against a
//! real API server with the real CRDs. The test plays the operator: it writes status.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crawl_api::conditions::{self, Statement};
use crawl_api::names;
use crawl_api::pool::ProxyPool;
use crawl_api::proxy::{Phase, Proxy, ProxySpec, ProxyStatus};
use devcluster::{Cluster, Options};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

const NAMESPACE: &str = "default";

fn command(cluster: &Cluster, args: &[&str]) -> Command {
    let plugins = Path::new(env!("CARGO_BIN_EXE_kubectl-px"))
        .parent()
        .expect("a folder");
    let mut command = Command::new(cluster.kubectl_path().expect("kubectl"));
    command
        .arg("px")
        .args(args)
        .env_clear()
        .env("PATH", format!("{}:/usr/bin:/bin", plugins.display()))
        .env("KUBECONFIG", cluster.kubeconfig_path());
    command
}

fn px(cluster: &Cluster, args: &[&str]) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command(cluster, args).output().expect("kubectl runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (status.code(), text(stdout), text(stderr))
}

fn succeeds(cluster: &Cluster, args: &[&str]) -> String {
    let (code, stdout, stderr) = px(cluster, args);
    assert_eq!(code, Some(0), "{args:?}: {stderr}");
    stdout
}

fn fails(cluster: &Cluster, args: &[&str]) -> (String, String) {
    let (code, stdout, stderr) = px(cluster, args);
    assert_eq!(code, Some(1), "{args:?}: {stdout}{stderr}");
    (stdout, stderr)
}

fn install(cluster: &Cluster) {
    let crds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/crd");
    let crds = crds.to_str().expect("a path");
    for args in [
        &["apply", "-f", crds][..],
        &[
            "wait",
            "--for=condition=Established",
            "crd",
            "--all",
            "--timeout=60s",
        ],
    ] {
        let output = cluster.kubectl(args).expect("kubectl runs");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

async fn create(api: &Api<Proxy>, name: &str, pool: &str, zone: &str) -> Proxy {
    let mut proxy = Proxy::new(name, ProxySpec::managed("local"));
    proxy
        .labels_mut()
        .insert(names::LABEL_POOL.into(), pool.into());
    api.create(&PostParams::default(), &proxy)
        .await
        .expect("created");
    let status = ProxyStatus {
        phase: Phase::Ready,
        zone: Some(zone.into()),
        ..ProxyStatus::default()
    };
    say(api, name, &status).await
}

/// As the operator would.
async fn say(api: &Api<Proxy>, name: &str, status: &ProxyStatus) -> Proxy {
    let patch = Patch::Merge(json!({"status": status}));
    api.patch_status(name, &PatchParams::default(), &patch)
        .await
        .expect("written")
}

fn with(
    status: &ProxyStatus,
    type_: &'static str,
    value: bool,
    reason: &str,
    generation: Option<i64>,
) -> ProxyStatus {
    let mut status = status.clone();
    let statement = Statement::new(type_, value, reason, "2 leases are left");
    let at = Timestamp::from_second(1_900_000_000).expect("a time");
    conditions::set(&mut status.conditions, statement, generation, at);
    status
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_is_marked_drained_resumed_and_examined() {
    let cluster = Cluster::start(Options::default())
        .await
        .expect("a control plane");
    let (_, stderr) = fails(&cluster, &["cordon", "eu-1"]);
    assert!(
        stderr.contains("the server doesn't have the kinds of crawl.example.com"),
        "{stderr}"
    );
    install(&cluster);
    let client = cluster.client().await.expect("a client");
    let api: Api<Proxy> = Api::namespaced(client.clone(), NAMESPACE);
    for (name, pool, zone) in [
        ("eu-1", "eu", "a"),
        ("eu-2", "eu", "b"),
        ("us-1", "us", "a"),
    ] {
        create(&api, name, pool, zone).await;
    }
    let spec = async |name: &str| api.get(name).await.expect("found").spec;

    // Selection.
    let text = succeeds(&cluster, &["cordon", "eu-1"]);
    assert_eq!(text, "proxy.crawl.example.com/eu-1 cordoned\n");
    assert_eq!(
        succeeds(&cluster, &["cordon", "--pool", "eu"]),
        "proxy.crawl.example.com/eu-1 already cordoned\nproxy.crawl.example.com/eu-2 cordoned\n"
    );
    assert!(!spec("us-1").await.cordoned);
    assert_eq!(
        succeeds(&cluster, &["drain", "--zone", "a", "-o", "name"]),
        "proxy.crawl.example.com/eu-1\nproxy.crawl.example.com/us-1\n"
    );
    assert!(spec("us-1").await.drain && !spec("eu-2").await.drain);
    let list = succeeds(
        &cluster,
        &[
            "uncordon",
            "-l",
            "crawl.example.com/pool in (eu,us)",
            "-o",
            "json",
        ],
    );
    let list: Value = serde_json::from_str(&list).expect("JSON");
    assert_eq!(list["items"].as_array().map(Vec::len), Some(3));
    for name in ["eu-1", "eu-2", "us-1"] {
        assert!(
            !spec(name).await.cordoned && !spec(name).await.drain,
            "{name}"
        );
    }
    let (_, stderr) = fails(&cluster, &["cordon", "nobody"]);
    assert!(stderr.contains("\"nobody\" not found"), "{stderr}");
    let (_, stderr) = fails(&cluster, &["cordon"]);
    assert!(stderr.contains("say which proxies"), "{stderr}");
    let (_, stderr) = fails(&cluster, &["cordon", "eu-1", "--as", "jane"]);
    assert!(stderr.contains("Error from server (Forbidden)"), "{stderr}");

    // Waiting.
    let waiting = command(&cluster, &["drain", "eu-1", "--wait"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("kubectl runs");
    while !spec("eu-1").await.drain {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let marked = api.get("eu-1").await.expect("found");
    let generation = marked.metadata.generation;
    let status = marked.status.expect("a status");
    let drained = with(
        &status,
        conditions::DRAINED,
        true,
        conditions::REASON_NO_LEASES,
        generation,
    );
    say(&api, "eu-1", &drained).await;
    let output = tokio::task::spawn_blocking(|| waiting.wait_with_output())
        .await
        .expect("waited")
        .expect("ended");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(
        stderr.contains("proxy.crawl.example.com/eu-1 drained (NoLeases)"),
        "{stderr}"
    );
    let (_, stderr) = fails(&cluster, &["drain", "eu-2", "--wait", "--timeout", "1s"]);
    assert!(stderr.contains("not drained within 1s"), "{stderr}");

    // One proxy.
    let failing = with(
        &status,
        conditions::PROVISIONED,
        false,
        conditions::REASON_QUOTA_EXCEEDED,
        None,
    );
    let failing = with(
        &failing,
        conditions::WITHHELD,
        true,
        conditions::REASON_MASS_EXTERNAL_DELETION,
        None,
    );
    say(&api, "us-1", &failing).await;
    let text = succeeds(&cluster, &["doctor", "us-1"]);
    for part in [
        "OBJECT",
        "PROVIDER",
        "PROBE",
        "LEASES",
        "local: QuotaExceeded",
        "zone a",
        "LIVE\nnot asked; to have the provider and the probes asked now: kubectl port-forward",
        "Withheld=True since 2030-03-17T17:46:40Z",
        "NEXT\n",
        "kubectl px resume POOL",
    ] {
        assert!(text.contains(part), "{part:?} not in {text}");
    }
    let views: Value =
        serde_json::from_str(&succeeds(&cluster, &["doctor", "us-1", "-o", "json"])).expect("JSON");
    assert_eq!(views["proxy"]["metadata"]["name"], "us-1");
    assert!(
        views["next"]["action"]
            .as_str()
            .is_some_and(|text| text.contains("resume"))
    );

    // All of it. There is no lease-apiserver and no operator here.
    let (text, stderr) = fails(&cluster, &["doctor"]);
    for part in [
        "FAIL  APIService",
        "no replica leads",
        "QuotaExceeded: default/us-1",
        "MassExternalDeletion: default/us-1",
        "-> find out who deleted the instances",
        "3 of 3 are ready",
        "known to the operator only",
        "--operator-url",
    ] {
        assert!(text.contains(part), "{part:?} not in {text}{stderr}");
    }
    let (text, _) = fails(&cluster, &["doctor", "-o", "json"]);
    let findings: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(findings["findings"][0]["level"], "fail");

    // Resume.
    let pools: Api<ProxyPool> = Api::namespaced(client, NAMESPACE);
    let pool = json!({"apiVersion": "crawl.example.com/v1alpha1", "kind": "ProxyPool",
        "metadata": {"name": "us"},
        "spec": {"replicas": 0, "template": {"spec": {"provider": "local"}}}});
    let pool: ProxyPool = serde_json::from_value(pool).expect("a pool");
    pools
        .create(&PostParams::default(), &pool)
        .await
        .expect("created");
    assert_eq!(
        succeeds(&cluster, &["resume", "us", "--proxy", "us-1"]),
        "proxypool.crawl.example.com/us resumed\nproxy.crawl.example.com/us-1 resumed\n"
    );
    let at = |annotations: &std::collections::BTreeMap<String, String>| {
        annotations[names::ANNOTATION_RESUME]
            .parse::<Timestamp>()
            .is_ok()
    };
    assert!(at(pools.get("us").await.expect("found").annotations()));
    assert!(at(api.get("us-1").await.expect("found").annotations()));
    let (_, stderr) = fails(&cluster, &["resume", "nowhere"]);
    assert!(stderr.contains("\"nowhere\" not found"), "{stderr}");
}
