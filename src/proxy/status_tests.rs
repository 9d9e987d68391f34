//! The status of a Proxy after each kind of pass, as section 6 of the design has it.

use crawl_api::address::Endpoint;
use crawl_api::conditions as c;
use crawl_api::proxy::{Phase, Proxy, ProxySpec, ProxyStatus, Setback};
use crawl_api::scheme::Scheme;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use runtime_kit::Class;

use super::Failure;
use super::act::Effect;
use super::budget::Withheld;
use super::drain::Drain;
use super::observe::Observation;
use super::plan::{Action, Cause, Standing};
use super::status::{Pass, compute};
use crate::health::{Hold, Location, Verdict};
use crate::providers::{Instance, InstanceState, Tags};

const NOW: i64 = 1_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn instance() -> Instance {
    Instance {
        id: "mock://a/1".into(),
        name: "proxy-x".into(),
        tags: Tags::new(),
        created: at(0),
        state: InstanceState::Running,
        ip: Some("127.1.2.3".into()),
        port: Some(8080),
        zone: "a".into(),
    }
}

fn verdict(healthy: bool) -> Verdict {
    Verdict {
        healthy: Some(healthy),
        reason: if healthy {
            c::REASON_PROBE_SUCCEEDED
        } else {
            c::REASON_CONNECT_FAILED
        }
        .into(),
        message: "m".into(),
        exit_ip: Some("203.0.113.7".into()),
        latency: Some(std::time::Duration::from_millis(42)),
        since: at(900),
        last_probe: Some(at(990)),
        ..Verdict::default()
    }
}

fn new_proxy() -> Proxy {
    let mut proxy = Proxy::new("p", ProxySpec::managed("local"));
    proxy.metadata.generation = Some(4);
    proxy.metadata.resource_version = Some("77".into());
    proxy
}

/// After the first pass that served it with a good verdict.
fn ready_proxy() -> Proxy {
    let mut proxy = new_proxy();
    proxy.status = Some(after(&proxy, &seen(None), Action::Serve));
    proxy.status = Some(after(&proxy, &seen(Some(true)), Action::Serve));
    assert_eq!(proxy.phase(), Phase::Ready);
    proxy
}

fn seen(healthy: Option<bool>) -> Observation {
    Observation {
        instance: Some(instance()),
        verdict: healthy.map(verdict),
        ..Observation::nothing(Standing::Managed)
    }
}

fn after(proxy: &Proxy, observation: &Observation, action: Action) -> ProxyStatus {
    with_effect(proxy, observation, action, &Effect::Nothing, None)
}

fn with_effect(
    proxy: &Proxy,
    observation: &Observation,
    action: Action,
    effect: &Effect,
    failure: Option<&Failure>,
) -> ProxyStatus {
    compute(&Pass {
        proxy,
        observation,
        action,
        effect,
        failure,
        providers: "hetzner, local",
        now: at(NOW),
    })
}

fn failed(class: Class, reason: &'static str) -> Failure {
    Failure {
        class,
        reason,
        message: "because".into(),
        wait: None,
    }
}

fn told<'a>(status: &'a ProxyStatus, condition: &str) -> (&'a str, &'a str) {
    let found = c::find(&status.conditions, condition).unwrap();
    (found.status.as_str(), found.reason.as_str())
}

#[test]
fn a_served_instance_has_its_own_port_and_waits_for_a_verdict() {
    let status = after(&new_proxy(), &seen(None), Action::Serve);
    let endpoint = Endpoint {
        scheme: Scheme::Http,
        host: "127.1.2.3".into(),
        port: 8080,
    };
    assert_eq!(status.endpoint, Some(endpoint));
    assert_eq!(status.ip.as_deref(), Some("127.1.2.3"));
    assert_eq!(told(&status, c::PROVISIONED), ("True", "Created"));
    assert_eq!(told(&status, c::HEALTHY), ("Unknown", "ProbePending"));
    assert_eq!(told(&status, c::READY), ("False", "NotHealthy"));
    assert_eq!(status.phase, Phase::Provisioning);
    assert_eq!(status.observed_generation, Some(4));
}

