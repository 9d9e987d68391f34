//! A kind with a schema: ours is served by our server, the oracle's is a CustomResourceDefinition with the
//! same schema, since upstream's sample has no schema beyond its Go types.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The group.
pub(crate) const GROUP: &str = "schema.example.com";
/// The version.
pub(crate) const VERSION: &str = "v1";

/// Something with fields of every kind that schemas can express.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, CustomResource)]
#[kube(
    group = "schema.example.com",
    version = "v1",
    kind = "Gadget",
    namespaced,
    shortname = "gdt",
    category = "things",
    status = "GadgetStatus",
    printcolumn = r#"{"name": "Size", "type": "string", "jsonPath": ".spec.size"}"#,
    printcolumn = r#"{"name": "Count", "type": "integer", "jsonPath": ".spec.count", "priority": 1, "description": "How many"}"#,
    printcolumn = r#"{"name": "Phase", "type": "string", "jsonPath": ".status.phase"}"#
)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GadgetSpec {
    /// Whose it is.
    owner: String,
    /// One of three.
    #[serde(default)]
    size: Size,
    /// Between bounds, with a default.
    #[serde(default = "ten")]
    #[schemars(range(min = 1, max = 100))]
    count: i32,
    /// Of some form and length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[a-z]+$"), length(min = 2, max = 8))]
    code: Option<String>,
    /// May be null.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    remark: Option<String>,
    /// A fraction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
    /// A list of limited length.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 3))]
    parts: Vec<Part>,
    /// Names and values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    env: BTreeMap<String, String>,
    /// Has defaults inside.
    #[serde(default)]
    inner: Inner,
    /// A number or a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    port: Option<IntOrString>,
}

/// One of three.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
enum Size {
    Small,
    #[default]
    Medium,
    Large,
}

/// A part.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
struct Part {
    /// Its name.
    name: String,
    /// How many there are.
    #[serde(default = "one")]
    copies: i64,
}

/// Has defaults.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
struct Inner {
    /// On, unless said otherwise.
    #[serde(default = "yes")]
    enabled: bool,
}

impl Default for Inner {
    fn default() -> Self {
        Self { enabled: yes() }
    }
}

/// What was seen.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub(crate) struct GadgetStatus {
    /// A word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    phase: Option<String>,
}

fn ten() -> i32 {
    10
}

fn one() -> i64 {
    1
}

fn yes() -> bool {
    true
}
