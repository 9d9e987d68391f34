//! What happens next to a Proxy, when, and what somebody can do about it: read from its conditions.
//! Pure.

use crawl_api::conditions::{self as c, find};
use crawl_api::proxy::Proxy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// What happens next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Next {
    /// Who does what.
    pub(crate) action: String,
    /// When, if the object says so. It may be over: then it is due.
    pub(crate) at: Option<Timestamp>,
}

fn next(action: impl Into<String>, at: Option<Timestamp>) -> Next {
    Next {
        action: action.into(),
        at,
    }
}

fn after(condition: &Condition, seconds: u32) -> Option<Timestamp> {
    let since = condition.last_transition_time.0;
    since
        .checked_add(SignedDuration::from_secs(seconds.into()))
        .ok()
}

/// The first of these that applies, in the operator's own order: deletion, pause, what is withheld,
/// the instance, its health.
pub(crate) fn next_action(proxy: &Proxy) -> Next {
    let spec = &proxy.spec;
    let empty = Vec::new();
    let list = proxy
        .status
        .as_ref()
        .map_or(&empty, |status| &status.conditions);
    let deleting = proxy.metadata.deletion_timestamp.is_some();
    if spec.paused && proxy.is_managed() {
        return next("nothing until spec.paused is unset", None);
    }
    if let Some(drained) = find(list, c::DRAINED) {
        if drained.status != "True" {
            let then = if spec.drain && !deleting {
                "leases are cut"
            } else {
                "leases are cut and the instance is deleted"
            };
            return next(then, after(drained, spec.drain_timeout_seconds));
        }
        if spec.drain && !deleting {
            return next(
                "nothing: it is drained; kubectl px uncordon takes it back into use",
                None,
            );
        }
    }
    if deleting {
        return next(
            "the operator deletes the instance and lets the object go",
            None,
        );
    }
    if proxy.status.is_none() {
        return next(
            "proxy-operator looks at it; if it stays so, it does not run",
            None,
        );
    }
    if let Some(withheld) = find(list, c::WITHHELD) {
        return next(withheld_remedy(&withheld.reason), None);
    }
    match find(list, c::PROVISIONED) {
        Some(provisioned) if provisioned.status != "True" => {
            let at = (provisioned.reason == c::REASON_PROVISIONING)
                .then(|| after(provisioned, spec.provisioning_timeout_seconds))
                .flatten();
            next(provisioning_remedy(&provisioned.reason), at)
        },
        Some(_) => health(proxy, list),
        None => next("proxy-operator creates the instance", None),
    }
}

fn health(proxy: &Proxy, list: &[Condition]) -> Next {
    let Some(healthy) = find(list, c::HEALTHY).filter(|healthy| healthy.status != "True") else {
        return next("nothing: probes go on", None);
    };
    if healthy.status == "Unknown" {
        return next("the first probes decide", None);
    }
    if healthy.reason == c::REASON_PROXY_AUTH_FAILED {
        return next(
            "correct the Secret of spec.auth: the proxy refuses its credentials, and no other \
             machine would take them",
            None,
        );
    }
    if !proxy.is_managed() {
        return next(
            "probes go on; whoever runs the endpoint has to repair it",
            None,
        );
    }
    if let Some(correlated) = find(list, c::CORRELATED) {
        return next(
            format!("it is not replaced while {} holds", correlated.reason),
            None,
        );
    }
    let at = after(healthy, proxy.spec.unhealthy_timeout_seconds);
    next("the instance is replaced if it is still unhealthy", at)
}

/// What to do about a reason of Withheld.
pub(crate) fn withheld_remedy(reason: &str) -> &'static str {
    match reason {
        c::REASON_DISRUPTION_BUDGET => "it is replaced when enough others are available",
        c::REASON_REMEDIATION_PAUSED => {
            "find out why so many fail at once; replacing goes on when fewer do"
        },
        c::REASON_REMEDIATION_BACKOFF => "it is replaced after a longer wait, see the message",
        c::REASON_BOOTSTRAP_FAILING => {
            "correct spec.cloudInit: the condition Healthy has what it says; or try the same again \
             with: kubectl px resume"
        },
        c::REASON_MASS_EXTERNAL_DELETION => {
            "find out who deleted the instances, then: kubectl px resume POOL"
        },
        c::REASON_CREATE_LIMIT => "it is created within the hour, or raise limits.createsPerHour",
        c::REASON_CREATES_FAILING => "it is created later; see why others could not be",
        c::REASON_DRY_RUN => {
            "see the operator's log for what it would do; restart it without --dry-run"
        },
        _ => "see the message of the condition Withheld",
    }
}

