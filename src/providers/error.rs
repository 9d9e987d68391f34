//! What can go wrong at a provider, in the classes that decide what happens next.

use std::time::Duration;

use crawl_api::conditions;
use data_encoding::BASE64;
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;
use runtime_kit::{Class, Classify};

use super::InstanceRequest;

/// A failed call to a provider.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    class: Class,
    message: String,
    retry_after: Option<Duration>,
    exhausted_zone: Option<String>,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

// === impl Error ===

impl Error {
    /// An error of a class, in words that say what was tried.
    pub fn new(class: Class, message: impl Into<String>) -> Self {
        Self {
            class,
            message: message.into(),
            retry_after: None,
            exhausted_zone: None,
            source: None,
        }
    }

    /// Keeps the cause reachable.
    pub fn caused_by(self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self {
            source: Some(source.into()),
            ..self
        }
    }

    /// Keeps when the provider wants to be asked again.
    pub fn retry_after(self, after: Option<Duration>) -> Self {
        Self {
            retry_after: after,
            ..self
        }
    }

    /// The same without its cause, if that repeats credentials or cloud-init of the request. Why:
    /// clouds quote what they refuse, and an error is shown to everybody who may read the object.
    pub(super) fn without_secrets(self, request: &InstanceRequest) -> Self {
        let told = runtime_kit::chain(&self).to_string();
        if !secrets(request).any(|secret| told.contains(&secret)) {
            return self;
        }
        let message = "the provider refused the request, and what it says is not shown, since it \
            repeats credentials or cloudInit: look into the account's own log";
        Self {
            message: message.into(),
            source: None,
            ..self
        }
    }

    /// Keeps the zone that has nothing more to give; another placement may do.
    pub fn exhausted_in(self, zone: impl Into<String>) -> Self {
        Self {
            exhausted_zone: Some(zone.into()),
            ..self
        }
    }

    /// The zone that has nothing more to give: its machines, or the account's quota there, are used
    /// up.
    pub fn exhausted_zone(&self) -> Option<&str> {
        self.exhausted_zone.as_deref()
    }

    /// When the provider wants to be asked again, if it said so.
    pub fn wait(&self) -> Option<Duration> {
        self.retry_after
    }
}

impl Classify for Error {
    fn class(&self) -> Class {
        self.class
    }

    fn reason(&self) -> &'static str {
        match self.class {
            Class::NotFound | Class::AlreadyExists | Class::Transient => {
                conditions::REASON_PROVIDER_ERROR
            },
            Class::Quota => conditions::REASON_QUOTA_EXCEEDED,
            Class::RateLimited => conditions::REASON_RATE_LIMITED,
            Class::Unauthenticated => conditions::REASON_CREDENTIALS_REJECTED,
            Class::Forbidden => conditions::REASON_FORBIDDEN,
            Class::Invalid => conditions::REASON_INVALID_SPEC,
            Class::Conflict => conditions::REASON_NAME_TAKEN,
        }
    }
}

/// Shorter texts are in any message.
const MIN_SECRET: usize = 6;

/// What of a request must not be shown, in the forms in which it is sent.
fn secrets(request: &InstanceRequest) -> impl Iterator<Item = String> {
    let plain = request.auth.iter().map(|auth| auth.password.clone());
    let all = plain.flat_map(|password| [BASE64.encode(password.as_bytes()), password]);
    let lines = request.cloud_init.iter().flat_map(|text| text.lines());
    let lines = lines.map(|line| line.trim().to_owned());
    // Why long ones only: short lines of cloud-init are words of YAML.
    let lines = lines.filter(|line| line.len() >= 4 * MIN_SECRET);
    let all = all.filter(|secret| secret.len() >= MIN_SECRET);
    all.chain(lines).collect::<Vec<_>>().into_iter()
}

/// The longest time that an account is left alone because an answer says so.
pub(super) const MAX_WAIT: Duration = Duration::from_hours(1);

/// The header `Retry-After` (RFC 9110, 10.2.3): seconds, or a date; [`MAX_WAIT`] at most. Why: one
/// wrong answer of the cloud, or of something in between, must not end all work for good.
pub(super) fn retry_after(value: &str, now: Timestamp) -> Option<Duration> {
    let value = value.trim();
    let wait = if let Ok(seconds) = value.parse() {
        Duration::from_secs(seconds)
    } else {
        let date = DateTimeParser::new().parse_timestamp(value).ok()?;
        Duration::try_from(date.duration_since(now)).unwrap_or_default()
    };
    Some(wait.min(MAX_WAIT))
}

#[cfg(test)]
mod tests {
    use crawl_api::proxy::Placement;

    use super::*;
    use crate::health::Credentials;
    use crate::providers::Tags;

    /// Clouds quote the value of a field that they refuse.
    #[test]
    fn what_repeats_secrets_of_the_request_is_not_shown() {
        let request = InstanceRequest {
            name: "proxy-x".into(),
            placement: Placement::default(),
            cloud_init: Some("#cloud-config\nruncmd: [sh -c 'echo hunter2-and-more']\n".into()),
            port: 3128,
            auth: Some(Credentials {
                username: "u".into(),
                password: "correct horse".into(),
            }),
            tags: Tags::new(),
        };
        let told = |cause: &str| {
            let error = Error::new(Class::Invalid, "cannot create proxy-x");
            let error = error.caused_by(cause.to_owned()).without_secrets(&request);
            assert_eq!(error.class(), Class::Invalid);
            runtime_kit::chain(&error).to_string()
        };
        for leak in [
            "Invalid value for field 'items[0]': 'correct horse'",
            "bad user_data: Y29ycmVjdCBob3JzZQ==",
            "bad user_data: runcmd: [sh -c 'echo hunter2-and-more'], line 2",
        ] {
            let told = told(leak);
            assert!(told.contains("not shown"), "{told}");
            assert!(!told.contains("horse") && !told.contains("Y29y"), "{told}");
            assert!(!told.contains("hunter2"), "{told}");
        }
        assert_eq!(
            told("no such image"),
            "cannot create proxy-x: no such image"
        );
    }

    #[test]
    fn retry_after_is_seconds_or_a_date_and_an_hour_at_most() {
        let now = "2026-11-06T08:49:30Z".parse().unwrap();
        let hour = Duration::from_hours(1);
        for (value, wanted) in [
            (" 7 ", Some(Duration::from_secs(7))),
            (
                "Fri, 06 Nov 2026 08:49:37 GMT",
                Some(Duration::from_secs(7)),
            ),
            ("Fri, 06 Nov 2026 08:49:00 GMT", Some(Duration::ZERO)),
            ("86400", Some(hour)),
            ("18446744073709551615", Some(hour)),
            ("Thu, 31 Dec 2099 23:59:59 GMT", Some(hour)),
            ("-1", None),
            ("soon", None),
        ] {
            assert_eq!(retry_after(value, now), wanted, "{value}");
        }
    }
}
