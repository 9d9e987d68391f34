//! What can go wrong in either plugin, in the words kubectl uses for it.

use kube::core::Status;
use runtime_kit::chain;

/// Why a command ends with status 1.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Flags that contradict each other or the object.
    #[error("error: {0}")]
    Usage(String),
    /// The kubeconfig or the flags about the cluster.
    #[error("error: {0}")]
    Configure(#[source] crate::kube_flags::Error),
    /// The API server refused, or cannot be reached.
    #[error("{}", describe_request(.0))]
    Request(#[source] kube::Error),
    /// Nothing listens where the API server should be.
    #[error(
        "The connection to the server {0} was refused - did you specify the right host or port?"
    )]
    Refused(String),
    /// `--request-timeout` is over.
    #[error("error: the server did not answer within {0}s (--request-timeout)")]
    TimedOut(u64),
    /// No proxy was free within `--wait`, or the lease ended while waiting.
    #[error("error: lease {name} got no proxy: {reason}")]
    NotBound {
        /// Name of the lease.
        name: String,
        /// What the server says about it.
        reason: String,
    },
    /// The answer is not a lease that can be used.
    #[error("error: the server's answer for lease {name} has {lacks}")]
    Unusable {
        /// Name of the lease.
        name: String,
        /// What is wrong with it.
        lacks: String,
    },
    /// Standard output.
    #[error("error: cannot write the output: {0}")]
    Output(#[source] std::io::Error),
    /// Signal handlers, or the process of the command.
    #[error("error: {action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

impl Failure {
    /// Adds what only the caller of a request knows: the server as `host:port`, and the verb and
    /// resource that kubectl names when the aggregator has nobody to ask.
    pub(crate) fn in_request(self, server: &str, verb: &str, resource: &str) -> Self {
        let Self::Request(error) = self else {
            return self;
        };
        if was_refused(&error) {
            return Self::Refused(server.to_owned());
        }
        let kube::Error::Api(mut status) = error else {
            return Self::Request(error);
        };
        if status.code == 503 && status.reason == NO_STATUS {
            let more = match status.message.trim() {
                "" | "service unavailable" => String::new(),
                said => format!(": {said}"),
            };
            status.message = format!(
                "the server is currently unable to handle the request ({verb} {resource}){more}"
            );
        }
        Self::Request(kube::Error::Api(status))
    }
}

fn describe_request(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return describe_status(status);
    }
    format!("Unable to connect to the server: {}", chain(error))
}

/// Whether nothing listens where the API server should be; the request did not arrive.
pub(crate) fn was_refused(error: &kube::Error) -> bool {
    std::iter::successors(std::error::Error::source(error), |error| error.source())
        .filter_map(|source| source.downcast_ref::<std::io::Error>())
        .any(|source| source.kind() == std::io::ErrorKind::ConnectionRefused)
}

/// What kube puts into the reason of an answer that was no Status, like a proxy's.
const NO_STATUS: &str = "Failed to parse error data";

/// Whether the server answered that the object, rather than the whole API, does not exist.
pub(crate) fn is_object_missing(status: &Status) -> bool {
    status.code == 404
        && status
            .details
            .as_ref()
            .is_some_and(|details| !details.name.is_empty())
}

