//! What Compute Engine's refusals mean. The table is in `docs/providers/gcp.md`.

use std::error::Error as _;

use google_cloud_compute::model::Operation;
use google_cloud_gax::error::rpc::StatusDetails;
use google_cloud_gax::error::{CredentialsError, Error as ApiError};
use jiff::Timestamp;
use runtime_kit::Class;

use crate::providers::Error;
use crate::providers::error::retry_after;

/// Turns a failed call into one of ours.
pub(super) fn failed(what: &str, error: ApiError, now: Timestamp) -> Error {
    let class = class(&error);
    let wait = error
        .http_headers()
        .and_then(|headers| headers.get(http::header::RETRY_AFTER))
        .and_then(|value| value.to_str().ok())
        .and_then(|value| retry_after(value, now));
    Error::new(class, format!("cannot {what}"))
        .retry_after(wait)
        .caused_by(error)
}

/// The class of a failed call.
fn class(error: &ApiError) -> Class {
    if error.is_authentication() {
        return rejected(error);
    }
    if error.is_binding() || error.is_serialization() {
        return Class::Invalid;
    }
    let Some(code) = error.http_status_code() else {
        return Class::Transient;
    };
    let Some(status) = error.status() else {
        return of_page(code);
    };
    let reason = status.details.iter().find_map(reason).unwrap_or_default();
    of_answer(code, reason)
}

/// No token could be had: for a moment, or because the credentials are no good.
fn rejected(error: &ApiError) -> Class {
    let source = error.source();
    let source = source.and_then(|source| source.downcast_ref::<CredentialsError>());
    match source {
        Some(source) if source.is_transient() => Class::Transient,
        Some(_) | None => Class::Unauthenticated,
    }
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "one of many kinds of details has the word"
)]
fn reason(details: &StatusDetails) -> Option<&str> {
    match details {
        StatusDetails::ErrorInfo(info) => Some(info.reason.as_str()),
        _ => None,
    }
}

/// The class of an answer that is an error of the API.
fn of_answer(code: u16, reason: &str) -> Class {
    match (code, reason) {
        (_, reason) if is_stockout(reason) => Class::Quota,
        (403, "rateLimitExceeded" | "userRateLimitExceeded" | "RATE_LIMIT_EXCEEDED") => {
            Class::RateLimited
        },
        (403, "quotaExceeded" | "QUOTA_EXCEEDED") => Class::Quota,
        (409, "alreadyExists") => Class::AlreadyExists,
        // Why: "not ready" is said of what is still being made or deleted.
        (400, "resourceNotReady") => Class::Transient,
        (400, _) => Class::Invalid,
        (401, _) => Class::Unauthenticated,
        (403, _) => Class::Forbidden,
        (404, _) => Class::NotFound,
        (429, _) => Class::RateLimited,
        (_, _) => Class::Transient,
    }
}

/// The class of an answer that is not the API's own, as that of a proxy in between. Why no
/// NotFound: a page that says 404 must never pass for a machine that is gone.
fn of_page(code: u16) -> Class {
    match code {
        401 => Class::Unauthenticated,
        403 => Class::Forbidden,
        429 => Class::RateLimited,
        _ => Class::Transient,
    }
}

fn is_stockout(code: &str) -> bool {
    code.starts_with("ZONE_RESOURCE_POOL_EXHAUSTED") || code == "RESOURCE_POOL_EXHAUSTED"
}