#[test]
fn another_scheme_publishes_the_instance_that_is_there_anew() {
    let mut proxy = ready_proxy();
    proxy.spec.scheme = Some(Scheme::Socks5);
    let status = after(&proxy, &seen(Some(true)), Action::Serve);
    assert_eq!(
        status.endpoint.unwrap().to_string(),
        "socks5://127.1.2.3:8080"
    );
    // The verdict was about the other way to speak to it.
    let found = c::find(&status.conditions, c::HEALTHY).unwrap();
    assert_eq!(
        (found.status.as_str(), found.reason.as_str()),
        ("Unknown", "ProbePending")
    );
}

#[test]
fn a_verdict_is_copied_and_decides_between_ready_and_unhealthy() {
    let ready = ready_proxy().status.unwrap();
    assert_eq!(ready.exit_ip.as_deref(), Some("203.0.113.7"));
    assert_eq!(ready.latency_milliseconds, Some(42));
    assert_eq!(ready.last_health_check_time, Some(Time(at(990))));
    assert_eq!(told(&ready, c::READY), ("True", "Ready"));

    let sick = after(&ready_proxy(), &seen(Some(false)), Action::Serve);
    assert_eq!(told(&sick, c::HEALTHY), ("False", "ConnectFailed"));
    assert_eq!(told(&sick, c::READY), ("False", "NotHealthy"));
    assert_eq!(sick.phase, Phase::Unhealthy);
}

#[test]
fn flapping_and_a_correlated_failure_are_told_while_they_last_and_the_exits_place_with_them() {
    let mut odd = seen(None);
    odd.verdict = Some(Verdict {
        location: Location {
            country: Some("DE".into()),
            asn: Some(64_500),
        },
        flapping: true,
        hold: Some(Hold {
            reason: c::REASON_VENDOR_FAILING.into(),
            message: "m".into(),
        }),
        ..verdict(false)
    });
    let mut proxy = ready_proxy();
    let status = after(&proxy, &odd, Action::Serve);
    let place = (status.country.as_deref(), status.asn);
    assert_eq!(place, (Some("DE"), Some(64_500)));
    assert_eq!(told(&status, c::FLAPPING), ("True", "FrequentTransitions"));
    assert_eq!(told(&status, c::CORRELATED), ("True", "VendorFailing"));
    proxy.status = Some(status);
    let calm = after(&proxy, &seen(Some(true)), Action::Serve);
    assert!(c::find(&calm.conditions, c::FLAPPING).is_none());
    assert!(c::find(&calm.conditions, c::CORRELATED).is_none());
}

#[test]
fn the_same_observation_twice_changes_nothing() {
    let proxy = ready_proxy();
    assert_eq!(
        Some(after(&proxy, &seen(Some(true)), Action::Serve)),
        proxy.status
    );
    // An engine that has just started knows nothing, and the verdict in status stands.
    assert_eq!(
        Some(after(&proxy, &seen(None), Action::Serve)),
        proxy.status
    );
    let held = Observation {
        verdict: Some(verdict(true)),
        ..Observation::nothing(Standing::Held)
    };
    assert_eq!(Some(after(&proxy, &held, Action::Rest)), proxy.status);
}

#[test]
fn a_new_address_forgets_what_was_learnt_at_the_old_one() {
    let mut observation = seen(Some(true));
    observation.instance.as_mut().unwrap().ip = Some("127.9.9.9".into());
    let status = after(&ready_proxy(), &observation, Action::Serve);
    assert_eq!(told(&status, c::HEALTHY), ("Unknown", "ProbePending"));
    assert_eq!((status.exit_ip, status.latency_milliseconds), (None, None));
}

#[test]
fn a_create_records_the_instance_and_a_forget_clears_it() {
    let holds = Effect::Holds {
        instance: Box::new(instance()),
        operation: Some("op-1".into()),
    };
    let mut proxy = new_proxy();
    let nothing = Observation::nothing(Standing::Managed);
    let created = with_effect(&proxy, &nothing, Action::Create, &holds, None);
    assert_eq!(created.provider_id.as_deref(), Some("mock://a/1"));
    assert_eq!(created.operation.as_deref(), Some("op-1"));
    assert_eq!(told(&created, c::PROVISIONED), ("False", "Provisioning"));
    assert_eq!(told(&created, c::HEALTHY), ("Unknown", "NoEndpoint"));
    assert_eq!(created.phase, Phase::Provisioning);

    proxy.status = Some(created);
    let failure = failed(Class::Quota, c::REASON_QUOTA_EXCEEDED);
    let lost = with_effect(
        &proxy,
        &nothing,
        Action::Forget,
        &Effect::Cleared,
        Some(&failure),
    );
    assert_eq!(
        (lost.provider_id, lost.operation, lost.zone),
        (None, None, None)
    );
    assert_eq!(lost.phase, Phase::Pending);

    let lost = with_effect(
        &ready_proxy(),
        &nothing,
        Action::Forget,
        &Effect::Cleared,
        None,
    );
    assert_eq!(told(&lost, c::PROVISIONED), ("False", "InstanceLost"));
    assert_eq!((&lost.endpoint, &lost.ip), (&None, &None));
}

