//! The operator, killed before and after every call it makes while it creates, replaces and deletes
//! an instance: whatever the moment, each Proxy has exactly one instance in the end, a deleted one
//! has none, and the machines of another cluster are left alone (cases 58 to 60).
//!
//! The operator reaches the API server and the cloud through a relay that knows every call by what
//! it does, and holds back the one at which the process is to die. What is killed at is not written
//! down here: a first life without a crash shows the calls, and one that turns up later, in a
//! recovery, is killed at as well. So a new call cannot be left out.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::large_futures,
    reason = "a test fails by panicking, and its stack has room"
)]

#[path = "crash_calls/clouds.rs"]
mod clouds;
#[allow(dead_code, reason = "the contract suite uses all of it")]
#[path = "provider_contract/fake.rs"]
mod fake;
#[allow(dead_code, reason = "the contract suite uses all of it")]
#[path = "provider_contract/fake_gce.rs"]
mod fake_gce;
#[path = "crash_calls/relay.rs"]
mod relay;
mod support;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use clouds::{Cloud, Gce, Machine, Mock};
use crawl_api::proxy::Proxy;
use futures::future::join_all;
use kube::api::{DeleteParams, Patch, PatchParams};
use relay::{When, Wire};
use serde_json::json;
use support::{Operator, Site, create, gone, until};

/// A part of a proxy's life in which the process is killed once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Create,
    Replace,
    Delete,
    /// A create, and the object is deleted while no operator lives.
    Withdraw,
}

const STAGES: [Stage; 4] = [
    Stage::Create,
    Stage::Replace,
    Stage::Delete,
    Stage::Withdraw,
];

/// Where the process dies in one stage, one crash after the other: the last is the one that matters,
/// those before it lead there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Script {
    /// What is wrong with the cloud.
    trouble: usize,
    crashes: Vec<(String, When)>,
}

/// The calls of each stage by what is wrong with the cloud, and the crashes yet to be had.
#[derive(Default)]
struct Plan {
    known: BTreeMap<(Stage, usize), BTreeSet<String>>,
    todo: BTreeMap<Stage, VecDeque<Script>>,
    /// The crashes after which the object is deleted.
    withdrawals: usize,
}

impl Plan {
    /// Calls were seen after these crashes: those that are new get crashes of their own.
    fn learn(&mut self, stage: Stage, after: &Script, calls: BTreeSet<String>) {
        if stage == Stage::Withdraw {
            return; // what comes before the crash is Create, and after it Delete
        }
        let known = self.known.entry((stage, after.trouble)).or_default();
        for call in calls {
            if !known.insert(call.clone()) {
                continue;
            }
            for when in [When::Before, When::After] {
                let mut script = after.clone();
                script.crashes.push((call.clone(), when));
                if stage == Stage::Create && after.crashes.is_empty() {
                    self.withdrawals += 1;
                    let withdrawn = self.todo.entry(Stage::Withdraw).or_default();
                    withdrawn.push_back(script.clone());
                }
                self.todo.entry(stage).or_default().push_back(script);
            }
        }
    }

    /// What one life is to have, in every stage; `None`: there is nothing left to do.
    fn next(&mut self) -> Option<BTreeMap<Stage, Script>> {
        let first = self.todo.values().find_map(|todo| todo.front())?;
        let trouble = first.trouble;
        let mut life = BTreeMap::new();
        for (stage, todo) in &mut self.todo {
            let at = todo.iter().position(|script| script.trouble == trouble);
            if let Some(script) = at.and_then(|at| todo.remove(at)) {
                life.insert(*stage, script);
            }
        }
        Some(life)
    }

    fn has_more(&self) -> bool {
        self.todo.values().any(|todo| !todo.is_empty())
    }
}

/// How a stage of a life went.
struct Outcome {
    stage: Stage,
    script: Script,
    /// Every crash came before the stage was over.
    crashed: bool,
    seen: BTreeSet<String>,
}

/// An operator, killed again and again, and its cloud.
struct Lives<C> {
    site: Site,
    wire: Arc<Wire>,
    cloud: C,
    operator: Operator,
}

/// The Proxy of a life.
struct Life {
    name: String,
    proxy: Proxy,
}