fn describe_status(status: &Status) -> String {
    if status.code == 404 && !is_object_missing(status) {
        return "error: the server doesn't have a resource type \"proxyleases\" \
                (is lease-apiserver installed?)"
            .to_owned();
    }
    let reason = match (status.reason.as_str(), status.code) {
        (NO_STATUS, 502..=504) => "ServiceUnavailable",
        (NO_STATUS, _) => "",
        (reason, _) => reason,
    };
    let details = status.details.as_ref();
    match (reason, details) {
        ("Unauthorized", _) => {
            "error: You must be logged in to the server (Unauthorized)".to_owned()
        },
        ("Invalid", Some(details)) if !details.causes.is_empty() => {
            let causes: Vec<_> = details
                .causes
                .iter()
                .map(|cause| match cause.field.as_str() {
                    "" => cause.message.clone(),
                    field => format!("{field}: {}", cause.message),
                })
                .collect();
            let head = format!("The {} {:?} is invalid:", details.kind, details.name);
            match causes.as_slice() {
                [cause] => format!("{head} {cause}"),
                causes => format!("{head} \n* {}", causes.join("\n* ")),
            }
        },
        ("", _) => format!("Error from server: {}", status.message),
        (reason, _) => format!("Error from server ({reason}): {}", status.message),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(status: serde_json::Value) -> String {
        let status: Status = serde_json::from_value(status).expect("a status");
        Failure::Request(kube::Error::Api(status.boxed())).to_string()
    }

    #[test]
    fn a_denial_is_shown_with_its_reason_and_the_counts_in_the_message() {
        let text = shown(json!({"code": 409, "reason": "NoProxyAvailable",
            "message": "no proxy available in pool crawlers/eu: 2 of 3 AtCapacity, 1 Unhealthy"}));
        assert_eq!(
            text,
            "Error from server (NoProxyAvailable): \
             no proxy available in pool crawlers/eu: 2 of 3 AtCapacity, 1 Unhealthy"
        );
    }

    #[test]
    fn invalid_fields_are_listed_as_kubectl_does() {
        let cause = |field: &str, message: &str| json!({"field": field, "message": message});
        let one = cause("spec.target", "Invalid value: \"a b\"");
        let two = cause("spec.ttlSeconds", "must be at least 10");
        let status = |causes: &[&serde_json::Value]| {
            json!({"code": 422, "reason": "Invalid", "message": "m",
                "details": {"kind": "ProxyLease", "name": "a", "causes": causes}})
        };
        assert_eq!(
            shown(status(&[&one])),
            "The ProxyLease \"a\" is invalid: spec.target: Invalid value: \"a b\""
        );
        assert_eq!(
            shown(status(&[&one, &two])),
            "The ProxyLease \"a\" is invalid: \n* spec.target: Invalid value: \"a b\"\n\
             * spec.ttlSeconds: must be at least 10"
        );
    }

    #[test]
    fn an_api_that_is_not_there_and_a_missing_object_are_told_apart() {
        let text =
            shown(json!({"code": 404, "reason": NO_STATUS, "message": "404 page not found"}));
        assert!(text.contains("is lease-apiserver installed?"), "{text}");
        let message = "namespaces \"a\" not found";
        let text = shown(
            json!({"code": 404, "reason": "NotFound", "message": message,
            "details": {"kind": "namespaces", "name": "a"}}),
        );
        assert_eq!(
            text,
            "Error from server (NotFound): namespaces \"a\" not found"
        );
    }

    #[test]
    fn plain_text_of_the_aggregator_is_shown_as_unavailable() {
        let text = shown(json!({"code": 503, "reason": NO_STATUS, "message": "no endpoints"}));
        assert_eq!(text, "Error from server (ServiceUnavailable): no endpoints");
    }

    #[test]
    fn an_api_without_a_server_is_told_with_verb_and_resource_as_kubectl_does() {
        for (body, more) in [
            ("service unavailable\n", ""),
            ("no endpoints", ": no endpoints"),
        ] {
            let status = json!({"code": 503, "reason": NO_STATUS, "message": body});
            let status: Status = serde_json::from_value(status).expect("a status");
            let failure = Failure::Request(kube::Error::Api(status.boxed()));
            assert_eq!(
                failure
                    .in_request("h:1", "post", "proxyleases.example.com")
                    .to_string(),
                format!(
                    "Error from server (ServiceUnavailable): the server is currently unable to \
                     handle the request (post proxyleases.example.com){more}"
                )
            );
        }
    }

    #[test]
    fn a_refused_connection_names_the_server() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let failure = Failure::Request(kube::Error::Service(refused.into()));
        assert_eq!(
            failure
                .in_request("127.0.0.1:6443", "post", "r")
                .to_string(),
            "The connection to the server 127.0.0.1:6443 was refused - \
             did you specify the right host or port?"
        );
    }

    #[test]
    fn rejected_credentials_are_told_as_kubectl_does() {
        let text = shown(json!({"code": 401, "reason": "Unauthorized", "message": "Unauthorized"}));
        assert_eq!(
            text,
            "error: You must be logged in to the server (Unauthorized)"
        );
    }
}
