//! What the allocator knows of proxies and pools, taken from their objects.
//!
//! `inputs` builds these from what it watches; nothing here decides.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crawl_api::address::Endpoint;
use crawl_api::pool::{LeasePolicy, ProxyPool};
use crawl_api::proxy::{NotAccepting, Proxy};
use crawl_api::scheme::Scheme;
use crawl_api::{conditions, names};
use jiff::Timestamp;
use kube::ResourceExt;

/// Namespace and name of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolKey {
    /// Namespace of the pool.
    pub namespace: Arc<str>,
    /// Name of the pool.
    pub name: Arc<str>,
}

/// What a pool says about leasing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolFacts {
    /// Which of the free proxies a lease gets.
    pub policy: LeasePolicy,
    /// Leases for one target that may share an exit IP.
    pub per_target: usize,
}

/// What a proxy without a pool, or whose pool is unknown, is leased by.
pub const NO_POOL: PoolFacts = PoolFacts {
    policy: LeasePolicy::LeastLoaded,
    per_target: 1,
};

/// What happens to the leases of a proxy because of its state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    /// Nothing.
    #[default]
    Keep,
    /// They are told to look for another proxy.
    Warn {
        /// Reason of the lease's Draining condition.
        reason: &'static str,
    },
    /// They are told to go, and cut at the deadline.
    Drain {
        /// Wall time of the cut.
        deadline: Timestamp,
    },
    /// They are cut now.
    Revoke {
        /// Reason of the lease's Bound condition.
        reason: &'static str,
    },
}

/// One state of a `Proxy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyFacts {
    /// Uid of the object.
    pub uid: Arc<str>,
    /// Namespace of the object.
    pub namespace: Arc<str>,
    /// Name of the object.
    pub name: Arc<str>,
    /// resourceVersion of this state.
    pub resource_version: u64,
    /// Its own, and those of its exit, for selectors.
    pub labels: BTreeMap<String, String>,
    /// The pool it belongs to.
    pub pool: Option<PoolKey>,
    /// Where it listens.
    pub endpoint: Option<Endpoint>,
    /// Address that targets see.
    pub exit_ip: Option<Arc<str>>,
    /// Whether the last probes went through.
    pub healthy: bool,
    /// Whether leases may be granted.
    pub accepting: Result<(), NotAccepting>,
    /// Slots.
    pub max_leases: usize,
    /// Latency of probes rounded up to a power of two, in milliseconds; 0: unknown.
    pub latency_bucket: u32,
    /// Its health changes too often: it is given out when no other has room.
    pub flapping: bool,
    /// Domains it may be leased for; empty: all.
    pub allowed_targets: Vec<String>,
    /// Domains it is never leased for.
    pub denied_targets: Vec<String>,
    /// What happens to its leases.
    pub fate: Fate,
}

// === impl ProxyFacts ===

impl ProxyFacts {
    /// The facts of an object as the API server gave it; `None` when it lacks what every stored
    /// object has. `known` is the fate decided for an earlier state: a drain goes on with the
    /// deadline it began with unless the object says otherwise.
    pub fn of(proxy: &Proxy, known: Option<&Fate>, now: Timestamp) -> Option<Self> {
        let namespace: Arc<str> = proxy.metadata.namespace.as_deref()?.into();
        let pool = proxy
            .metadata
            .owner_references
            .iter()
            .flatten()
            .find(|owner| owner.controller == Some(true) && owner.kind == "ProxyPool")
            .map(|owner| PoolKey {
                namespace: Arc::clone(&namespace),
                name: owner.name.as_str().into(),
            });
        let latency = proxy
            .status
            .as_ref()
            .and_then(|status| status.latency_milliseconds);
        Some(Self {
            uid: proxy.metadata.uid.as_deref()?.into(),
            name: proxy.metadata.name.as_deref()?.into(),
            namespace,
            resource_version: proxy.metadata.resource_version.as_deref()?.parse().ok()?,
            labels: labels(proxy),
            pool,
            endpoint: proxy.endpoint().cloned(),
            exit_ip: proxy.exit_ip().map(Into::into),
            healthy: proxy.is_healthy(),
            accepting: proxy.accepts_leases(),
            max_leases: usize::try_from(proxy.spec.max_leases).unwrap_or(0),
            latency_bucket: bucket(latency),
            flapping: proxy
                .condition(conditions::FLAPPING)
                .is_some_and(|condition| condition.status == "True"),
            allowed_targets: proxy.spec.allowed_targets.clone(),
            denied_targets: proxy.spec.denied_targets.clone(),
            fate: fate(proxy, known, now),
        })
    }

    /// Whether `allowedTargets` and `deniedTargets` let the proxy be used for a target. A domain
    /// covers its subdomains. With allowed targets, a lease without a target is not served.
    pub fn serves(&self, target: Option<&str>) -> bool {
        let covers = |domain: &String, target: &str| {
            target == domain
                || target
                    .strip_suffix(domain.as_str())
                    .is_some_and(|rest| rest.ends_with('.'))
        };
        match target {
            None => self.allowed_targets.is_empty(),
            Some(target) => {
                let allowed = self.allowed_targets.is_empty()
                    || self
                        .allowed_targets
                        .iter()
                        .any(|domain| covers(domain, target));
                allowed
                    && !self
                        .denied_targets
                        .iter()
                        .any(|domain| covers(domain, target))
            },
        }
    }

    /// Whether some targets are excluded.
    pub fn is_restricted(&self) -> bool {
        !self.allowed_targets.is_empty() || !self.denied_targets.is_empty()
    }

