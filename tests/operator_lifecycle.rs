//! What the operator does to machines over their life, on a real control plane: budgets, replacements,
//! adoption, orphans.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use crawl_api::conditions as c;
use crawl_api::names;
use crawl_api::operator_view::{ProvidersView, ProxyView};
use crawl_api::pool::{ProxyPool, ProxyPoolSpec, ProxyTemplate, TemplateMetadata};
use crawl_api::proxy::{DeletionPolicy, Proxy, ProxySpec};
use devcluster::wait_for;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use mock_cloud::faults::{Behaviour, FailWith, Fault, FaultRule, Op};
use mock_cloud::model::{CreateInstance, Instance, Labels, ListInstances};
use mock_cloud::records::EverCreated;
use runtime_kit::{Clock, SystemClock};
use serde_json::json;
use support::{Site, TIMEOUT, binary, create, gone, proxy, ready, reason, uid_label, until};

async fn patch(site: &Site, name: &str, change: serde_json::Value) {
    let patched = site
        .proxies()
        .patch(name, &PatchParams::default(), &Patch::Merge(change))
        .await;
    patched.unwrap();
}

fn id(proxy: &Proxy) -> String {
    proxy.status.as_ref().unwrap().provider_id.clone().unwrap()
}

/// Zone and key of the instance in the cloud.
fn key(proxy: &Proxy) -> (String, String) {
    let id = id(proxy);
    let (zone, key) = id.strip_prefix("mock://").unwrap().split_once('/').unwrap();
    (zone.to_owned(), key.to_owned())
}

async fn books(site: &Site, proxy: &Proxy) -> Vec<EverCreated> {
    let books = site.cloud.client.ever_created(&uid_label(proxy)).await;
    books.unwrap()
}

fn withheld(wanted: &'static str) -> impl Fn(Option<&Proxy>) -> Option<Proxy> {
    move |proxy| {
        proxy
            .filter(|proxy| reason(proxy, c::WITHHELD) == wanted)
            .cloned()
    }
}

fn replaced(first: &Proxy) -> impl Fn(Option<&Proxy>) -> Option<Proxy> {
    let first = id(first);
    move |proxy| ready(proxy).filter(|proxy| id(proxy) != first)
}

/// Cases 2 and 4: it is replaced, or a condition says why it is not.
#[tokio::test(flavor = "multi_thread")]
async fn an_unhealthy_instance_is_replaced_and_the_next_time_it_is_waited_longer() {
    let site = Site::new("unhealthy").await;
    let _operator = site.operator();
    let proxies = site.proxies();
    let mut spec = ProxySpec::managed("local");
    spec.unhealthy_timeout_seconds = 1;
    create(&proxies, &proxy("p", spec)).await;
    let first = until(&proxies, "p", "the proxy to be ready", ready).await;
    let break_it = async |proxy: &Proxy| {
        let (zone, key) = key(proxy);
        let client = &site.cloud.client;
        let broken = client.set_behaviour(&zone, &key, &Behaviour::Dead).await;
        broken.unwrap();
    };
    break_it(&first).await;
    let second = until(&proxies, "p", "another instance", replaced(&first)).await;
    let setbacks = second.status.as_ref().unwrap().setbacks.clone();
    assert_eq!(setbacks.len(), 1, "{setbacks:?}");
    assert_eq!(setbacks[0].reason, "UnhealthyTimedOut");
    assert!(second.condition(c::DRAINED).is_none());

    break_it(&second).await;
    let waiting = until(
        &proxies,
        "p",
        "the back-off",
        withheld("RemediationBackoff"),
    )
    .await;
    assert_eq!(id(&waiting), id(&second));
    let message = &waiting.condition(c::WITHHELD).unwrap().message;
    assert!(message.contains("replaced 1 times"), "{message}");
    assert_eq!(books(&site, &first).await.len(), 2);
}

/// Faults of the creates to come.
async fn creates(site: &Site, count: u32, fault: Fault) {
    let rule = FaultRule {
        op: Op::Create,
        zone: None,
        count,
        fault,
    };
    site.cloud.client.add_fault(&rule).await.unwrap();
}

