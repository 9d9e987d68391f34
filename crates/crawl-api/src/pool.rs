//! `ProxyPool`: a number of Proxies that are alike, and how they are leased together.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::core::{ParseExpressionError, Selector, SelectorExt};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::proxy::ProxySpec;

/// Which of the free proxies a lease gets.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LeasePolicy {
    /// The one with the fewest leases.
    #[default]
    LeastLoaded,
    /// The one with the most leases that has room, so that others stay empty.
    Pack,
}

/// What a pool should be.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "crawl.example.com",
    version = "v1alpha1",
    kind = "ProxyPool",
    plural = "proxypools",
    namespaced,
    status = "ProxyPoolStatus",
    shortname = "pxp",
    category = "crawl",
    derive = "PartialEq",
    cel,
    doc = "A number of Proxies that are alike, and how they are leased together.",
    printcolumn(
        name = "Desired",
        type_ = "integer",
        json_path = ".spec.replicas",
        description = "Members asked for"
    ),
    printcolumn(
        name = "Current",
        type_ = "integer",
        json_path = ".status.replicas",
        description = "Members that exist"
    ),
    printcolumn(
        name = "Updated",
        type_ = "integer",
        json_path = ".status.updatedReplicas",
        description = "Members that are as the template says and not too old"
    ),
    printcolumn(
        name = "Ready",
        type_ = "integer",
        json_path = ".status.readyReplicas",
        description = "Members that can be leased"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Time since the object was created"
    ),
    printcolumn(
        name = "Policy",
        type_ = "string",
        json_path = ".spec.leasePolicy",
        description = "Which free proxy a lease gets",
        priority = 1
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason",
        description = "Why the pool is ready or not",
        priority = 1
    ),
    validation = Rule::new("size(self.metadata.name) <= 57")
        .message("the name of a pool has at most 57 characters: it is a label of its members, and their names are longer"),
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct ProxyPoolSpec {
    /// How many members the pool has.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 0, max = 100_000))]
    pub replicas: i32,
    /// What a member looks like. A change of what needs another machine replaces the members, as
    /// `strategy` has it; any other change is written into those that exist.
    pub template: ProxyTemplate,
    /// How members are replaced, when the template changes or they are too old.
    #[serde(default)]
    pub strategy: PoolStrategy,
    /// How old a member may become, in seconds. It is replaced up to a tenth earlier, so that
    /// members that were created together do not go together. Left out: there is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 600, max = 31_536_000))]
    pub max_age_seconds: Option<u32>,
    /// Other namespaces that may lease from this pool. Its own namespace always may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_namespaces: Option<AllowedNamespaces>,
    /// Which of the free proxies a lease gets: LeastLoaded (the one with the fewest leases) or
    /// Pack (the one with the most that has room).
    #[serde(default)]
    pub lease_policy: LeasePolicy,
    /// How many leases for the same target domain may share one exit IP.
    #[serde(default = "default_max_leases_per_target")]
    #[schemars(range(min = 1, max = 100_000))]
    pub max_leases_per_target: i32,
    /// Where members run, in order of preference: a new member goes to the first placement that is
    /// not paused and has capacity. Empty: where the template says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub placements: Vec<PoolPlacement>,
    /// What the pool may not exceed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<PoolLimits>,
}

/// A place for members. It overrides zone and spot of the template's placement.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase")]
pub struct PoolPlacement {
    /// The provider's zone or location; left out: as the template says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub zone: Option<String>,
    /// Whether the provider may take instances back at any time, at a lower price.
    #[serde(default)]
    pub spot: bool,
    /// No new members here; those that exist stay.
    #[serde(default)]
    pub paused: bool,
    /// What an instance costs here per hour, for `limits.pricePerHour`: a decimal number such as
    /// "0.0084", in the same currency everywhere. Left out: it counts as 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), regex(pattern = "^[0-9]{1,9}([.][0-9]{1,6})?$"))]
    pub price_per_hour: Option<String>,
}

