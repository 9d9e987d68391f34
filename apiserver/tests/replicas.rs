//! Several replicas of lease-apiserver on one etcd: one decides, all read, and one takes over.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "test code")]

mod common;

use std::path::Path;
use std::process::Output;

use common::{GROUP, Stage, VERSION, lease};
use devcluster::Process;
use serde_json::{Value, json};

const LEASES: &str = "/apis/leases.crawl.example.com/v1alpha1/namespaces/crawlers/proxyleases";

/// A replica that is asked directly.
struct Replica {
    process: Process,
    port: u16,
    admin: u16,
}

impl Replica {
    fn start(stage: &Stage, name: &str) -> Self {
        let [port, admin] = [(); 2].map(|()| stage.cluster.free_port().unwrap());
        let flags = [
            format!("--secure-port={port}"),
            format!("--admin-address=127.0.0.1:{admin}"),
            format!("--identity={name}"),
        ];
        Self {
            process: stage.spawn_with(name, &flags),
            port,
            admin,
        }
    }

    /// `kubectl` with this replica in the place of the API server.
    fn ask(&self, stage: &Stage, kubeconfig: &Path, arguments: &[&str]) -> Output {
        let server = format!("--server=https://127.0.0.1:{}", self.port);
        let ca = stage.cluster.pki_folder().join("ca.crt");
        let ca = format!("--certificate-authority={}", ca.display());
        let name = "--tls-server-name=leases-crawl-example-com.aggregated-apis.svc";
        let direct = [&server, &ca, name];
        let arguments: Vec<_> = direct.iter().chain(arguments).copied().collect();
        stage.cluster.kubectl_as(kubeconfig, &arguments).unwrap()
    }

    /// Names and resource versions of the leases.
    fn leases(&self, stage: &Stage, kubeconfig: &Path) -> Vec<(Value, Value)> {
        let output = self.ask(stage, kubeconfig, &["get", "--raw", LEASES]);
        assert!(output.status.success(), "{output:?} {}", self.process.log());
        let list: Value = serde_json::from_slice(&output.stdout).unwrap();
        let items = list["items"].as_array().unwrap().iter();
        let meta = items.map(|item| &item["metadata"]);
        meta.map(|meta| (meta["name"].clone(), meta["resourceVersion"].clone()))
            .collect()
    }

    async fn until_readiness(&self, stage: &Stage, ready: bool, says: &str) {
        let address = format!("127.0.0.1:{}", self.admin);
        stage
            .until(&format!("{says:?} in readyz"), || {
                self.process.check_running().unwrap();
                let (green, text) = common::ready_at(&address)?;
                (green == ready && text.contains(says)).then_some(())
            })
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_replica_decides_the_others_read_and_one_of_them_takes_over() {
    let mut stage = Stage::without_crds().await;
    stage.install_crds();
    let servers = format!("--etcd-servers={}", stage.cluster.etcd_url());
    stage.serve_with(&["--store=etcd", &servers, "--identity=one"]);
    stage.available().await;
    let crawler = stage
        .cluster
        .service_account_kubeconfig("crawlers", "crawler")
        .await
        .unwrap();
    stage.proxy("a", 2, "203.0.113.1", &json!({}));
    stage.accepting("a").await;
    let file = |name: &str| {
        let spec = json!({"target": format!("{name}.com")});
        let file = stage.file(&lease(name, &spec));
        file.to_str().unwrap().to_owned()
    };
    let files = ["x0", "x1", "x2"].map(file);
    stage.kubectl_as(&crawler, &["create", "-f", &files[0]]);

    let two = Replica::start(&stage, "two");
    two.until_readiness(&stage, false, "one_").await;
    two.until_readiness(&stage, false, "stands by").await;
    // What the one acknowledged, the other serves at once.
    stage.kubectl_as(&crawler, &["create", "-f", &files[1]]);
    let listed = two.leases(&stage, &crawler);
    let written = ["x0", "x1"].map(|name| {
        let lease = stage.lease(name).unwrap();
        (json!(name), lease["metadata"]["resourceVersion"].clone())
    });
    assert_eq!(listed, written);
    let refused = two.ask(
        &stage,
        &crawler,
        &["create", "--raw", LEASES, "-f", &files[2]],
    );
    let refused = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.contains("another replica"), "{refused}");

    stage.kill();
    two.until_readiness(&stage, true, "").await;
    let names: Vec<_> = two
        .leases(&stage, &crawler)
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(names, ["x0", "x1"]);
    // Slots that were granted before are taken, and tokens go on.
    let create = ["create", "--raw", LEASES, "-f", files[2].as_str()];
    let denied = two.ask(&stage, &crawler, &create);
    let denied = String::from_utf8(denied.stderr).unwrap();
    assert!(denied.contains("1 AtCapacity"), "{denied}");
    let gone = format!("{LEASES}/x0");
    let deleted = two.ask(&stage, &crawler, &["delete", "--raw", &gone]);
    assert!(deleted.status.success(), "{deleted:?}");
    let created = two.ask(&stage, &crawler, &create);
    assert!(
        created.status.success(),
        "{created:?} {}",
        two.process.log()
    );
    let created: Value = serde_json::from_slice(&created.stdout).unwrap();
    assert_eq!(created["status"]["lastToken"], 3);

    // The first one comes back, behind the APIService as before, and now it stands by.
    stage.serve();
    stage
        .until("the first replica to stand by", || {
            let (ready, text) = stage.ready()?;
            (!ready && text.contains("two_")).then_some(())
        })
        .await;
    // One that ends in order is replaced at once.
    let ended = two.process.terminate().await.unwrap();
    assert!(ended.success(), "{}", two.process.log());
    stage
        .cluster
        .wait_apiservice_available(GROUP, VERSION)
        .await
        .unwrap();
    stage.available().await;
    assert!(stage.lease("x2").is_some());
}
