//! `Proxy`: one exit, either an instance that the operator runs at a provider (Managed) or an
//! endpoint that somebody else runs (External).
//!
//! The fields live here, parts in [`parts`] and [`health_check`], what the operator writes in
//! [`status`], and the questions that more than one program asks about a Proxy in [`questions`].

pub mod health_check;
pub mod parts;
mod questions;
pub mod status;
#[cfg(test)]
mod tests;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::health_check::{Expectations, HealthCheck};
pub use self::parts::{
    Auth, CloudInit, Exit, ExitMode, ExitSession, Placement, SecretKeyRef, SecretRef,
};
pub use self::questions::NotAccepting;
pub use self::status::{Phase, ProxyStatus, Setback};
use crate::address::Endpoint;
use crate::scheme::Scheme;

/// Who runs the proxy.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The operator creates an instance at a provider and deletes it with the object.
    #[default]
    Managed,
    /// Somebody else runs it; the operator only probes it.
    External,
}

/// What happens to a managed proxy's instance when the object is deleted.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DeletionPolicy {
    /// The instance is deleted.
    #[default]
    Delete,
    /// The instance is left running at the provider.
    Abandon,
}

/// What a proxy should be.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[kube(
    group = "crawl.example.com",
    version = "v1alpha1",
    kind = "Proxy",
    plural = "proxies",
    namespaced,
    status = "ProxyStatus",
    shortname = "px",
    category = "crawl",
    derive = "PartialEq",
    cel,
    doc = "One exit for crawlers: an instance that the operator runs at a provider, or an endpoint that somebody else runs.",
    printcolumn(name = "Mode", type_ = "string", json_path = ".spec.mode", description = "Who runs the proxy"),
    printcolumn(name = "Provider", type_ = "string", json_path = ".spec.provider", description = "The provider of a managed proxy"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase", description = "Where the proxy is in its life"),
    printcolumn(name = "IP", type_ = "string", json_path = ".status.ip", description = "The address of the instance"),
    printcolumn(name = "Healthy", type_ = "string", json_path = ".status.conditions[?(@.type==\"Healthy\")].status", description = "Whether real traffic goes through"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp", description = "Time since the object was created"),
    printcolumn(name = "Exit", type_ = "string", json_path = ".status.exitIP", description = "The address that targets see", priority = 1),
    printcolumn(name = "Zone", type_ = "string", json_path = ".status.zone", description = "The provider's zone", priority = 1),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason", description = "Why the proxy is ready or not", priority = 1),
    selectable = ".spec.mode",
    selectable = ".spec.provider",
    selectable = ".status.phase",
    validation = Rule::new("self.spec.mode == oldSelf.spec.mode")
        .message("mode is immutable: create another Proxy and delete this one")
        .field_path(".spec.mode"),
    validation = Rule::new("has(self.spec.provider) == has(oldSelf.spec.provider) && (!has(self.spec.provider) || self.spec.provider == oldSelf.spec.provider)")
        .message("provider is immutable: create another Proxy and delete this one")
        .field_path(".spec.provider")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.mode != 'Managed' || has(self.provider)")
        .message("provider is required when mode is Managed: name one of the operator's providers file")
        .reason(Reason::FieldValueRequired)
        .field_path(".provider"),
    validation = Rule::new("self.mode != 'External' || !has(self.provider)")
        .message("provider is forbidden when mode is External: nothing is created")
        .reason(Reason::FieldValueForbidden)
        .field_path(".provider"),
    validation = Rule::new("self.mode != 'External' || has(self.endpoint)")
        .message("endpoint is required when mode is External: say where the proxy listens")
        .reason(Reason::FieldValueRequired)
        .field_path(".endpoint"),
    validation = Rule::new("self.mode != 'Managed' || !has(self.endpoint)")
        .message("endpoint is forbidden when mode is Managed: the instance's address is in status.endpoint")
        .reason(Reason::FieldValueForbidden)
        .field_path(".endpoint"),
    validation = Rule::new("self.mode != 'External' || !has(self.scheme)")
        .message("scheme is forbidden when mode is External: say it in endpoint.scheme")
        .reason(Reason::FieldValueForbidden)
        .field_path(".scheme"),
    validation = Rule::new("self.mode != 'External' || !has(self.auth) || !self.auth.generate")
        .message("auth.generate is forbidden when mode is External: put the vendor's credentials into a Secret and name it in auth.secretRef")
        .reason(Reason::FieldValueForbidden)
        .field_path(".auth")
)]
pub struct ProxySpec {
    /// Who runs the proxy: Managed (the operator, at a provider) or External (somebody else).
    /// Immutable.
    #[serde(default)]
    pub mode: Mode,
    /// A name from the operator's providers file. Required for Managed, forbidden for External,
    /// immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    )]
    pub provider: Option<String>,
    /// Where an External proxy listens. Forbidden for Managed: there the address is in
    /// status.endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Endpoint>,
    /// How many exits stand behind the endpoint and how one is chosen.
    #[serde(default)]
    pub exit: Exit,
    /// Where and on what a managed instance runs. What is left out is the provider's default.
    /// A change replaces the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// First-boot configuration of a managed instance. A change replaces the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud_init: Option<CloudInit>,
    /// What the proxy on a managed instance speaks: http, https or socks5; left out: http. It says
    /// what cloudInit installs; a change alone publishes the instance that is there anew. Forbidden
    /// for External: there endpoint.scheme says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheme: Option<Scheme>,
    /// The TCP port on which a managed instance's proxy listens. A change replaces the instance.
    #[serde(default = "default_port")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// How many leases may hold this proxy at once. 0: it is not leased at all.
    #[serde(default = "default_max_leases")]
    #[schemars(range(min = 0, max = 100_000))]
    pub max_leases: i32,
    /// Who may use the proxy: credentials, and client networks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<Auth>,
    /// How real traffic is sent through the proxy to find out whether it works.
    #[serde(default)]
    pub health_check: HealthCheck,
    /// No new leases; leases that exist stay.
    #[serde(default)]
    pub cordoned: bool,
    /// No new leases, and leases that exist are asked to go within drainTimeoutSeconds.
    #[serde(default)]
    pub drain: bool,
    /// The operator leaves the object and its instance alone, except for probing; a deletion waits
    /// too.
    #[serde(default)]
    pub paused: bool,
    /// How long leases may keep a proxy that is being drained, in seconds. Then they are cut.
    #[serde(default = "default_drain_timeout")]
    #[schemars(range(min = 0, max = 604_800))]
    pub drain_timeout_seconds: u32,
    /// How long an instance may take until it runs and has an address, in seconds. Then it is
    /// replaced.
    #[serde(default = "default_provisioning_timeout")]
    #[schemars(range(min = 1, max = 86_400))]
    pub provisioning_timeout_seconds: u32,
    /// How long a running instance may be unhealthy, in seconds. Then it is replaced.
    #[serde(default = "default_unhealthy_timeout")]
    #[schemars(range(min = 1, max = 604_800))]
    pub unhealthy_timeout_seconds: u32,
    /// What happens to the instance when the object is deleted.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
    /// Domains this proxy may be leased for; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(min = 1, max = 253)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub allowed_targets: Vec<String>,
    /// Domains this proxy is never leased for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(min = 1, max = 253)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub denied_targets: Vec<String>,
}