/// Case 69. A broken cloud-init is told from a proxy that merely does not answer, and costs one more
/// machine, not one after the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_cloud_init_that_fails_is_told_tried_once_more_and_then_waits_for_somebody() {
    let site = Site::new("bootstrap").await;
    let operator = site.operator();
    let proxies = site.proxies();
    let line = "2026-11-30 10:00:00,000 - util.py[WARNING]: Failed running \
                /var/lib/cloud/instance/scripts/runcmd [100]";
    let console =
        format!("E: Unable to locate package squid\r\n\u{1b}[31m{line}\u{1b}[0m\r\nlogin:");
    creates(&site, 2, Fault::FailBootstrap { console }).await;
    let mut spec = ProxySpec::managed("local");
    spec.provisioning_timeout_seconds = 1;
    spec.unhealthy_timeout_seconds = 3;
    create(&proxies, &proxy("p", spec)).await;
    let told = |proxy: Option<&Proxy>| {
        let proxy = proxy?;
        (reason(proxy, c::HEALTHY) == "BootstrapFailed").then(|| proxy.clone())
    };
    let first = until(&proxies, "p", "the reason", told).await;
    let message = &first.condition(c::HEALTHY).unwrap().message;
    assert!(message.ends_with(line), "{message}");
    assert!(!message.contains("Unable to locate"), "{message}");

    let waiting = until(&proxies, "p", "it to wait", withheld("BootstrapFailing")).await;
    assert_ne!(id(&waiting), id(&first));
    let setbacks = &waiting.status.as_ref().unwrap().setbacks;
    let reasons: Vec<_> = setbacks.iter().map(|one| one.reason.as_str()).collect();
    assert_eq!(reasons, ["BootstrapFailed"]);
    assert_eq!(books(&site, &first).await.len(), 2);
    // Once for each machine, however often it was looked at.
    let reads =
        r#"proxy_operator_provider_requests_total{op="console",provider="local",result="ok"}"#;
    assert!((operator.metric(reads).await - 2.0).abs() < 0.1);

    // Somebody who repaired what is outside of the spec says so; the back-off holds all the same.
    let now = SystemClock::new().now().to_string();
    let resume = json!({"metadata": {"annotations": {names::ANNOTATION_RESUME: now}}});
    patch(&site, "p", resume).await;
    until(
        &proxies,
        "p",
        "the back-off",
        withheld("RemediationBackoff"),
    )
    .await;
}

/// Case 49.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_failed_and_comes_back_is_refused_once_then_used() {
    let site = Site::new("reissued").await;
    let _operator = site.operator();
    let proxies = site.proxies();
    let mut spec = ProxySpec::managed("local");
    spec.unhealthy_timeout_seconds = 1;
    create(&proxies, &proxy("p", spec)).await;
    let first = until(&proxies, "p", "the proxy to be ready", ready).await;
    let ip = first.status.as_ref().unwrap().ip.clone().unwrap();
    let ip = ip.parse().unwrap();
    creates(&site, 2, Fault::GiveAddress { ip }).await;
    let (zone, key) = key(&first);
    let broken = site
        .cloud
        .client
        .set_behaviour(&zone, &key, &Behaviour::Dead);
    broken.await.unwrap();

    let again = until(&proxies, "p", "another instance", replaced(&first)).await;
    assert_eq!(again.status.as_ref().unwrap().ip, Some(ip.to_string()));
    let provisioned = again.condition(c::PROVISIONED).unwrap();
    assert_eq!(
        (provisioned.status.as_str(), provisioned.reason.as_str()),
        ("True", "AddressReissued")
    );
    let setbacks = &again.status.as_ref().unwrap().setbacks;
    let reasons: Vec<_> = setbacks.iter().map(|one| one.reason.as_str()).collect();
    assert_eq!(reasons, ["UnhealthyTimedOut", "AddressReissued"]);
    assert_eq!(books(&site, &first).await.len(), 3);
    let events: Api<Event> = Api::namespaced(site.client.clone(), "reissued");
    let told = async || {
        let list = events.list(&ListParams::default()).await.unwrap();
        let told = list
            .iter()
            .any(|event| event.reason.as_deref() == Some("AddressReissued"));
        Ok(told.then_some(()))
    };
    wait_for("the event", TIMEOUT, told).await.unwrap();
}

