//! How answers are condensed into what the action table knows.

use crawl_api::address::Endpoint;
use crawl_api::conditions::Statement;
use crawl_api::proxy::{Placement, ProxySpec, ProxyStatus};
use crawl_api::scheme::Scheme;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::health::Hold;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn request() -> InstanceRequest {
    InstanceRequest {
        name: "proxy-x".into(),
        placement: Placement::default(),
        cloud_init: None,
        port: 3128,
        auth: None,
        tags: Tags::new(),
    }
}

fn observation(state: InstanceState, ip: Option<&str>) -> Observation {
    let instance = Instance {
        id: "mock://a/1".into(),
        name: "proxy-x".into(),
        tags: Tags::new(),
        created: at(1_000),
        state,
        ip: ip.map(str::to_owned),
        port: None,
        zone: "a".into(),
    };
    Observation {
        wanted: Some(request()),
        instance: Some(instance),
        ..Observation::nothing(Standing::Managed)
    }
}

fn proxy() -> Proxy {
    let mut proxy = Proxy::new("p", ProxySpec::managed("local"));
    proxy.metadata.finalizers = Some(vec![names::FINALIZER_INSTANCE.into()]);
    proxy.status = Some(ProxyStatus::default());
    proxy
}

fn unhealthy_since(proxy: &mut Proxy, second: i64, reason: &str) {
    let statement = Statement::new(conditions::HEALTHY, false, reason, "");
    let list = &mut proxy.status.as_mut().unwrap().conditions;
    conditions::set(list, statement, None, at(second));
}

/// Case 62: counted from the provider's own time of creation, which needs no status write.
#[test]
fn an_instance_without_address_starts_and_is_overdue_after_the_timeout() {
    for (state, ip) in [
        (InstanceState::Provisioning, None),
        (InstanceState::Provisioning, Some("127.1.1.1")),
        (InstanceState::Running, None),
    ] {
        let sight = |now| observation(state, ip).situation(&proxy(), at(now)).sight;
        assert_eq!(sight(1_599), Sight::Starting { overdue: false });
        assert_eq!(sight(1_600), Sight::Starting { overdue: true });
    }
}

#[test]
fn a_running_instance_fails_after_the_timeout_if_replacing_may_help() {
    let sight = |proxy: &Proxy, now| {
        let seen = observation(InstanceState::Running, Some("127.1.1.1"));
        seen.situation(proxy, at(now)).sight
    };
    let failing = |failing| Sight::Running { failing };
    let mut sick = proxy();
    assert_eq!(sight(&sick, 9_999), failing(false));
    unhealthy_since(&mut sick, 2_000, conditions::REASON_CONNECT_FAILED);
    assert_eq!(sight(&sick, 2_299), failing(false));
    assert_eq!(sight(&sick, 2_300), failing(true));
    unhealthy_since(&mut sick, 2_000, conditions::REASON_PROXY_AUTH_FAILED);
    assert_eq!(
        sight(&sick, 9_999),
        failing(false),
        "another machine would refuse too"
    );
    unhealthy_since(&mut sick, 2_000, conditions::REASON_INVALID_HEALTH_CHECK);
    assert_eq!(
        sight(&sick, 9_999),
        failing(false),
        "nor could it be checked"
    );
}

#[test]
fn a_failure_that_is_hardly_the_proxys_own_replaces_nothing() {
    let mut sick = proxy();
    unhealthy_since(&mut sick, 2_000, conditions::REASON_CONNECT_FAILED);
    let mut seen = observation(InstanceState::Running, Some("127.1.1.1"));
    seen.verdict = Some(Verdict {
        hold: Some(Hold {
            reason: conditions::REASON_CONTROL_PROBE_FAILED.into(),
            message: String::new(),
        }),
        ..Verdict::default()
    });
    let sight = |seen: &Observation| seen.situation(&sick, at(9_999)).sight;
    assert_eq!(sight(&seen), Sight::Running { failing: false });
    seen.verdict = Some(Verdict::default());
    assert_eq!(sight(&seen), Sight::Running { failing: true });
}