/// How members are replaced: by a surge of new ones, in the manner of a Deployment's rolling update.
///
/// The fields are those of `apps/v1` `RollingUpdateDeployment` and `minReadySeconds` of
/// `DeploymentSpec`, with two differences: `maxUnavailable` is 0 when left out (a Deployment: 25%),
/// because an exit that works is worth more than a fast roll; and a member that is on its way out
/// counts against the surge until its machine is gone, because the machine is paid for until then.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!(string(self.maxSurge) in ['0', '0%'] && string(self.maxUnavailable) in ['0', '0%'])")
        .message("maxUnavailable may not be 0 when maxSurge is 0: no member could ever be replaced")
        .field_path(".maxUnavailable")
)]
pub struct PoolStrategy {
    /// How many members there may be above `replicas` during a roll: a number, or a percentage of
    /// `replicas`, rounded up.
    #[serde(default = "default_max_surge")]
    #[x_kube(
        validation = Rule::new("type(self) == int ? self >= 0 && self <= 100000 : self.matches('^([0-9]|[1-9][0-9]|100)%$')")
            .message("maxSurge must be a number from 0, or a percentage from 0% to 100%")
    )]
    pub max_surge: IntOrString,
    /// How many members fewer than `replicas` may be available during a roll: a number, or a
    /// percentage of `replicas`, rounded down.
    #[serde(default = "default_max_unavailable")]
    #[x_kube(
        validation = Rule::new("type(self) == int ? self >= 0 && self <= 100000 : self.matches('^([0-9]|[1-9][0-9]|100)%$')")
            .message("maxUnavailable must be a number from 0, or a percentage from 0% to 100%")
    )]
    pub max_unavailable: IntOrString,
    /// How long a new member must be Ready before it counts as available, in seconds. The first new
    /// member of a roll is waited for alone.
    #[serde(default)]
    #[schemars(range(min = 0, max = 86_400))]
    pub min_ready_seconds: u32,
}

/// What a pool may not exceed.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PoolLimits {
    /// How many instances are created within an hour at most, replacements included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub creates_per_hour: Option<u32>,
    /// How many members there may be at most, those included that are on their way out. Members
    /// above it are not created, and none is deleted for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100_000))]
    pub replicas: Option<u32>,
    /// What the members may cost per hour together, by `placements[].pricePerHour`: a decimal
    /// number such as "1.50". Members above it are not created, and none is deleted for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), regex(pattern = "^[0-9]{1,9}([.][0-9]{1,6})?$"))]
    pub price_per_hour: Option<String>,
}

fn default_replicas() -> i32 {
    1
}
fn default_max_surge() -> IntOrString {
    IntOrString::String("25%".into())
}
fn default_max_unavailable() -> IntOrString {
    IntOrString::Int(0)
}
fn default_max_leases_per_target() -> i32 {
    1
}

/// What a new member looks like.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ProxyTemplate {
    /// Labels and annotations of the member.
    #[serde(default, skip_serializing_if = "TemplateMetadata::is_empty")]
    pub metadata: TemplateMetadata,
    /// The spec of the member.
    pub spec: ProxySpec,
}

/// Labels and annotations of a pool's members.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TemplateMetadata {
    /// Labels of the member, beside the pool's own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the member.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

impl TemplateMetadata {
    fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.annotations.is_empty()
    }
}

/// Namespaces, by name or by label. A namespace that matches either is meant.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AllowedNamespaces {
    /// Names of namespaces; `*` means all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(min = 1, max = 63)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub names: Vec<String>,
    /// Labels that a namespace must have. An empty selector matches every namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// What a pool is.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ProxyPoolStatus {
    /// Members that exist and are not being deleted.
    #[serde(default)]
    pub replicas: i32,
    /// Members that can be leased.
    #[serde(default)]
    pub ready_replicas: i32,
    /// Members that are as the template says and not too old.
    #[serde(default)]
    pub updated_replicas: i32,
    /// Members that have been Ready for `strategy.minReadySeconds`.
    #[serde(default)]
    pub available_replicas: i32,
    /// The label selector of the members, for the scale subresource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Ready, Progressing, and Withheld while a limit keeps members from being created.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// The metadata.generation that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

// === impl PoolStrategy ===

impl Default for PoolStrategy {
    fn default() -> Self {
        Self {
            max_surge: default_max_surge(),
            max_unavailable: default_max_unavailable(),
            min_ready_seconds: 0,
        }
    }
}