#[test]
fn a_failure_takes_the_reason_and_only_refusals_take_the_status() {
    use Class::{
        AlreadyExists, Conflict, Forbidden, Invalid, NotFound, Quota, RateLimited, Transient,
        Unauthenticated,
    };
    for (class, reason, provisioned, phase) in [
        (Quota, c::REASON_QUOTA_EXCEEDED, "False", Phase::Pending),
        (RateLimited, c::REASON_RATE_LIMITED, "True", Phase::Ready),
        (
            Unauthenticated,
            c::REASON_CREDENTIALS_REJECTED,
            "True",
            Phase::Ready,
        ),
        (Forbidden, c::REASON_FORBIDDEN, "True", Phase::Ready),
        (Invalid, c::REASON_INVALID_SPEC, "False", Phase::Failed),
        (Conflict, c::REASON_NAME_TAKEN, "False", Phase::Failed),
        (Transient, c::REASON_PROVIDER_ERROR, "True", Phase::Ready),
        (NotFound, c::REASON_PROVIDER_ERROR, "True", Phase::Ready),
        (
            AlreadyExists,
            c::REASON_PROVIDER_ERROR,
            "True",
            Phase::Ready,
        ),
    ] {
        let failure = failed(class, reason);
        let held = Observation::nothing(Standing::Held);
        let proxy = ready_proxy();
        let status = with_effect(
            &proxy,
            &held,
            Action::Rest,
            &Effect::Nothing,
            Some(&failure),
        );
        assert_eq!(
            told(&status, c::PROVISIONED),
            (provisioned, reason),
            "{class:?}"
        );
        assert_eq!(status.phase, phase, "{class:?}");
        assert!(
            status.endpoint.is_some(),
            "leases keep their proxy: {class:?}"
        );
    }
}

#[test]
fn an_unknown_provider_is_named_with_those_that_are_known() {
    let unknown = Observation::nothing(Standing::UnknownProvider);
    let status = after(&new_proxy(), &unknown, Action::Rest);
    assert_eq!(told(&status, c::PROVISIONED), ("False", "UnknownProvider"));
    let message = &c::find(&status.conditions, c::PROVISIONED).unwrap().message;
    assert!(
        message.contains("\"local\"") && message.contains("hetzner, local"),
        "{message}"
    );
    assert_eq!(status.phase, Phase::Pending);
}

#[test]
fn a_deletion_drains_with_the_address_kept_then_deletes_with_it_cleared() {
    let mut proxy = ready_proxy();
    proxy.metadata.deletion_timestamp = Some(Time(at(NOW)));
    let waiting = Observation {
        drain: Drain::Waiting("1 leases".into()),
        ..seen(Some(true))
    };
    let status = after(&proxy, &waiting, Action::Drain(Cause::Replaced));
    assert_eq!(told(&status, c::DRAINED), ("False", "Draining"));
    assert_eq!(status.drain_mark.as_deref(), Some("77"));
    assert!(status.endpoint.is_some());
    assert_eq!(told(&status, c::READY), ("False", "Draining"));
    assert_eq!(status.phase, Phase::Draining);

    proxy.status = Some(status);
    proxy.metadata.resource_version = Some("90".into());
    let done = Drain::Done(c::REASON_NO_LEASES, "none left".into());
    let drained = Observation {
        drain: done,
        ..seen(Some(true))
    };
    let status = after(&proxy, &drained, Action::Delete(Cause::ObjectDeleted));
    assert_eq!(told(&status, c::DRAINED), ("True", "NoLeases"));
    assert_eq!(
        status.drain_mark.as_deref(),
        Some("77"),
        "the first mark counts"
    );
    assert_eq!(told(&status, c::PROVISIONED), ("False", "Deleting"));
    assert_eq!((&status.endpoint, &status.ip), (&None, &None));
    assert_eq!(status.phase, Phase::Deleting);
}

