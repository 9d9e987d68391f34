//! Pools on a real control plane: rolls, changes in place, and what stands in their way. Members are
//! instances of the mock cloud, which are real proxies.
//!
//! A custom resource of the lease API's group stands in for lease-apiserver; [`Desk`] answers in it
//! as lease-apiserver would. A file of its own, because a lease API concerns the whole control plane.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crawl_api::endpoint::{ProxyEndpoint, ProxyEndpointSpec, ProxyEndpointStatus};
use crawl_api::pool::{PoolStrategy, ProxyPool, ProxyPoolSpec, ProxyTemplate, TemplateMetadata};
use crawl_api::proxy::{Proxy, ProxySpec};
use crawl_api::{conditions as c, names};
use devcluster::wait_for;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, CustomResourceExt, ResourceExt};
use mock_cloud::faults::{Behaviour, FailWith, Fault, FaultRule, Op};
use mock_cloud::model::Labels;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use support::{Site, TIMEOUT, create, gone, proxy, ready, until};
use tokio::sync::OnceCell;

/// Answers for the lease API in a namespace: the leases are as the test says.
struct Desk {
    active: Arc<Mutex<BTreeMap<String, i32>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Desk {
    #[expect(clippy::print_stdout, reason = "shown when the test fails")]
    async fn open(site: &Site) -> Self {
        static INSTALLED: OnceCell<()> = OnceCell::const_new();
        let endpoints: Api<ProxyEndpoint> = Api::namespaced(site.client.clone(), site.namespace);
        let install = async || {
            let definitions: Api<CustomResourceDefinition> = Api::all(site.client.clone());
            create(&definitions, &ProxyEndpoint::crd()).await;
            wait_for("the lease API", TIMEOUT, async || {
                let list = endpoints.list(&ListParams::default()).await;
                Ok(list.ok().map(drop))
            })
            .await
            .unwrap();
        };
        INSTALLED.get_or_init(install).await;
        let active = Arc::<Mutex<BTreeMap<String, i32>>>::default();
        let (proxies, leases) = (site.proxies(), Arc::clone(&active));
        let task = tokio::spawn(async move {
            loop {
                let active = leases.lock().unwrap().clone();
                if let Err(error) = publish(&proxies, &endpoints, &active).await {
                    println!("the desk tries again: {error}");
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        Self { active, task }
    }

    /// Gives a member so many leases.
    fn lease(&self, name: &str, count: i32) {
        self.active.lock().unwrap().insert(name.into(), count);
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Publishes what lease-apiserver does of proxies whose state it has seen. The API server answers
/// 429 for a moment after a definition was installed.
async fn publish(
    proxies: &Api<Proxy>,
    endpoints: &Api<ProxyEndpoint>,
    active: &BTreeMap<String, i32>,
) -> Result<(), kube::Error> {
    for proxy in proxies.list(&ListParams::default()).await? {
        let name = proxy.name_any();
        if endpoints.get_opt(&name).await?.is_none() {
            let proxy_uid = proxy.uid().unwrap();
            let mut view = ProxyEndpoint::new(&name, ProxyEndpointSpec { proxy_uid });
            view.metadata.labels = Some(proxy.labels().clone());
            endpoints.create(&PostParams::default(), &view).await?;
        }
        let status = ProxyEndpointStatus {
            accepting: proxy.accepts_leases().is_ok(),
            active: active.get(&name).copied().unwrap_or_default(),
            observed_proxy_resource_version: proxy.resource_version().unwrap(),
            ..ProxyEndpointStatus::default()
        };
        let patch = Patch::Merge(json!({"status": status}));
        let params = PatchParams::default();
        endpoints.patch_status(&name, &params, &patch).await?;
    }
    Ok(())
}

async fn merge<K>(api: &Api<K>, name: &str, change: Value)
where
    K: Clone + Debug + DeserializeOwned,
{
    let params = PatchParams::default();
    api.patch(name, &params, &Patch::Merge(change))
        .await
        .unwrap();
}

fn pools(site: &Site) -> Api<ProxyPool> {
    Api::namespaced(site.client.clone(), site.namespace)
}

/// A pool that surges by one.
fn pool(replicas: i32) -> ProxyPool {
    let template = ProxyTemplate {
        metadata: TemplateMetadata::default(),
        spec: proxy("template", ProxySpec::managed("local")).spec,
    };
    ProxyPool::new(
        "eu",
        ProxyPoolSpec {
            replicas,
            strategy: PoolStrategy {
                max_surge: IntOrString::Int(1),
                ..PoolStrategy::default()
            },
            ..ProxyPoolSpec::of(template)
        },
    )
}

async fn change_template(site: &Site, spec: Value) {
    let change = json!({"spec": {"template": {"spec": spec}}});
    merge(&pools(site), "eu", change).await;
}

/// The pool, once so many members are updated and available, and no others are there.
fn complete(count: i32) -> impl Fn(Option<&ProxyPool>) -> Option<ProxyPool> {
    move |pool| {
        let pool = pool?;
        let status = pool.status.as_ref()?;
        let counts = [
            status.replicas,
            status.updated_replicas,
            status.available_replicas,
        ];
        let seen = status.observed_generation == pool.metadata.generation;
        (seen && counts == [count; 3]).then(|| pool.clone())
    }
}

/// The message of Progressing, once it has this reason.
fn progressing(reason: &'static str) -> impl Fn(Option<&ProxyPool>) -> Option<String> {
    move |pool| {
        let status = pool?.status.as_ref()?;
        let condition = c::find(&status.conditions, c::PROGRESSING)?;
        (condition.reason == reason).then(|| condition.message.clone())
    }
}

/// The members that are not on their way out.
async fn members(site: &Site) -> Vec<Proxy> {
    let all = site.proxies().list(&ListParams::default()).await.unwrap();
    let stays = |proxy: &Proxy| proxy.metadata.deletion_timestamp.is_none();
    all.into_iter().filter(stays).collect()
}

async fn names_of(site: &Site) -> BTreeSet<String> {
    members(site)
        .await
        .iter()
        .map(ResourceExt::name_any)
        .collect()
}

/// How many machines there were at once, at most.
async fn most_machines(site: &Site) -> usize {
    let books = site
        .cloud
        .client
        .ever_created(&Labels::new())
        .await
        .unwrap();
    let at_start = |at| {
        let there = |other: &&mock_cloud::records::EverCreated| {
            other.created_at <= at && other.deleted_at.is_none_or(|deleted| deleted > at)
        };
        books.iter().filter(there).count()
    };
    let all = books.iter().map(|each| at_start(each.created_at));
    all.max().unwrap()
}

/// Cases 52 and 55: one after the other, and a lease keeps its proxy until it ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_roll_replaces_one_member_after_the_other_and_the_leased_one_last() {
    let site = Site::new("roll").await;
    let desk = Desk::open(&site).await;
    let _operator = site.operator();
    create(&pools(&site), &pool(3)).await;
    until(&pools(&site), "eu", "three members", complete(3)).await;
    let old = names_of(&site).await;
    let leased = old.first().unwrap().clone();
    desk.lease(&leased, 1);

    change_template(&site, json!({"port": 3300})).await;
    let proxies = site.proxies();
    for name in old.iter().filter(|name| **name != leased) {
        until(&proxies, name, "an idle member to go", gone).await;
    }
    let drained = until(
        &proxies,
        &leased,
        "the leased member to be drained",
        |proxy| {
            let proxy = proxy?;
            let waits = proxy.condition(c::DRAINED)?.status == "False";
            waits.then(|| proxy.clone())
        },
    );
    let drained = drained.await;
    assert_eq!(drained.spec.port, 3128, "it keeps its spec until it goes");
    let id = drained.status.unwrap().provider_id.unwrap();
    let (zone, key) = id.strip_prefix("mock://").unwrap().split_once('/').unwrap();
    let machine = site.cloud.client.get(zone, key).await;
    machine.expect("the machine stays as long as the lease");
    let ready_now = members(&site).await;
    let ready_now = ready_now
        .iter()
        .filter(|member| ready(Some(member)).is_some());
    assert_eq!(ready_now.count(), 3);

    desk.lease(&leased, 0);
    until(&proxies, &leased, "it to go without its lease", gone).await;
    until(&pools(&site), "eu", "three new members", complete(3)).await;
    let new = members(&site).await;
    assert!(new.iter().all(|member| member.spec.port == 3300), "{new:?}");
    assert!(old.is_disjoint(&names_of(&site).await));
    let end = progressing("RolloutComplete");
    until(&pools(&site), "eu", "the end", end).await;
    assert_eq!(most_machines(&site).await, 4, "a surge of one");
}

/// Case 52.
#[tokio::test(flavor = "multi_thread")]
async fn a_roll_halts_when_the_new_member_fails_until_the_template_is_changed() {
    let site = Site::new("halt").await;
    let _desk = Desk::open(&site).await;
    let _operator = site.operator();
    create(&pools(&site), &pool(3)).await;
    until(&pools(&site), "eu", "three members", complete(3)).await;
    let old = names_of(&site).await;

    let dead = FaultRule {
        op: Op::Create,
        zone: None,
        count: 100,
        fault: Fault::Misbehave {
            behaviour: Behaviour::Dead,
        },
    };
    site.cloud.client.add_fault(&dead).await.unwrap();
    change_template(&site, json!({"port": 3300})).await;
    let message = until(
        &pools(&site),
        "eu",
        "the halt",
        progressing("RolloutHalted"),
    )
    .await;
    assert!(message.contains("1 of 4 members"), "{message}");
    assert!(message.contains("ConnectionRefused"), "{message}");
    let all = members(&site).await;
    assert_eq!(all.len(), 4);
    let well = all.iter().filter(|member| old.contains(&member.name_any()));
    assert!(well.clone().all(|member| ready(Some(member)).is_some()));
    assert_eq!(well.count(), 3);

    site.cloud.client.clear_faults().await.unwrap();
    change_template(&site, json!({"port": 3400})).await;
    until(&pools(&site), "eu", "three new members", complete(3)).await;
    let new = members(&site).await;
    assert!(new.iter().all(|member| member.spec.port == 3400), "{new:?}");
    assert_eq!(most_machines(&site).await, 4);
}

/// Case 53.
#[tokio::test(flavor = "multi_thread")]
async fn without_quota_for_a_surge_members_are_deleted_first() {
    let site = Site::new("surgequota").await;
    let _desk = Desk::open(&site).await;
    let _operator = site.operator();
    create(&pools(&site), &pool(2)).await;
    until(&pools(&site), "eu", "two members", complete(2)).await;

    let refused = site.cloud.client.fail_next_creates(1, FailWith::Quota);
    refused.await.unwrap();
    change_template(&site, json!({"port": 3300})).await;
    let message = until(
        &pools(&site),
        "eu",
        "the fallback",
        progressing("DeletingFirst"),
    )
    .await;
    assert!(message.contains("no room for one more"), "{message}");
    until(&pools(&site), "eu", "two new members", complete(2)).await;
    let new = members(&site).await;
    assert!(new.iter().all(|member| member.spec.port == 3300), "{new:?}");
    assert_eq!(
        most_machines(&site).await,
        2,
        "never one more than replicas"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_needs_no_machine_is_written_into_members_and_replaces_none() {
    let site = Site::new("inplace").await;
    let _desk = Desk::open(&site).await;
    let _operator = site.operator();
    create(&pools(&site), &pool(2)).await;
    until(&pools(&site), "eu", "two members", complete(2)).await;
    let before = members(&site).await;
    let first = before[0].name_any();
    let by_hand = json!({
        "metadata": {"labels": {"mine": "yes"}},
        "spec": {"cordoned": true},
    });
    let proxies = site.proxies();
    merge(&proxies, &first, by_hand).await;
    // As an older operator left it.
    let bare = json!({"metadata": {"annotations": {
        names::ANNOTATION_TEMPLATE_HASH: null,
        names::ANNOTATION_APPLIED_TEMPLATE: null,
    }}});
    let second = before[1].name_any();
    merge(&proxies, &second, bare).await;
    until(&proxies, &second, "it to be adopted", |proxy| {
        let annotations = proxy?.annotations();
        annotations.get(names::ANNOTATION_TEMPLATE_HASH).map(drop)
    })
    .await;

    let change = json!({"spec": {"template": {
        "metadata": {"labels": {"geo": "eu"}},
        "spec": {"maxLeases": 9},
    }}});
    merge(&pools(&site), "eu", change).await;
    for old in &before {
        let name = old.name_any();
        let new = until(&proxies, &name, "the change", |proxy| {
            let proxy = proxy?;
            let there = proxy.spec.max_leases == 9 && proxy.labels().contains_key("geo");
            there.then(|| proxy.clone())
        });
        let new = new.await;
        assert_eq!(new.uid(), old.uid());
        let id = |proxy: &Proxy| proxy.status.as_ref().unwrap().provider_id.clone();
        assert_eq!(id(&new), id(old));
        let by_hand = new.name_any() == first;
        assert_eq!(new.spec.cordoned, by_hand, "what was set by hand stays");
        assert_eq!(new.labels().contains_key("mine"), by_hand);
        let writes = new.metadata.generation.unwrap() - old.metadata.generation.unwrap();
        assert_eq!(writes, 1 + i64::from(by_hand), "one write for the change");
    }
    let books = site
        .cloud
        .client
        .ever_created(&Labels::new())
        .await
        .unwrap();
    assert_eq!(books.len(), 2, "no machine was replaced");
}

/// A resource quota of the namespace, or a webhook, refuses creates for as long as it likes.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_create_is_tried_again_with_backoff_and_told_once() {
    let site = Site::new("refused").await;
    let operator = site.operator();
    create(&pools(&site), &pool(2)).await;
    until(&pools(&site), "eu", "two members", complete(2)).await;
    let label = json!({"metadata": {"labels": {"mine": "no label value"}}});
    let change = json!({"spec": {"replicas": 3, "template": label}});
    merge(&pools(&site), "eu", change).await;
    let pools = pools(&site);
    let refused = until(&pools, "eu", "the refusal", |pool| {
        let pool = pool?;
        let ready = c::find(&pool.status.as_ref()?.conditions, c::READY)?;
        (ready.reason == c::REASON_MEMBER_WRITE_FAILED).then(|| pool.clone())
    });
    let refused = refused.await;

    let failed = "controller_runtime_reconcile_total{controller=\"pool\",result=\"error\"}";
    let before = operator.metric(failed).await;
    wait_for("three more attempts", TIMEOUT, async || {
        Ok((operator.metric(failed).await >= before + 3.0).then_some(()))
    })
    .await
    .unwrap();
    let later = pools.get("eu").await.unwrap();
    assert_eq!(
        later.resource_version(),
        refused.resource_version(),
        "a status write for each attempt wakes the controller for the next: {later:#?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_refuses_a_change_holds_up_no_other() {
    let site = Site::new("refusing").await;
    let _operator = site.operator();
    create(&pools(&site), &pool(4)).await;
    until(&pools(&site), "eu", "four members", complete(4)).await;
    // The timeout may not be longer than the interval, which the template is about to change.
    let odd = names_of(&site).await.first().unwrap().clone();
    let proxies = site.proxies();
    let by_hand = json!({"spec": {"healthCheck": {"intervalSeconds": 9, "timeoutSeconds": 9}}});
    merge(&proxies, &odd, by_hand).await;
    let in_place = json!({"maxLeases": 9, "healthCheck": {"intervalSeconds": 5}});
    change_template(&site, in_place).await;
    for name in names_of(&site).await.iter().filter(|name| **name != odd) {
        until(&proxies, name, "the change", |proxy| {
            (proxy?.spec.max_leases == 9).then_some(())
        })
        .await;
    }
    let pools = pools(&site);
    let message = until(&pools, "eu", "the refusal", |pool| {
        let ready = c::find(&pool?.status.as_ref()?.conditions, c::READY)?;
        (ready.reason == c::REASON_MEMBER_WRITE_FAILED).then(|| ready.message.clone())
    });
    let message = message.await;
    assert!(message.contains(&odd), "{message}");
    assert!(message.contains("timeoutSeconds"), "{message}");
}
