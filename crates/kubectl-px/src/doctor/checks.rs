//! The installation as a whole: is everything there that a lease needs, and what is held back?
//!
//! [`run`] asks; the functions that judge are pure.

use std::collections::BTreeMap;

use crawl_api::endpoint::ProxyEndpoint;
use crawl_api::pool::ProxyPool;
use crawl_api::proxy::{Phase, Proxy};
use crawl_api::{conditions as c, names};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use runtime_kit::{Clock, SystemClock, chain};

use super::next::{provisioning_remedy, withheld_remedy};
use super::operator::{self, Operator};
use super::report::{Finding, Level};
use crate::failure::Failure;
use crate::fleet::ask;
use crate::kube_flags::Session;

/// Looks at everything.
pub(crate) async fn run(
    session: &Session,
    operator_namespace: &str,
    operator_url: Option<&str>,
) -> Result<Vec<Finding>, Failure> {
    let mut findings = Vec::new();
    let client = &session.client;

    let services: Api<APIService> = Api::all(client.clone());
    let service = ask(session, "get", async || {
        services.get_opt(names::LEASES_API_SERVICE).await
    })
    .await;
    findings.push(match service {
        Ok(service) => judge_api_service(service.as_ref()),
        Err(failure) => unknown("APIService", &failure),
    });
    let endpoints: Api<ProxyEndpoint> = Api::namespaced(client.clone(), &session.namespace);
    let one = ListParams::default().limit(1);
    let listed = endpoints.list(&one).await;
    findings.push(match listed {
        Ok(_) => Finding::new(
            Level::Ok,
            "store",
            "lease-apiserver answers a list from its store",
        ),
        Err(kube::Error::Api(status)) if status.code == 403 => {
            Finding::new(Level::Note, "store", status.message)
        },
        Err(error) => Finding::new(Level::Fail, "store", chain(&error).to_string())
            .remedy("see the logs of lease-apiserver, and its /readyz?verbose"),
    });

    let leases: Api<Lease> = Api::namespaced(client.clone(), operator_namespace);
    let now = SystemClock::new().now();
    findings.push(
        match ask(session, "get", async || {
            leases.get_opt("proxy-operator").await
        })
        .await
        {
            Ok(lease) => judge_leader(lease.as_ref(), operator_namespace, now),
            Err(failure) => unknown("proxy-operator", &failure),
        },
    );

    let (proxies, everywhere) = list_widely::<Proxy>(session).await?;
    let (pools, _) = list_widely::<ProxyPool>(session).await?;
    if !everywhere {
        let message = format!("only namespace {} may be read", session.namespace);
        findings.push(Finding::new(Level::Note, "scope", message));
    }
    findings.extend(judge_providers(&proxies));
    findings.extend(judge_proxies(&proxies));
    findings.extend(judge_holds(&proxies, &pools));
    findings.extend(known_to_the_operator(operator_url).await);
    Ok(findings)
}

fn unknown(subject: &str, failure: &Failure) -> Finding {
    Finding::new(
        Level::Note,
        subject,
        format!("cannot be looked at: {failure}"),
    )
}

/// The whole cluster, or the namespace where that is all that the caller may read.
async fn list_widely<K>(session: &Session) -> Result<(Vec<K>, bool), Failure>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let params = ListParams::default();
    let all: Api<K> = Api::all(session.client.clone());
    match ask(session, "list", async || all.list(&params).await).await {
        Ok(list) => Ok((list.items, true)),
        Err(Failure::Request(kube::Error::Api(status))) if status.code == 403 => {
            let some: Api<K> = Api::namespaced(session.client.clone(), &session.namespace);
            let list = ask(session, "list", async || some.list(&params).await).await?;
            Ok((list.items, false))
        },
        Err(failure) => Err(failure),
    }
}

fn judge_api_service(service: Option<&APIService>) -> Finding {
    let name = names::LEASES_API_SERVICE;
    let Some(service) = service else {
        return Finding::new(
            Level::Fail,
            "APIService",
            format!("{name} does not exist: there are no leases"),
        )
        .remedy("install lease-apiserver and kubectl apply -f config/apiservice");
    };
    let conditions = service
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let available = conditions
        .into_iter()
        .find(|condition| condition.type_ == "Available");
    match available {
        Some(available) if available.status == "True" => {
            Finding::new(Level::Ok, "APIService", format!("{name} is available"))
        },
        Some(available) => {
            let reason = available.reason.as_deref().unwrap_or_default();
            let said = available.message.as_deref().unwrap_or_default();
            Finding::new(
                Level::Fail,
                "APIService",
                format!("{name} is not available: {reason}: {said}"),
            )
            .remedy(
                "see that lease-apiserver runs, that its Service selects it, and that a network \
                 policy or firewall lets kube-apiserver reach its port",
            )
        },
        None => Finding::new(
            Level::Warn,
            "APIService",
            format!("{name} was not checked by kube-apiserver yet"),
        ),
    }
}