#[test]
fn a_wished_drain_is_shown_and_taken_back() {
    let mut proxy = ready_proxy();
    proxy.spec.drain = true;
    let unavailable = Observation {
        drain: Drain::Unavailable("503".into()),
        ..seen(Some(true))
    };
    let status = after(&proxy, &unavailable, Action::Serve);
    assert_eq!(told(&status, c::DRAINED), ("False", "LeaseAPIUnavailable"));
    assert_eq!(status.phase, Phase::Draining);
    assert!(status.endpoint.is_some());

    proxy.status = Some(status);
    proxy.spec.drain = false;
    let status = after(&proxy, &seen(Some(true)), Action::Serve);
    assert!(c::find(&status.conditions, c::DRAINED).is_none());
    assert_eq!((status.drain_mark, status.phase), (None, Phase::Ready));
}

#[test]
fn each_cause_of_a_delete_has_its_reason_and_survives_the_wait_for_not_found() {
    for (cause, reason) in [
        (Cause::ProvisioningTimedOut, "ProvisioningTimedOut"),
        (Cause::UnhealthyTimedOut, "UnhealthyTimedOut"),
        (Cause::Preempted, "Preempted"),
        (Cause::Replaced, "Replacing"),
    ] {
        let mut proxy = ready_proxy();
        let status = after(&proxy, &seen(Some(true)), Action::Delete(cause));
        assert_eq!(told(&status, c::PROVISIONED), ("False", reason));
        assert_eq!(status.phase, Phase::Replacing);
        proxy.status = Some(status);
        let status = after(&proxy, &seen(Some(true)), Action::AwaitGone);
        assert_eq!(told(&status, c::PROVISIONED), ("False", reason));
    }
    let taken = after(&ready_proxy(), &seen(Some(true)), Action::AwaitGone);
    assert_eq!(
        told(&taken, c::PROVISIONED),
        ("False", "InstanceLost"),
        "deleted by others; what is taken back stops"
    );
    // A crash came between the delete and the status.
    let mut going = ready_proxy();
    going.metadata.deletion_timestamp = Some(Time(at(0)));
    let status = after(&going, &seen(Some(true)), Action::AwaitGone);
    assert_eq!(told(&status, c::PROVISIONED), ("False", "Deleting"));
}

#[test]
fn transition_times_have_whole_seconds_as_the_api_does() {
    let proxy = new_proxy();
    let observation = Observation::nothing(Standing::Managed);
    let status = compute(&Pass {
        proxy: &proxy,
        observation: &observation,
        action: Action::AddFinalizer,
        effect: &Effect::Nothing,
        failure: None,
        providers: "",
        now: Timestamp::from_millisecond(1_234_567).unwrap(),
    });
    let json = serde_json::to_value(&status).unwrap();
    assert_eq!(serde_json::from_value::<ProxyStatus>(json).unwrap(), status);
}

#[test]
fn a_proxy_that_is_paused_from_the_start_says_so_and_says_nothing_new_later() {
    let paused = Observation::nothing(Standing::Paused);
    let mut proxy = new_proxy();
    proxy.spec.paused = true;
    let status = after(&proxy, &paused, Action::Rest);
    let provisioned = c::find(&status.conditions, c::PROVISIONED).unwrap();
    assert_eq!(
        (provisioned.status.as_str(), provisioned.reason.as_str()),
        ("False", "Paused")
    );
    let mut proxy = ready_proxy();
    proxy.spec.paused = true;
    let status = after(&proxy, &paused, Action::Rest);
    assert!(c::is_true(&status.conditions, c::PROVISIONED));
}

fn withheld(reason: &'static str) -> Observation {
    Observation {
        withheld: Some(Withheld {
            reason,
            message: "because".into(),
            wait: None,
        }),
        ..seen(Some(true))
    }
}

#[test]
fn what_is_withheld_is_said_beside_the_other_conditions_and_taken_back() {
    let mut proxy = ready_proxy();
    let status = after(
        &proxy,
        &withheld(c::REASON_DISRUPTION_BUDGET),
        Action::Serve,
    );
    assert_eq!(told(&status, c::WITHHELD), ("True", "DisruptionBudget"));
    assert_eq!(told(&status, c::PROVISIONED), ("True", "Created"));
    assert_eq!(status.phase, Phase::Ready, "it goes on working");
    proxy.status = Some(status);

    // A pass that asked nobody takes nothing back.
    let held = Observation::nothing(Standing::Held);
    let status = after(&proxy, &held, Action::Rest);
    assert_eq!(told(&status, c::WITHHELD), ("True", "DisruptionBudget"));
    let status = after(&proxy, &seen(Some(true)), Action::Serve);
    assert!(c::find(&status.conditions, c::WITHHELD).is_none());
}