/// Case 57: what identifies a machine is its id and the UID in its tags, never its address.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_goes_to_another_proxy_takes_nothing_of_the_first_along() {
    let site = Site::new("reuse").await;
    let _operator = site.operator();
    let proxies = site.proxies();
    create(&proxies, &proxy("a", ProxySpec::managed("local"))).await;
    let first = until(&proxies, "a", "the proxy to be ready", ready).await;
    let (zone, key) = key(&first);
    let client = &site.cloud.client;
    patch(&site, "a", json!({"spec": {"paused": true}})).await;
    until(&proxies, "a", "the pause", withheld("Paused")).await;
    client.delete(&zone, &key).await.unwrap();
    let missing = async || Ok(client.get(&zone, &key).await.is_err().then_some(()));
    wait_for("the machine to go", TIMEOUT, missing)
        .await
        .unwrap();

    let ip = first.status.as_ref().unwrap().ip.clone().unwrap();
    let ip = ip.parse().unwrap();
    creates(&site, 1, Fault::GiveAddress { ip }).await;
    create(&proxies, &proxy("b", ProxySpec::managed("local"))).await;
    let second = until(&proxies, "b", "the other to be ready", ready).await;
    assert_eq!(second.status.as_ref().unwrap().ip, Some(ip.to_string()));
    patch(&site, "a", json!({"spec": {"paused": false}})).await;
    let third = until(&proxies, "a", "another instance", replaced(&first)).await;
    assert_ne!(third.status.as_ref().unwrap().ip, Some(ip.to_string()));
    let kept = proxies.get("b").await.unwrap();
    assert_eq!(id(&kept), id(&second));
    assert_eq!(books(&site, &first).await.len(), 2);
    let books = books(&site, &second).await;
    assert!(
        books.len() == 1 && books[0].deleted_at.is_none(),
        "{books:?}"
    );
}

/// Case 61: an account that never accepted its credentials was never asked for anything, so the
/// object has no finalizer and goes when it is told to.
#[tokio::test(flavor = "multi_thread")]
async fn an_object_whose_credentials_were_never_accepted_can_be_deleted() {
    let site = Site::new("rejected").await;
    let _operator = site.operator();
    let rule = FaultRule {
        op: Op::List,
        zone: None,
        count: 1_000,
        fault: Fault::Fail {
            with: FailWith::Unauthorized,
        },
    };
    site.cloud.client.add_fault(&rule).await.unwrap();
    let proxies = site.proxies();
    create(&proxies, &proxy("p", ProxySpec::managed("local"))).await;
    let refused = until(&proxies, "p", "the refusal", |proxy| {
        let proxy = proxy?;
        (reason(proxy, c::PROVISIONED) == "CredentialsRejected").then(|| proxy.clone())
    })
    .await;
    assert!(refused.finalizers().is_empty());
    proxies.delete("p", &DeleteParams::default()).await.unwrap();
    until(&proxies, "p", "the object to go", gone).await;
    assert_eq!(site.cloud.client.calls().await.unwrap().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_proxies_of_a_namespace_are_replaced_one_after_the_other() {
    let site = Site::new("budget").await;
    let _operator = site.operator();
    let proxies = site.proxies();
    let names = ["a", "b", "c"];
    let mut first = Vec::new();
    for name in names {
        create(&proxies, &proxy(name, ProxySpec::managed("local"))).await;
    }
    for name in names {
        first.push(until(&proxies, name, "the proxy to be ready", ready).await);
    }
    for name in names {
        patch(&site, name, json!({"spec": {"port": 3300}})).await;
    }
    let waits = async || {
        let list = proxies.list(&ListParams::default()).await.unwrap();
        let waits = list
            .iter()
            .any(|proxy| reason(proxy, c::WITHHELD) == "DisruptionBudget");
        Ok(waits.then_some(()))
    };
    wait_for("one that waits for its turn", TIMEOUT, waits)
        .await
        .unwrap();
    let mut lives = Vec::new();
    for old in &first {
        let new = until(&proxies, &old.name_any(), "its turn", replaced(old)).await;
        assert!(new.condition(c::WITHHELD).is_none());
        let books = books(&site, old).await;
        assert_eq!(books.len(), 2);
        lives.push((books[0].deleted_at.unwrap(), books[1].created_at));
    }
    lives.sort();
    for pair in lives.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "two at once: {lives:?}");
    }
}