impl<C: Cloud> Lives<C> {
    async fn new(namespace: &'static str) -> Self {
        let wire = Arc::new(Wire::default());
        let mut site = Site::new(namespace).await;
        let cloud = C::start(&site).await;
        let kubernetes = relay::relay_kubernetes(&site, &wire).await;
        let relayed = relay::relay_cloud(cloud.address(), C::call, &wire).await;
        let folder = site.cluster.dir();
        let kubeconfig = folder.join(format!("{namespace}.kubeconfig"));
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "relay",
            "clusters": [{"name": "relay", "cluster": {"server": format!("http://{kubernetes}")}}],
            "contexts": [{"name": "relay", "context": {"cluster": "relay", "user": "none"}}],
            "users": [{"name": "none", "user": {}}],
        });
        std::fs::write(&kubeconfig, config.to_string()).unwrap();
        let providers = folder.join(format!("{namespace}-relayed.yaml"));
        let account = cloud.account(&format!("http://{relayed}"));
        std::fs::write(&providers, json!({"providers": [account]}).to_string()).unwrap();
        site.set_flag("--kubeconfig", kubeconfig.to_str().unwrap());
        site.set_flag("--providers-config", providers.to_str().unwrap());
        let operator = site.operator();
        Self {
            site,
            wire,
            cloud,
            operator,
        }
    }

    async fn begin(&self, name: &str) -> Life {
        let proxy = create(&self.site.proxies(), &C::proxy(name)).await;
        self.cloud.plant(&proxy).await;
        Life {
            name: name.to_owned(),
            proxy,
        }
    }

    async fn delete(&self, life: &Life) {
        let proxies = self.site.proxies();
        let deleted = proxies.delete(&life.name, &DeleteParams::default()).await;
        deleted.unwrap();
    }

    async fn replace(&self, life: &Life) {
        let change = Patch::Merge(C::change());
        let proxies = self.site.proxies();
        let patched = proxies
            .patch(&life.name, &PatchParams::default(), &change)
            .await;
        patched.unwrap();
    }

    /// Waits for the end of a stage, and compares it with the cloud's books.
    async fn finish(&self, life: &mut Life, stage: Stage, script: &Script) {
        let proxies = self.site.proxies();
        let what = format!("{stage:?} of {}: {script:?}", life.name);
        let id = |proxy: &Proxy| proxy.status.clone().and_then(|status| status.provider_id);
        let before = id(&life.proxy);
        let (lived, alive) = match stage {
            Stage::Create | Stage::Replace => {
                let another = |proxy: Option<&Proxy>| C::up(proxy).filter(|p| id(p) != before);
                life.proxy = until(&proxies, &life.name, &what, another).await;
                (if stage == Stage::Create { 1..=1 } else { 2..=2 }, 1)
            },
            Stage::Delete => {
                until(&proxies, &life.name, &what, gone).await;
                (2..=2, 0)
            },
            Stage::Withdraw => {
                until(&proxies, &life.name, &what, gone).await;
                (0..=1, 0)
            },
        };
        let books = self.cloud.books(&life.proxy).await;
        let (foreign, ours): (Vec<_>, Vec<_>) = books.into_iter().partition(Machine::is_foreign);
        assert!(lived.contains(&ours.len()), "{what}: {ours:?}");
        let living = ours.iter().filter(|machine| machine.gone.is_none()).count();
        assert_eq!(living, alive, "{what}: {ours:?}");
        for pair in ours.windows(2) {
            assert!(
                pair[0].gone.unwrap() <= pair[1].created,
                "{what}: two at once: {ours:?}"
            );
        }
        assert_eq!(foreign.len(), 2, "{what}");
        assert!(
            foreign.iter().all(|machine| machine.gone.is_none()),
            "{what}: {foreign:?}"
        );
    }

    /// One stage with its crashes.
    async fn run(&mut self, life: &mut Life, stage: Stage, script: Script) -> Outcome {
        self.wire.take_seen();
        self.wire.arm(script.crashes.first().cloned());
        match stage {
            Stage::Create | Stage::Withdraw => *life = self.begin(&life.name).await,
            Stage::Replace => self.replace(life).await,
            Stage::Delete => self.delete(life).await,
        }
        let mut crashed = true;
        for index in 0..script.crashes.len() {
            let over = match stage {
                // What is withdrawn is deleted at the crash, so it waits for that.
                Stage::Withdraw => Stage::Create,
                Stage::Create | Stage::Replace | Stage::Delete => stage,
            };
            let wire = Arc::clone(&self.wire);
            tokio::select! {
                () = wire.sprung.notified() => {},
                () = self.finish(life, over, &script) => {
                    wire.arm(None);
                    crashed = false;
                    break;
                },
            }
            self.operator.process.kill9().unwrap();
            self.wire.arm(script.crashes.get(index + 1).cloned());
            if stage == Stage::Withdraw {
                self.delete(life).await;
            }
            self.operator = self.site.operator();
        }
        if crashed {
            self.finish(life, stage, &script).await;
        } else if stage == Stage::Withdraw {
            self.delete(life).await;
            self.finish(life, stage, &script).await;
        }
        Outcome {
            stage,
            script,
            crashed,
            seen: self.wire.take_seen(),
        }
    }

    /// A whole life, and another that is withdrawn.
    async fn live(&mut self, name: String, mut scripts: BTreeMap<Stage, Script>) -> Vec<Outcome> {
        let trouble = scripts.values().next().unwrap().trouble;
        self.cloud.trouble(trouble).await;
        let mut life = Life {
            proxy: C::proxy(&name),
            name: name.clone(),
        };
        let mut outcomes = Vec::new();
        for stage in STAGES {
            let script = scripts.remove(&stage);
            if stage == Stage::Withdraw {
                if script.is_none() {
                    continue;
                }
                self.cloud.trouble(trouble).await;
                life.name = format!("{name}-withdrawn");
            }
            let script = script.unwrap_or(Script {
                trouble,
                crashes: Vec::new(),
            });
            outcomes.push(self.run(&mut life, stage, script).await);
        }
        outcomes
    }
}

