//! What Hetzner Cloud's refusals mean. The table is in `docs/providers/hetzner.md`.

use std::time::Duration;

use http::{HeaderMap, StatusCode, header};
use jiff::Timestamp;
use runtime_kit::Class;
use serde::Deserialize;

use super::server::{Action, Reason};
use crate::providers::Error;
use crate::providers::error::retry_after;

/// When all requests of the project are back, in seconds since 1970.
const RESET: &str = "ratelimit-reset";
/// What support asks for.
const CORRELATION_ID: &str = "x-correlation-id";
/// The longest rest after "too many requests". Why not until the reset: requests come back one by
/// one, and at the reset all of them are back; that may be an hour away.
const MAX_REST: Duration = Duration::from_mins(1);
/// How much of a message is kept.
const MAX_MESSAGE: usize = 500;

/// A call that failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failed {
    /// The API refused.
    #[error("Hetzner Cloud says: {message} ({code}, HTTP {status}, correlation id {correlation})")]
    Refused {
        code: String,
        message: String,
        status: u16,
        correlation: String,
    },
    /// Something in between answered.
    #[error("HTTP {status}, and the answer is not the API's own")]
    Page { status: u16 },
    /// The request was not sent, or its answer did not come.
    #[error("Hetzner Cloud cannot be reached")]
    Send(#[source] reqwest::Error),
    /// The answer has no end.
    #[error("the answer is too long")]
    TooLong,
}

#[derive(Deserialize)]
struct Refusal {
    error: Reason,
}

/// Turns a refusal into one of ours.
pub(super) fn refused(
    what: &str,
    status: StatusCode,
    headers: &HeaderMap,
    body: &[u8],
    now: Timestamp,
) -> Error {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let number = status.as_u16();
    let Ok(Refusal { error: reason }) = serde_json::from_slice(body) else {
        let failed = Failed::Page { status: number };
        let class = of_page(number);
        return Error::new(class, format!("cannot {what}"))
            .retry_after(wait(class, headers, now))
            .caused_by(failed);
    };
    let Reason { code, message } = reason;
    let class = of_answer(number, &code);
    let remedy = remedy(&code);
    let failed = Failed::Refused {
        code,
        message: message.chars().take(MAX_MESSAGE).collect(),
        status: number,
        correlation: header(CORRELATION_ID).unwrap_or("unknown").to_owned(),
    };
    Error::new(class, format!("cannot {what}{remedy}"))
        .retry_after(wait(class, headers, now))
        .caused_by(failed)
}

/// What to do about codes that only people can do something about.
fn remedy(code: &str) -> &'static str {
    match code {
        "protected" => ": switch the delete protection of the server off",
        "token_readonly" => ": store a token with the permission Read & Write",
        "resource_locked" => ": ask the support of Hetzner to unlock it",
        _ => "",
    }
}

/// The class of an answer that is an error of the API.
fn of_answer(status: u16, code: &str) -> Class {
    if let Some(class) = of_code(code) {
        return class;
    }
    match status {
        401 => Class::Unauthenticated,
        403 => Class::Forbidden,
        404 => Class::NotFound,
        429 => Class::RateLimited,
        _ => Class::Transient,
    }
}

fn of_code(code: &str) -> Option<Class> {
    let class = match code {
        "unauthorized" => Class::Unauthenticated,
        "forbidden" | "token_readonly" | "protected" | "resource_locked" => Class::Forbidden,
        "invalid_input"
        | "json_error"
        | "invalid_server_type"
        | "unsupported_error"
        | "networks_overlap"
        | "incompatible_network_type"
        | "private_net_only_server"
        | "server_already_added" => Class::Invalid,
        "not_found" | "firewall_resource_not_found" => Class::NotFound,
        "uniqueness_error" => Class::AlreadyExists,
        "resource_limit_exceeded"
        | "resource_unavailable"
        | "placement_error"
        | "no_subnet_available" => Class::Quota,
        "rate_limit_exceeded" => Class::RateLimited,
        "locked" | "conflict" | "maintenance" | "unavailable" | "server_error"
        | "service_error" | "unknown_error" | "bad_gateway" | "timeout" => Class::Transient,
        _ => return None,
    };
    Some(class)
}

