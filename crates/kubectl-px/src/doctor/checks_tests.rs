//! What objects say about an installation.

use crawl_api::conditions::Statement;
use crawl_api::proxy::{ProxySpec, ProxyStatus};
use serde_json::json;

use super::*;

fn proxy(name: &str, phase: Phase, statements: &[(&'static str, bool, &str)]) -> Proxy {
    let mut proxy = Proxy::new(name, ProxySpec::managed("gcp"));
    proxy.metadata.namespace = Some("crawlers".into());
    let mut status = ProxyStatus {
        phase,
        ..ProxyStatus::default()
    };
    for (type_, value, reason) in statements {
        let statement = Statement::new(type_, *value, reason, "told");
        c::set(
            &mut status.conditions,
            statement,
            None,
            Timestamp::UNIX_EPOCH,
        );
    }
    proxy.status = Some(status);
    proxy
}

fn said(findings: &[Finding], text: &str) -> Finding {
    let found = findings
        .iter()
        .find(|finding| finding.message.contains(text));
    found
        .cloned()
        .unwrap_or_else(|| panic!("{text:?} not in {findings:#?}"))
}

#[test]
fn an_unavailable_api_service_is_told_with_kube_apiservers_words() {
    let service = |status: &str| -> APIService {
        serde_json::from_value(json!({
            "metadata": {"name": names::LEASES_API_SERVICE},
            "status": {"conditions": [{"type": "Available", "status": status,
                "reason": "FailedDiscoveryCheck", "message": "no route to host"}]}}))
        .expect("an APIService")
    };
    assert_eq!(judge_api_service(Some(&service("True"))).level, Level::Ok);
    let failing = judge_api_service(Some(&service("False")));
    assert_eq!(failing.level, Level::Fail);
    assert!(
        failing
            .message
            .contains("FailedDiscoveryCheck: no route to host")
    );
    assert!(
        failing
            .remedy
            .is_some_and(|remedy| remedy.contains("firewall"))
    );
    assert_eq!(judge_api_service(None).level, Level::Fail);
}

#[test]
fn a_silent_leader_is_a_failure() {
    let lease: Lease = serde_json::from_value(json!({"spec": {"holderIdentity": "a",
        "renewTime": "2030-01-01T00:00:00.000000Z"}}))
    .expect("a Lease");
    let at = |text: &str| judge_leader(Some(&lease), "x", text.parse().expect("a time")).level;
    assert_eq!(at("2030-01-01T00:00:30Z"), Level::Ok);
    assert_eq!(at("2030-01-01T00:05:00Z"), Level::Fail);
    assert_eq!(
        judge_leader(None, "x", Timestamp::UNIX_EPOCH).level,
        Level::Warn
    );
}

#[test]
fn troubles_of_an_account_are_told_once_per_provider_and_reason() {
    let quota = &[(c::PROVISIONED, false, c::REASON_QUOTA_EXCEEDED)];
    let findings = judge_providers(&[
        proxy("a", Phase::Pending, quota),
        proxy("b", Phase::Pending, quota),
        proxy(
            "c",
            Phase::Pending,
            &[(c::PROVISIONED, false, c::REASON_CREDENTIALS_REJECTED)],
        ),
    ]);
    assert_eq!(findings.len(), 2);
    let quota = said(
        &findings,
        "QuotaExceeded: 2 objects, crawlers/a among them: told",
    );
    assert_eq!(quota.level, Level::Warn);
    assert_eq!(
        said(&findings, "CredentialsRejected: crawlers/c").level,
        Level::Fail
    );
    let well = judge_providers(&[proxy("a", Phase::Ready, &[])]);
    assert_eq!(well[0].level, Level::Ok);
}

#[test]
fn holds_and_pauses_are_listed_with_the_way_out() {
    let withheld = [(c::WITHHELD, true, c::REASON_MASS_EXTERNAL_DELETION)];
    let mut paused = proxy("b", Phase::Ready, &[]);
    paused.spec.paused = true;
    let findings = judge_holds(&[proxy("a", Phase::Pending, &withheld), paused], &[]);
    let held = said(&findings, "MassExternalDeletion");
    assert!(
        held.remedy
            .is_some_and(|remedy| remedy.contains("px resume"))
    );
    said(&findings, "crawlers/b: spec.paused");
    assert_eq!(judge_holds(&[], &[])[0].level, Level::Ok);
}

#[test]
fn a_fleet_without_a_ready_proxy_is_a_failure() {
    let sick = &[(c::HEALTHY, false, c::REASON_CONNECT_TIMEOUT)];
    let findings = judge_proxies(&[proxy("a", Phase::Unhealthy, sick)]);
    assert_eq!(said(&findings, "0 of 1 are ready").level, Level::Fail);
    said(&findings, "unhealthy, ConnectTimeout: crawlers/a: told");
    assert_eq!(judge_proxies(&[])[0].level, Level::Ok);
}

#[test]
fn orphans_are_read_from_the_operators_metrics() {
    let none =
        "# HELP proxy_operator_gc_orphans x\nproxy_operator_gc_orphans{provider=\"gcp\"} 0\n";
    assert_eq!(judge_orphans(none).level, Level::Ok);
    let some = "proxy_operator_gc_orphans{provider=\"gcp\"} 2\n";
    let finding = judge_orphans(some);
    assert_eq!(finding.level, Level::Warn);
    assert!(
        finding.message.contains("2 {provider=\"gcp\"}"),
        "{finding:?}"
    );
}
