//! `Proxy.spec.healthCheck`: which traffic is sent through the proxy and what must come back.

use std::time::Duration;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// How real traffic is sent through the proxy, and what must come back.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.timeoutSeconds <= self.intervalSeconds")
        .message("timeoutSeconds must not exceed intervalSeconds: two probes of one proxy never overlap")
        .field_path(".timeoutSeconds")
)]
pub struct HealthCheck {
    /// URLs to fetch through the proxy, taken in turn. When set, they are used instead of probeUrl.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    // Why a pattern here: it names the index of the URL that is wrong, which a rule cannot.
    #[schemars(
        length(max = 8),
        inner(length(max = 2048), regex(pattern = "^https?://[^/?#@]+([/?#]|$)"))
    )]
    pub probes: Vec<String>,
    /// The short form of probes: one URL.
    #[serde(default = "default_probe_url")]
    #[schemars(length(max = 2048))]
    #[x_kube(
        validation = Rule::new("self.matches('^https?://[^/?#@]+([/?#]|$)')")
            .message("probeUrl must be an http:// or https:// URL with a host, without user name")
    )]
    pub probe_url: String,
    /// Time between the starts of two probes, in seconds.
    #[serde(default = "default_interval")]
    #[schemars(range(min = 1, max = 86_400))]
    pub interval_seconds: u32,
    /// How long one probe may take, in seconds.
    #[serde(default = "default_timeout")]
    #[schemars(range(min = 1, max = 300))]
    pub timeout_seconds: u32,
    /// Failed probes in a row that make a healthy proxy unhealthy.
    #[serde(default = "default_failure_threshold")]
    #[schemars(range(min = 1, max = 100))]
    pub failure_threshold: u32,
    /// Successful probes in a row that make an unhealthy proxy healthy.
    #[serde(default = "default_success_threshold")]
    #[schemars(range(min = 1, max = 100))]
    pub success_threshold: u32,
    /// Status codes of the target that count as success.
    #[serde(default = "default_status_codes")]
    #[schemars(length(min = 1, max = 32), inner(range(min = 100, max = 599)))]
    pub expected_status_codes: Vec<u16>,
    /// What else must be true of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<Expectations>,
}

/// What must be true of a probe's answer beyond its status code.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Expectations {
    /// The address at which the request must come out. Needs a probe that tells it, such as the
    /// operator's echo endpoint.
    #[serde(rename = "exitIP", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 45))]
    pub exit_ip: Option<String>,
    /// The country of the exit, as an ISO 3166 code of two capital letters. Needs the operator's
    /// GeoIP database besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 2), regex(pattern = "^[A-Z]{2}$"))]
    pub country: Option<String>,
    /// A regular expression that the first 64 KiB of the body must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub body_regex: Option<String>,
    /// The SHA-256 of the whole body, in lower-case hexadecimal. A body longer than 64 KiB never
    /// matches.
    #[serde(
        rename = "bodySHA256",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(min = 64, max = 64), regex(pattern = "^[0-9a-f]{64}$"))]
    pub body_sha256: Option<String>,
}

// === impl Expectations ===

impl Expectations {
    /// Whether anything is asked of the body, which only a URL of one's own can answer.
    pub fn is_about_body(&self) -> bool {
        self.body_regex.is_some() || self.body_sha256.is_some()
    }

    /// Whether anything is asked of the exit, which only the echo target can tell.
    pub fn is_about_exit(&self) -> bool {
        self.exit_ip.is_some() || self.country.is_some()
    }
}

fn default_probe_url() -> String {
    "https://www.gstatic.com/generate_204".into()
}
fn default_interval() -> u32 {
    30
}
fn default_timeout() -> u32 {
    5
}
fn default_failure_threshold() -> u32 {
    3
}
fn default_success_threshold() -> u32 {
    1
}
fn default_status_codes() -> Vec<u16> {
    vec![200, 204]
}

impl Default for HealthCheck {
    fn default() -> Self {
        Self {
            probes: Vec::new(),
            probe_url: default_probe_url(),
            interval_seconds: default_interval(),
            timeout_seconds: default_timeout(),
            failure_threshold: default_failure_threshold(),
            success_threshold: default_success_threshold(),
            expected_status_codes: default_status_codes(),
            expect: None,
        }
    }
}

// === impl HealthCheck ===

impl HealthCheck {
    /// The URLs to probe, at least one.
    pub fn targets(&self) -> Vec<&str> {
        if self.probes.is_empty() {
            vec![self.probe_url.as_str()]
        } else {
            self.probes.iter().map(String::as_str).collect()
        }
    }

    /// Whether the URLs are somebody's choice, not the default.
    pub fn has_own_targets(&self) -> bool {
        !self.probes.is_empty() || self.probe_url != default_probe_url()
    }

    /// Time between the starts of two probes.
    pub fn interval(&self) -> Duration {
        Duration::from_secs(u64::from(self.interval_seconds))
    }

    /// How long one probe may take.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(u64::from(self.timeout_seconds))
    }
}