/// Created, with the hash of [`request`] or another in the annotation.
fn made(hash: Option<&str>) -> Proxy {
    let mut proxy = proxy();
    proxy.status.as_mut().unwrap().provider_id = Some("mock://a/1".into());
    let hash = hash.map_or_else(|| hash::spec_hash(&request()), str::to_owned);
    proxy
        .annotations_mut()
        .insert(names::ANNOTATION_SPEC_HASH.into(), hash);
    proxy
}

fn state(proxy: &mut Proxy, type_: &'static str, status: bool, reason: &str) {
    let statement = Statement::new(type_, status, reason, "");
    let list = &mut proxy.status.as_mut().unwrap().conditions;
    conditions::set(list, statement, None, at(0));
}

const REMEDIATE: Option<Request> = Some(Request::Remediate {
    bootstrap_failed: false,
});

#[test]
fn the_budgets_are_asked_once_for_what_is_about_to_begin() {
    let running = observation(InstanceState::Running, Some("127.1.1.1"));
    let starting = observation(InstanceState::Provisioning, None);
    let none = Observation {
        instance: None,
        ..running.clone()
    };
    let asked = |seen: &Observation, proxy: &Proxy| seen.request(proxy, at(9_999));
    assert_eq!(asked(&none, &proxy()), Some(Request::Create));
    assert_eq!(asked(&running, &made(None)), None);
    assert_eq!(asked(&starting, &made(None)), REMEDIATE);

    let mut sick = made(None);
    unhealthy_since(&mut sick, 0, conditions::REASON_CONNECT_FAILED);
    assert_eq!(asked(&running, &sick), REMEDIATE);
    state(
        &mut sick,
        conditions::PROVISIONED,
        false,
        conditions::REASON_UNHEALTHY_TIMED_OUT,
    );
    assert_eq!(asked(&running, &sick), None, "it has begun");

    let mut changed = made(Some("v1:other"));
    assert_eq!(
        asked(&running, &changed),
        None,
        "a machine that does not work is replaced at once"
    );
    state(
        &mut changed,
        conditions::HEALTHY,
        true,
        conditions::REASON_PROBE_SUCCEEDED,
    );
    assert_eq!(asked(&running, &changed), Some(Request::Replace));
    state(
        &mut changed,
        conditions::PROVISIONED,
        false,
        conditions::REASON_REPLACING,
    );
    assert_eq!(asked(&running, &changed), None, "it has begun");
    changed.metadata.deletion_timestamp = Some(Time(at(0)));
    assert_eq!(asked(&none, &changed), None);
}

/// Case 49.
#[test]
fn an_address_that_failed_within_half_an_hour_is_reissued_once_and_never_while_it_serves() {
    let ip = "127.1.1.1";
    let running = observation(InstanceState::Running, Some(ip));
    let setback = |second, reason: &str, address: &str| Setback {
        time: Time(at(second)),
        reason: reason.into(),
        address: Some(address.into()),
        generation: None,
    };
    let failed = |address| setback(1_000, conditions::REASON_UNHEALTHY_TIMED_OUT, address);
    let sight = |setbacks: &[Setback], now| {
        let mut proxy = proxy();
        proxy.status.as_mut().unwrap().setbacks = setbacks.to_vec();
        running.situation(&proxy, at(now)).sight
    };
    let served = Sight::Running { failing: false };
    assert_eq!(sight(&[failed(ip)], 2_799), Sight::Reissued);
    assert_eq!(sight(&[failed(ip)], 2_800), served);
    assert_eq!(sight(&[failed("127.1.1.2")], 1_100), served);
    let preempted = setback(1_000, conditions::REASON_PREEMPTED, ip);
    assert_eq!(
        sight(&[preempted], 1_100),
        served,
        "not the address's fault"
    );
    let unconfigured = setback(1_000, conditions::REASON_BOOTSTRAP_FAILED, ip);
    assert_eq!(sight(&[unconfigured], 1_100), served, "nor is this");
    let again = setback(1_200, conditions::REASON_ADDRESS_REISSUED, ip);
    assert_eq!(sight(&[failed(ip), again.clone()], 1_300), served);

    // What has begun goes on, and what serves is left to the probes.
    let mut begun = proxy();
    begun.status.as_mut().unwrap().setbacks = vec![failed(ip), again];
    let reissued = conditions::REASON_ADDRESS_REISSUED;
    state(&mut begun, conditions::PROVISIONED, false, reissued);
    assert_eq!(running.situation(&begun, at(1_300)).sight, Sight::Reissued);
    let mut serving = proxy();
    let status = serving.status.as_mut().unwrap();
    status.setbacks = vec![failed(ip)];
    status.endpoint = Some(Endpoint {
        scheme: Scheme::Http,
        host: ip.into(),
        port: 3128,
    });
    assert_eq!(running.situation(&serving, at(1_100)).sight, served);
}

