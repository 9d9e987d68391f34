//! What proxy-operator's admin endpoint answers about providers and single proxies: `/providers` and
//! `/proxies/NAMESPACE/NAME`. Both ask the provider at the time; nothing in them is secret.

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The answer to `/providers`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProvidersView {
    /// The providers of the providers file, by name.
    pub providers: Vec<ProviderView>,
}

/// A provider as its account was just found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProviderView {
    /// What `Proxy.spec.provider` says.
    pub name: String,
    /// Type and account: `gcp PROJECT`.
    pub account: String,
    /// When the account was asked.
    pub checked_at: Timestamp,
    /// Why it cannot be used, if so.
    pub refusal: Option<Refusal>,
    /// How many calls may be made at once now; none: no limit is known.
    pub calls_left: Option<u32>,
    /// How long the account asked to be left alone yet, in seconds; 0: it did not.
    pub rest_seconds: u64,
    /// How often quota or stock was lacking since the operator started.
    pub quota_errors: u64,
    /// The last time.
    pub last_quota_error: Option<QuotaError>,
}

/// A call that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    /// As the reason of a condition: `CredentialsRejected`.
    pub reason: String,
    /// In words.
    pub message: String,
}

/// Quota or stock was lacking.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QuotaError {
    /// When.
    pub at: Timestamp,
    /// The provider's words.
    pub message: String,
}

/// The answer to `/proxies/NAMESPACE/NAME`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProxyView {
    /// The UID of the object that was looked at.
    pub uid: String,
    /// When the provider was asked.
    pub at: Timestamp,
    /// What the provider says, if it is one of the providers file.
    pub instance: Option<InstanceView>,
    /// Why the provider does not say it.
    pub refusal: Option<Refusal>,
    /// What the health engine of this replica knows; none: it does not probe the proxy.
    pub probe: Option<ProbeView>,
}

/// An instance at its provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceView {
    /// The provider's identity of it.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Provisioning, Running, Stopping or Stopped.
    pub state: String,
    /// Its address.
    pub ip: Option<String>,
    /// Its zone.
    pub zone: String,
    /// When the provider accepted it.
    pub created: Timestamp,
}

/// What the last probes say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbeView {
    /// Whether it works; none: no probe has decided.
    pub healthy: Option<bool>,
    /// The reason of the condition Healthy.
    pub reason: String,
    /// In words.
    pub message: String,
    /// Since when it is so.
    pub since: Timestamp,
    /// The probe that last changed it.
    pub last_probe: Option<Timestamp>,
    /// How long a successful probe took, in milliseconds.
    pub latency_milliseconds: Option<u64>,
    /// The address that targets see.
    pub exit_ip: Option<String>,
}
