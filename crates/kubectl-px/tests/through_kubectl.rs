//! The plugins as kubectl runs them, against a real API server: dispatch, credentials, and the
//! errors of kube-apiserver itself.
//!
//! A CustomResourceDefinition stands in for lease-apiserver, so no lease is ever granted here.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::{Command, Output};

use crawl_api::lease::ProxyLease;
use devcluster::{Cluster, Options};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::PostParams;
use kube::{Api, CustomResourceExt};

/// kubectl with the plugins on its PATH.
fn kubectl(cluster: &Cluster, kubeconfig: &Path, args: &[&str]) -> Output {
    let plugins = Path::new(env!("CARGO_BIN_EXE_kubectl-px"))
        .parent()
        .expect("a folder");
    Command::new(cluster.kubectl_path().expect("kubectl"))
        .args(args)
        .env_clear()
        .env("PATH", format!("{}:/usr/bin:/bin", plugins.display()))
        .env("KUBECONFIG", kubeconfig)
        .output()
        .expect("kubectl runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn refuses(cluster: &Cluster, kubeconfig: &Path, args: &[&str], expected: &str) {
    let output = kubectl(cluster, kubeconfig, args);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {stderr}");
    assert!(output.stdout.is_empty(), "{args:?}");
    assert!(stderr.contains(expected), "{args:?}: {stderr}");
}

async fn install_stand_in(cluster: &Cluster) {
    let client = cluster.client().await.expect("a client");
    let definitions = Api::<CustomResourceDefinition>::all(client);
    let created = definitions
        .create(&PostParams::default(), &ProxyLease::crd())
        .await;
    let name = created.expect("installed").metadata.name.expect("a name");
    let wait = [
        "wait",
        "--for=condition=Established",
        "crd",
        &name,
        "--timeout=60s",
    ]
    .map(str::to_owned);
    let wait: Vec<&str> = wait.iter().map(String::as_str).collect();
    let output = cluster.kubectl(&wait).expect("kubectl runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_runs_the_plugins_with_the_callers_own_credentials() {
    let cluster = Cluster::start(Options::default())
        .await
        .expect("a control plane");
    let admin = cluster.kubeconfig_path().to_owned();
    let create = ["create", "lease", "shop-0", "--pool", "eu"];
    let missing = "error: the server doesn't have a resource type \"proxyleases\"";
    refuses(&cluster, &admin, &create, missing);

    install_stand_in(&cluster).await;
    let output = kubectl(
        &cluster,
        &admin,
        &[&create[..], &["--dry-run=server"]].concat(),
    );
    assert_eq!(
        text(&output.stdout),
        "proxylease.leases.crawl.example.com/shop-0 created (server dry run)\n",
        "{}",
        text(&output.stderr)
    );

    let jane = cluster.user_kubeconfig("jane", &[]).expect("a kubeconfig");
    let forbidden = "Error from server (Forbidden): proxyleases.leases.crawl.example.com is \
                     forbidden: User \"jane\" cannot create resource";
    refuses(&cluster, &jane, &create, forbidden);
    let as_jane = [&create[..], &["--as", "jane"]].concat();
    refuses(&cluster, &admin, &as_jane, forbidden);
    let hold = [
        "px", "lease", "hold", "--pool", "eu", "--as", "jane", "--", "true",
    ];
    refuses(&cluster, &admin, &hold, forbidden);

    let nowhere = [&create[..], &["-n", "nowhere"]].concat();
    refuses(
        &cluster,
        &admin,
        &nowhere,
        "Error from server (NotFound): namespaces \"nowhere\"",
    );
    let expired = [&create[..], &["--token", "expired"]].concat();
    refuses(
        &cluster,
        &admin,
        &expired,
        "error: You must be logged in to the server",
    );
}
