//! Deletes instances that nobody owns: left behind when an object was forced away, when state was
//! lost, or when a Proxy has another one.
//!
//! Run by the leader alone. A sweep reads every provider first and the objects after that, so that a
//! Proxy that was created in between is seen. What cannot be read is never taken for absent: without
//! the whole list of Proxies nothing is deleted, and a provider or zone that fails only keeps its
//! own instances.

mod plan;

use std::collections::BTreeMap;
use std::time::Duration;

use std::sync::Arc;

use crawl_api::names;
use crawl_api::proxy::Proxy;
use jiff::SignedDuration;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};
use runtime_kit::Clock;
use tokio_util::sync::CancellationToken;

use self::plan::{Found, Live, Verdict};
use crate::providers::{Listing, Providers, Tags};

/// How many Proxies are read at a time.
const PAGE: u32 = 500;

/// The flags.
#[derive(Clone, Debug, clap::Args)]
pub struct Flags {
    /// How often instances that no Proxy owns are looked for. The first time is one interval after
    /// the start.
    #[arg(long = "gc-interval", value_name = "DURATION", default_value = "10m", value_parser = crate::args::duration)]
    pub interval: Duration,

    /// How old an instance must be before it is deleted because no Proxy owns it.
    #[arg(long = "gc-min-age", value_name = "DURATION", default_value = "20m", value_parser = crate::args::duration)]
    pub min_age: Duration,

    /// Log what would be deleted because no Proxy owns it, and delete nothing.
    #[arg(id = "gc_dry_run", long = "gc-dry-run")]
    pub dry_run: bool,

    /// Look for instances that no Proxy owns also when --namespaces restricts the view; only those
    /// that belong to these namespaces are deleted.
    #[arg(long = "gc-allow-namespaced")]
    pub allow_namespaced: bool,
}

/// The collector of orphans.
pub struct Collector {
    client: Client,
    providers: Providers,
    namespaces: Vec<String>,
    cluster_id: String,
    clock: Arc<dyn Clock>,
    flags: Flags,
    metrics: Metrics,
}

struct Metrics {
    orphans: IntGaugeVec,
    deleted: IntCounterVec,
    sweeps: IntCounterVec,
}

/// How a sweep ended, and what the metric calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Everything was read; what had to go was asked to go.
    Done,
    /// A provider or zone could not be read, or an instance not be deleted.
    Partial,
    /// The Proxies could not be read.
    Blind,
    /// Too many would go.
    Refused,
}

// === impl Metrics ===

impl Metrics {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let orphans = IntGaugeVec::new(
            Opts::new(
                "proxy_operator_gc_orphans",
                "Instances that no Proxy owns, as of the last sweep.",
            ),
            &["provider"],
        )?;
        let deleted = IntCounterVec::new(
            Opts::new(
                "proxy_operator_gc_deleted_total",
                "Instances deleted because no Proxy owns them.",
            ),
            &["provider"],
        )?;
        let sweeps = IntCounterVec::new(
            Opts::new(
                "proxy_operator_gc_sweeps_total",
                "Searches for instances that no Proxy owns, by how they ended: done, partial \
                 (something could not be read or deleted), blind (the Proxies could not be read), \
                 refused (too many would go).",
            ),
            &["result"],
        )?;
        registry.register(Box::new(orphans.clone()))?;
        registry.register(Box::new(deleted.clone()))?;
        registry.register(Box::new(sweeps.clone()))?;
        Ok(Self {
            orphans,
            deleted,
            sweeps,
        })
    }
}

// === impl Collector ===

impl Collector {
    /// A collector that does nothing until [`Self::run`] runs. Without namespaces it sees all.
    ///
    /// # Errors
    /// A metric of the same name is registered already.
    pub fn new(
        client: Client,
        providers: Providers,
        namespaces: Vec<String>,
        cluster_id: String,
        clock: Arc<dyn Clock>,
        flags: Flags,
        registry: &Registry,
    ) -> Result<Self, prometheus::Error> {
        Ok(Self {
            client,
            providers,
            namespaces,
            cluster_id,
            clock,
            flags,
            metrics: Metrics::register(registry)?,
        })
    }