/// A read that lags behind shows a machine that runs, and so does a delete that failed.
#[test]
fn a_machine_whose_delete_was_sent_because_it_failed_is_not_served_again() {
    let running = observation(InstanceState::Running, Some("127.1.1.1"));
    let mut proxy = made(None);
    let timed_out = conditions::REASON_UNHEALTHY_TIMED_OUT;
    state(&mut proxy, conditions::PROVISIONED, false, timed_out);
    let sight = running.situation(&proxy, at(0)).sight;
    assert_eq!(sight, Sight::Running { failing: true });
    assert_eq!(running.request(&proxy, at(0)), None, "it has begun");
}

#[test]
fn stopping_stopped_and_missing_are_told_apart() {
    let sight = |state| observation(state, None).situation(&proxy(), at(0)).sight;
    assert_eq!(sight(InstanceState::Stopping), Sight::Stopping);
    assert_eq!(sight(InstanceState::Stopped), Sight::Stopped);
    let none = Observation::nothing(Standing::Managed);
    assert_eq!(none.situation(&proxy(), at(0)).sight, Sight::Missing);
}

/// Cases 58 and 59: reads that lag behind may miss what was accepted, and what a killed operator asked for.
#[test]
fn only_what_was_never_seen_may_be_on_its_way() {
    let mut proxy = proxy();
    let status = |proxy: &mut Proxy, id: Option<&str>, operation: Option<&str>| {
        let status = proxy.status.as_mut().unwrap();
        status.provider_id = id.map(Into::into);
        status.operation = operation.map(Into::into);
    };
    assert!(!may_be_on_its_way(&proxy), "its create is repeated");
    status(&mut proxy, Some("id"), Some("operation"));
    assert!(may_be_on_its_way(&proxy));
    status(&mut proxy, Some("id"), None);
    assert!(!may_be_on_its_way(&proxy), "it ran");
    status(&mut proxy, None, None);
    proxy.metadata.deletion_timestamp = Some(Time(at(5)));
    assert!(may_be_on_its_way(&proxy));
    proxy.metadata.finalizers = None;
    assert!(!may_be_on_its_way(&proxy), "nothing was ever requested");
}

#[test]
fn the_stored_hash_is_the_annotation_or_else_the_tag_of_the_instance() {
    let mut seen = observation(InstanceState::Running, Some("127.1.1.1"));
    let mut proxy = proxy();
    assert_eq!(seen.drift(&proxy), Drift::Unknown);
    let hash = hash::spec_hash(&request());
    let tags = &mut seen.instance.as_mut().unwrap().tags;
    tags.insert(names::TAG_SPEC_HASH.into(), hash::to_tag(&hash));
    assert_eq!(
        seen.drift(&proxy),
        Drift::Unknown,
        "adopting puts the annotation back"
    );
    let tags = &mut seen.instance.as_mut().unwrap().tags;
    tags.insert(names::TAG_SPEC_HASH.into(), "v1-other".into());
    assert_eq!(seen.drift(&proxy), Drift::Changed);
    proxy
        .annotations_mut()
        .insert(names::ANNOTATION_SPEC_HASH.into(), hash);
    assert_eq!(seen.drift(&proxy), Drift::Same, "the annotation counts");
    let annotations = proxy.annotations_mut();
    annotations.insert(names::ANNOTATION_SPEC_HASH.into(), "v1:other".into());
    assert_eq!(seen.drift(&proxy), Drift::Changed);
}

