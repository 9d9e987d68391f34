//! The shared classification of errors that come from outside: clouds, vendors, the API server.
//!
//! Controllers turn a [`Class`] into what happens next in one table; nobody else branches on the
//! wording or the number of a foreign error.

/// What kind of failure it was, as far as the caller's next step depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// What was asked for does not exist: an input to decisions, not a fault.
    NotFound,
    /// What was to be created exists: an input to decisions, not a fault.
    AlreadyExists,
    /// A limit of the account is used up; waiting minutes may help, retrying fast does not.
    Quota,
    /// Too many calls; come back when told.
    RateLimited,
    /// The credentials were not accepted.
    Unauthenticated,
    /// The credentials are good, the permission is missing.
    Forbidden,
    /// The request can never succeed as it is.
    Invalid,
    /// Somebody else holds the name, or changed the object first.
    Conflict,
    /// Anything that may go away by itself; also everything unknown.
    Transient,
}

/// An error that knows its class.
pub trait Classify {
    /// The class, from a match without a wildcard arm.
    fn class(&self) -> Class;

    /// A CamelCase reason for conditions and events; one per cause.
    fn reason(&self) -> &'static str;
}

impl Classify for kube::Error {
    fn class(&self) -> Class {
        let Self::Api(status) = self else {
            return Class::Transient;
        };
        match (status.code, status.reason.as_str()) {
            (404, _) => Class::NotFound,
            (409, "AlreadyExists") => Class::AlreadyExists,
            (409, _) => Class::Conflict,
            (401, _) => Class::Unauthenticated,
            // Why: the API server reports an exceeded ResourceQuota as Forbidden, in these words.
            (403, _) if status.message.contains("exceeded quota") => Class::Quota,
            (403, _) => Class::Forbidden,
            (429, _) => Class::RateLimited,
            (400 | 405 | 406 | 413 | 415 | 422, _) => Class::Invalid,
            _ => Class::Transient,
        }
    }

    fn reason(&self) -> &'static str {
        match self.class() {
            Class::NotFound => "NotFound",
            Class::AlreadyExists => "AlreadyExists",
            Class::Quota => "QuotaExceeded",
            Class::RateLimited => "RateLimited",
            Class::Unauthenticated => "CredentialsRejected",
            Class::Forbidden => "Forbidden",
            Class::Invalid => "InvalidRequest",
            Class::Conflict => "Conflict",
            Class::Transient => "ApiServerError",
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn api(code: u16, reason: &str, message: &str) -> kube::Error {
        kube::Error::Api(Box::new(Status::failure(message, reason).with_code(code)))
    }

    #[test]
    fn answers_of_the_api_server_are_classified_by_code_and_reason() {
        let cases = [
            (404, "NotFound", "", Class::NotFound),
            (409, "AlreadyExists", "", Class::AlreadyExists),
            (409, "Conflict", "", Class::Conflict),
            (401, "Unauthorized", "", Class::Unauthenticated),
            (403, "Forbidden", "exceeded quota: compute", Class::Quota),
            (403, "Forbidden", "pods is forbidden", Class::Forbidden),
            (429, "TooManyRequests", "", Class::RateLimited),
            (422, "Invalid", "", Class::Invalid),
            (503, "ServiceUnavailable", "", Class::Transient),
        ];
        for (code, reason, message, class) in cases {
            assert_eq!(api(code, reason, message).class(), class, "{code} {reason}");
        }
    }
}
