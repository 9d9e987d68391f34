//! What is measured, in this order: the fleet comes up, rests, holds leases, lives through restarts of the
//! operator, loses most of its proxies, and goes.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use crawl_api::conditions;
use crawl_api::names;
use crawl_api::pool::ProxyPool;
use crawl_api::proxy::Proxy;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, PostParams};
use mock_cloud::faults::Behaviour;
use mock_cloud::model::ListInstances;
use serde_json::json;

use crate::flags::Plan;
use crate::leases;
use crate::machine;
use crate::peer::Floor;
use crate::progress::Progress;
use crate::site::{Operator, POOL, Site};
use crate::span::{Open, Span};
use crate::table::{Goal, Row};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_mins(5);
/// How often the figures that are waited for are read.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Without writes for this long, the fleet is at rest.
const REST: Duration = Duration::from_secs(5);
/// If it does not come to rest in this time, what follows is measured all the same.
const RESTLESS: Duration = Duration::from_secs(30);
/// "Both binaries together below 100 MB."
const MEMORY_MIB: f64 = 100e6 / 1024.0 / 1024.0;
/// Calls of the mock cloud's API at once.
const CALLERS: usize = 16;
/// The operator's default for `--max-concurrent-probes`.
const MAX_PROBES: f64 = 512.0;

/// Everything that the phases share.
pub(crate) struct Bench<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) site: &'a Site,
    pub(crate) progress: &'a Progress,
    pub(crate) rows: Vec<Row>,
}