/// Case 65.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_mass_loss_nothing_is_created_until_the_pool_is_resumed() {
    let site = Site::new("massloss").await;
    let _operator = site.operator();
    let pools: Api<ProxyPool> = Api::namespaced(site.client.clone(), "massloss");
    let template = ProxyTemplate {
        metadata: TemplateMetadata::default(),
        spec: proxy("template", ProxySpec::managed("local")).spec,
    };
    let pool = ProxyPool::new(
        "eu",
        ProxyPoolSpec {
            replicas: 5,
            ..ProxyPoolSpec::of(template)
        },
    );
    create(&pools, &pool).await;
    let full =
        |pool: Option<&ProxyPool>| (pool?.status.as_ref()?.ready_replicas == 5).then_some(());
    until(&pools, "eu", "five members", full).await;
    for instance in site
        .cloud
        .client
        .list(&ListInstances::default())
        .await
        .unwrap()
    {
        let Instance { zone, id, .. } = instance;
        site.cloud.client.delete(&zone, &id).await.unwrap();
    }
    let proxies = site.proxies();
    let stopped = async || {
        let list = proxies.list(&ListParams::default()).await.unwrap();
        let stopped = list.iter().find(|proxy| {
            reason(proxy, c::WITHHELD) == "MassExternalDeletion"
                && reason(proxy, c::PROVISIONED) == "InstanceLost"
        });
        Ok(stopped.cloned())
    };
    let stopped = wait_for("creation to stop", TIMEOUT, stopped)
        .await
        .unwrap();
    let message = &stopped.condition(c::WITHHELD).unwrap().message;
    assert!(message.contains("kubectl px resume"), "{message}");

    let now = SystemClock::new().now().to_string();
    let resume = json!({"metadata": {"annotations": {names::ANNOTATION_RESUME: now}}});
    let resumed = pools
        .patch("eu", &PatchParams::default(), &Patch::Merge(resume))
        .await;
    resumed.unwrap();
    until(&pools, "eu", "five members again", full).await;
}

/// Case 51: the fleet of an older release is taken over as it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_hash_that_was_taken_away_or_is_of_an_older_version_is_adopted() {
    let site = Site::new("adopt").await;
    let _operator = site.operator();
    let proxies = site.proxies();
    create(&proxies, &proxy("p", ProxySpec::managed("local"))).await;
    let first = until(&proxies, "p", "the proxy to be ready", ready).await;
    let hash = first.annotations()[names::ANNOTATION_SPEC_HASH].clone();
    for old in [json!(null), json!("v0:0011223344556677"), json!("")] {
        let annotations = json!({names::ANNOTATION_SPEC_HASH: old});
        patch(
            &site,
            "p",
            json!({"metadata": {"annotations": annotations}}),
        )
        .await;
        let adopted = until(&proxies, "p", "the hash to be back", |proxy| {
            let proxy = proxy?;
            let now = proxy.annotations().get(names::ANNOTATION_SPEC_HASH);
            (now == Some(&hash)).then(|| proxy.clone())
        });
        assert_eq!(id(&adopted.await), id(&first), "{old}");
    }
    assert_eq!(site.cloud.client.calls().await.unwrap().len(), 1);
}

/// Case 61.
#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_abandons_its_instance_goes_though_the_provider_is_down() {
    let site = Site::new("abandon").await;
    let _operator = site.operator();
    let proxies = site.proxies();
    let mut spec = ProxySpec::managed("local");
    spec.deletion_policy = DeletionPolicy::Abandon;
    create(&proxies, &proxy("p", spec)).await;
    let first = until(&proxies, "p", "the proxy to be ready", ready).await;
    site.cloud.process.kill9().unwrap();
    proxies.delete("p", &DeleteParams::default()).await.unwrap();
    until(&proxies, "p", "the object to go", gone).await;
    let events: Api<Event> = Api::namespaced(site.client.clone(), "abandon");
    let told = async || {
        let list = events.list(&ListParams::default()).await.unwrap();
        let told = list
            .into_iter()
            .find(|event| event.reason.as_deref() == Some("Abandoned"));
        Ok(told.and_then(|event| event.note))
    };
    let note = wait_for("the event", TIMEOUT, told).await.unwrap();
    assert!(note.contains(&id(&first)), "{note}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_proxy_keeps_its_machine_whatever_is_asked() {
    let site = Site::new("paused").await;
    let _operator = site.operator();
    let proxies = site.proxies();
    create(&proxies, &proxy("p", ProxySpec::managed("local"))).await;
    let first = until(&proxies, "p", "the proxy to be ready", ready).await;
    patch(&site, "p", json!({"spec": {"paused": true, "port": 3301}})).await;
    until(&proxies, "p", "the pause", withheld("Paused")).await;
    proxies.delete("p", &DeleteParams::default()).await.unwrap();
    until(&proxies, "p", "the deletion to be noticed", |proxy| {
        let message = &proxy?.condition(c::WITHHELD)?.message;
        message.contains("go when it is unset").then_some(())
    })
    .await;
    assert_eq!(site.cloud.client.calls().await.unwrap().len(), 1);
    patch(&site, "p", json!({"spec": {"paused": false}})).await;
    until(&proxies, "p", "the object to go", gone).await;
    let books = books(&site, &first).await;
    assert_eq!(books.len(), 1);
    assert!(books[0].deleted_at.is_some());
}