#[test]
fn a_create_lacks_its_finalizer_before_it_lacks_credentials() {
    let mut seen = Observation::nothing(Standing::Managed);
    seen.credentials_to_generate = true;
    let lacking = |seen: &Observation, proxy: &Proxy| seen.situation(proxy, at(0)).lacking;
    let mut bare = proxy();
    bare.metadata.finalizers = None;
    assert_eq!(lacking(&seen, &bare), Lacking::Finalizer);
    assert_eq!(lacking(&seen, &proxy()), Lacking::Credentials);
    seen.credentials_to_generate = false;
    assert_eq!(lacking(&seen, &proxy()), Lacking::Nothing);
}

#[test]
fn life_identity_leases_and_policy_come_from_the_object_and_the_handshake() {
    let mut object = proxy();
    let mut seen = Observation::nothing(Standing::Managed);
    let live = seen.situation(&object, at(0));
    assert_eq!((live.life, live.identity), (Life::Live, Identity::None));
    assert_eq!((live.leases, live.abandon), (Leases::MayExist, false));
    object.metadata.deletion_timestamp = Some(Time(at(0)));
    object.status.as_mut().unwrap().provider_id = Some("x".into());
    object.spec.deletion_policy = DeletionPolicy::Abandon;
    seen.drain = Drain::Done(conditions::REASON_NO_LEASES, String::new());
    let going = seen.situation(&object, at(0));
    assert_eq!(
        (going.life, going.identity),
        (Life::Deleting, Identity::Set)
    );
    assert_eq!((going.leases, going.abandon), (Leases::Gone, true));
}

#[test]
fn a_forbidden_secret_is_told_apart_from_a_missing_one_and_says_how_to_allow_it() {
    let refused = |code, reason| {
        let status = kube::core::Status::failure("secrets \"s\" is forbidden", reason);
        kube::Error::Api(Box::new(status.with_code(code)))
    };
    let mut proxy = proxy();
    proxy.metadata.namespace = Some("shop".into());
    let failure = refused_secret(&proxy, "s", &refused(403, "Forbidden"));
    assert_eq!(failure.reason, "SecretForbidden");
    assert_eq!(
        failure.message,
        "the operator may not use Secret s: secrets \"s\" is forbidden (403); allow it with: \
         kubectl create rolebinding proxy-operator-secrets -n shop \
         --clusterrole=proxy-operator-secrets --serviceaccount=proxy-operator:proxy-operator"
    );
    let failure = refused_secret(&proxy, "s", &refused(503, "ServiceUnavailable"));
    assert_eq!(failure.reason, "SecretUnreadable");
}

#[test]
fn generated_credentials_are_rotated_by_their_age_and_those_of_others_never() {
    let mut proxy = proxy();
    proxy.metadata.uid = Some("u".into());
    proxy.spec.auth = Some(crawl_api::proxy::Auth {
        generate: true,
        rotate_seconds: Some(300),
        ..crawl_api::proxy::Auth::default()
    });
    let owner = kube::Resource::controller_owner_ref(&proxy, &()).unwrap();
    let mut secret = Secret::default();
    secret.metadata.creation_timestamp = Some(Time(at(1_000)));
    assert!(!rotation_due(&proxy, &secret, at(9_999)), "it is not ours");
    secret.metadata.owner_references = Some(vec![owner]);
    assert!(!rotation_due(&proxy, &secret, at(1_299)));
    assert!(rotation_due(&proxy, &secret, at(1_300)));
    let rotated = (names::ANNOTATION_ROTATED_AT.into(), at(1_300).to_string());
    secret.metadata.annotations = Some([rotated].into());
    assert!(!rotation_due(&proxy, &secret, at(1_599)));
    assert!(rotation_due(&proxy, &secret, at(1_600)));
    proxy.spec.auth.as_mut().unwrap().rotate_seconds = None;
    assert!(!rotation_due(&proxy, &secret, at(9_999)));
}

#[test]
fn a_rotation_that_is_due_is_a_change_of_what_is_wanted() {
    let mut proxy = proxy();
    let mut seen = observation(InstanceState::Running, Some("127.1.1.1"));
    let hash = hash::spec_hash(&request());
    proxy.metadata.annotations = Some([(names::ANNOTATION_SPEC_HASH.into(), hash)].into());
    assert_eq!(seen.drift(&proxy), Drift::Same);
    seen.rotation_due = true;
    assert_eq!(seen.drift(&proxy), Drift::Changed);
}