    /// Sweeps until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        if !self.namespaces.is_empty() && !self.flags.allow_namespaced {
            tracing::info!(
                "instances that no Proxy owns are not looked for: --namespaces restricts the view \
                 and --gc-allow-namespaced is not set"
            );
            return;
        }
        let sweeps = async {
            loop {
                self.clock.sleep(self.flags.interval).await;
                let outcome = Box::pin(self.sweep()).await;
                self.metrics
                    .sweeps
                    .with_label_values(&[outcome.label()])
                    .inc();
            }
        };
        shutdown.run_until_cancelled(sweeps).await;
    }

    async fn sweep(&self) -> Outcome {
        let mut whole = true;
        let mut found = Vec::new();
        for name in self.providers.names() {
            match self.survey(name).await {
                Some((instances, complete)) => {
                    found.extend(instances);
                    whole &= complete;
                },
                None => whole = false,
            }
        }
        let live = match self.live().await {
            Ok(live) => live,
            Err(error) => {
                let error = runtime_kit::chain(&error).to_string();
                tracing::warn!(
                    error,
                    "the Proxies cannot be listed; no instance is deleted as an orphan"
                );
                return Outcome::Blind;
            },
        };
        let min_age = SignedDuration::try_from(self.flags.min_age).unwrap_or(SignedDuration::MAX);
        let Verdict { orphans, refused } =
            plan::plan(&found, &live, &self.cluster_id, min_age, self.clock.now());
        for provider in self.providers.names() {
            let count = orphans.iter().filter(|orphan| orphan.provider == provider);
            let count = i64::try_from(count.count()).unwrap_or(i64::MAX);
            self.metrics
                .orphans
                .with_label_values(&[provider])
                .set(count);
        }
        if refused {
            tracing::warn!(
                orphans = orphans.len(),
                instances = found.len(),
                "so many instances have no Proxy that something else must be wrong: none is \
                 deleted; look at them at the provider"
            );
            return Outcome::Refused;
        }
        for orphan in &orphans {
            whole &= self.delete(orphan).await;
        }
        if whole {
            Outcome::Done
        } else {
            Outcome::Partial
        }
    }

    /// The instances of this cluster at a provider, and whether they are all.
    async fn survey(&self, provider: &str) -> Option<(Vec<Found>, bool)> {
        let account = self.providers.get(provider)?;
        let tags = Tags::from([(names::TAG_CLUSTER.to_owned(), self.cluster_id.clone())]);
        match account.survey(&tags).await {
            Ok(Listing { instances, unread }) => {
                for zone in &unread {
                    let error = runtime_kit::chain(&zone.error).to_string();
                    tracing::warn!(
                        provider,
                        zone = zone.zone,
                        error,
                        "a zone cannot be searched for orphans"
                    );
                }
                let found = instances.into_iter().map(|instance| Found {
                    provider: provider.to_owned(),
                    instance,
                });
                Some((found.collect(), unread.is_empty()))
            },
            Err(error) => {
                let error = runtime_kit::chain(&error).to_string();
                tracing::warn!(provider, error, "a provider cannot be searched for orphans");
                None
            },
        }
    }

    /// All Proxies, straight from the API server.
    async fn live(&self) -> Result<Live, kube::Error> {
        let apis: Vec<Api<Proxy>> = if self.namespaces.is_empty() {
            vec![Api::all(self.client.clone())]
        } else {
            self.namespaces
                .iter()
                .map(|namespace| Api::namespaced(self.client.clone(), namespace))
                .collect()
        };
        let mut proxies = BTreeMap::new();
        for api in apis {
            let mut params = ListParams::default().limit(PAGE);
            loop {
                let page = api.list(&params).await?;
                proxies.extend(page.items.into_iter().filter_map(|proxy| {
                    let id = proxy.status.as_ref().and_then(|s| s.provider_id.clone());
                    Some((proxy.uid()?, id))
                }));
                match page.metadata.continue_ {
                    Some(token) if !token.is_empty() => params = params.continue_token(&token),
                    Some(_) | None => break,
                }
            }
        }
        let namespaces =
            (!self.namespaces.is_empty()).then(|| self.namespaces.iter().cloned().collect());
        Ok(Live {
            proxies,
            namespaces,
        })
    }

    async fn delete(&self, orphan: &Found) -> bool {
        let Found { provider, instance } = orphan;
        let uid = instance.proxy_uid().unwrap_or_default();
        let (id, namespace, proxy) = (
            &instance.id,
            instance.tags.get(names::TAG_NAMESPACE),
            instance.tags.get(names::TAG_NAME),
        );
        if self.flags.dry_run {
            tracing::warn!(
                provider,
                id,
                uid,
                namespace,
                proxy,
                "instance that no Proxy owns; it would be deleted but for --gc-dry-run"
            );
            return true;
        }
        let Some(account) = self.providers.get(provider) else {
            return false;
        };
        tracing::warn!(
            provider,
            id,
            uid,
            namespace,
            proxy,
            "deleting an instance that no Proxy owns"
        );
        match account.delete(id).await {
            Ok(()) => {
                self.metrics.deleted.with_label_values(&[provider]).inc();
                true
            },
            Err(error) => {
                let error = runtime_kit::chain(&error).to_string();
                tracing::warn!(provider, id, error, "an orphan cannot be deleted");
                false
            },
        }
    }
}

// === impl Outcome ===

impl Outcome {
    fn label(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Partial => "partial",
            Self::Blind => "blind",
            Self::Refused => "refused",
        }
    }
}
