//! What docs/leasing.md tells a crawler's developer to do, done: each snippet runs as it stands there,
//! as a pod would run it, against the whole system. Also: the sample of a lease is accepted.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crawl_api::endpoint::ProxyEndpoint;
use devcluster::{Cluster, wait_for};
use kube::Api;
use kube::api::ListParams;
use support::{Site, TIMEOUT, binary, kubectl, repository, start_lease_apiserver};

const NAMESPACE: &str = "crawlers";

/// The pool of the samples, all of whose members take leases.
async fn start_pool(site: &Site) {
    kubectl(
        site.cluster,
        &[
            "apply",
            "-n",
            NAMESPACE,
            "-f",
            "config/samples/proxypool.yaml",
        ],
    );
    let endpoints: Api<ProxyEndpoint> = Api::namespaced(site.client.clone(), NAMESPACE);
    wait_for("three proxies that take leases", TIMEOUT, async || {
        let Ok(found) = endpoints.list(&ListParams::default()).await else {
            return Ok(None);
        };
        let accepting = |e: &&ProxyEndpoint| e.status.as_ref().is_some_and(|s| s.accepting);
        Ok((found.items.iter().filter(accepting).count() == 3).then_some(()))
    })
    .await
    .unwrap();
}

/// The folder a pod finds its ServiceAccount's token in.
async fn account_folder(cluster: &Cluster) -> PathBuf {
    let folder = cluster.dir().join("serviceaccount");
    std::fs::create_dir_all(&folder).unwrap();
    let token = cluster.pod_token(NAMESPACE, "crawler-0").await.unwrap();
    std::fs::write(folder.join("token"), token).unwrap();
    std::fs::write(folder.join("namespace"), NAMESPACE).unwrap();
    std::fs::copy(cluster.pki_folder().join("ca.crt"), folder.join("ca.crt")).unwrap();
    folder
}

/// The fenced blocks of a page in order: language and text.
fn snippets(page: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let body: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
            found.push((language.to_owned(), body.join("\n") + "\n"));
        }
    }
    found
}

fn shown(output: &Output) -> String {
    format!(
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

fn python_folder() -> PathBuf {
    let output = Command::new(repository().join("hack/python.sh"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", shown(&output));
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_snippet_of_the_leasing_page_works_as_it_stands() {
    let site = Site::new(NAMESPACE).await;
    let cluster = site.cluster;
    let _operator = site.operator();
    let _lease_apiserver = start_lease_apiserver(cluster).await;
    start_pool(&site).await;
    for args in [
        ["create", "serviceaccount", "crawler", "-n", NAMESPACE].as_slice(),
        &[
            "create",
            "rolebinding",
            "crawler-leases",
            "--clusterrole=crawl-leaser",
            "--serviceaccount=crawlers:crawler",
            "-n",
            NAMESPACE,
        ],
        &[
            "run",
            "crawler-0",
            "-n",
            NAMESPACE,
            "--image=crawler",
            r#"--overrides={"spec":{"serviceAccountName":"crawler"}}"#,
        ],
    ] {
        kubectl(cluster, args);
    }
    let kubeconfig = cluster
        .pod_kubeconfig(NAMESPACE, "crawler-0")
        .await
        .unwrap();
    let account = account_folder(cluster).await;
    let echo = support::echo(cluster).await;
    let plugins = binary("kubectl-px", "kubectl-px")
        .parent()
        .unwrap()
        .to_owned();
    binary("kubectl-px", "kubectl-create-lease");
    let paths = [
        python_folder(),
        plugins,
        cluster.kubectl_path().unwrap().parent().unwrap().to_owned(),
        "/usr/local/bin".into(),
        "/usr/bin".into(),
        "/bin".into(),
    ];
    let path = std::env::join_paths(paths).unwrap();
    let run = |program: &Path, args: &[&str]| {
        Command::new(program)
            .args(args)
            .current_dir(cluster.dir())
            .env_clear()
            .env("PATH", &path)
            .env("HOME", cluster.dir())
            .env("KUBECONFIG", &kubeconfig)
            .env("CURL_CA_BUNDLE", echo.authority())
            // The target of the test is on loopback, which is otherwise not proxied.
            .env("NO_PROXY", "")
            .output()
            .unwrap()
    };

    let page = std::fs::read_to_string(repository().join("docs/leasing.md")).unwrap();
    let mut languages = Vec::new();
    for (language, text) in snippets(&page) {
        let text = text
            .replace("https://shop.example.com/", &format!("{}/ip", echo.url()))
            .replace(
                "/var/run/secrets/kubernetes.io/serviceaccount",
                account.to_str().unwrap(),
            )
            .replace("https://kubernetes.default.svc", cluster.url());
        let output = match language.as_str() {
            "bash" => run(
                Path::new("bash"),
                &["-e", "-u", "-o", "pipefail", "-c", &text],
            ),
            "python" => run(Path::new("python3"), &["-c", &text]),
            "rust" => {
                let file = std::fs::read_to_string(repository().join("examples/lease.rs")).unwrap();
                let shown = &file[file.find("use ").unwrap()..];
                assert_eq!(text, shown, "the page shows examples/lease.rs");
                run(&example_binary(), &[])
            },
            other => panic!("no way to run {other:?}"),
        };
        assert!(
            output.status.success(),
            "{language} snippet:\n{text}\n{}",
            shown(&output)
        );
        assert!(
            !output.stdout.is_empty(),
            "{language} snippet says nothing:\n{text}"
        );
        languages.push(language);
    }
    assert_eq!(
        languages,
        ["bash", "bash", "bash", "python", "rust", "bash"]
    );

    let file = "config/samples/lease.yaml";
    let args = ["create", "--dry-run=server", "-n", NAMESPACE, "-f", file];
    let answer = kubectl(cluster, &args);
    assert!(answer.contains("created (server dry run)"), "{answer}");
}

fn example_binary() -> PathBuf {
    let built = Command::new(env!("CARGO"))
        .current_dir(repository())
        .args(["build", "--quiet", "--example", "lease"])
        .status()
        .unwrap();
    assert!(built.success(), "examples/lease.rs cannot be built");
    Path::new(env!("CARGO_BIN_EXE_proxy-operator"))
        .with_file_name("examples")
        .join("lease")
}
