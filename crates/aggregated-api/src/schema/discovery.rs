//! Discovery documents: legacy (`APIResourceList`, `APIGroup`) and aggregated v2.
//!
//! Built once from what is registered, in sorted order, so that all replicas serve the same bytes.

use std::sync::Arc;

use data_encoding::{BASE64, HEXUPPER};
use serde_json::{Value, json};
use sha2::{Digest, Sha256, Sha512};

use super::declaration::Declaration;

/// What is served of one kind.
#[derive(Clone, Debug)]
pub struct ServedKind {
    /// The kind.
    pub declaration: Arc<Declaration>,
    /// Verbs of the main resource, sorted.
    pub verbs: Vec<&'static str>,
    /// Named subresources, sorted by name.
    pub subresources: Vec<ServedSubresource>,
}

/// What is served of one subresource.
#[derive(Clone, Debug)]
pub struct ServedSubresource {
    /// Path segment.
    pub name: &'static str,
    /// Kind of its body.
    pub kind: &'static str,
    /// Verbs, sorted.
    pub verbs: Vec<&'static str>,
    /// Schema of its body as an OpenAPI v3 object.
    pub schema: Value,
}

/// The documents of one group-version.
#[derive(Debug)]
pub struct GroupVersionDiscovery {
    /// API group.
    pub group: String,
    /// API version.
    pub version: String,
    kinds: Vec<ServedKind>,
}

impl GroupVersionDiscovery {
    /// Collects the kinds of one group-version.
    pub fn new(group: &str, version: &str, mut kinds: Vec<ServedKind>) -> Self {
        kinds.sort_by(|a, b| {
            a.declaration
                .resource
                .resource
                .cmp(&b.declaration.resource.resource)
        });
        Self {
            group: group.to_owned(),
            version: version.to_owned(),
            kinds,
        }
    }

    /// The kinds, sorted by plural name.
    pub fn kinds(&self) -> &[ServedKind] {
        &self.kinds
    }

    /// `GET /apis/<group>/<version>`.
    pub fn resource_list(&self) -> Value {
        let mut resources = Vec::new();
        for kind in &self.kinds {
            let declaration = &kind.declaration;
            let mut entry = json!({
                "name": declaration.resource.resource,
                "singularName": declaration.singular,
                "namespaced": declaration.namespaced,
                "kind": declaration.kind,
                "verbs": kind.verbs,
                "storageVersionHash": self.storage_version_hash(declaration),
            });
            if !declaration.short_names.is_empty() {
                entry["shortNames"] = json!(declaration.short_names);
            }
            if !declaration.categories.is_empty() {
                entry["categories"] = json!(declaration.categories);
            }
            resources.push(entry);
            for sub in &kind.subresources {
                resources.push(json!({
                    "name": format!("{}/{}", declaration.resource.resource, sub.name),
                    "singularName": "",
                    "namespaced": declaration.namespaced,
                    "kind": sub.kind,
                    "verbs": sub.verbs,
                }));
            }
        }
        json!({
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": format!("{}/{}", self.group, self.version),
            "resources": resources,
        })
    }

    fn storage_version_hash(&self, declaration: &Declaration) -> String {
        let text = format!("{}/{}/{}", self.group, self.version, declaration.kind);
        BASE64.encode(Sha256::digest(text).get(..8).unwrap_or_default())
    }

    /// `GET /apis/<group>`.
    pub fn group(&self) -> Value {
        let version = json!({
            "groupVersion": format!("{}/{}", self.group, self.version),
            "version": self.version,
        });
        json!({
            "kind": "APIGroup",
            "apiVersion": "v1",
            "name": self.group,
            "versions": [version],
            "preferredVersion": version,
        })
    }

    fn aggregated(&self) -> Value {
        let response_kind =
            |kind: &str| json!({"group": self.group, "version": self.version, "kind": kind});
        let resources: Vec<_> = self
            .kinds
            .iter()
            .map(|kind| {
                let declaration = &kind.declaration;
                let mut entry = json!({
                    "resource": declaration.resource.resource,
                    "responseKind": response_kind(&declaration.kind),
                    "scope": if declaration.namespaced { "Namespaced" } else { "Cluster" },
                    "singularResource": declaration.singular,
                    "verbs": kind.verbs,
                });
                if !declaration.short_names.is_empty() {
                    entry["shortNames"] = json!(declaration.short_names);
                }
                if !declaration.categories.is_empty() {
                    entry["categories"] = json!(declaration.categories);
                }
                if !kind.subresources.is_empty() {
                    let subresources: Vec<_> = kind
                        .subresources
                        .iter()
                        .map(|sub| {
                            json!({
                                "subresource": sub.name,
                                "responseKind": response_kind(sub.kind),
                                "verbs": sub.verbs,
                            })
                        })
                        .collect();
                    entry["subresources"] = json!(subresources);
                }
                entry
            })
            .collect();
        json!({
            "metadata": {"name": self.group, "creationTimestamp": null},
            "versions": [{"version": self.version, "freshness": "Current", "resources": resources}],
        })
    }
}

/// `GET /apis` without a special Accept. The apiVersion is left out, as `k8s.io/apiserver` does.
pub fn group_list(versions: &[GroupVersionDiscovery]) -> Value {
    let groups: Vec<_> = versions.iter().map(GroupVersionDiscovery::group).collect();
    json!({"kind": "APIGroupList", "groups": groups})
}

/// `GET /apis` as `APIGroupDiscoveryList` v2.
pub fn aggregated_list(versions: &[GroupVersionDiscovery]) -> Value {
    let items: Vec<_> = versions
        .iter()
        .map(GroupVersionDiscovery::aggregated)
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    })
}

/// The entity tag of a document: upper-case hex SHA-512, as upstream.
pub fn etag(document: &[u8]) -> String {
    HEXUPPER.encode(&Sha512::digest(document))
}