/// Case 58: the last resort.
#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_nobody_owns_is_deleted_and_no_other() {
    let site = Site::new("orphans").await;
    let namespaces: Api<Namespace> = Api::all(site.client.clone());
    let cluster = namespaces.get("kube-system").await.unwrap().uid().unwrap();
    let orphan = async |name: &str, cluster: &str| {
        let labels = [
            (names::TAG_CLUSTER, cluster),
            (names::TAG_PROXY_UID, "gone"),
            (names::TAG_NAMESPACE, "orphans"),
        ];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let request = CreateInstance {
            name: name.into(),
            labels: labels.into(),
            metadata: Labels::new(),
            cloud_init: None,
            port: 3128,
            auth: None,
        };
        let made = site.cloud.client.create("z", &request).await.unwrap();
        made.instance.id
    };
    let ours = orphan("ours", &cluster).await;
    let foreign = orphan("foreign", "another-cluster").await;
    let sweep = ["--gc-interval", "300ms", "--gc-min-age", "1s"];
    let base = ["--no-leader-elect", "--gc-allow-namespaced"];
    let flags = |more: &[&'static str]| [&base, &sweep[..], more].concat();

    let dry = site.operator_with(&flags(&["--gc-dry-run"]));
    create(&site.proxies(), &proxy("p", ProxySpec::managed("local"))).await;
    let live = until(&site.proxies(), "p", "the proxy to be ready", ready).await;
    dry.process
        .wait_for_log("it would be deleted but for --gc-dry-run", TIMEOUT)
        .await
        .unwrap();
    let orphans = r#"proxy_operator_gc_orphans{provider="local"}"#;
    assert!((dry.metric(orphans).await - 1.0).abs() < 0.1);
    dry.process.kill9().unwrap();
    assert_eq!(site.cloud.client.calls().await.unwrap().len(), 3);

    let operator = site.operator_with(&flags(&[]));
    let missing = async || {
        Ok(site
            .cloud
            .client
            .get("z", &ours)
            .await
            .is_err()
            .then_some(()))
    };
    wait_for("the orphan to go", TIMEOUT, missing)
        .await
        .unwrap();
    let sweeps = r#"proxy_operator_gc_sweeps_total{result="done"}"#;
    let seen = operator.metric(sweeps).await;
    wait_for("two more sweeps", TIMEOUT, async || {
        Ok((operator.metric(sweeps).await >= seen + 2.0).then_some(()))
    })
    .await
    .unwrap();
    site.cloud.client.get("z", &foreign).await.unwrap();
    assert!(books(&site, &live).await[0].deleted_at.is_none());
    let deleted = r#"proxy_operator_gc_deleted_total{provider="local"}"#;
    assert!(operator.metric(deleted).await >= 1.0);
}

