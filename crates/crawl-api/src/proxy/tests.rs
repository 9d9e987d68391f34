//! Defaults, CEL rules and the drain mark, as the specification has them.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::*;
use crate::conditions::{self, Statement};
use crate::scheme::Scheme;

fn proxy(spec: Value) -> Proxy {
    Proxy::new("p", serde_json::from_value(spec).unwrap())
}

fn managed() -> Value {
    json!({"mode": "Managed", "provider": "local"})
}

fn external() -> Value {
    json!({"mode": "External", "endpoint": {"host": "203.0.113.7", "port": 3128}})
}

/// `base` with the top-level fields of `changes` over it; null removes a field.
fn with(base: Value, changes: &Value) -> Value {
    let mut merged = base;
    for (key, value) in changes.as_object().unwrap() {
        let object = merged.as_object_mut().unwrap();
        if value.is_null() {
            object.remove(key);
        } else {
            object.insert(key.clone(), value.clone());
        }
    }
    merged
}

#[test]
fn omitted_fields_take_the_documented_defaults() {
    let spec: ProxySpec = serde_json::from_value(json!({"provider": "local"})).unwrap();
    assert_eq!(spec, ProxySpec::managed("local"));
    assert_eq!(
        serde_json::to_value(&spec).unwrap(),
        json!({
            "mode": "Managed",
            "provider": "local",
            "exit": {"mode": "Static"},
            "port": 3128,
            "maxLeases": 5,
            "healthCheck": {
                "probeUrl": "https://www.gstatic.com/generate_204",
                "intervalSeconds": 30,
                "timeoutSeconds": 5,
                "failureThreshold": 3,
                "successThreshold": 1,
                "expectedStatusCodes": [200, 204],
            },
            "cordoned": false,
            "drain": false,
            "paused": false,
            "drainTimeoutSeconds": 900,
            "provisioningTimeoutSeconds": 600,
            "unhealthyTimeoutSeconds": 300,
            "deletionPolicy": "Delete",
        })
    );
}

#[test]
fn zero_max_leases_survives_a_round_trip() {
    let spec: ProxySpec =
        serde_json::from_value(with(managed(), &json!({"maxLeases": 0}))).unwrap();
    assert_eq!(serde_json::to_value(&spec).unwrap()["maxLeases"], json!(0));
}

#[test]
fn rules_accept_what_is_allowed() {
    for spec in [
        managed(),
        external(),
        with(managed(), &json!({"scheme": "socks5"})),
        with(
            managed(),
            &json!({"cloudInit": {"inline": "#cloud-config"}}),
        ),
        with(
            managed(),
            &json!({"cloudInit": {"secretRef": {"name": "ci"}}}),
        ),
        with(
            managed(),
            &json!({"auth": {"generate": true, "rotateSeconds": 3600}}),
        ),
        with(
            external(),
            &json!({"auth": {"secretRef": {"name": "vendor"}}}),
        ),
        with(
            external(),
            &json!({"auth": {"allowedCIDRs": ["198.51.100.0/24", "2001:db8::/32"]}}),
        ),
        with(
            external(),
            &json!({"exit": {"mode": "Session", "session": {"usernameTemplate": "c-{{session}}"}}}),
        ),
        with(external(), &json!({"exit": {"mode": "Rotating"}})),
        with(
            external(),
            &json!({"endpoint": {"scheme": "socks5", "host": "gw.example.com", "port": 1080}}),
        ),
        with(
            external(),
            &json!({"endpoint": {"host": "2001:db8::7", "port": 1080}}),
        ),
    ] {
        let result = proxy(spec.clone()).validate_cel();
        assert!(result.is_ok(), "{spec}: {result:?}");
    }
}

#[test]
fn rules_refuse_what_is_not_allowed_and_name_the_remedy() {
    for (spec, message) in [
        (json!({"mode": "Managed"}), "provider is required"),
        (
            with(external(), &json!({"provider": "local"})),
            "provider is forbidden",
        ),
        (json!({"mode": "External"}), "endpoint is required"),
        (
            with(
                managed(),
                &json!({"endpoint": {"host": "203.0.113.7", "port": 1}}),
            ),
            "endpoint is forbidden",
        ),
        (
            with(external(), &json!({"scheme": "socks5"})),
            "scheme is forbidden when mode is External: say it in endpoint.scheme",
        ),
        (
            with(
                external(),
                &json!({"endpoint": {"host": "u:p@203.0.113.7", "port": 1}}),
            ),
            "host must be a DNS name or an IP address",
        ),
        (
            with(managed(), &json!({"cloudInit": {}})),
            "exactly one of inline and secretRef",
        ),
        (
            with(
                managed(),
                &json!({"cloudInit": {"inline": "x", "secretRef": {"name": "y"}}}),
            ),
            "exactly one of inline and secretRef",
        ),
        (
            with(
                managed(),
                &json!({"auth": {"generate": true, "secretRef": {"name": "y"}}}),
            ),
            "secretRef and generate exclude each other",
        ),
        (
            with(managed(), &json!({"auth": {"rotateSeconds": 3600}})),
            "rotateSeconds needs generate",
        ),
        (
            with(external(), &json!({"auth": {"generate": true}})),
            "auth.generate is forbidden",
        ),
        (
            with(
                managed(),
                &json!({"auth": {"allowedCIDRs": ["198.51.100.7"]}}),
            ),
            "must be networks in CIDR notation",
        ),
        (
            with(external(), &json!({"exit": {"mode": "Session"}})),
            "session is required",
        ),
        (
            with(
                external(),
                &json!({"exit": {"session": {"usernameTemplate": "c-{{session}}"}}}),
            ),
            "session is forbidden unless",
        ),
        (
            with(
                external(),
                &json!({"exit": {"mode": "Session", "session": {"usernameTemplate": "customer-x-y"}}}),
            ),
            "must contain {{session}}",
        ),
        (
            with(
                managed(),
                &json!({"healthCheck": {"intervalSeconds": 5, "timeoutSeconds": 6}}),
            ),
            "timeoutSeconds must not exceed intervalSeconds",
        ),
        (
            with(managed(), &json!({"healthCheck": {"probeUrl": "ftp://x"}})),
            "probeUrl must be an http:// or https:// URL",
        ),
        (
            with(managed(), &json!({"healthCheck": {"probeUrl": ""}})),
            "probeUrl must be an http:// or https:// URL",
        ),
        (
            with(
                managed(),
                &json!({"healthCheck": {"probeUrl": "https://user@host/"}}),
            ),
            "without user name",
        ),
    ] {
        let errors = proxy(spec.clone())
            .validate_cel()
            .expect_err(&spec.to_string());
        assert!(errors.to_string().contains(message), "{spec}: {errors}");
    }
}