#[test]
fn a_create_that_is_withheld_keeps_why_there_is_no_instance() {
    let lost = |proxy: &Proxy| {
        let none = Observation::nothing(Standing::Managed);
        with_effect(proxy, &none, Action::Forget, &Effect::Cleared, None)
    };
    let mut proxy = ready_proxy();
    proxy.status = Some(lost(&proxy));
    let none = Observation {
        instance: None,
        ..withheld(c::REASON_MASS_EXTERNAL_DELETION)
    };
    let status = after(&proxy, &none, Action::Withhold);
    assert_eq!(told(&status, c::PROVISIONED), ("False", "InstanceLost"));
    assert_eq!(told(&status, c::WITHHELD), ("True", "MassExternalDeletion"));
    assert_eq!(status.phase, Phase::Pending);

    let status = after(&new_proxy(), &none, Action::Withhold);
    assert_eq!(told(&status, c::PROVISIONED), ("False", "Pending"));
}

#[test]
fn a_paused_proxy_always_says_so() {
    let paused = Observation::nothing(Standing::Paused);
    let mut proxy = ready_proxy();
    proxy.spec.paused = true;
    proxy.status = Some(after(&proxy, &paused, Action::Rest));
    let status = proxy.status.as_ref().unwrap();
    assert_eq!(told(status, c::WITHHELD), ("True", "Paused"));
    assert_eq!(told(status, c::PROVISIONED), ("True", "Created"));
    proxy.metadata.deletion_timestamp = Some(Time(at(0)));
    let status = after(&proxy, &paused, Action::Rest);
    let withheld = c::find(&status.conditions, c::WITHHELD).unwrap();
    assert!(withheld.message.contains("go when it is unset"));
}

#[test]
fn an_unhealthy_instance_that_drains_to_be_replaced_says_why_and_is_counted_once() {
    let mut proxy = ready_proxy();
    for action in [
        Action::Drain(Cause::UnhealthyTimedOut),
        Action::Drain(Cause::UnhealthyTimedOut),
        Action::Delete(Cause::UnhealthyTimedOut),
        Action::AwaitGone,
    ] {
        let status = after(&proxy, &seen(Some(false)), action);
        assert_eq!(
            told(&status, c::PROVISIONED),
            ("False", "UnhealthyTimedOut")
        );
        assert!(c::find(&status.conditions, c::DRAINED).is_some());
        assert_eq!(status.phase, Phase::Replacing);
        assert_eq!(status.setbacks.len(), 1);
        assert_eq!(status.setbacks[0].reason, "UnhealthyTimedOut");
        proxy.status = Some(status);
    }
    let gone = Observation::nothing(Standing::Managed);
    let status = with_effect(&proxy, &gone, Action::Forget, &Effect::Cleared, None);
    assert!(c::find(&status.conditions, c::DRAINED).is_none());
}

const LINE: &str =
    "x - util.py[WARNING]: Failed running /var/lib/cloud/instance/scripts/runcmd [100]";

/// What never worked, with what cloud-init says of it.
fn never_up() -> Observation {
    let mut seen = seen(Some(false));
    let verdict = seen.verdict.as_mut().unwrap();
    verdict.reason = c::REASON_PROBE_NEVER_SUCCEEDED.into();
    verdict.message = "no probe has succeeded in 600 seconds".into();
    seen.bootstrap_failure = Some(LINE.into());
    seen
}

