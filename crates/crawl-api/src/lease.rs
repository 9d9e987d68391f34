//! `ProxyLease` and its `renew` subresource: what a crawler asks for and what it gets.
//!
//! Served by lease-apiserver, never stored in kube-apiserver: the [`kube::CustomResource`] derive is
//! used as the declaration (names, schema, columns), not to install a CustomResourceDefinition.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, ObjectMeta, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::report::Traffic;
use crate::scheme::Scheme;

/// API group of everything lease-apiserver owns.
pub const LEASE_GROUP: &str = "leases.crawl.example.com";
/// Version of [`LEASE_GROUP`].
pub const LEASE_VERSION: &str = "v1alpha1";

/// Verb on `proxyleases` that lets a caller change, renew and delete leases of other holders.
pub const VERB_MANAGE: &str = "manage";
/// Verb on `proxypools` that lets a caller lease from a pool of another namespace.
pub const VERB_LEASE: &str = "lease";

/// Status reason of a denied create: no proxy can be leased now. Comes with HTTP 409, the counts per
/// [`denial`] reason in `details.causes`, and `retryAfterSeconds`.
pub const REASON_NO_PROXY_AVAILABLE: &str = "NoProxyAvailable";

/// Status reason of a refused create: its `requestID` has made a lease with another spec. Comes with
/// HTTP 409; trying again is useless.
pub const REASON_REQUEST_ID_REUSED: &str = "RequestIDReused";

/// Why a candidate proxy could not be leased: the reasons in `details.causes` of a denial.
pub mod denial {
    /// All `maxLeases` slots are taken.
    pub const AT_CAPACITY: &str = "AtCapacity";
    /// `maxLeasesPerTarget` leases for the wanted target are active on the same exit IP.
    pub const AT_TARGET_CAPACITY: &str = "AtTargetCapacity";
    /// The last probes failed, or none has succeeded yet.
    pub const UNHEALTHY: &str = "Unhealthy";
    /// The proxy is being drained or deleted.
    pub const DRAINING: &str = "Draining";
    /// `spec.cordoned` is set.
    pub const CORDONED: &str = "Cordoned";
    /// `maxLeases` is 0.
    pub const UNLEASABLE: &str = "Unleasable";
    /// The proxy speaks none of the wanted schemes.
    pub const SCHEME_MISMATCH: &str = "SchemeMismatch";
    /// The proxy's `allowedTargets` or `deniedTargets` exclude the wanted target.
    pub const TARGET_NOT_ALLOWED: &str = "TargetNotAllowed";
    /// An older waiter has a claim on the free slots.
    pub const RESERVED_FOR_WAITERS: &str = "ReservedForWaiters";
}

/// The right to use one proxy until a time.
#[derive(CustomResource, Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "leases.crawl.example.com",
    version = "v1alpha1",
    kind = "ProxyLease",
    plural = "proxyleases",
    singular = "proxylease",
    shortname = "pxl",
    category = "crawl",
    namespaced,
    status = "ProxyLeaseStatus",
    doc = "The right to use one proxy until a time. Creating it takes the slot, deleting it gives the slot back.",
    derive = "Default",
    derive = "PartialEq",
    printcolumn(
        name = "Phase",
        json_path = ".status.phase",
        type_ = "string",
        description = "Pending, Bound, Expired or Revoked"
    ),
    printcolumn(
        name = "Proxy",
        json_path = ".status.proxy.name",
        type_ = "string",
        description = "The leased proxy"
    ),
    printcolumn(
        name = "Endpoint",
        json_path = ".status.proxyURL",
        type_ = "string",
        description = "URL to use as the proxy, without credentials"
    ),
    printcolumn(
        name = "Target",
        json_path = ".status.target",
        type_ = "string",
        description = "Registrable domain the lease is for"
    ),
    printcolumn(
        name = "Expires",
        json_path = ".status.expiresAt",
        type_ = "string",
        description = "When the lease ends unless renewed"
    ),
    printcolumn(
        name = "Holder",
        json_path = ".status.holder.username",
        type_ = "string",
        priority = 1,
        description = "Who holds it"
    ),
    printcolumn(
        name = "Pod",
        json_path = ".status.holder.podName",
        type_ = "string",
        priority = 1,
        description = "The pod whose end ends the lease"
    ),
    printcolumn(
        name = "ExitIP",
        json_path = ".status.exitIP",
        type_ = "string",
        priority = 1,
        description = "Address that targets see"
    ),
    printcolumn(
        name = "Age",
        json_path = ".metadata.creationTimestamp",
        type_ = "date",
        description = "Time since the create"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct ProxyLeaseSpec {
    /// The pool to lease from. Exactly one of poolRef and selector, or neither for any proxy of the
    /// namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_ref: Option<PoolRef>,

    /// Labels of the proxies to lease from, in the lease's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,

    /// The site this lease is for, as a host name or URL; `status.target` is the registrable domain
    /// it counts for (`example.co.uk` for `www.shop.example.co.uk`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048))]
    pub target: Option<String>,

    /// Seconds until the lease ends unless it is renewed: 10 to 3600, and up to 86400 for a caller
    /// whose token is bound to a pod.
    #[serde(default = "default_ttl_seconds")]
    #[schemars(range(min = 10, max = 86400))]
    pub ttl_seconds: i32,

    /// Schemes of the proxy endpoint the client can speak.
    #[serde(default = "default_schemes")]
    #[schemars(length(min = 1, max = 3))]
    pub schemes: Vec<Scheme>,

    /// Seconds to wait for a free proxy: 0 answers at once, more leaves the lease Pending until one
    /// is bound or the time is up.
    #[serde(default)]
    #[schemars(range(min = 0, max = 3600))]
    pub wait_seconds: i32,

    /// Idempotency key for creates with generateName: repeats by the same holder within the ttl
    /// give the same lease, and are refused when they ask for something else.
    #[serde(default, rename = "requestID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub request_id: Option<String>,
}

impl Default for ProxyLeaseSpec {
    /// What the server makes of an empty spec.
    fn default() -> Self {
        Self {
            pool_ref: None,
            selector: None,
            target: None,
            ttl_seconds: default_ttl_seconds(),
            schemes: default_schemes(),
            wait_seconds: 0,
            request_id: None,
        }
    }
}

fn default_ttl_seconds() -> i32 {
    300
}

fn default_schemes() -> Vec<Scheme> {
    vec![Scheme::Http, Scheme::Https]
}

/// A `ProxyPool`, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolRef {
    /// Name of the pool.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Namespace of the pool; the lease's own when omitted. Another one needs the pool's
    /// allowedNamespaces or the verb `lease` on the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub namespace: Option<String>,
}

