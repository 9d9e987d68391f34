//! What a lease asks for, as the allocator looks at it.

use std::sync::Arc;

use crawl_api::names;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::core::Selector;

use super::facts::PoolKey;
use super::ordered::SchemeSet;

/// The proxies among which a lease may be served.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Candidates {
    /// Members of a pool.
    Pool(PoolKey),
    /// All of a namespace.
    Namespace(Arc<str>),
    /// Those of a namespace whose labels match.
    Labels {
        /// The namespace.
        namespace: Arc<str>,
        /// A LabelSelector as JSON.
        selector: Arc<str>,
    },
}

/// What a lease asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Want {
    /// Among which proxies.
    pub candidates: Candidates,
    /// For which registrable domain.
    pub target: Option<Arc<str>>,
    /// With which schemes.
    pub schemes: SchemeSet,
}

impl Candidates {
    /// The proxies of a namespace that a selector matches; an empty selector matches all.
    ///
    /// # Errors
    /// The selector has an operator that does not exist.
    pub fn labels(namespace: &str, selector: &LabelSelector) -> Result<Self, String> {
        let parsed = Selector::try_from(selector.clone()).map_err(|error| error.to_string())?;
        if parsed.selects_all() {
            return Ok(Self::Namespace(namespace.into()));
        }
        let selector = serde_json::to_string(selector).map_err(|error| error.to_string())?;
        Ok(Self::Labels {
            namespace: namespace.into(),
            selector: selector.into(),
        })
    }

    pub(super) fn selector(&self) -> Option<Selector> {
        match self {
            Self::Pool(_) | Self::Namespace(_) => None,
            Self::Labels { selector, .. } => {
                let mut selector: LabelSelector = serde_json::from_str(selector).ok()?;
                exclude_unknown_exits(&mut selector);
                Selector::try_from(selector).ok()
            },
        }
    }
}

/// Whoever asks for "not in this country" does not want a proxy of which nobody knows the country:
/// unlike for other labels, one that is missing does not match `NotIn`.
fn exclude_unknown_exits(selector: &mut LabelSelector) {
    let Some(expressions) = &mut selector.match_expressions else {
        return;
    };
    let known: Vec<_> = expressions
        .iter()
        .filter(|asked| asked.operator == "NotIn" && asked.key.starts_with(names::LABELS_EXIT))
        .map(|asked| LabelSelectorRequirement {
            key: asked.key.clone(),
            operator: "Exists".into(),
            values: None,
        })
        .collect();
    expressions.extend(known);
}

impl std::fmt::Display for Candidates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pool(PoolKey { namespace, name }) => write!(f, "of pool {namespace}/{name}"),
            Self::Namespace(namespace) => write!(f, "in namespace {namespace}"),
            Self::Labels { namespace, .. } => {
                write!(f, "in namespace {namespace} that match the selector")
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kube::core::SelectorExt;

    use super::*;

    #[test]
    fn an_exit_that_nobody_knows_is_not_outside_of_a_country() {
        let selector = |key: &str| LabelSelector {
            match_expressions: Some(vec![LabelSelectorRequirement {
                key: key.into(),
                operator: "NotIn".into(),
                values: Some(vec!["DE".into()]),
            }]),
            match_labels: None,
        };
        let matches = |key: &str, value: Option<&str>| {
            let candidates = Candidates::labels("ns", &selector(key)).unwrap();
            let labels: BTreeMap<_, _> = value
                .map(|value| (key.to_owned(), value.to_owned()))
                .into_iter()
                .collect();
            candidates.selector().unwrap().matches(&labels)
        };
        assert!(matches(names::LABEL_EXIT_COUNTRY, Some("FR")));
        assert!(!matches(names::LABEL_EXIT_COUNTRY, Some("DE")));
        assert!(!matches(names::LABEL_EXIT_COUNTRY, None));
        assert!(matches("tier", None), "as Kubernetes has it");
    }
}