/// How often a crash is tried to be had that did not come, as when two calls may be made in either
/// order.
const ATTEMPTS: usize = 4;

/// The calls there are, and how many times the operator died at them.
async fn kill_at_every_call<C: Cloud>() -> (Plan, String) {
    let mut all = join_all(C::NAMESPACES.map(Lives::<C>::new)).await;
    let mut plan = Plan::default();
    for trouble in 0..C::TROUBLES {
        for stage in [Stage::Create, Stage::Replace, Stage::Delete] {
            let crashes = Vec::new();
            let whole = Script { trouble, crashes };
            plan.todo.entry(stage).or_default().push_back(whole);
        }
    }
    let (mut kills, mut lives) = (0, 0);
    let mut missed: BTreeMap<(Stage, Script), usize> = BTreeMap::new();
    while plan.has_more() {
        let mut round = Vec::new();
        for each in &mut all {
            let Some(scripts) = plan.next() else { break };
            lives += 1;
            round.push(each.live(format!("life-{lives}"), scripts));
        }
        for outcome in join_all(round).await.into_iter().flatten() {
            let Outcome {
                stage,
                script,
                crashed,
                seen,
            } = outcome;
            if crashed {
                kills += usize::from(!script.crashes.is_empty());
            } else {
                let attempts = missed.entry((stage, script.clone())).or_default();
                *attempts += 1;
                assert!(*attempts < ATTEMPTS, "{stage:?}: {script:?} never came");
                plan.todo
                    .entry(stage)
                    .or_default()
                    .push_back(script.clone());
            }
            plan.learn(stage, &script, seen);
        }
    }
    for each in &all {
        each.cloud.check().await;
    }
    let calls: usize = plan.known.values().map(BTreeSet::len).sum();
    assert_eq!(kills, 2 * calls + plan.withdrawals);
    let figures = format!("{calls} calls, {kills} crashes, {lives} lives");
    (plan, figures)
}

/// What a life cannot do without; more are found, fewer would mean that the relay is blind.
fn assert_known(plan: &Plan, insert: &str) {
    for (stage, call) in [
        (Stage::Create, "kubernetes PATCH proxies 1 finalizers"),
        (Stage::Create, "cloud GET instances"),
        (Stage::Create, insert),
        (Stage::Create, "kubernetes PATCH proxies annotations"),
        (Stage::Replace, "cloud DELETE one instance"),
        (Stage::Replace, insert),
        (Stage::Delete, "cloud DELETE one instance"),
        (Stage::Delete, "kubernetes PATCH proxies 0 finalizers"),
    ] {
        let known = &plan.known[&(stage, 0)];
        assert!(known.contains(call), "{stage:?} {call}: {known:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_around_any_call_leads_to_exactly_one_instance() {
    let (plan, figures) = kill_at_every_call::<Mock>().await;
    println!("{figures}: {:#?}", plan.known);
    assert_known(&plan, "cloud POST instance");
}

/// Against reads that lag behind, lost replies and latency.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_around_any_call_to_an_eventually_consistent_cloud_leads_to_exactly_one_instance() {
    let (plan, figures) = kill_at_every_call::<Gce>().await;
    println!("{figures}: {:#?}", plan.known);
    assert_known(&plan, "cloud POST instances");
}