// === impl ProxyPoolSpec ===

impl ProxyPoolSpec {
    /// A pool with this template, everything else as defaulted.
    pub fn of(template: ProxyTemplate) -> Self {
        Self {
            replicas: default_replicas(),
            template,
            strategy: PoolStrategy::default(),
            max_age_seconds: None,
            allowed_namespaces: None,
            lease_policy: LeasePolicy::default(),
            max_leases_per_target: default_max_leases_per_target(),
            placements: Vec::new(),
            limits: None,
        }
    }
}

// === impl ProxyPool ===

impl ProxyPool {
    /// Whether a namespace may lease from this pool without further permission.
    ///
    /// # Errors
    /// The selector has an operator that does not exist; nothing matches it.
    pub fn allows_namespace(
        &self,
        name: &str,
        labels: &BTreeMap<String, String>,
    ) -> Result<bool, ParseExpressionError> {
        if self.metadata.namespace.as_deref() == Some(name) {
            return Ok(true);
        }
        let Some(AllowedNamespaces { names, selector }) = &self.spec.allowed_namespaces else {
            return Ok(false);
        };
        if names
            .iter()
            .any(|allowed| allowed == "*" || allowed == name)
        {
            return Ok(true);
        }
        match selector {
            Some(selector) => Ok(Selector::try_from(selector.clone())?.matches(labels)),
            None => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(allowed: Option<AllowedNamespaces>) -> ProxyPool {
        let template = ProxyTemplate {
            metadata: TemplateMetadata::default(),
            spec: ProxySpec::managed("local"),
        };
        let mut pool = ProxyPool::new(
            "eu",
            ProxyPoolSpec {
                allowed_namespaces: allowed,
                ..ProxyPoolSpec::of(template)
            },
        );
        pool.metadata.namespace = Some("fleet".into());
        pool
    }

    fn labels(team: &str) -> BTreeMap<String, String> {
        BTreeMap::from([("team".into(), team.into())])
    }

    #[test]
    fn a_pool_is_for_its_own_namespace_unless_it_says_more() {
        let closed = pool(None);
        assert!(closed.allows_namespace("fleet", &BTreeMap::new()).unwrap());
        assert!(
            !closed
                .allows_namespace("crawlers", &BTreeMap::new())
                .unwrap()
        );
    }

    #[test]
    fn namespaces_are_allowed_by_name_by_star_and_by_label() {
        let by_name = AllowedNamespaces {
            names: vec!["crawlers".into()],
            selector: None,
        };
        assert!(
            pool(Some(by_name.clone()))
                .allows_namespace("crawlers", &labels("x"))
                .unwrap()
        );
        assert!(
            !pool(Some(by_name))
                .allows_namespace("others", &labels("x"))
                .unwrap()
        );

        let star = AllowedNamespaces {
            names: vec!["*".into()],
            selector: None,
        };
        assert!(
            pool(Some(star))
                .allows_namespace("others", &labels("x"))
                .unwrap()
        );

        let selector = LabelSelector {
            match_labels: Some(labels("crawl")),
            ..LabelSelector::default()
        };
        let by_label = pool(Some(AllowedNamespaces {
            names: vec![],
            selector: Some(selector),
        }));
        assert!(
            by_label
                .allows_namespace("others", &labels("crawl"))
                .unwrap()
        );
        assert!(!by_label.allows_namespace("others", &labels("x")).unwrap());
    }

    #[test]
    fn omitted_fields_of_a_pool_take_their_defaults() {
        let spec: ProxyPoolSpec = serde_json::from_value(serde_json::json!({
            "template": {"spec": {"provider": "local"}}
        }))
        .unwrap();
        assert_eq!((spec.replicas, spec.max_leases_per_target), (1, 1));
        assert_eq!(spec.lease_policy, LeasePolicy::LeastLoaded);
        assert_eq!(spec.strategy, PoolStrategy::default());
        assert_eq!(spec, ProxyPoolSpec::of(spec.template.clone()));
        assert_eq!(spec.template.spec, ProxySpec::managed("local"));
    }
}