impl Bench<'_> {
    /// Runs all phases.
    pub(crate) async fn run(&mut self, floor: Floor) -> Result<()> {
        let Self { site, progress, .. } = *self;
        let operator = site.start_operator()?;
        self.until("the operator to lead", async || {
            operator.process.check_running()?;
            Ok(operator.process.log().contains("leading"))
        })
        .await?;
        self.memory(&operator, "idle").await?;

        let count = self.plan.proxies();
        progress.say(&format!("a pool of {count} comes up"));
        self.come_up(&operator, floor).await?;
        progress.say("the fleet rests");
        self.rest(&operator).await?;
        progress.say("leases");
        self.lease(&operator).await?;
        progress.say("restarts of the operator");
        let operator = self.restart(operator).await?;
        progress.say("four of five proxies die");
        self.die(&operator).await?;
        progress.say("the pool is deleted");
        self.go(&operator).await
    }

    async fn come_up(&mut self, operator: &Operator, floor: Floor) -> Result<()> {
        let count = self.plan.proxies();
        let span = Open::begin(self.site, operator).await?;
        self.create_pool().await?;
        let pools = self.site.pools();
        self.until("all proxies to be Ready", async || {
            let pool = pools.get_status(POOL).await?;
            let ready = pool.status.map_or(0, |status| status.ready_replicas);
            Ok(usize::try_from(ready) == Ok(count))
        })
        .await?;
        let ready_after = span.elapsed().as_secs_f64();
        let span = span.end().await?;
        let (name, proxies) = ("coming up", number(count));
        self.row(
            Row::new(
                format!("{name}: {count} proxies Ready after"),
                "s",
                Some(ready_after),
            )
            .beside(
                Some(floor.seconds),
                "bare client: create, write status",
                None,
            ),
        );
        let writes = Row::new(
            format!("{name}: kube writes of the operator"),
            "1/s",
            Some(span.writes() / span.seconds()),
        );
        self.row(writes.beside(
            Some(floor.writes),
            "bare client: create, write status",
            None,
        ));
        self.figure(
            &format!("{name}: kube writes per proxy"),
            "",
            span.writes() / proxies,
        );
        self.figure(
            &format!("{name}: kube reads per proxy"),
            "",
            span.reads() / proxies,
        );
        self.figure(
            &format!("{name}: provider calls per proxy"),
            "",
            span.provider_calls() / proxies,
        );
        self.figure(
            &format!("{name}: reconciles"),
            "1/s",
            span.passes() / span.seconds(),
        );
        self.figure(
            &format!("{name}: reconciles per proxy"),
            "",
            span.passes() / proxies,
        );
        self.figure(
            &format!("{name}: mean time of a reconcile"),
            "ms",
            span.pass_milliseconds(),
        );
        self.figure(
            &format!("{name}: processor time of the operator per proxy"),
            "ms",
            span.operator_time() * 1000.0 / proxies,
        );
        self.figure(
            &format!("{name}: peak resident memory of the operator"),
            "MiB",
            span.peak_mib,
        );
        Ok(())
    }

    async fn create_pool(&self) -> Result<()> {
        let per_proxy = self.plan.leases_per_proxy();
        let pool = json!({
            "apiVersion": "crawl.example.com/v1alpha1",
            "kind": "ProxyPool",
            "metadata": { "name": POOL },
            "spec": {
                "replicas": self.plan.proxies(),
                "maxLeasesPerTarget": per_proxy,
                "template": { "spec": {
                    "mode": "Managed",
                    "provider": "local",
                    "maxLeases": per_proxy,
                    "healthCheck": {
                        "intervalSeconds": self.plan.interval().as_secs(),
                        "timeoutSeconds": self.plan.timeout().as_secs(),
                    },
                } },
            },
        });
        let pool: ProxyPool = serde_json::from_value(pool)?;
        let created = self
            .site
            .pools()
            .create(&PostParams::default(), &pool)
            .await;
        created.context("cannot create the pool")?;
        Ok(())
    }

    async fn rest(&mut self, operator: &Operator) -> Result<()> {
        // Why: the first latencies are those of a machine under load, and are told anew after a minute.
        self.site.clock.sleep(self.plan.interval() * 3).await;
        self.until_at_rest().await?;
        let span = Open::begin(self.site, operator).await?;
        self.site.clock.sleep(self.plan.window()).await;
        let span = span.end().await?;
        let per_hour = 3600.0 / span.seconds();
        let per_proxy = per_hour / number(self.plan.proxies());
        let seconds = span.seconds();
        self.row(
            Row::new(
                format!("at rest: writes to Proxies, pools and events in {seconds:.0} s"),
                "",
                Some(span.object_writes()),
            )
            .none_wanted(),
        );
        self.figure(
            "at rest: kube writes of the operator per hour (leadership)",
            "1/h",
            span.writes() * per_hour,
        );
        self.figure(
            "at rest: kube reads per proxy and hour",
            "1/h",
            span.reads() * per_proxy,
        );
        self.figure(
            "at rest: provider calls per proxy and hour",
            "1/h",
            span.provider_calls() * per_proxy,
        );
        self.figure(
            "at rest: reconciles per proxy and hour",
            "1/h",
            span.passes() * per_proxy,
        );
        self.lag("at rest", &span);
        self.figure(
            "at rest: open sockets of the operator at peak",
            "",
            span.sockets,
        );
        self.figure(
            "at rest: processor time of the operator per hour",
            "s/h",
            span.operator_time() * per_hour,
        );
        self.figure(
            "at rest: processor time of lease-apiserver per hour",
            "s/h",
            span.lease_time() * per_hour,
        );
        Ok(())
    }

    async fn lease(&mut self, operator: &Operator) -> Result<()> {
        let count = self.plan.proxies();
        self.memory(operator, &format!("with {count} proxies"))
            .await?;
        let wanted = count * usize::from(self.plan.leases_per_proxy());
        let leases = leases::take(self.site, wanted).await?;
        let together = self
            .memory(
                operator,
                &format!("with {count} proxies and {wanted} leases"),
            )
            .await?;
        let row = Row::new(
            format!("resident memory, both, with {count} proxies and {wanted} leases"),
            "MiB",
            Some(together),
        );
        self.row(row.beside(Some(MEMORY_MIB), "100 MB", Some(Goal::AtMost(1.0))));
        leases.give_back().await
    }

    /// Restarts the operator, first as an upgrade does, then as a crash does.
    async fn restart(&mut self, operator: Operator) -> Result<Operator> {
        self.until_at_rest().await?;
        let before = self.site.fleet().await?;
        let writes = self.site.object_writes().await?;

        operator
            .process
            .terminate()
            .await
            .context("the operator does not stop")?;
        let operator = self.start_again("restart").await?;
        let begun = self.site.clock.elapsed();
        let all = number(self.plan.proxies());
        self.until("every proxy to be probed again", async || {
            let probes = operator
                .scrape()
                .await?
                .sum("proxy_operator_probes_total", |_| true);
            Ok(probes >= all)
        })
        .await?;
        let probed = self
            .site
            .clock
            .elapsed()
            .saturating_sub(begun)
            .as_secs_f64();
        let row = Row::new(
            "restart: then, as many probes as proxies after".to_owned(),
            "s",
            Some(probed),
        );
        self.row(row.beside(
            Some(self.plan.interval().as_secs_f64()),
            "one interval",
            None,
        ));

        operator.process.kill9()?;
        let operator = self.start_again("kill -9, restart").await?;
        self.until_at_rest().await?;
        let written = self.site.object_writes().await? - writes;
        self.row(
            Row::new(
                "both restarts: writes to Proxies, pools and events".to_owned(),
                "",
                Some(written),
            )
            .none_wanted(),
        );
        let changed = changed(&before, &self.site.fleet().await?);
        let changed = number(changed.len());
        self.row(
            Row::new(
                "both restarts: proxies whose Ready changed".to_owned(),
                "",
                Some(changed),
            )
            .none_wanted(),
        );
        Ok(operator)
    }

    async fn start_again(&mut self, how: &str) -> Result<Operator> {
        let begin = self.site.clock.elapsed();
        let operator = self.site.start_operator()?;
        let all = number(self.plan.proxies());
        let took = || {
            self.site
                .clock
                .elapsed()
                .saturating_sub(begin)
                .as_secs_f64()
        };
        self.until("the first pass", async || {
            Ok(operator.proxy_passes().await? > 0.0)
        })
        .await?;
        let first = took();
        self.until("a pass over every proxy", async || {
            Ok(operator.proxy_passes().await? >= all)
        })
        .await?;
        let every = took();
        self.figure(&format!("{how}: first reconcile after"), "s", first);
        self.figure(
            &format!("{how}: as many reconciles as proxies after"),
            "s",
            every,
        );
        Ok(operator)
    }

    async fn die(&mut self, operator: &Operator) -> Result<()> {
        let before = self.site.fleet().await?;
        let (dying, living) = before.split_at(before.len() * 4 / 5);
        let span = Open::begin(self.site, operator).await?;
        self.break_all(dying).await?;
        let told = |proxy: &Proxy| {
            let healthy = proxy.condition(conditions::HEALTHY);
            healthy.is_some_and(|condition| condition.status == "False")
        };
        let names: Vec<_> = dying.iter().map(kube::ResourceExt::name_any).collect();
        self.until("the dead to be told", async || {
            let fleet = self.site.fleet().await?;
            let dead = fleet.iter().filter(|proxy| told(proxy));
            let found = dead
                .filter(|proxy| names.contains(&proxy.name_any()))
                .count();
            self.site.clock.sleep(LOOK_INTERVAL * 10).await;
            Ok(found == names.len())
        })
        .await?;
        let told_after = span.elapsed().as_secs_f64();
        let span = span.end().await?;
        let row = Row::new(
            "80 % dead: all of them told after".to_owned(),
            "s",
            Some(told_after),
        );
        // Three failures in a row, the first of which begins up to an interval after the death.
        let expected = self.plan.interval().as_secs_f64() * 3.0 + self.plan.timeout().as_secs_f64();
        self.row(row.beside(Some(expected), "3 intervals and a timeout", None));
        self.figure(
            "80 % dead: kube writes per dead proxy",
            "",
            span.writes() / number(dying.len()),
        );
        self.lag("80 % dead, while they die", &span);
        self.sockets("80 % dead, while they die", &span);

        self.until_at_rest().await?;
        let span = Open::begin(self.site, operator).await?;
        self.site.clock.sleep(self.plan.window()).await;
        let span = span.end().await?;
        self.lag("80 % dead, later", &span);
        self.sockets("80 % dead, later", &span);
        let per_hour = 3600.0 / span.seconds();
        let seconds = span.seconds();
        self.row(
            Row::new(
                format!("80 % dead, later: writes to Proxies, pools and events in {seconds:.0} s"),
                "",
                Some(span.object_writes()),
            )
            .none_wanted(),
        );
        self.figure(
            "80 % dead, later: processor time of the operator per hour",
            "s/h",
            span.operator_time() * per_hour,
        );
        let changed = number(changed(living, &self.site.fleet().await?).len());
        self.row(
            Row::new(
                "80 % dead: others whose Ready changed".to_owned(),
                "",
                Some(changed),
            )
            .none_wanted(),
        );
        Ok(())
    }

    /// Lets the proxies hang, refuse or swallow, in turn.
    async fn break_all(&self, dying: &[Proxy]) -> Result<()> {
        let cloud = &self.site.cloud;
        let instances = cloud.list(&ListInstances::default()).await?;
        let by_uid: BTreeMap<_, _> = instances
            .into_iter()
            .filter_map(|found| Some((found.labels.get(names::TAG_PROXY_UID)?.clone(), found)))
            .collect();
        let kinds = [Behaviour::Hang, Behaviour::Dead, Behaviour::BlackHole];
        let breaking = dying
            .iter()
            .zip(kinds.iter().cycle())
            .map(|(proxy, behaviour)| {
                let instance = proxy.uid().and_then(|uid| by_uid.get(&uid));
                async move {
                    let instance = instance
                        .with_context(|| format!("{} has no instance", proxy.name_any()))?;
                    let set = cloud.set_behaviour(&instance.zone, &instance.id, behaviour);
                    set.await.context("cannot break an instance")
                }
            });
        stream::iter(breaking)
            .buffer_unordered(CALLERS)
            .try_collect()
            .await
    }

    async fn go(&mut self, operator: &Operator) -> Result<()> {
        let count = self.plan.proxies();
        let span = Open::begin(self.site, operator).await?;
        let (pools, proxies) = (self.site.pools(), self.site.proxies());
        pools
            .delete(POOL, &DeleteParams::default())
            .await
            .context("cannot delete the pool")?;
        self.until("all objects to go", async || {
            let first = ListParams::default().limit(1);
            Ok(proxies.list_metadata(&first).await?.items.is_empty())
        })
        .await?;
        let objects = span.elapsed().as_secs_f64();
        self.until("all instances to go", async || {
            Ok(self
                .site
                .cloud
                .list(&ListInstances::default())
                .await?
                .is_empty())
        })
        .await?;
        let instances = span.elapsed().as_secs_f64();
        let span = span.end().await?;
        self.figure(
            &format!("deletion: {count} objects gone after"),
            "s",
            objects,
        );
        self.figure(
            &format!("deletion: {count} instances gone after"),
            "s",
            instances,
        );
        self.figure(
            "deletion: provider calls per proxy",
            "",
            span.provider_calls() / number(count),
        );
        self.figure(
            "deletion: kube writes of the operator per proxy",
            "",
            span.writes() / number(count),
        );
        Ok(())
    }

    fn lag(&mut self, when: &str, span: &Span) {
        let lag = span.lag();
        let row = |name: &str, share| {
            let name = format!("{when}: {name} of the probe lag");
            Row::new(name, "s", lag.quantile(share))
        };
        let (p50, p99) = (row("p50", 0.5), row("p99", 0.99));
        let interval = self.plan.interval().as_secs_f64();
        self.row(p50);
        self.row(p99.beside(Some(interval), "one interval", Some(Goal::AtMost(1.0))));
    }

    fn sockets(&mut self, when: &str, span: &Span) {
        let row = Row::new(
            format!("{when}: open sockets of the operator at peak"),
            "",
            Some(span.sockets),
        );
        self.row(row.beside(Some(MAX_PROBES), "--max-concurrent-probes", None));
    }

    /// Adds the memory of both binaries, and returns what they have together.
    async fn memory(&mut self, operator: &Operator, state: &str) -> Result<f64> {
        self.site.clock.sleep(REST).await;
        machine::wait_until_quiet(REST, &self.site.clock).await?;
        let mut together = 0.0;
        for process in [&operator.process, &self.site.lease_apiserver] {
            process.check_running()?;
            let resident = machine::resident_mib(process.pid())?;
            together += resident;
            let name = format!("resident memory, {} {state}", process.name());
            self.figure(&name, "MiB", resident);
        }
        Ok(together)
    }

    /// Waits until nobody has written for a while. Not for ever: on a machine that does something else
    /// besides, latencies move and are told, and the rows about writes have to say so.
    async fn until_at_rest(&self) -> Result<()> {
        let begin = self.site.clock.elapsed();
        let mut last = (self.site.object_writes().await?, begin);
        self.until("the fleet to rest", async || {
            self.site.clock.sleep(LOOK_INTERVAL * 10).await;
            let (writes, now) = (self.site.object_writes().await?, self.site.clock.elapsed());
            if writes > last.0 {
                last = (writes, now);
            }
            let (quiet, waited) = (now.saturating_sub(last.1), now.saturating_sub(begin));
            Ok(quiet >= REST || waited >= RESTLESS)
        })
        .await
    }

    async fn until(&self, what: &str, mut is_so: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
        let end = self.site.clock.elapsed() + PATIENCE;
        while !is_so()
            .await
            .with_context(|| format!("while waiting for {what}"))?
        {
            self.site.check_running()?;
            anyhow::ensure!(self.site.clock.elapsed() < end, "waited in vain for {what}");
            self.site.clock.sleep(LOOK_INTERVAL).await;
        }
        Ok(())
    }

    fn figure(&mut self, name: &str, unit: &'static str, value: f64) {
        self.row(Row::new(name.to_owned(), unit, Some(value)));
    }

    fn row(&mut self, row: Row) {
        self.rows.push(row);
    }
}

/// When Ready took its present status.
fn ready_since(proxy: &Proxy) -> Option<(String, Timestamp)> {
    let ready = proxy.condition(conditions::READY)?;
    Some((ready.status.clone(), ready.last_transition_time.0))
}

/// The proxies of `before` whose condition Ready is another `now`, or that are gone.
fn changed(before: &[Proxy], now: &[Proxy]) -> Vec<String> {
    let now: BTreeMap<_, _> = now
        .iter()
        .map(|proxy| (proxy.uid(), ready_since(proxy)))
        .collect();
    before
        .iter()
        .filter(|proxy| now.get(&proxy.uid()).cloned().flatten() != ready_since(proxy))
        .map(kube::ResourceExt::name_any)
        .collect()
}

fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}
