//! The parts of `Proxy.spec` that are objects of their own: exit, placement, cloud-init, auth.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How many exits stand behind an endpoint, and who chooses.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ExitMode {
    /// One exit.
    #[default]
    Static,
    /// A gateway: a session in the user name chooses the exit.
    Session,
    /// A gateway that chooses another exit for each connection.
    Rotating,
}

/// How many exits stand behind the endpoint and how one is chosen.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.mode != 'Session' || has(self.session)")
        .message("session is required when exit.mode is Session: say how the session enters the user name")
        .reason(Reason::FieldValueRequired)
        .field_path(".session"),
    validation = Rule::new("self.mode == 'Session' || !has(self.session)")
        .message("session is forbidden unless exit.mode is Session")
        .reason(Reason::FieldValueForbidden)
        .field_path(".session")
)]
pub struct Exit {
    /// Static (one exit), Session (a session in the user name chooses) or Rotating (another one
    /// for each connection).
    #[serde(default)]
    pub mode: ExitMode,
    /// How a session enters the user name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<ExitSession>,
}

/// How a session enters the user name of a gateway.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ExitSession {
    /// The user name, with `{{session}}` where the session goes:
    /// `customer-x-session-{{session}}`.
    #[schemars(length(min = 11, max = 253))]
    #[x_kube(
        validation = Rule::new("self.contains('{{session}}')")
            .message("usernameTemplate must contain {{session}}")
    )]
    pub username_template: String,
    /// Number of characters of a session.
    #[serde(default = "default_session_length")]
    #[schemars(range(min = 4, max = 64))]
    pub length: u8,
    /// The characters a session is made of.
    #[serde(default = "default_session_alphabet")]
    #[schemars(length(min = 2, max = 64))]
    pub alphabet: String,
    /// How long the vendor keeps a session, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 604_800))]
    pub ttl_seconds: Option<u32>,
    /// After how long without traffic the vendor drops a session, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 604_800))]
    pub idle_seconds: Option<u32>,
}

fn default_session_length() -> u8 {
    8
}
fn default_session_alphabet() -> String {
    "abcdefghijklmnopqrstuvwxyz0123456789".into()
}

/// Where and on what a managed instance runs. What is left out is the provider's default.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Placement {
    /// The provider's zone or location, for example `europe-west1-b`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub zone: Option<String>,
    /// The provider's machine type, for example `e2-micro`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub machine_type: Option<String>,
    /// The disk image to boot from, in the provider's notation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,
    /// The provider's network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub network: Option<String>,
    /// The provider's subnetwork.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub subnetwork: Option<String>,
    /// Whether the provider may take the instance back at any time, at a lower price.
    #[serde(default)]
    pub spot: bool,
}

/// First-boot configuration of an instance: exactly one source.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.inline) != has(self.secretRef)")
        .message("exactly one of inline and secretRef is required")
)]
pub struct CloudInit {
    /// The configuration itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65536))]
    pub inline: Option<String>,
    /// A key of a Secret in the same namespace that holds the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretKeyRef>,
}

/// A key of a Secret in the same namespace.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// The name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The key in the Secret's data.
    #[serde(default = "default_cloud_init_key")]
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

fn default_cloud_init_key() -> String {
    "cloud-init".into()
}

/// A Secret in the same namespace.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase")]
pub struct SecretRef {
    /// The name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Who may use the proxy: credentials, and client networks.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!(has(self.secretRef) && self.generate)")
        .message("secretRef and generate exclude each other: bring credentials or have them made")
        .field_path(".generate"),
    validation = Rule::new("!has(self.rotateSeconds) || self.generate")
        .message("rotateSeconds needs generate: the operator cannot change credentials that it did not make")
        .field_path(".rotateSeconds")
)]
pub struct Auth {
    /// A Secret in the same namespace with the keys `username` and `password`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretRef>,
    /// Whether the operator makes credentials and keeps them in the Secret `<name>-proxy-auth`.
    #[serde(default)]
    pub generate: bool,
    /// How often generated credentials change, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 300, max = 31_536_000))]
    pub rotate_seconds: Option<u32>,
    /// Networks in CIDR notation from which the instance accepts clients; empty: the provider's
    /// default.
    #[serde(
        rename = "allowedCIDRs",
        default,
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(length(max = 64), inner(length(min = 3, max = 49)))]
    #[x_kube(
        validation = Rule::new("self.all(network, isCIDR(network))")
            .message("allowedCIDRs must be networks in CIDR notation, for example 198.51.100.0/24")
    )]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub allowed_cidrs: Vec<String>,
}
