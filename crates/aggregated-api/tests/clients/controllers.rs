//! kube-controller-manager, whose garbage collector, quota and namespace controllers know our kinds as they
//! know any, with client-go's detector on, which ends the process when what was streamed is not what a list
//! gives.

use std::time::Duration;

use devcluster::{Options, wait_for};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ResourceQuota};
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::churn::churn;
use crate::site::{PATIENCE, Site, flunder, run};

const NAMESPACE: &str = "controlled";
const OWNED: usize = 2000;
const FREE: usize = 30;
const AT_ONCE: usize = 16;
const COUNTED: &str = "count/flunders.wardle.example.com";

async fn create(flunders: &Api<DynamicObject>, name: &str, count: usize, metadata: &Value) {
    let objects = (0..count).map(|n| {
        let mut object = json!({"metadata": metadata});
        object["metadata"]["name"] = json!(format!("{name}-{n}"));
        flunder(&object)
    });
    futures::stream::iter(objects)
        .map(|object| async move { flunders.create(&PostParams::default(), &object).await })
        .buffer_unordered(AT_ONCE)
        .for_each(|created| async { drop(created.unwrap()) })
        .await;
}

/// Waits until there are no more than `count` flunders.
async fn left(flunders: &Api<DynamicObject>, count: usize) {
    let what = format!("{count} flunders to be left");
    let metadata_only = ListParams::default();
    wait_for(&what, PATIENCE, async || {
        let listed = flunders.list_metadata(&metadata_only).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        Ok((listed.items.len() == count).then_some(()))
    })
    .await
    .unwrap();
}

/// Waits until the quota says that `count` flunders are there.
async fn quota_counts(quotas: &Api<ResourceQuota>, count: usize, poke: bool) {
    let mut hard = 5000;
    let what = format!("the quota to count {count}");
    let mut asked = 0;
    wait_for(&what, PATIENCE, async || {
        let quota = quotas.get("q").await.unwrap();
        let used = quota
            .status
            .and_then(|status| status.used)
            .unwrap_or_default();
        if used
            .get(COUNTED)
            .is_some_and(|used| used.0 == count.to_string())
        {
            return Ok(Some(()));
        }
        // A quota is counted when it changes; the controller may have come to know the kind after that.
        asked += 1;
        if poke && asked % 50 == 0 {
            hard += 1;
            let patch = json!({"spec": {"hard": {COUNTED: hard.to_string()}}});
            let patch = Patch::Merge(patch);
            quotas
                .patch("q", &PatchParams::default(), &patch)
                .await
                .unwrap();
        }
        Ok(None)
    })
    .await
    .unwrap();
}

#[test]
fn the_controllers_collect_count_and_empty_as_for_any_kind() {
    run(async {
        let options = Options::default()
            .controller_manager_env("KUBE_WATCHLIST_INCONSISTENCY_DETECTOR", "true")
            // By default it takes its time: two hundred seconds for what is asked of it here.
            .controller_manager_arg("--kube-api-qps=1000")
            .controller_manager_arg("--kube-api-burst=1000");
        let site = Site::start(options).await;
        site.namespace(NAMESPACE).await;
        let flunders = site.flunders(NAMESPACE);
        let owners: Api<ConfigMap> = Api::namespaced(site.client.clone(), NAMESPACE);
        let owner = serde_json::from_value(json!({"metadata": {"name": "owner"}})).unwrap();
        let owner = owners.create(&PostParams::default(), &owner).await.unwrap();
        let owned = json!({"ownerReferences": [{
            "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.metadata.uid,
        }]});
        create(&flunders, "owned", OWNED, &owned).await;
        create(&flunders, "free", FREE, &json!({})).await;

        // The informers lose their watches and their place while flunders change, and start over.
        tokio::join!(churn(&flunders, "churn", 100), async {
            for _ in 0..2 {
                site.restart(site.forget()).await;
                site.available().await;
            }
        });
        let churned = flunders
            .list_metadata(&ListParams::default())
            .await
            .unwrap()
            .items
            .len();
        let free = churned - OWNED;

        owners
            .delete("owner", &DeleteParams::background())
            .await
            .unwrap();
        left(&flunders, free).await;

        let quotas: Api<ResourceQuota> = Api::namespaced(site.client.clone(), NAMESPACE);
        let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {COUNTED: "5000"}}});
        let quota = serde_json::from_value(quota).unwrap();
        quotas.create(&PostParams::default(), &quota).await.unwrap();
        quota_counts(&quotas, free, true).await;
        // Deletions are seen in the watch.
        for n in 0..5 {
            let name = format!("free-{n}");
            flunders
                .delete(&name, &DeleteParams::default())
                .await
                .unwrap();
        }
        quota_counts(&quotas, free - 5, false).await;

        let namespaces: Api<Namespace> = Api::all(site.client.clone());
        namespaces
            .delete(NAMESPACE, &DeleteParams::default())
            .await
            .unwrap();
        wait_for("the namespace to go", PATIENCE, async || {
            let gone = namespaces.get_opt(NAMESPACE).await.unwrap().is_none();
            Ok(gone.then_some(()))
        })
        .await
        .unwrap();
        left(&flunders, 0).await;

        site.cluster.check_running().unwrap();
        let log = site
            .cluster
            .process("kube-controller-manager")
            .unwrap()
            .log();
        assert!(
            log.contains("data consistency check for "),
            "the detector is on"
        );
        for bad in ["data inconsistency detected", "protobuf", "panic"] {
            let lines: Vec<_> = log.lines().filter(|line| line.contains(bad)).collect();
            assert!(lines.is_empty(), "{lines:#?}");
        }
    });
}
