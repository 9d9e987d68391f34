//! `ProxyEndpoint`: what may be known about a `Proxy` without access to it, and the answer to the
//! operator's drain.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::lease::LeasedEndpoint;

/// `lastSuccessReportTime` moves in steps of at least this, so it may be behind by as much.
pub const REPORT_STEP: Duration = Duration::from_secs(15);

/// Which proxy a `ProxyEndpoint` shows; it has the same name and namespace.
#[derive(
    CustomResource, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema,
)]
#[kube(
    group = "leases.crawl.example.com",
    version = "v1alpha1",
    kind = "ProxyEndpoint",
    plural = "proxyendpoints",
    singular = "proxyendpoint",
    shortname = "pxe",
    category = "crawl",
    namespaced,
    status = "ProxyEndpointStatus",
    doc = "How a proxy can be leased now: a read-only view that lease-apiserver derives from the Proxy of the same name.",
    derive = "Default",
    derive = "PartialEq",
    printcolumn(
        name = "Endpoint",
        json_path = ".status.url",
        type_ = "string",
        description = "URL of the proxy, without credentials"
    ),
    printcolumn(
        name = "Healthy",
        json_path = ".status.healthy",
        type_ = "boolean",
        description = "Whether traffic goes through it"
    ),
    printcolumn(
        name = "Accepting",
        json_path = ".status.accepting",
        type_ = "boolean",
        description = "Whether new leases are granted"
    ),
    printcolumn(
        name = "Active",
        json_path = ".status.active",
        type_ = "integer",
        description = "Leases that hold a slot"
    ),
    printcolumn(
        name = "Max",
        json_path = ".status.max",
        type_ = "integer",
        description = "Slots"
    ),
    printcolumn(
        name = "Reason",
        json_path = ".status.reason",
        type_ = "string",
        priority = 1,
        description = "Why no new leases are granted"
    ),
    printcolumn(
        name = "ExitIP",
        json_path = ".status.exitIP",
        type_ = "string",
        priority = 1,
        description = "Address that targets see"
    ),
    printcolumn(
        name = "Reported",
        json_path = ".status.lastSuccessReportTime",
        type_ = "date",
        priority = 1,
        description = "Time since a holder last reported that traffic went through"
    ),
    printcolumn(
        name = "Age",
        json_path = ".metadata.creationTimestamp",
        type_ = "date",
        description = "Time since the proxy was first seen"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct ProxyEndpointSpec {
    /// Uid of the proxy.
    #[serde(rename = "proxyUID")]
    pub proxy_uid: String,
}

/// How the proxy can be leased now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProxyEndpointStatus {
    /// Address of the proxy, when it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<LeasedEndpoint>,
    /// The endpoint as a URL, without credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Whether the last probes went through.
    pub healthy: bool,
    /// Whether new leases are granted. Once false in answer to a drain, no grant follows.
    pub accepting: bool,
    /// Why not; one of the reasons of a denial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Leases that hold a slot. The first change is shown at once, further ones within five seconds.
    pub active: i32,
    /// Slots.
    pub max: i32,
    /// Latency of probes, rounded up to a power of two, in milliseconds; 0: unknown.
    pub latency_bucket_milliseconds: i32,
    /// resourceVersion of the `Proxy` this view reflects: every grant after it knew that state.
    pub observed_proxy_resource_version: String,
    /// Address that targets see, when known.
    #[serde(default, rename = "exitIP", skip_serializing_if = "Option::is_none")]
    pub exit_ip: Option<String>,
    /// When a holder last reported that traffic went through, within 15 seconds. Missing: nobody has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_success_report_time: Option<Time>,
}
