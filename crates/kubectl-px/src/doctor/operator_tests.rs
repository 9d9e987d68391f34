//! What the operator's answers look like.

use crawl_api::operator_view::{QuotaError, Refusal};
use k8s_openapi::jiff::Timestamp;

use super::*;

fn account() -> ProviderView {
    ProviderView {
        name: "gcp".into(),
        account: "gcp p-1".into(),
        checked_at: Timestamp::UNIX_EPOCH,
        refusal: None,
        calls_left: Some(280),
        rest_seconds: 0,
        quota_errors: 0,
        last_quota_error: None,
    }
}

fn refused() -> Refusal {
    Refusal {
        reason: "CredentialsRejected".into(),
        message: "no token".into(),
    }
}

#[test]
fn an_account_that_works_says_what_is_left_and_what_was_lacking() {
    let well = judge(&account());
    assert_eq!(
        (well.level, well.message.as_str()),
        (
            Level::Ok,
            "gcp p-1 accepts its credentials; 280 calls are left for now"
        )
    );
    let busy = judge(&ProviderView {
        rest_seconds: 7,
        quota_errors: 3,
        last_quota_error: Some(QuotaError {
            at: Timestamp::UNIX_EPOCH,
            message: "CPUS".into(),
        }),
        ..account()
    });
    assert!(busy.message.contains("left alone for 7 s"), "{busy:?}");
    assert!(
        busy.message
            .contains("3 times, last at 1970-01-01T00:00:00Z: CPUS"),
        "{busy:?}"
    );
}

#[test]
fn an_account_that_is_refused_is_a_failure_with_the_way_out() {
    let finding = judge(&ProviderView {
        refusal: Some(refused()),
        ..account()
    });
    assert_eq!(finding.level, Level::Fail);
    assert!(
        finding.message.contains("CredentialsRejected: no token"),
        "{finding:?}"
    );
    assert!(finding.remedy.is_some());
}

#[test]
fn the_live_view_of_a_proxy_says_what_the_provider_and_the_probes_say() {
    let mut view = ProxyView {
        uid: "u".into(),
        at: Timestamp::UNIX_EPOCH,
        instance: Some(InstanceView {
            id: "mock://a/1".into(),
            name: "proxy-x".into(),
            state: "Running".into(),
            ip: Some("127.1.2.3".into()),
            zone: "a".into(),
            created: Timestamp::UNIX_EPOCH,
        }),
        refusal: None,
        probe: None,
    };
    assert_eq!(
        render(&view),
        "provider, asked at 1970-01-01T00:00:00Z: Running, 127.1.2.3, zone a, mock://a/1 (proxy-x), \
         created 1970-01-01T00:00:00Z\nprobes: this replica does not probe it\n"
    );
    view.instance = None;
    view.refusal = Some(refused());
    assert!(render(&view).contains("CredentialsRejected: no token"));
    view.refusal = None;
    assert!(render(&view).contains("no instance"));
}