/// What to do about a reason of Provisioned.
pub(crate) fn provisioning_remedy(reason: &str) -> &'static str {
    match reason {
        c::REASON_PROVISIONING => "the instance is replaced if it does not run by then",
        c::REASON_QUOTA_EXCEEDED => {
            "the provider is asked again every few minutes; raise the quota or use another zone"
        },
        c::REASON_RATE_LIMITED => "the provider is asked again when it allows it",
        c::REASON_CREDENTIALS_REJECTED => {
            "correct the provider's credentials in the operator's providers file"
        },
        c::REASON_FORBIDDEN => "give the operator's account the permission in the message",
        c::REASON_INVALID_SPEC => "change the spec: the provider refuses it as it is",
        c::REASON_NAME_TAKEN => "delete or rename the foreign instance of that name",
        c::REASON_UNKNOWN_PROVIDER => {
            "add the provider to the operator's providers file, or create the proxy anew with \
             another"
        },
        c::REASON_SECRET_NOT_FOUND => "create the Secret that the message names",
        c::REASON_SECRET_FORBIDDEN => "bind the role that the message names",
        c::REASON_CLOUD_INIT_INVALID => "correct cloudInit, or the Secret, as the message says",
        c::REASON_REPLACING
        | c::REASON_UNHEALTHY_TIMED_OUT
        | c::REASON_PROVISIONING_TIMED_OUT
        | c::REASON_PREEMPTED
        | c::REASON_INSTANCE_LOST => "the operator deletes what is left and creates another",
        c::REASON_PAUSED => "nothing until spec.paused is unset",
        _ => "the operator tries again",
    }
}

#[cfg(test)]
mod tests {
    use crawl_api::conditions::Statement;
    use crawl_api::proxy::{ProxySpec, ProxyStatus};

    use super::*;

    fn proxy(statements: &[(&'static str, bool, &str)]) -> Proxy {
        let mut proxy = Proxy::new("eu-1", ProxySpec::managed("local"));
        let mut status = ProxyStatus::default();
        for (type_, value, reason) in statements {
            let statement = Statement::new(type_, *value, reason, "m");
            c::set(&mut status.conditions, statement, None, at(1_000));
        }
        proxy.status = Some(status);
        proxy
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    const CREATED: (&str, bool, &str) = (c::PROVISIONED, true, c::REASON_CREATED);

    #[test]
    fn the_timeouts_of_the_spec_say_when() {
        let starting = proxy(&[(c::PROVISIONED, false, c::REASON_PROVISIONING)]);
        assert_eq!(next_action(&starting).at, Some(at(1_600)));
        let sick = proxy(&[CREATED, (c::HEALTHY, false, c::REASON_CONNECT_TIMEOUT)]);
        assert_eq!(next_action(&sick).at, Some(at(1_300)));
        let mut draining = proxy(&[CREATED, (c::DRAINED, false, c::REASON_DRAINING)]);
        assert_eq!(next_action(&draining).at, Some(at(1_900)));
        assert!(next_action(&draining).action.contains("deleted"));
        draining.spec.drain = true;
        assert_eq!(next_action(&draining).action, "leases are cut");
    }

    #[test]
    fn what_holds_a_proxy_back_comes_first() {
        let sick = (c::HEALTHY, false, c::REASON_CONNECT_TIMEOUT);
        let withheld = (c::WITHHELD, true, c::REASON_MASS_EXTERNAL_DELETION);
        assert!(
            next_action(&proxy(&[CREATED, sick, withheld]))
                .action
                .contains("px resume")
        );
        let correlated = (c::CORRELATED, true, c::REASON_VENDOR_FAILING);
        let held = next_action(&proxy(&[CREATED, sick, correlated]));
        assert_eq!(held.at, None);
        assert!(held.action.contains("VendorFailing"), "{held:?}");
        let mut paused = proxy(&[CREATED, sick]);
        paused.spec.paused = true;
        assert!(next_action(&paused).action.contains("paused"));
    }

    #[test]
    fn refused_credentials_replace_nothing() {
        let refused = proxy(&[CREATED, (c::HEALTHY, false, c::REASON_PROXY_AUTH_FAILED)]);
        let next = next_action(&refused);
        assert!(next.action.contains("correct the Secret"), "{next:?}");
        assert_eq!(next.at, None);
    }

    #[test]
    fn a_healthy_proxy_needs_nothing_and_one_without_status_the_operator() {
        let well = proxy(&[CREATED, (c::HEALTHY, true, c::REASON_PROBE_SUCCEEDED)]);
        assert_eq!(next_action(&well).action, "nothing: probes go on");
        let mut new = well;
        new.status = None;
        assert!(next_action(&new).action.contains("does not run"));
    }
}
