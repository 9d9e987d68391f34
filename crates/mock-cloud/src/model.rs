//! The types on the wire of the mock cloud's HTTP API, used by the server and the client alike.

use std::{collections::BTreeMap, fmt, net::Ipv4Addr};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Names and values attached to an instance by whoever creates it.
pub type Labels = BTreeMap<String, String>;

/// A request for an instance; the body of `POST /v1/zones/{zone}/instances`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateInstance {
    /// Unique within the zone: lower-case letters, digits and dashes, at most 63 characters.
    pub name: String,
    /// What [`ListInstances`] selects by.
    #[serde(default)]
    pub labels: Labels,
    /// Free text a real machine would read at boot. Kept, never interpreted.
    #[serde(default)]
    pub metadata: Labels,
    /// The boot script. Kept, never interpreted: a mock instance is always a proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud_init: Option<String>,
    /// The port the proxy listens on; not 0.
    pub port: u16,
    /// Basic authentication the proxy asks for; none lets everybody through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<ProxyAuth>,
}

/// A user name and a password of a proxy. `Debug` shows neither.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProxyAuth {
    /// Without a colon, as Basic authentication cannot carry one.
    pub username: String,
    /// Any text.
    pub password: String,
}

impl fmt::Debug for ProxyAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProxyAuth(..)")
    }
}

/// Where an instance is in its life. After `Stopping` a deleted instance is not found any more,
/// a preempted one stays `Terminated` until it is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum InstanceState {
    /// Accepted and booting; has no address yet.
    Provisioning,
    /// Booted; its proxy listens.
    Running,
    /// Being deleted or preempted; its port refuses.
    Stopping,
    /// Preempted; keeps its name until it is deleted.
    Terminated,
}

/// An instance as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Instance {
    /// Given by the cloud, never used twice.
    pub id: String,
    /// As asked for.
    pub name: String,
    /// As asked for.
    pub zone: String,
    /// As asked for.
    pub labels: Labels,
    /// As asked for.
    pub metadata: Labels,
    /// At the time of the answer.
    pub state: InstanceState,
    /// The address the proxy listens on and dials from; only while `RUNNING`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<Ipv4Addr>,
    /// The port the proxy listens on.
    pub port: u16,
    /// When the cloud accepted it.
    pub created_at: Timestamp,
}

/// The answer to a create.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Created {
    /// The new instance, `PROVISIONING`.
    pub instance: Instance,
    /// The id of the operation that brings it up.
    pub operation: String,
}

/// The answer to a delete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deleting {
    /// The id of the operation that takes the instance away.
    pub operation: String,
}

/// What [`Operation`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OperationKind {
    /// An instance is being created.
    Insert,
    /// An instance is being deleted.
    Delete,
}

/// Work the cloud does after it has answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Operation {
    /// As told in the answer that started it.
    pub id: String,
    /// What it does.
    pub kind: OperationKind,
    /// The zone of the instance.
    pub zone: String,
    /// The name of the instance.
    pub target: String,
    /// Whether it has ended.
    pub done: bool,
    /// Why it failed: a create whose operation failed leaves no instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorBody>,
}

/// What an instance wrote to its console.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Console {
    /// All of it.
    pub contents: String,
}

/// Selects instances; the query of `GET /v1/instances`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListInstances {
    /// Only this zone.
    pub zone: Option<String>,
    /// Only instances that carry every one of these labels.
    pub labels: Labels,
}

/// The answer to a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceList {
    /// In the order of their creation.
    pub items: Vec<Instance>,
}

/// What kind of refusal an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ErrorCode {
    /// No such instance, operation or path: 404.
    NotFound,
    /// The name is in use in the zone: 409.
    AlreadyExists,
    /// The account may not have more: 403.
    QuotaExceeded,
    /// The zone has no machine to give: 503.
    ZoneResourcesExhausted,
    /// The request can never succeed: 400.
    Invalid,
    /// The caller may not do this: 403.
    Forbidden,
    /// The caller's credentials are not accepted: 401.
    Unauthorized,
    /// Too many requests: 429 with `Retry-After`.
    RateLimited,
    /// The cloud itself has a problem: 503.
    BackendError,
    /// A code this version does not know.
    #[serde(other)]
    Unknown,
}

impl ErrorCode {
    /// The HTTP status it is answered with.
    pub fn status(self) -> u16 {
        match self {
            Self::Invalid => 400,
            Self::Unauthorized => 401,
            Self::QuotaExceeded | Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::AlreadyExists => 409,
            Self::RateLimited => 429,
            Self::Unknown => 500,
            Self::ZoneResourcesExhausted | Self::BackendError => 503,
        }
    }
}

/// A refusal in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ErrorBody {
    /// For programs.
    pub code: ErrorCode,
    /// For people.
    pub message: String,
}

/// The body of every answer that is an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorAnswer {
    /// What went wrong.
    pub error: ErrorBody,
}