    /// How a client speaks to it.
    pub fn scheme(&self) -> Scheme {
        self.endpoint
            .as_ref()
            .map(|endpoint| endpoint.scheme)
            .unwrap_or_default()
    }
}

/// Rounded up to a power of two.
fn bucket(milliseconds: Option<i64>) -> u32 {
    milliseconds
        .and_then(|ms| u32::try_from(ms).ok())
        .filter(|ms| *ms > 0)
        .and_then(u32::checked_next_power_of_two)
        .unwrap_or(0)
}

fn fate(proxy: &Proxy, known: Option<&Fate>, now: Timestamp) -> Fate {
    let provisioned = proxy.condition(conditions::PROVISIONED);
    if let Some(lost) = provisioned.filter(|condition| condition.status == "False") {
        if lost.reason == conditions::REASON_PREEMPTED {
            return Fate::Revoke {
                reason: conditions::REASON_PREEMPTED,
            };
        }
        if lost.reason == conditions::REASON_INSTANCE_LOST {
            return Fate::Revoke {
                reason: conditions::REASON_INSTANCE_LOST,
            };
        }
    }
    if proxy.is_marked_for_drain() {
        let begun = match (proxy.condition(conditions::DRAINED), known) {
            (Some(drained), _) => drained.last_transition_time.0,
            (None, Some(Fate::Drain { deadline })) => {
                return Fate::Drain {
                    deadline: *deadline,
                };
            },
            (None, _) => proxy
                .metadata
                .deletion_timestamp
                .as_ref()
                .map_or(now, |time| time.0),
        };
        let timeout: Duration = proxy.drain_timeout();
        let deadline = begun.checked_add(timeout).unwrap_or(Timestamp::MAX);
        return Fate::Drain { deadline };
    }
    match proxy.accepts_leases() {
        Err(NotAccepting::Unhealthy) => Fate::Warn {
            reason: NotAccepting::Unhealthy.reason(),
        },
        Ok(())
        | Err(NotAccepting::Draining | NotAccepting::Cordoned | NotAccepting::Unleasable) => {
            Fate::Keep
        },
    }
}

// === impl PoolFacts ===

impl PoolFacts {
    /// What an object says.
    pub fn of(pool: &ProxyPool) -> Self {
        Self {
            policy: pool.spec.lease_policy,
            per_target: usize::try_from(pool.spec.max_leases_per_target).unwrap_or(1),
        }
    }
}

/// The labels of an object, with those of its exit as status knows it.
fn labels(proxy: &Proxy) -> BTreeMap<String, String> {
    let mut labels = proxy.labels().clone();
    labels.retain(|label, _| !label.starts_with(names::LABELS_EXIT));
    if let Some(status) = &proxy.status {
        let asn = status.asn.map(|asn| asn.to_string());
        let known = [
            (names::LABEL_EXIT_COUNTRY, status.country.clone()),
            (names::LABEL_EXIT_ASN, asn),
        ];
        labels.extend(
            known
                .into_iter()
                .filter_map(|(label, value)| Some((label.to_owned(), value?))),
        );
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_exit_is_comes_from_status_alone() {
        let mut proxy = Proxy::new("a", crawl_api::proxy::ProxySpec::managed("p"));
        let own = [("tier", "gold"), (names::LABEL_EXIT_COUNTRY, "FR")];
        proxy.metadata.labels = Some(own.map(|(k, v)| (k.into(), v.into())).into());
        let found = |proxy: &Proxy| {
            let labels = labels(proxy);
            [names::LABEL_EXIT_COUNTRY, names::LABEL_EXIT_ASN, "tier"]
                .map(|label| labels.get(label).cloned())
        };
        assert_eq!(found(&proxy), [None, None, Some("gold".into())]);
        proxy.status = Some(crawl_api::proxy::ProxyStatus {
            country: Some("DE".into()),
            asn: Some(64_500),
            ..Default::default()
        });
        let known = ["DE", "64500", "gold"].map(|text| Some(text.to_owned()));
        assert_eq!(found(&proxy), known);
    }

    #[test]
    fn latency_is_rounded_up_to_a_power_of_two() {
        let given = [
            None,
            Some(-5),
            Some(0),
            Some(1),
            Some(3),
            Some(64),
            Some(65),
        ];
        assert_eq!(given.map(bucket), [0, 0, 0, 1, 4, 64, 128]);
    }

    #[test]
    fn domains_cover_their_subdomains_and_nothing_that_only_ends_alike() {
        let mut facts = crate::allocator::testing::facts("a", 1);
        facts.allowed_targets = vec!["example.com".into()];
        facts.denied_targets = vec!["bad.example.com".into()];
        assert!(facts.serves(Some("example.com")));
        assert!(facts.serves(Some("shop.example.com")));
        assert!(!facts.serves(Some("notexample.com")));
        assert!(!facts.serves(Some("bad.example.com")));
        assert!(
            !facts.serves(None),
            "an allow list serves nobody who does not say for what"
        );
    }

    #[test]
    fn a_drain_keeps_the_deadline_it_began_with() {
        let mut proxy = Proxy::new("a", crawl_api::proxy::ProxySpec::managed("p"));
        proxy.metadata.namespace = Some("ns".into());
        proxy.spec.drain = true;
        proxy.spec.drain_timeout_seconds = 60;
        let at = |second| Timestamp::from_second(second).unwrap();
        let first = fate(&proxy, None, at(100));
        assert_eq!(first, Fate::Drain { deadline: at(160) });
        assert_eq!(fate(&proxy, Some(&first), at(150)), first);
    }
}
