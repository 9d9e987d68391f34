//! The definitions that every API server shares, exactly as kube-apiserver has them.
//!
//! The aggregator merges the OpenAPI v2 documents of all servers, and renames a definition that differs
//! from one of the same name to `…_v2` (`kube-openapi/pkg/aggregator`). k8s-openapi's schemas carry the
//! texts and types; what Kubernetes' own documents say beyond that is completed here.

use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    DeleteOptions, ListMeta, ObjectMeta, Patch, Status, WatchEvent,
};
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::super::scale;
use super::walk::{visit, wrap_reference};
use super::{GroupVersionDiscovery, META};

const AUTOSCALING: &str = "io.k8s.api.autoscaling.v1";

/// The definitions as OpenAPI v3 has them; options and events are kinds of each of `versions`.
pub(super) fn definitions(versions: &[GroupVersionDiscovery]) -> Map<String, Value> {
    let mut generator = SchemaSettings::openapi3()
        .with(|settings| settings.definitions_path = "/components/schemas".into())
        .into_generator();
    let scaled = |gv: &GroupVersionDiscovery| {
        let mut subresources = gv.kinds().iter().flat_map(|kind| &kind.subresources);
        subresources.any(|sub| sub.foreign == Some(scale::GROUP_VERSION))
    };
    if versions.iter().any(scaled) {
        drop(generator.subschema_for::<Scale>());
    }
    for _ in [
        generator.subschema_for::<ObjectMeta>(),
        generator.subschema_for::<ListMeta>(),
        generator.subschema_for::<DeleteOptions>(),
        generator.subschema_for::<Status>(),
        generator.subschema_for::<WatchEvent<RawExtension>>(),
        generator.subschema_for::<Patch>(),
    ] {}
    let mut definitions = generator.take_definitions(true);
    let mut complete = |name: &str, how: &dyn Fn(&mut Value)| {
        if let Some(definition) = definitions.get_mut(&format!("{META}.{name}")) {
            how(definition);
        }
    };
    complete("Status", &|status| require_nothing(status, &["metadata"]));
    complete("WatchEvent", &complete_event);
    complete("OwnerReference", &|definition| {
        definition["x-kubernetes-map-type"] = json!("atomic");
    });
    for (name, property, list) in lists() {
        complete(name, &|definition| {
            if let (Some(Value::Object(property)), Value::Object(list)) =
                (definition["properties"].get_mut(property), list.clone())
            {
                property.extend(list);
            }
        });
    }
    for (kind, of) in [
        ("DeleteOptions", versions),
        ("WatchEvent", versions),
        ("Status", &[]),
    ] {
        let mut kinds = vec![json!({"group": "", "version": "v1", "kind": kind})];
        kinds.extend(
            of.iter()
                .map(|gv| json!({"group": gv.group, "version": gv.version, "kind": kind})),
        );
        complete(kind, &|definition| {
            definition["x-kubernetes-group-version-kind"] = json!(kinds);
        });
    }
    complete_scale(&mut definitions);
    definitions
        .values_mut()
        .for_each(|definition| visit(definition, &add_defaults));
    definitions
}

/// How lists are merged: definition, property, extensions.
fn lists() -> [(&'static str, &'static str, Value); 5] {
    let atomic = json!({"x-kubernetes-list-type": "atomic"});
    [
        ("DeleteOptions", "dryRun", atomic.clone()),
        ("StatusDetails", "causes", atomic.clone()),
        ("ObjectMeta", "managedFields", atomic),
        (
            "ObjectMeta",
            "finalizers",
            json!({"x-kubernetes-list-type": "set", "x-kubernetes-patch-strategy": "merge"}),
        ),
        (
            "ObjectMeta",
            "ownerReferences",
            json!({
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["uid"],
                "x-kubernetes-patch-merge-key": "uid",
                "x-kubernetes-patch-strategy": "merge",
            }),
        ),
    ]
}

/// k8s-openapi requires the metadata, because its type is no `Option`; Go has empty structs for defaults.
fn require_nothing(definition: &mut Value, structs: &[&str]) {
    if let Some(definition) = definition.as_object_mut() {
        definition.remove("required");
    }
    for name in structs {
        definition["properties"][name]["default"] = json!({});
    }
}

fn complete_scale(definitions: &mut Map<String, Value>) {
    if let Some(scale) = definitions.get_mut(&format!("{AUTOSCALING}.Scale")) {
        require_nothing(scale, &["metadata", "spec", "status"]);
        let (group, version) = scale::GROUP_VERSION;
        scale["x-kubernetes-group-version-kind"] =
            json!([{"group": group, "version": version, "kind": scale::KIND}]);
    }
    for name in ["ScaleSpec", "ScaleStatus"] {
        if let Some(definition) = definitions.get_mut(&format!("{AUTOSCALING}.{name}")) {
            definition["properties"]["replicas"]["default"] = json!(0);
        }
    }
}

/// k8s-openapi moves the text about the object to that of the whole, and sorts what is required.
fn complete_event(event: &mut Value) {
    let text = event["description"].as_str().unwrap_or_default().to_owned();
    if let Some((whole, object)) = text.split_once("\n\n") {
        event["description"] = json!(whole);
        event["properties"]["object"]["description"] = json!(object.trim_end());
    }
    event["required"] = json!(["type", "object"]);
}

/// Go's zero values: of strings that are required or elements, and of structs that are elements.
fn add_defaults(node: &mut Map<String, Value>) {
    wrap_reference(node);
    let required = node.get("required").cloned().unwrap_or_default();
    if let Some(Value::Object(properties)) = node.get_mut("properties") {
        for name in required.as_array().into_iter().flatten() {
            let property = name.as_str().and_then(|name| properties.get_mut(name));
            if let Some(property) = property.filter(|property| property["type"] == "string") {
                property["default"] = json!("");
            }
        }
    }
    for position in ["items", "additionalProperties"] {
        match node.get_mut(position) {
            Some(element) if element["type"] == "string" => element["default"] = json!(""),
            Some(element) if element.get("$ref").is_some() => element["default"] = json!({}),
            _ => {},
        }
    }
}