fn default_port() -> u16 {
    3128
}
fn default_max_leases() -> i32 {
    5
}
fn default_drain_timeout() -> u32 {
    900
}
fn default_provisioning_timeout() -> u32 {
    600
}
fn default_unhealthy_timeout() -> u32 {
    300
}

// === impl ProxySpec ===

impl ProxySpec {
    /// A managed proxy at a provider, everything else as defaulted.
    pub fn managed(provider: &str) -> Self {
        Self {
            provider: Some(provider.into()),
            ..Self::defaulted(Mode::Managed)
        }
    }

    /// An external proxy, everything else as defaulted.
    pub fn external(endpoint: Endpoint) -> Self {
        Self {
            endpoint: Some(endpoint),
            ..Self::defaulted(Mode::External)
        }
    }

    /// What a managed instance's proxy speaks.
    ///
    /// Why not a default of the schema: it would stand in every External proxy too, and contradict
    /// endpoint.scheme there.
    pub fn instance_scheme(&self) -> Scheme {
        self.scheme.unwrap_or_default()
    }

    fn defaulted(mode: Mode) -> Self {
        Self {
            mode,
            provider: None,
            endpoint: None,
            exit: Exit::default(),
            placement: None,
            cloud_init: None,
            scheme: None,
            port: default_port(),
            max_leases: default_max_leases(),
            auth: None,
            health_check: HealthCheck::default(),
            cordoned: false,
            drain: false,
            paused: false,
            drain_timeout_seconds: default_drain_timeout(),
            provisioning_timeout_seconds: default_provisioning_timeout(),
            unhealthy_timeout_seconds: default_unhealthy_timeout(),
            deletion_policy: DeletionPolicy::default(),
            allowed_targets: Vec::new(),
            denied_targets: Vec::new(),
        }
    }
}