/// Case 64 of the public reports: what would be called is shown, and nothing is called.
#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_creates_and_deletes_nothing_and_the_next_run_does_what_it_told() {
    let site = Site::new("dryrun").await;
    let proxies = site.proxies();
    let dry = || site.operator_with(&["--no-leader-elect", "--dry-run"]);

    let operator = dry();
    create(&proxies, &proxy("p", ProxySpec::managed("local"))).await;
    let waiting = until(&proxies, "p", "the dry run", withheld(c::REASON_DRY_RUN)).await;
    let message = &waiting.condition(c::WITHHELD).unwrap().message;
    assert!(message.contains("create instance proxy-"), "{message}");
    let logged = operator
        .process
        .wait_for_log("dry run: a call is not made", TIMEOUT);
    logged.await.unwrap();
    assert!(books(&site, &waiting).await.is_empty());
    drop(operator);

    let operator = site.operator();
    let first = until(&proxies, "p", "the proxy to be ready", ready).await;
    assert!(first.condition(c::WITHHELD).is_none());
    drop(operator);

    let operator = dry();
    patch(&site, "p", json!({"spec": {"port": 3300}})).await;
    let kept = until(&proxies, "p", "the dry run", withheld(c::REASON_DRY_RUN)).await;
    assert_eq!((id(&kept), kept.is_healthy()), (id(&first), true));
    proxies.delete("p", &DeleteParams::default()).await.unwrap();
    let would = format!("delete instance {} (Deleting)", id(&first));
    until(&proxies, "p", "the deletion", |proxy| {
        let message = &proxy?.condition(c::WITHHELD)?.message;
        message.contains(&would).then_some(())
    })
    .await;
    assert!(books(&site, &first).await[0].deleted_at.is_none());
    drop(operator);

    let _operator = site.operator();
    until(&proxies, "p", "the object to be gone", gone).await;
    assert_eq!(books(&site, &first).await.len(), 1);
}

/// Case 71 of the public reports: the provider's view of a proxy beside its object.
#[tokio::test(flavor = "multi_thread")]
async fn doctor_shows_what_the_provider_says_beside_the_object() {
    let site = Site::new("views").await;
    let operator = site.operator();
    let proxies = site.proxies();
    create(&proxies, &proxy("p", ProxySpec::managed("local"))).await;
    let found = until(&proxies, "p", "the proxy to be ready", ready).await;

    let (code, text) = operator.get("/proxies/views/p").await;
    assert_eq!(code, 200, "{text}");
    let view: ProxyView = serde_json::from_str(&text).unwrap();
    let instance = view.instance.unwrap();
    assert_eq!(
        (instance.id, instance.state.as_str()),
        (id(&found), "Running")
    );
    assert_eq!(view.probe.unwrap().healthy, Some(true));
    assert_eq!(operator.get("/proxies/views/q").await.0, 404);

    let url = format!("http://{}", operator.admin);
    let doctor = |args: &[&str]| {
        let mut command = std::process::Command::new(binary("kubectl-px", "kubectl-px"));
        command
            .env("KUBECONFIG", site.cluster.kubeconfig_path())
            .args(["doctor", "-n", "views", "--operator-url", &url])
            .args(args);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let account = format!(
        "mock http://{}/ accepts its credentials",
        site.cloud.address
    );
    let text = doctor(&[]);
    assert!(text.contains(&account), "{text}");
    // Behind the operator's back, which leaves it alone: the object still says that it runs.
    patch(&site, "p", json!({"spec": {"paused": true}})).await;
    until(&proxies, "p", "the pause", withheld(c::REASON_PAUSED)).await;
    let (zone, key) = key(&found);
    site.cloud.client.delete(&zone, &key).await.unwrap();
    let gone = async || {
        let (_, text) = operator.get("/proxies/views/p").await;
        let view: ProxyView = serde_json::from_str(&text).unwrap();
        Ok(view.instance.is_none().then_some(()))
    };
    wait_for("the instance to be gone", TIMEOUT, gone)
        .await
        .unwrap();
    let text = doctor(&["p"]);
    let live = text.split("LIVE").nth(1).unwrap();
    assert!(live.contains(": no instance\nprobes: "), "{text}");
    assert!(text.contains("local: Created"), "{text}");

    // An account that is down is told, and what it said.
    site.cloud.process.kill9().unwrap();
    let text = doctor(&[]);
    assert!(text.contains("FAIL  account of local"), "{text}");
    let (code, text) = operator.get("/providers").await;
    assert_eq!(code, 200, "{text}");
    let views: ProvidersView = serde_json::from_str(&text).unwrap();
    let refusal = views.providers[0].refusal.clone().unwrap();
    assert_eq!(refusal.reason, c::REASON_PROVIDER_ERROR);
}