/// Why an operation failed, if it did.
pub(super) fn of_operation(operation: &Operation, zone: &str) -> Option<Error> {
    let errors = &operation.error.as_ref()?.errors;
    let first = errors.first();
    let code = first.and_then(|error| error.code.as_deref());
    let code = code.unwrap_or_default();
    let status = operation.http_error_status_code.unwrap_or_default();
    let class = match (code, status) {
        (code, _) if is_stockout(code) || code == "QUOTA_EXCEEDED" => Class::Quota,
        ("RATE_LIMIT_EXCEEDED", _) | (_, 429) => Class::RateLimited,
        // Why 404 too: what is missing is something that the request names, as an image.
        (_, 400 | 404) => Class::Invalid,
        (_, 401) => Class::Unauthenticated,
        (_, 403) => Class::Forbidden,
        (_, _) => Class::Transient,
    };
    let message = first.and_then(|error| error.message.as_deref());
    let message = message
        .or(operation.http_error_message.as_deref())
        .unwrap_or("it does not say why");
    let error = Error::new(
        class,
        format!("Compute Engine did not make it: {code}: {message}"),
    );
    Some(if class == Class::Quota {
        error.exhausted_in(zone)
    } else {
        error
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use google_cloud_gax::error::rpc::Status;
    use http::{HeaderMap, HeaderValue};
    use runtime_kit::Classify;

    use super::*;

    fn answer(code: u16, reason: &str) -> ApiError {
        let body = format!(
            r#"{{"error": {{"code": {code}, "message": "m",
                "errors": [{{"message": "m", "domain": "global", "reason": "{reason}"}}]}}}}"#
        );
        let status = Status::try_from(&bytes::Bytes::from(body)).unwrap();
        ApiError::service_with_http_metadata(status, Some(code), Some(HeaderMap::new()))
    }

    fn page(code: u16) -> ApiError {
        ApiError::http(code, HeaderMap::new(), "<html></html>".into())
    }

    #[test]
    fn answers_of_the_api_are_classified_by_status_and_word() {
        let table = [
            (400, "invalid", Class::Invalid),
            (400, "resourceNotReady", Class::Transient),
            (401, "authError", Class::Unauthenticated),
            (403, "rateLimitExceeded", Class::RateLimited),
            (403, "userRateLimitExceeded", Class::RateLimited),
            (403, "quotaExceeded", Class::Quota),
            (403, "forbidden", Class::Forbidden),
            (403, "accessNotConfigured", Class::Forbidden),
            (404, "notFound", Class::NotFound),
            (408, "requestTimeout", Class::Transient),
            (409, "alreadyExists", Class::AlreadyExists),
            (409, "resourceInUse", Class::Transient),
            (412, "conditionNotMet", Class::Transient),
            (429, "rateLimitExceeded", Class::RateLimited),
            (500, "internalError", Class::Transient),
            (503, "backendError", Class::Transient),
            (503, "ZONE_RESOURCE_POOL_EXHAUSTED", Class::Quota),
        ];
        for (code, word, wanted) in table {
            assert_eq!(class(&answer(code, word)), wanted, "{code} {word}");
        }
    }

    #[test]
    fn pages_of_something_in_between_never_say_that_a_machine_is_gone() {
        let table = [
            (401, Class::Unauthenticated),
            (403, Class::Forbidden),
            (404, Class::Transient),
            (408, Class::Transient),
            (429, Class::RateLimited),
            (502, Class::Transient),
        ];
        for (code, wanted) in table {
            assert_eq!(class(&page(code)), wanted, "{code}");
        }
    }

    #[test]
    fn failures_without_an_answer_are_transient_and_credentials_that_fail_are_not() {
        assert_eq!(class(&ApiError::timeout("late")), Class::Transient);
        assert_eq!(class(&ApiError::connect("refused")), Class::Transient);
        assert_eq!(class(&ApiError::io("cut")), Class::Transient);
        for (transient, wanted) in [(true, Class::Transient), (false, Class::Unauthenticated)] {
            let error = CredentialsError::from_msg(transient, "no token");
            assert_eq!(
                class(&ApiError::authentication(error)),
                wanted,
                "{transient}"
            );
        }
    }

    #[test]
    fn the_time_to_wait_is_kept_and_the_cause_can_be_reached() {
        let now: Timestamp = "2026-11-06T08:49:30Z".parse().unwrap();
        let cases = [
            ("7", Some(Duration::from_secs(7))),
            (
                "Fri, 06 Nov 2026 08:49:37 GMT",
                Some(Duration::from_secs(7)),
            ),
            ("Fri, 06 Nov 2026 08:49:00 GMT", Some(Duration::ZERO)),
            ("soon", None),
        ];
        for (value, wanted) in cases {
            let mut headers = HeaderMap::new();
            headers.insert("retry-after", HeaderValue::from_static(value));
            let error = failed("list", ApiError::http(429, headers, "".into()), now);
            assert_eq!(
                (error.class(), error.wait()),
                (Class::RateLimited, wanted),
                "{value}"
            );
            let source = error.source().unwrap().downcast_ref::<ApiError>();
            assert_eq!(source.unwrap().http_status_code(), Some(429));
        }
    }

    #[test]
    fn an_operation_says_what_the_insert_did_not() {
        use google_cloud_compute::model::operation::Error as Failed;
        use google_cloud_compute::model::operation::error::Errors;
        let table = [
            ("QUOTA_EXCEEDED", 403, Class::Quota, Some("z-1")),
            (
                "ZONE_RESOURCE_POOL_EXHAUSTED",
                503,
                Class::Quota,
                Some("z-1"),
            ),
            (
                "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
                503,
                Class::Quota,
                Some("z-1"),
            ),
            ("RATE_LIMIT_EXCEEDED", 403, Class::RateLimited, None),
            ("PERMISSIONS_ERROR", 403, Class::Forbidden, None),
            ("RESOURCE_NOT_FOUND", 404, Class::Invalid, None),
            ("INVALID_USAGE", 400, Class::Invalid, None),
            ("RESOURCE_ALREADY_EXISTS", 409, Class::Transient, None),
            ("INTERNAL_ERROR", 500, Class::Transient, None),
        ];
        for (code, status, wanted, zone) in table {
            let errors = Errors::new().set_code(code).set_message("why");
            let operation = Operation::new()
                .set_http_error_status_code(status)
                .set_error(Failed::new().set_errors([errors]));
            let error = of_operation(&operation, "z-1").unwrap();
            assert_eq!(
                (error.class(), error.exhausted_zone()),
                (wanted, zone),
                "{code}"
            );
            assert!(error.to_string().contains("why"), "{error}");
        }
        assert!(of_operation(&Operation::new(), "z-1").is_none());
    }
}