/// The class of an answer that is not the API's own, as that of a proxy in between. Why no
/// NotFound: a page that says 404 must never pass for a server that is gone.
fn of_page(status: u16) -> Class {
    match status {
        401 => Class::Unauthenticated,
        403 => Class::Forbidden,
        429 => Class::RateLimited,
        _ => Class::Transient,
    }
}

/// How long to rest: as `Retry-After` says, or until requests are back.
fn wait(class: Class, headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let after = header(header::RETRY_AFTER.as_str()).and_then(|value| retry_after(value, now));
    if after.is_some() || class != Class::RateLimited {
        return after;
    }
    let reset = header(RESET)?.trim().parse().ok()?;
    let reset = Timestamp::from_second(reset).ok()?;
    let until = Duration::try_from(reset.duration_since(now)).unwrap_or_default();
    Some(until.clamp(Duration::from_secs(1), MAX_REST))
}

/// Why an action failed, if it did.
pub(super) fn of_action(action: Action, location: &str) -> Option<Error> {
    let Action {
        id,
        status,
        error: reason,
    } = action;
    if status != "error" {
        return None;
    }
    let Reason { code, message } = reason.unwrap_or_else(|| Reason {
        code: "unknown_error".into(),
        message: "it does not say why".into(),
    });
    let class = match of_code(&code) {
        // Why: what is missing is something that the request names, as an image.
        Some(Class::NotFound) => Class::Invalid,
        Some(Class::AlreadyExists) | None => Class::Transient,
        Some(class) => class,
    };
    let message = format!("Hetzner Cloud did not make it: {message} ({code}, action {id})");
    let error = Error::new(class, message);
    Some(if class == Class::Quota {
        error.exhausted_in(location)
    } else {
        error
    })
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use http::HeaderValue;
    use runtime_kit::Classify;

    use super::*;

    fn now() -> Timestamp {
        "2026-11-06T08:49:30Z".parse().unwrap()
    }

    fn answer(status: u16, code: &str, headers: &HeaderMap) -> Error {
        let body = format!(r#"{{"error": {{"code": "{code}", "message": "m", "details": null}}}}"#);
        let status = StatusCode::from_u16(status).unwrap();
        refused("list", status, headers, body.as_bytes(), now())
    }

    /// The codes are those of the documentation ("Errors"; the errors of servers, actions and
    /// networks).
    #[test]
    fn answers_of_the_api_are_classified_by_code() {
        let table = [
            (401, "unauthorized", Class::Unauthenticated),
            (403, "forbidden", Class::Forbidden),
            (403, "token_readonly", Class::Forbidden),
            (423, "protected", Class::Forbidden),
            (423, "resource_locked", Class::Forbidden),
            (422, "invalid_input", Class::Invalid),
            (400, "json_error", Class::Invalid),
            (422, "invalid_server_type", Class::Invalid),
            (422, "unsupported_error", Class::Invalid),
            (404, "not_found", Class::NotFound),
            (409, "uniqueness_error", Class::AlreadyExists),
            (403, "resource_limit_exceeded", Class::Quota),
            (412, "resource_unavailable", Class::Quota),
            (412, "placement_error", Class::Quota),
            (429, "rate_limit_exceeded", Class::RateLimited),
            (423, "locked", Class::Transient),
            (409, "conflict", Class::Transient),
            (503, "maintenance", Class::Transient),
            (503, "unavailable", Class::Transient),
            (500, "server_error", Class::Transient),
            (500, "service_error", Class::Transient),
            (504, "timeout", Class::Transient),
            (410, "deprecated_api_endpoint", Class::Transient),
            (422, "a_code_to_come", Class::Transient),
            (401, "a_code_to_come", Class::Unauthenticated),
            (403, "a_code_to_come", Class::Forbidden),
            (429, "a_code_to_come", Class::RateLimited),
        ];
        for (status, code, wanted) in table {
            let error = answer(status, code, &HeaderMap::new());
            assert_eq!(error.class(), wanted, "{status} {code}");
        }
    }

    #[test]
    fn pages_of_something_in_between_never_say_that_a_server_is_gone() {
        for (status, wanted) in [
            (302, Class::Transient),
            (401, Class::Unauthenticated),
            (403, Class::Forbidden),
            (404, Class::Transient),
            (408, Class::Transient),
            (429, Class::RateLimited),
            (502, Class::Transient),
        ] {
            for body in ["<html></html>", "", "{}", "null"] {
                let code = StatusCode::from_u16(status).unwrap();
                let headers = HeaderMap::new();
                let error = refused("list", code, &headers, body.as_bytes(), now());
                assert_eq!(error.class(), wanted, "{status} {body}");
            }
        }
    }

    #[test]
    fn what_people_have_to_do_and_what_support_asks_for_is_said() {
        let mut headers = HeaderMap::new();
        headers.insert(CORRELATION_ID, HeaderValue::from_static("1f2e"));
        let error = answer(423, "protected", &headers);
        assert!(error.to_string().contains("delete protection"), "{error}");
        let source = error.source().unwrap().to_string();
        for part in ["m", "protected", "423", "1f2e"] {
            assert!(source.contains(part), "{source}");
        }
    }

    #[test]
    fn the_rest_is_what_is_said_and_never_the_hour_until_all_requests_are_back() {
        // 08:49:30 is 1794041370 in seconds since 1970.
        let second = now().as_second();
        let cases = [
            (Some("7"), Some(second + 3600), Some(Duration::from_secs(7))),
            (None, Some(second + 3600), Some(Duration::from_mins(1))),
            (None, Some(second + 20), Some(Duration::from_secs(20))),
            (None, Some(second - 5), Some(Duration::from_secs(1))),
            (None, None, None),
        ];
        for (after, reset, wanted) in cases {
            let mut headers = HeaderMap::new();
            if let Some(after) = after {
                headers.insert("retry-after", HeaderValue::from_static(after));
            }
            if let Some(reset) = reset {
                headers.insert(RESET, HeaderValue::from(reset));
            }
            let error = answer(429, "rate_limit_exceeded", &headers);
            assert_eq!(error.wait(), wanted, "{after:?} {reset:?}");
            // Other answers have the header too, and no rest follows from it.
            let other = answer(404, "not_found", &headers).wait();
            assert_eq!(other, after.map(|_| Duration::from_secs(7)));
        }
    }

    #[test]
    fn an_action_says_what_the_create_did_not() {
        let action = |status: &str, code: &str| Action {
            id: 17,
            status: status.into(),
            error: (!code.is_empty()).then(|| Reason {
                code: code.into(),
                message: "why".into(),
            }),
        };
        for (code, wanted, location) in [
            ("resource_unavailable", Class::Quota, Some("fsn1")),
            ("placement_error", Class::Quota, Some("fsn1")),
            ("resource_limit_exceeded", Class::Quota, Some("fsn1")),
            ("not_found", Class::Invalid, None),
            ("invalid_input", Class::Invalid, None),
            ("uniqueness_error", Class::Transient, None),
            ("action_failed", Class::Transient, None),
        ] {
            let error = of_action(action("error", code), "fsn1").unwrap();
            let found = (error.class(), error.exhausted_zone());
            assert_eq!(found, (wanted, location), "{code}");
            assert!(error.to_string().contains("why"), "{error}");
        }
        assert!(of_action(action("error", ""), "fsn1").is_some());
        assert!(of_action(action("running", ""), "fsn1").is_none());
        assert!(of_action(action("success", ""), "fsn1").is_none());
    }
}
