//! What can go wrong at a provider, in the classes that decide what happens next.

use std::time::Duration;

use crawl_api::conditions;
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;
use runtime_kit::{Class, Classify};

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

/// The header `Retry-After` (RFC 9110, 10.2.3): seconds, or a date.
pub(super) fn retry_after(value: &str, now: Timestamp) -> Option<Duration> {
    if let Ok(seconds) = value.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = DateTimeParser::new().parse_timestamp(value.trim()).ok()?;
    Some(Duration::try_from(date.duration_since(now)).unwrap_or_default())
}