#[test]
fn mode_and_provider_never_change_and_the_rest_may() {
    let old = proxy(managed());
    let changed = proxy(with(
        managed(),
        &json!({"scheme": "socks5", "port": 8080, "maxLeases": 0, "cordoned": true}),
    ));
    assert!(changed.validate_cel_update(&old).is_ok());

    let other_provider = proxy(with(managed(), &json!({"provider": "gcp"})));
    let errors = other_provider
        .validate_cel_update(&old)
        .unwrap_err()
        .to_string();
    assert!(errors.contains("provider is immutable"), "{errors}");

    let errors = proxy(external())
        .validate_cel_update(&old)
        .unwrap_err()
        .to_string();
    assert!(errors.contains("mode is immutable"), "{errors}");
    assert!(errors.contains("provider is immutable"), "{errors}");
}

#[test]
fn probes_take_the_place_of_the_short_form() {
    let mut check = HealthCheck::default();
    assert_eq!(check.targets(), ["https://www.gstatic.com/generate_204"]);
    assert!(!check.has_own_targets());
    check.probes = vec![
        "https://a.example.com".into(),
        "https://b.example.com".into(),
    ];
    assert_eq!(
        check.targets(),
        ["https://a.example.com", "https://b.example.com"]
    );
    assert!(check.has_own_targets());
}

fn ready() -> Proxy {
    let mut proxy = proxy(managed());
    let mut status = ProxyStatus {
        endpoint: Some(Endpoint {
            scheme: Scheme::Http,
            host: "127.1.0.1".into(),
            port: 3128,
        }),
        ..ProxyStatus::default()
    };
    let healthy = Statement::new(
        conditions::HEALTHY,
        true,
        conditions::REASON_PROBE_SUCCEEDED,
        "",
    );
    conditions::set(&mut status.conditions, healthy, None, Timestamp::UNIX_EPOCH);
    proxy.status = Some(status);
    proxy
}

#[test]
fn a_healthy_proxy_accepts_leases_and_each_obstacle_has_its_reason() {
    assert_eq!(ready().accepts_leases(), Ok(()));

    let mut cordoned = ready();
    cordoned.spec.cordoned = true;
    assert_eq!(cordoned.accepts_leases(), Err(NotAccepting::Cordoned));

    let mut unleasable = ready();
    unleasable.spec.max_leases = 0;
    assert_eq!(unleasable.accepts_leases(), Err(NotAccepting::Unleasable));

    assert_eq!(
        proxy(managed()).accepts_leases(),
        Err(NotAccepting::Unhealthy)
    );

    let mut without_address = ready();
    without_address.status.as_mut().unwrap().endpoint = None;
    assert_eq!(
        without_address.accepts_leases(),
        Err(NotAccepting::Unhealthy)
    );
    assert_eq!(NotAccepting::Unhealthy.reason(), "Unhealthy");
}

#[test]
fn deletion_a_wished_drain_and_a_drained_condition_each_mark_for_drain() {
    let mut deleted = ready();
    deleted.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    assert_eq!(deleted.accepts_leases(), Err(NotAccepting::Draining));

    let mut wished = ready();
    wished.spec.drain = true;
    wished.spec.cordoned = true;
    assert_eq!(wished.accepts_leases(), Err(NotAccepting::Draining));

    for status in [false, true] {
        let mut replaced = ready();
        let drained = Statement::new(conditions::DRAINED, status, conditions::REASON_DRAINING, "");
        let list = &mut replaced.status.as_mut().unwrap().conditions;
        conditions::set(list, drained, None, Timestamp::UNIX_EPOCH);
        assert_eq!(replaced.accepts_leases(), Err(NotAccepting::Draining));
    }
}

#[test]
fn generated_credentials_have_a_secret_of_a_known_name() {
    assert_eq!(proxy(managed()).credentials_secret(), None);
    let own = proxy(with(
        managed(),
        &json!({"auth": {"secretRef": {"name": "s"}}}),
    ));
    assert_eq!(own.credentials_secret().as_deref(), Some("s"));
    let generated = proxy(with(managed(), &json!({"auth": {"generate": true}})));
    assert_eq!(
        generated.credentials_secret().as_deref(),
        Some("p-proxy-auth")
    );
}
