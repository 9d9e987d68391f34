//! Discovery documents: legacy (`APIResourceList`, `APIGroup`) and aggregated v2.
//!
//! Built once from what is registered, in sorted order, so that all replicas serve the same bytes.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use data_encoding::{BASE64, HEXUPPER};
use kube::core::Version;
use serde_json::{Value, json};
use sha2::{Digest, Sha256, Sha512};

use super::declaration::Declaration;

/// What is served of one kind.
#[derive(Clone, Debug)]
pub struct ServedKind {
    /// The kind.
    pub declaration: Arc<Declaration>,
    /// The version it is stored in.
    pub storage_version: String,
    /// Verbs of the main resource, sorted.
    pub verbs: Vec<&'static str>,
    /// Named subresources, sorted by name.
    pub subresources: Vec<ServedSubresource>,
}

impl ServedKind {
    /// The subresource of a name, if it is served.
    pub(crate) fn subresource(&self, name: &str) -> Option<&ServedSubresource> {
        self.subresources.iter().find(|sub| sub.name == name)
    }
}

/// What is served of one subresource.
#[derive(Clone, Debug)]
pub struct ServedSubresource {
    /// Path segment.
    pub name: &'static str,
    /// Kind of its body.
    pub kind: String,
    /// Group and version of the body, unless they are those of the resource.
    pub foreign: Option<(&'static str, &'static str)>,
    /// Verbs, sorted.
    pub verbs: Vec<&'static str>,
    /// Schema of its body as an OpenAPI v3 object, unless the body is the object itself.
    pub schema: Option<Value>,
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
                "storageVersionHash": self.storage_version_hash(kind),
            });
            if !declaration.short_names.is_empty() {
                entry["shortNames"] = json!(declaration.short_names);
            }
            if !declaration.categories.is_empty() {
                entry["categories"] = json!(declaration.categories);
            }
            resources.push(entry);
            for sub in &kind.subresources {
                let mut entry = json!({
                    "name": format!("{}/{}", declaration.resource.resource, sub.name),
                    "singularName": "",
                    "namespaced": declaration.namespaced,
                    "kind": sub.kind,
                    "verbs": sub.verbs,
                });
                if let Some((group, version)) = sub.foreign {
                    entry["group"] = json!(group);
                    entry["version"] = json!(version);
                }
                resources.push(entry);
            }
        }
        json!({
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": format!("{}/{}", self.group, self.version),
            "resources": resources,
        })
    }

    fn storage_version_hash(&self, kind: &ServedKind) -> String {
        let version = &kind.storage_version;
        let text = format!("{}/{version}/{}", self.group, kind.declaration.kind);
        BASE64.encode(Sha256::digest(text).get(..8).unwrap_or_default())
    }

    fn aggregated_version(&self) -> Value {
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
                            let mut kind = response_kind(&sub.kind);
                            if let Some((group, version)) = sub.foreign {
                                kind["group"] = json!(group);
                                kind["version"] = json!(version);
                            }
                            json!({
                                "subresource": sub.name,
                                "responseKind": kind,
                                "verbs": sub.verbs,
                            })
                        })
                        .collect();
                    entry["subresources"] = json!(subresources);
                }
                entry
            })
            .collect();
        json!({"version": self.version, "freshness": "Current", "resources": resources})
    }
}

/// The versions of one group, the preferred one first.
#[derive(Debug)]
pub struct GroupDiscovery<'a>(Vec<&'a GroupVersionDiscovery>);

impl<'a> GroupDiscovery<'a> {
    /// The groups, by name, with their versions in the order of Kubernetes' version priority: stable
    /// before beta before alpha, then the newer first.
    pub fn all(versions: &'a [GroupVersionDiscovery]) -> Vec<Self> {
        let mut groups: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        for version in versions {
            groups.entry(&version.group).or_default().push(version);
        }
        groups
            .into_values()
            .map(|mut versions| {
                versions.sort_by_key(|gv| Reverse(Version::parse(&gv.version).priority()));
                Self(versions)
            })
            .collect()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.0.first().map_or("", |gv| &gv.group)
    }

    /// `GET /apis/<group>`.
    pub fn document(&self) -> Value {
        let mut document = self.entry();
        document["kind"] = json!("APIGroup");
        document["apiVersion"] = json!("v1");
        document
    }

    /// The group in the list of groups.
    fn entry(&self) -> Value {
        let versions: Vec<_> = self
            .0
            .iter()
            .map(|gv| {
                json!({
                    "groupVersion": format!("{}/{}", gv.group, gv.version),
                    "version": gv.version,
                })
            })
            .collect();
        json!({
            "name": self.name(),
            "preferredVersion": versions.first(),
            "versions": versions,
        })
    }

    fn aggregated(&self) -> Value {
        let versions: Vec<_> = self.0.iter().map(|gv| gv.aggregated_version()).collect();
        json!({
            "metadata": {"name": self.name(), "creationTimestamp": null},
            "versions": versions,
        })
    }
}

/// `GET /apis` without a special Accept, to a client that reached this server at `address`. The
/// apiVersion is left out, as `k8s.io/apiserver` does.
pub fn group_list(groups: &[GroupDiscovery<'_>], address: &str) -> Value {
    let addresses = json!([{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]);
    let groups: Vec<_> = groups
        .iter()
        .map(|group| {
            let mut entry = group.entry();
            entry["serverAddressByClientCIDRs"] = addresses.clone();
            entry
        })
        .collect();
    json!({"kind": "APIGroupList", "groups": groups})
}

/// `GET /apis` as `APIGroupDiscoveryList` v2.
pub fn aggregated_list(groups: &[GroupDiscovery<'_>]) -> Value {
    let items: Vec<_> = groups.iter().map(GroupDiscovery::aggregated).collect();
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