/// Why a minute: the clock of this machine is not the operator's, and a lease is renewed every few
/// seconds.
const SILENT: SignedDuration = SignedDuration::from_secs(60);

fn judge_leader(lease: Option<&Lease>, namespace: &str, now: Timestamp) -> Finding {
    let subject = "proxy-operator";
    let spec = lease.and_then(|lease| lease.spec.as_ref());
    let holder = spec.and_then(|spec| spec.holder_identity.as_deref());
    let Some(holder) = holder.filter(|holder| !holder.is_empty()) else {
        return Finding::new(
            Level::Warn,
            subject,
            format!("no replica leads, by the Lease proxy-operator in namespace {namespace}"),
        )
        .remedy("start it, or name its namespace with --operator-namespace");
    };
    let renewed = spec
        .and_then(|spec| spec.renew_time.as_ref())
        .map(|time| time.0);
    match renewed {
        Some(renewed) if now.duration_since(renewed) <= SILENT => {
            Finding::new(Level::Ok, subject, format!("{holder} leads"))
        },
        Some(renewed) => Finding::new(
            Level::Fail,
            subject,
            format!("{holder} led and has been silent since {renewed}: nothing is reconciled"),
        )
        .remedy(format!(
            "see kubectl get pods -n {namespace} and their logs"
        )),
        None => Finding::new(
            Level::Warn,
            subject,
            format!("{holder} never renewed its Lease"),
        ),
    }
}

fn count<K: Ord, V>(items: impl Iterator<Item = (K, V)>) -> BTreeMap<K, Vec<V>> {
    let mut groups: BTreeMap<K, Vec<V>> = BTreeMap::new();
    for (key, value) in items {
        groups.entry(key).or_default().push(value);
    }
    groups
}

fn path(namespace: Option<String>, name: &str) -> String {
    format!("{}/{name}", namespace.unwrap_or_default())
}

/// `3 proxies, crawlers/eu-1 and others: MESSAGE`.
fn some(found: &[(String, String)]) -> String {
    let (first, message) = found.first().cloned().unwrap_or_default();
    match found.len() {
        1 => format!("{first}: {message}"),
        number => format!("{number} objects, {first} among them: {message}"),
    }
}

/// Reasons by which an account, and not a single proxy, is in trouble.
const ACCOUNT: [(&str, Level); 6] = [
    (c::REASON_CREDENTIALS_REJECTED, Level::Fail),
    (c::REASON_FORBIDDEN, Level::Fail),
    (c::REASON_UNKNOWN_PROVIDER, Level::Fail),
    (c::REASON_QUOTA_EXCEEDED, Level::Warn),
    (c::REASON_RATE_LIMITED, Level::Warn),
    (c::REASON_PROVIDER_ERROR, Level::Warn),
];

/// What the objects tell about the providers.
fn judge_providers(proxies: &[Proxy]) -> Vec<Finding> {
    let by_provider = count(
        proxies
            .iter()
            .filter_map(|proxy| Some((proxy.spec.provider.clone()?, proxy))),
    );
    let mut findings = Vec::new();
    for (provider, members) in by_provider {
        let subject = format!("provider {provider}");
        let troubles = members.iter().filter_map(|proxy| {
            let provisioned = proxy.condition(c::PROVISIONED)?;
            let (reason, level) = ACCOUNT.into_iter().find(|(reason, _)| {
                provisioned.status != "True" && provisioned.reason == *reason
            })?;
            let who = path(proxy.namespace(), &proxy.name_any());
            Some(((reason, level), (who, provisioned.message.clone())))
        });
        let troubles = count(troubles);
        if troubles.is_empty() {
            let message = format!("no trouble among {} proxies", members.len());
            findings.push(Finding::new(Level::Ok, subject.clone(), message));
        }
        for ((reason, level), found) in troubles {
            let message = format!("{reason}: {}", some(&found));
            let finding = Finding::new(level, subject.clone(), message);
            findings.push(finding.remedy(provisioning_remedy(reason)));
        }
    }
    findings
}

