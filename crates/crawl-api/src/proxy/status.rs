//! `Proxy.status`: written by the operator alone.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::address::Endpoint;

/// Where a proxy is in its life, for people. Programs read conditions.
#[derive(
    Serialize,
    Deserialize,
    JsonSchema,
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
)]
pub enum Phase {
    /// Nothing exists yet, or what exists is being looked for.
    #[default]
    Pending,
    /// The instance was requested and does not run, has no address, or was not probed yet.
    Provisioning,
    /// It can be leased.
    Ready,
    /// It has an address, and traffic does not go through.
    Unhealthy,
    /// It waits for its leases to end.
    Draining,
    /// Its instance is being exchanged for another.
    Replacing,
    /// The object and its instance are being deleted.
    Deleting,
    /// Only a changed spec, or somebody at the provider, can help.
    Failed,
}

impl Phase {
    /// Every phase, for metrics that show zeros too.
    pub const ALL: [Self; 8] = [
        Self::Pending,
        Self::Provisioning,
        Self::Ready,
        Self::Unhealthy,
        Self::Draining,
        Self::Replacing,
        Self::Deleting,
        Self::Failed,
    ];

    /// As it is written in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Provisioning => "Provisioning",
            Self::Ready => "Ready",
            Self::Unhealthy => "Unhealthy",
            Self::Draining => "Draining",
            Self::Replacing => "Replacing",
            Self::Deleting => "Deleting",
            Self::Failed => "Failed",
        }
    }
}

/// An instance that was given up.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Setback {
    /// When.
    pub time: Time,
    /// ProvisioningTimedOut, UnhealthyTimedOut, BootstrapFailed, AddressReissued or Preempted.
    pub reason: String,
    /// The address that it had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The metadata.generation it was of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
}

/// What a proxy is.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ProxyStatus {
    /// Where the proxy is in its life, for people. Programs read conditions.
    #[serde(default)]
    pub phase: Phase,
    /// Where the proxy listens: the only address that probes and leases use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Endpoint>,
    /// The address of the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<String>,
    /// The address that targets see, learnt by probing.
    #[serde(rename = "exitIP", default, skip_serializing_if = "Option::is_none")]
    pub exit_ip: Option<String>,
    /// The provider's zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// The country of the exit, as an ISO 3166 code, when known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub country: Option<String>,
    /// The autonomous system number of the exit, when known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asn: Option<i64>,
    /// The instance at the provider, with its zone.
    #[serde(
        rename = "providerID",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub provider_id: Option<String>,
    /// The provider's operation that creates the instance, asked once for its error when the
    /// instance does not appear.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// The resourceVersion of a state of this object that already asked for a drain. Present only
    /// while draining; the instance is kept until the lease API has seen that state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_mark: Option<String>,
    /// The instances that were given up of late because they failed or were taken back, the newest
    /// last. Entries older than an hour count for nothing and are dropped with the next one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub setbacks: Vec<Setback>,
    /// Provisioned, Healthy, Ready; Drained while draining, Withheld while something is withheld.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// The last probe that changed this status. How recent probes are is in the metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_health_check_time: Option<Time>,
    /// How long a probe took, in milliseconds. Updated on large changes only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_milliseconds: Option<i64>,
    /// The metadata.generation that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}
