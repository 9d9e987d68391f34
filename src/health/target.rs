//! What the reconciler tells the health engine, and what it hears back.

use std::fmt;
use std::time::Duration;

use crawl_api::address::Endpoint;
use crawl_api::proxy::{HealthCheck, Proxy};
use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;

use super::geo::Location;

/// User name and password of a proxy. Never displayed.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The user name.
    pub username: String,
    /// The password.
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(redacted)")
    }
}

/// A proxy to probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The UID of the Proxy: the key of all state.
    pub uid: String,
    /// The Proxy, for metrics, logs and for poking the reconciler.
    pub proxy: ObjectRef<Proxy>,
    /// Where it listens.
    pub endpoint: Endpoint,
    /// With which credentials.
    pub credentials: Option<Credentials>,
    /// The Secret that they come from, in the namespace of the Proxy.
    pub secret: Option<String>,
    /// How long it may go without a first success until that is said.
    pub patience: Duration,
    /// How long what clients report may speak for it against its probes.
    pub report_limit: Duration,
    /// How it is probed.
    pub check: HealthCheck,
    /// The verdict in status, taken over when the engine does not know the UID yet; counters then
    /// start at 0.
    pub seed: Option<Verdict>,
}

/// Why a failure is hardly the proxy's own: it is not to be replaced for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The reason of the condition FailureCorrelated, one of `crawl_api::conditions`.
    pub reason: String,
    /// What a person needs to know about it.
    pub message: String,
}

/// What is known of a proxy's health.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Whether it is healthy; `None` while no probe has decided.
    pub healthy: Option<bool>,
    /// The reason of the Healthy condition, one of `crawl_api::conditions`.
    pub reason: String,
    /// What a person needs to know about it.
    pub message: String,
    /// The address that targets see, when a probe could tell.
    pub exit_ip: Option<String>,
    /// Where that address is, when known.
    pub location: Location,
    /// How long a successful probe took; moves on large changes only.
    pub latency: Option<Duration>,
    /// Since when `healthy` is what it is.
    pub since: Timestamp,
    /// It changes too often; it is told at most once a minute then.
    pub flapping: bool,
    /// Set only while the proxy is unhealthy.
    pub hold: Option<Hold>,
    /// The probe that last changed this verdict.
    pub last_probe: Option<Timestamp>,
}