/// Case 69.
#[test]
fn a_cloud_init_that_failed_is_told_in_healthy_in_the_cause_of_the_replacement_and_in_setbacks() {
    let mut proxy = new_proxy();
    proxy.status = Some(after(&proxy, &seen(None), Action::Serve));
    let status = after(&proxy, &never_up(), Action::Serve);
    assert_eq!(told(&status, c::HEALTHY), ("False", "BootstrapFailed"));
    let message = &c::find(&status.conditions, c::HEALTHY).unwrap().message;
    assert!(
        message.starts_with("no probe has succeeded in 600 seconds"),
        "{message}"
    );
    assert!(message.ends_with(LINE), "{message}");
    proxy.status = Some(status);

    let gone = Action::Delete(Cause::UnhealthyTimedOut);
    let status = after(&proxy, &never_up(), gone);
    assert_eq!(
        told(&status, c::PROVISIONED),
        ("False", "UnhealthyTimedOut")
    );
    let message = &c::find(&status.conditions, c::PROVISIONED).unwrap().message;
    assert!(message.ends_with(LINE), "{message}");
    let [setback] = status.setbacks.as_slice() else {
        panic!("{:?}", status.setbacks);
    };
    assert_eq!(setback.reason, "BootstrapFailed");
    assert_eq!(setback.generation, Some(4));
}

/// Case 49: the address is remembered with the failure, and an instance that has it again says so.
#[test]
fn an_address_that_was_given_up_is_told_when_it_comes_back() {
    let mut proxy = ready_proxy();
    for action in [
        Action::Delete(Cause::UnhealthyTimedOut),
        Action::Create,
        Action::Delete(Cause::AddressReissued),
    ] {
        proxy.status = Some(after(&proxy, &seen(None), action));
    }
    let status = proxy.status.clone().unwrap();
    assert_eq!(told(&status, c::PROVISIONED), ("False", "AddressReissued"));
    let kept = status.setbacks.iter();
    let kept: Vec<_> = kept
        .map(|setback| (setback.reason.as_str(), setback.address.as_deref()))
        .collect();
    assert_eq!(
        kept,
        [
            ("UnhealthyTimedOut", Some("127.1.2.3")),
            ("AddressReissued", Some("127.1.2.3")),
        ]
    );
    proxy.status = Some(after(&proxy, &seen(None), Action::Create));
    let mut seen = seen(None);
    seen.instance.as_mut().unwrap().created = at(NOW);
    let status = after(&proxy, &seen, Action::Serve);
    assert_eq!(told(&status, c::PROVISIONED), ("True", "AddressReissued"));
    assert!(status.endpoint.is_some(), "it is used all the same");
}

#[test]
fn it_recovers_while_it_drains_and_is_kept() {
    let mut proxy = ready_proxy();
    let drain = Action::Drain(Cause::UnhealthyTimedOut);
    proxy.status = Some(after(&proxy, &seen(Some(false)), drain));
    let status = after(&proxy, &seen(Some(true)), Action::Serve);
    assert!(c::find(&status.conditions, c::DRAINED).is_none());
    assert_eq!(told(&status, c::PROVISIONED), ("True", "Created"));
    assert_eq!(status.phase, Phase::Ready);
}

#[test]
fn setbacks_older_than_an_hour_go_with_the_next_and_their_number_is_bounded() {
    let mut proxy = ready_proxy();
    let setback = |second| Setback {
        time: Time(at(second)),
        reason: "Preempted".into(),
        address: None,
        generation: None,
    };
    let old = (0..30).map(|index| setback(NOW - 3_600 - index));
    let recent = (0..30).map(|index| setback(NOW - 30 + index));
    proxy.status.as_mut().unwrap().setbacks = old.chain(recent).collect();
    let status = after(&proxy, &seen(Some(true)), Action::Delete(Cause::Preempted));
    assert_eq!(status.setbacks.len(), 8);
    assert!(
        status
            .setbacks
            .iter()
            .all(|setback| setback.time.0 > at(NOW - 60))
    );
    assert_eq!(status.setbacks[7].time.0, at(NOW));
}

#[test]
fn leases_of_a_preempted_instance_are_revoked_also_when_it_cannot_be_deleted() {
    let down = failed(Class::Transient, c::REASON_PROVIDER_ERROR);
    let mut proxy = ready_proxy();
    for action in [Action::Delete(Cause::Preempted), Action::Rest] {
        let status = with_effect(
            &proxy,
            &seen(Some(true)),
            action,
            &Effect::Nothing,
            Some(&down),
        );
        assert_eq!(told(&status, c::PROVISIONED), ("False", "Preempted"));
        let message = &c::find(&status.conditions, c::PROVISIONED).unwrap().message;
        assert_eq!(message.matches("because").count(), 1, "{message}");
        assert_eq!(status.setbacks.len(), 1);
        proxy.status = Some(status);
    }
}