/// Where a lease is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
pub enum LeasePhase {
    /// Waiting for a proxy.
    #[default]
    Pending,
    /// Holds a slot of `status.proxy`.
    Bound,
    /// Its time was up, or its wait.
    Expired,
    /// Taken back before its time; the Bound condition says why.
    Revoked,
}

/// What the server decided.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProxyLeaseStatus {
    /// Where the lease is in its life.
    #[serde(default)]
    pub phase: LeasePhase,
    /// The leased proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<LeasedProxy>,
    /// Where to connect to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<LeasedEndpoint>,
    /// The endpoint as a URL, without credentials.
    #[serde(default, rename = "proxyURL", skip_serializing_if = "Option::is_none")]
    pub proxy_url: Option<String>,
    /// Address that targets see, when known.
    #[serde(default, rename = "exitIP", skip_serializing_if = "Option::is_none")]
    pub exit_ip: Option<String>,
    /// Registrable domain of `spec.target`: leases for one site are counted by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// When the slot was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acquired_at: Option<Time>,
    /// When the lease was last renewed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renewed_at: Option<Time>,
    /// When the lease ends unless it is renewed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// Fencing token: grows with every grant of the same proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_token: Option<i64>,
    /// Who holds the lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<Holder>,
    /// `Bound` and, while the proxy is being drained, `Draining`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// A `Proxy`, exactly.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeasedProxy {
    /// Namespace of the proxy.
    pub namespace: String,
    /// Name of the proxy.
    pub name: String,
    /// Uid of the proxy.
    pub uid: String,
}

/// Address of the proxy.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeasedEndpoint {
    /// How to speak to the proxy.
    pub scheme: Scheme,
    /// Host name or address.
    pub host: String,
    /// Port.
    pub port: u16,
}

/// Who holds a lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Holder {
    /// The authenticated user.
    pub username: String,
    /// The pod the caller's token is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_name: Option<String>,
    /// Uid of that pod: when it goes, the lease ends.
    #[serde(default, rename = "podUID", skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
}

/// Body of `POST …/proxyleases/<name>/renew`: extends the lease by its ttl from now.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeaseRenewal {
    /// `leases.crawl.example.com/v1alpha1`.
    #[serde(default)]
    pub api_version: String,
    /// `LeaseRenewal`.
    #[serde(default)]
    pub kind: String,
    /// Name and namespace of the lease.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What went through the proxy since the last renewal, for those who count it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<Traffic>,
    /// The answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<LeaseRenewalStatus>,
}

/// Answer to a renewal.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeaseRenewalStatus {
    /// When the lease now ends.
    pub expires_at: Time,
    /// The same, in seconds from now: immune to clock differences.
    pub remaining_seconds: i32,
    /// The proxy is being drained: no renewal goes past this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_deadline: Option<Time>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_spec_is_what_an_empty_one_means() {
        let empty: ProxyLeaseSpec = serde_json::from_str("{}").unwrap();
        assert_eq!(ProxyLeaseSpec::default(), empty);
    }
}