/// What does not work and is no matter of an account.
fn judge_proxies(proxies: &[Proxy]) -> Vec<Finding> {
    let ready = proxies
        .iter()
        .filter(|proxy| proxy.phase() == Phase::Ready)
        .count();
    let level = if ready == 0 && !proxies.is_empty() {
        Level::Fail
    } else {
        Level::Ok
    };
    let message = format!("{ready} of {} are ready", proxies.len());
    let mut findings = vec![Finding::new(level, "proxies", message)];
    let of = |type_| {
        let matters = proxies.iter().filter_map(move |proxy| {
            let condition = proxy.condition(type_)?;
            let about_account = ACCOUNT
                .iter()
                .any(|(reason, _)| *reason == condition.reason);
            (condition.status == "False" && !about_account).then(|| {
                let who = path(proxy.namespace(), &proxy.name_any());
                (condition.reason.clone(), (who, condition.message.clone()))
            })
        });
        count(matters)
    };
    let usual = [
        c::REASON_PROVISIONING,
        c::REASON_PENDING,
        c::REASON_DELETING,
    ];
    for (reason, found) in of(c::PROVISIONED) {
        if !usual.contains(&reason.as_str()) {
            let message = format!("not provisioned, {reason}: {}", some(&found));
            let finding = Finding::new(Level::Warn, "proxies", message);
            findings.push(finding.remedy(provisioning_remedy(&reason)));
        }
    }
    for (reason, found) in of(c::HEALTHY) {
        if reason != c::REASON_NO_ENDPOINT {
            let message = format!("unhealthy, {reason}: {}", some(&found));
            let finding = Finding::new(Level::Warn, "proxies", message);
            findings.push(finding.remedy("kubectl px doctor NAME says what happens next"));
        }
    }
    findings
}

/// What is held back, by a budget or by somebody.
fn judge_holds(proxies: &[Proxy], pools: &[ProxyPool]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (type_, subject) in [(c::WITHHELD, "withheld"), (c::CORRELATED, "held")] {
        let holds = proxies.iter().filter_map(|proxy| {
            let condition = proxy.condition(type_)?;
            let who = path(proxy.namespace(), &proxy.name_any());
            Some((condition.reason.clone(), (who, condition.message.clone())))
        });
        for (reason, found) in count(holds) {
            let message = format!("{reason}: {}", some(&found));
            let finding = Finding::new(Level::Warn, subject, message);
            findings.push(if type_ == c::WITHHELD {
                finding.remedy(withheld_remedy(&reason))
            } else {
                finding.remedy("nothing is replaced until that is over")
            });
        }
    }
    let paused = proxies.iter().filter(|proxy| proxy.spec.paused);
    let paused: Vec<_> = paused
        .map(|proxy| {
            (
                path(proxy.namespace(), &proxy.name_any()),
                "spec.paused".to_owned(),
            )
        })
        .collect();
    if !paused.is_empty() {
        findings.push(
            Finding::new(Level::Note, "paused", some(&paused))
                .remedy("unset spec.paused when the operator may act again"),
        );
    }
    for pool in pools {
        let placements = &pool.spec.placements;
        if !placements.is_empty() && placements.iter().all(|placement| placement.paused) {
            let who = path(pool.namespace(), &pool.name_any());
            findings.push(
                Finding::new(
                    Level::Warn,
                    "paused",
                    format!("pool {who}: every placement is paused, it gets no new members"),
                )
                .remedy("unset paused of a placement"),
            );
        }
    }
    if findings.is_empty() {
        findings.push(Finding::new(Level::Ok, "holds", "nothing is held back"));
    }
    findings
}

/// Only the operator can ask accounts, and knows of instances without objects.
async fn known_to_the_operator(url: Option<&str>) -> Vec<Finding> {
    let Some(url) = url else {
        let message = "what providers say themselves, and instances without an object, are known \
            to the operator only";
        return vec![Finding::new(Level::Note, "operator", message).remedy(operator::HOW)];
    };
    let endpoint = match Operator::at(url) {
        Ok(endpoint) => endpoint,
        Err(error) => {
            let message = format!("{url}: {error}");
            return vec![Finding::new(Level::Warn, "operator", message)];
        },
    };
    let mut findings = operator::providers(&endpoint).await;
    findings.push(match endpoint.text("/metrics").await {
        Ok(text) => judge_orphans(&text),
        Err(error) => Finding::new(Level::Warn, "orphans", format!("{url}: {error}")),
    });
    findings
}

const ORPHANS: &str = "proxy_operator_gc_orphans";

/// From the text format of Prometheus: `name{labels} value`.
fn judge_orphans(metrics: &str) -> Finding {
    let samples = metrics.lines().filter(|line| line.starts_with(ORPHANS));
    let found: Vec<_> = samples
        .filter_map(|line| {
            let (sample, value) = line.rsplit_once(' ')?;
            let value: f64 = value.parse().ok()?;
            (value > 0.0).then(|| {
                let labels = sample.trim_start_matches(ORPHANS);
                format!("{value} {labels}")
            })
        })
        .collect();
    if found.is_empty() {
        return Finding::new(Level::Ok, "orphans", "none, by the operator's last sweep");
    }
    Finding::new(
        Level::Warn,
        "orphans",
        format!("instances without an object: {}", found.join(", ")),
    )
    .remedy("the operator deletes them when they are old enough; its log names each")
}

#[cfg(test)]
#[path = "checks_tests.rs"]
mod tests;
