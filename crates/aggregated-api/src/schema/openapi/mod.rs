//! OpenAPI documents, v3 per group-version and v2 as a whole, from what is served.
//!
//! kubectl finds out from the PATCH operation whether the server validates fields and which patch
//! types it takes; so what stands here must be exactly what the handlers do.

mod operations;
mod shared;
mod v2;
mod walk;

use serde_json::{Map, Value, json};

use super::discovery::{GroupVersionDiscovery, ServedKind};

pub(crate) use walk::collapse;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
const API_VERSION: &str = "Group and version of this representation.";
const KIND: &str = "Kind of this representation.";

/// `reversed.group.version.Kind`, the name CustomResourceDefinitions get as well.
fn definition_name(group: &str, version: &str, kind: &str) -> String {
    let reversed: Vec<_> = group.split('.').rev().collect();
    format!("{}.{version}.{kind}", reversed.join("."))
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn meta(name: &str) -> Value {
    reference(&format!("{META}.{name}"))
}

/// The OpenAPI v3 document of one group-version.
pub fn v3(discovery: &GroupVersionDiscovery) -> Value {
    let mut schemas = shared::definitions(std::slice::from_ref(discovery));
    let mut paths = Map::new();
    for kind in discovery.kinds() {
        add_schemas(&mut schemas, discovery, kind);
        operations::add(&mut paths, discovery, kind);
    }
    json!({
        "openapi": "3.0.0",
        "info": {"title": discovery.group, "version": discovery.version},
        "paths": paths,
        "components": {"schemas": schemas},
    })
}

/// The OpenAPI v2 document of everything that is served.
pub fn v2(versions: &[GroupVersionDiscovery]) -> Value {
    let mut schemas = shared::definitions(versions);
    let mut paths = Map::new();
    for discovery in versions {
        for kind in discovery.kinds() {
            add_schemas(&mut schemas, discovery, kind);
            operations::add(&mut paths, discovery, kind);
        }
    }
    schemas.values_mut().for_each(v2::downgrade);
    paths.values_mut().for_each(v2::downgrade_path);
    json!({
        "swagger": "2.0",
        "info": {"title": "aggregated API", "version": "unversioned"},
        "paths": paths,
        "definitions": schemas,
    })
}

fn add_schemas(schemas: &mut Map<String, Value>, gv: &GroupVersionDiscovery, kind: &ServedKind) {
    let declaration = &kind.declaration;
    let gvk = |kind: &str| json!([{"group": gv.group, "version": gv.version, "kind": kind}]);
    let standard = |description: &str, name: &str| {
        json!({
            "description": description,
            "default": {},
            "allOf": [meta(name)],
        })
    };
    let typed = |mut schema: Value, kind: &str, metadata: Value| {
        schema["x-kubernetes-group-version-kind"] = gvk(kind);
        schema["properties"]["apiVersion"] = json!({"type": "string", "description": API_VERSION});
        schema["properties"]["kind"] = json!({"type": "string", "description": KIND});
        schema["properties"]["metadata"] = metadata;
        schema
    };
    let name = definition_name(&gv.group, &gv.version, &declaration.kind);
    let own = typed(
        collapse(declaration.openapi.clone()),
        &declaration.kind,
        standard("Standard object metadata.", "ObjectMeta"),
    );
    let list_kind = format!("{}List", declaration.kind);
    let list = typed(
        json!({
            "type": "object",
            "description": format!("A list of {}.", declaration.resource.resource),
            "required": ["items"],
            "properties": {
                "items": {"type": "array", "description": "The objects.", "items": reference(&name)},
            },
        }),
        &list_kind,
        standard("Standard list metadata.", "ListMeta"),
    );
    schemas.insert(name, own);
    schemas.insert(definition_name(&gv.group, &gv.version, &list_kind), list);
    for sub in &kind.subresources {
        if let Some(schema) = &sub.schema {
            let body = typed(
                collapse(schema.clone()),
                &sub.kind,
                standard("Name and namespace of the parent.", "ObjectMeta"),
            );
            schemas.insert(definition_name(&gv.group, &gv.version, &sub.kind), body);
        }
    }
}
