//! OpenAPI documents, v3 per group-version and v2 as a whole, from what is served.
//!
//! kubectl finds out from the PATCH operation whether the server validates fields and which patch
//! types it takes; so what stands here must be exactly what the handlers do.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    DeleteOptions, ListMeta, ObjectMeta, Status, WatchEvent,
};
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::discovery::{GroupVersionDiscovery, ServedKind};
use crate::http::patch_types;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";

/// `reversed.group.version.Kind`, the name CustomResourceDefinitions get as well.
fn definition_name(group: &str, version: &str, kind: &str) -> String {
    let reversed: Vec<_> = group.split('.').rev().collect();
    format!("{}.{version}.{kind}", reversed.join("."))
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// The OpenAPI v3 document of one group-version.
pub fn v3(discovery: &GroupVersionDiscovery) -> Value {
    let mut schemas = shared_definitions();
    let mut paths = Map::new();
    for kind in discovery.kinds() {
        add_schemas(&mut schemas, discovery, kind);
        add_paths(&mut paths, discovery, kind);
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
    let mut definitions = Map::new();
    let mut paths = Map::new();
    for discovery in versions {
        let Value::Object(mut document) = v3(discovery) else {
            continue;
        };
        if let Some(Value::Object(schemas)) =
            document["components"].get_mut("schemas").map(Value::take)
        {
            definitions.extend(
                schemas
                    .into_iter()
                    .map(|(name, schema)| (name, downgrade(schema))),
            );
        }
        if let Some(Value::Object(found)) = document.remove("paths") {
            paths.extend(
                found
                    .into_iter()
                    .map(|(path, item)| (path, downgrade_path(item))),
            );
        }
    }
    json!({
        "swagger": "2.0",
        "info": {"title": "aggregated API", "version": "unversioned"},
        "paths": paths,
        "definitions": definitions,
    })
}

fn shared_definitions() -> Map<String, Value> {
    let mut generator: SchemaGenerator = SchemaSettings::openapi3()
        .with(|settings| settings.definitions_path = "/components/schemas".into())
        .into_generator();
    for _ in [
        generator.subschema_for::<ObjectMeta>(),
        generator.subschema_for::<ListMeta>(),
        generator.subschema_for::<DeleteOptions>(),
        generator.subschema_for::<Status>(),
        generator.subschema_for::<WatchEvent<RawExtension>>(),
    ] {}
    let mut schemas: Map<String, Value> = generator
        .take_definitions(true)
        .into_iter()
        .map(|(name, schema)| (name, collapse(schema)))
        .collect();
    schemas.insert(
        PATCH.to_owned(),
        json!({
            "type": "object",
            "description": "A change of an object, in the format its content type names.",
        }),
    );
    schemas
}

/// `anyOf: [X, null]` becomes X: kubectl explain does not read anyOf.
pub(crate) fn collapse(schema: Value) -> Value {
    match schema {
        Value::Object(mut object) => {
            if let Some(Value::Array(options)) = object.get_mut("anyOf") {
                options.retain(|o| {
                    o.get("type") != Some(&json!("null"))
                        && !(o.get("enum") == Some(&json!([null])))
                });
                if let [only] = options.as_mut_slice() {
                    let only = only.take();
                    object.remove("anyOf");
                    if only.get("$ref").is_some() {
                        object.insert("allOf".to_owned(), json!([only]));
                    } else if let Value::Object(inner) = only {
                        object.extend(inner);
                    }
                }
            }
            if let Some(reference) = object.remove("$ref") {
                if object.is_empty() {
                    return json!({"$ref": reference});
                }
                object.insert("allOf".to_owned(), json!([{"$ref": reference}]));
            }
            object.remove("nullable");
            if let Some(Value::String(text)) = object.get_mut("description") {
                *text = joined(text);
            }
            Value::Object(object.into_iter().map(|(k, v)| (k, collapse(v))).collect())
        },
        Value::Array(items) => Value::Array(items.into_iter().map(collapse).collect()),
        scalar @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => scalar,
    }
}

/// A doc comment as one line per paragraph: its line breaks are those of the source file.
fn joined(text: &str) -> String {
    let paragraphs: Vec<_> = text.split("\n\n").map(|p| p.replace('\n', " ")).collect();
    paragraphs.join("\n\n")
}

fn add_schemas(schemas: &mut Map<String, Value>, gv: &GroupVersionDiscovery, kind: &ServedKind) {
    let declaration = &kind.declaration;
    let gvk = |kind: &str| json!([{"group": gv.group, "version": gv.version, "kind": kind}]);
    let name = definition_name(&gv.group, &gv.version, &declaration.kind);
    let mut own = collapse(declaration.openapi.clone());
    own["x-kubernetes-group-version-kind"] = gvk(&declaration.kind);
    own["properties"]["apiVersion"] = json!({"type": "string", "description": API_VERSION});
    own["properties"]["kind"] = json!({"type": "string", "description": KIND});
    own["properties"]["metadata"] = json!({
        "description": "Standard object metadata.",
        "default": {},
        "allOf": [reference(&format!("{META}.ObjectMeta"))],
    });
    schemas.insert(name.clone(), own);

    let list = format!("{}List", declaration.kind);
    schemas.insert(
        definition_name(&gv.group, &gv.version, &list),
        json!({
            "type": "object",
            "description": format!("A list of {}.", declaration.resource.resource),
            "required": ["items"],
            "properties": {
                "apiVersion": {"type": "string", "description": API_VERSION},
                "kind": {"type": "string", "description": KIND},
                "metadata": {
                    "description": "Standard list metadata.",
                    "default": {},
                    "allOf": [reference(&format!("{META}.ListMeta"))],
                },
                "items": {"type": "array", "description": "The objects.", "items": reference(&name)},
            },
            "x-kubernetes-group-version-kind": gvk(&list),
        }),
    );
    for sub in &kind.subresources {
        let mut body = collapse(sub.schema.clone());
        body["x-kubernetes-group-version-kind"] = gvk(sub.kind);
        body["properties"]["metadata"] = json!({
            "description": "Name and namespace of the parent.",
            "default": {},
            "allOf": [reference(&format!("{META}.ObjectMeta"))],
        });
        schemas.insert(definition_name(&gv.group, &gv.version, sub.kind), body);
    }
}

const API_VERSION: &str = "Group and version of this representation.";
const KIND: &str = "Kind of this representation.";

struct Operation {
    method: &'static str,
    action: &'static str,
    id: String,
    description: String,
    query: &'static [(&'static str, &'static str, &'static str)],
    body: Option<(Value, Vec<&'static str>)>,
    answers: Vec<(&'static str, Value)>,
    kind: String,
}

const WRITE: &[(&str, &str, &str)] = &[
    (
        "dryRun",
        "string",
        "`All`: process the request, persist nothing.",
    ),
    (
        "fieldManager",
        "string",
        "Name of the actor that makes these changes.",
    ),
    (
        "fieldValidation",
        "string",
        "What happens to unknown and duplicate fields: Ignore, Warn (default) or Strict.",
    ),
];
const LIST: &[(&str, &str, &str)] = &[
    (
        "allowWatchBookmarks",
        "boolean",
        "Whether a watch may send BOOKMARK events.",
    ),
    ("continue", "string", "Token of the previous page."),
    (
        "fieldSelector",
        "string",
        "Restricts the objects by their fields.",
    ),
    (
        "labelSelector",
        "string",
        "Restricts the objects by their labels.",
    ),
    ("limit", "integer", "Most objects in one page."),
    ("resourceVersion", "string", "Which state may be served."),
    (
        "resourceVersionMatch",
        "string",
        "How resourceVersion is applied: Exact or NotOlderThan.",
    ),
    (
        "sendInitialEvents",
        "boolean",
        "Whether a watch begins with the present state.",
    ),
    ("timeoutSeconds", "integer", "Duration of a watch."),
    ("watch", "boolean", "Stream changes instead of listing."),
];
const DELETE: &[(&str, &str, &str)] = &[
    (
        "dryRun",
        "string",
        "`All`: process the request, persist nothing.",
    ),
    (
        "gracePeriodSeconds",
        "integer",
        "Accepted and ignored: there is nothing to wait for.",
    ),
    (
        "orphanDependents",
        "boolean",
        "Deprecated: use propagationPolicy.",
    ),
    (
        "propagationPolicy",
        "string",
        "Orphan, Background (default) or Foreground.",
    ),
];

fn add_paths(paths: &mut Map<String, Value>, gv: &GroupVersionDiscovery, kind: &ServedKind) {
    let declaration = &kind.declaration;
    let has = |verb: &str| kind.verbs.contains(&verb);
    let base = format!("/apis/{}/{}", gv.group, gv.version);
    let plural = &declaration.resource.resource;
    let (collection, scope) = if declaration.namespaced {
        (
            format!("{base}/namespaces/{{namespace}}/{plural}"),
            "Namespaced",
        )
    } else {
        (format!("{base}/{plural}"), "")
    };
    let own = reference(&definition_name(&gv.group, &gv.version, &declaration.kind));
    let list = reference(&definition_name(
        &gv.group,
        &gv.version,
        &format!("{}List", declaration.kind),
    ));
    let status = reference(&format!("{META}.Status"));
    let camel: String = format!("{}.{}", gv.group, gv.version)
        .split(['.', '-'])
        .map(|part| part[..1].to_uppercase() + &part[1..])
        .collect();
    let id = |verb: &str, suffix: &str| format!("{verb}{camel}{scope}{}{suffix}", declaration.kind);
    let operation = |method, action, verb: &str, what: &str, query, body, answers| Operation {
        method,
        action,
        id: id(verb, ""),
        description: what.replace("{kind}", &declaration.kind),
        query,
        body,
        answers,
        kind: declaration.kind.clone(),
    };
    let both = || vec!["application/json", "application/yaml"];

    let mut on_collection = Vec::new();
    if has("list") {
        on_collection.push(operation(
            "get",
            "list",
            "list",
            "list or watch objects of kind {kind}",
            LIST,
            None,
            vec![("200", list.clone())],
        ));
    }
    if has("create") {
        on_collection.push(operation(
            "post",
            "post",
            "create",
            "create a {kind}",
            WRITE,
            Some((own.clone(), both())),
            vec![("201", own.clone())],
        ));
    }
    if has("deletecollection") {
        on_collection.push(operation(
            "delete",
            "deletecollection",
            "deletecollection",
            "delete a collection of {kind}",
            DELETE,
            None,
            vec![("200", list.clone())],
        ));
    }
    insert(paths, gv, &collection, on_collection);

    if declaration.namespaced && has("list") {
        let mut across = operation(
            "get",
            "list",
            "list",
            "list or watch objects of kind {kind}",
            LIST,
            None,
            vec![("200", list)],
        );
        across.id = format!("list{camel}{}ForAllNamespaces", declaration.kind);
        insert(paths, gv, &format!("{base}/{plural}"), vec![across]);
    }

    let mut on_object = Vec::new();
    if has("get") {
        on_object.push(operation(
            "get",
            "get",
            "read",
            "read the specified {kind}",
            &[],
            None,
            vec![("200", own.clone())],
        ));
    }
    if has("update") {
        on_object.push(operation(
            "put",
            "put",
            "replace",
            "replace the specified {kind}",
            WRITE,
            Some((own.clone(), both())),
            vec![("200", own.clone())],
        ));
    }
    if has("patch") {
        on_object.push(operation(
            "patch",
            "patch",
            "patch",
            "partially update the specified {kind}",
            WRITE,
            Some((reference(PATCH), patch_types().to_vec())),
            vec![("200", own.clone())],
        ));
    }
    if has("delete") {
        on_object.push(operation(
            "delete",
            "delete",
            "delete",
            "delete a {kind}",
            DELETE,
            Some((reference(&format!("{META}.DeleteOptions")), both())),
            vec![("200", status)],
        ));
    }
    insert(paths, gv, &format!("{collection}/{{name}}"), on_object);

    for sub in &kind.subresources {
        let body = reference(&definition_name(&gv.group, &gv.version, sub.kind));
        let post = Operation {
            method: "post",
            action: "connect",
            id: id("create", &(sub.name[..1].to_uppercase() + &sub.name[1..])),
            description: format!("{} of the specified {}", sub.name, declaration.kind),
            query: WRITE,
            body: Some((body.clone(), both())),
            answers: vec![("201", body)],
            kind: sub.kind.to_owned(),
        };
        insert(
            paths,
            gv,
            &format!("{collection}/{{name}}/{}", sub.name),
            vec![post],
        );
    }
}

fn insert(
    paths: &mut Map<String, Value>,
    gv: &GroupVersionDiscovery,
    path: &str,
    operations: Vec<Operation>,
) {
    if operations.is_empty() {
        return;
    }
    let mut item = Map::new();
    let mut parameters = Vec::new();
    for (name, what) in [
        ("name", "name of the object"),
        ("namespace", "namespace of the object"),
    ] {
        if path.contains(&format!("{{{name}}}")) {
            parameters.push(json!({
                "name": name, "in": "path", "required": true, "description": what,
                "schema": {"type": "string", "uniqueItems": true},
            }));
        }
    }
    parameters.push(json!({
        "name": "pretty", "in": "query", "description": "Indent the answer for people.",
        "schema": {"type": "string", "uniqueItems": true},
    }));
    item.insert("parameters".to_owned(), json!(parameters));
    for operation in operations {
        let query: Vec<_> = operation
            .query
            .iter()
            .map(|(name, ty, what)| {
                json!({
                    "name": name, "in": "query", "description": what,
                    "schema": {"type": ty, "uniqueItems": true},
                })
            })
            .collect();
        let mut responses = Map::new();
        for (code, schema) in operation.answers {
            let content: Map<_, _> = ["application/json", "application/yaml"]
                .into_iter()
                .map(|media| (media.to_owned(), json!({"schema": schema})))
                .collect();
            responses.insert(
                code.to_owned(),
                json!({"description": if code == "201" { "Created" } else { "OK" }, "content": content}),
            );
        }
        responses.insert("401".to_owned(), json!({"description": "Unauthorized"}));
        let mut rendered = json!({
            "operationId": operation.id,
            "description": operation.description,
            "tags": [format!("{}_{}", gv.group.replace(['.', '-'], ""), gv.version)],
            "parameters": query,
            "responses": responses,
            "x-kubernetes-action": operation.action,
            "x-kubernetes-group-version-kind": {
                "group": gv.group, "version": gv.version, "kind": operation.kind,
            },
        });
        if let Some((schema, media)) = operation.body {
            let content: Map<_, _> = media
                .iter()
                .map(|m| ((*m).to_owned(), json!({"schema": schema})))
                .collect();
            rendered["requestBody"] = json!({"content": content});
        }
        item.insert(operation.method.to_owned(), rendered);
    }
    paths.insert(path.to_owned(), Value::Object(item));
}

/// A v3 schema as v2: other reference paths, no `nullable`, single-entry `allOf` unfolded.
fn downgrade(schema: Value) -> Value {
    match schema {
        Value::Object(mut object) => {
            object.remove("nullable");
            for unknown in ["anyOf", "oneOf", "not"] {
                object.remove(unknown);
            }
            if let Some(Value::Array(all)) = object.remove("allOf")
                && let Some(Value::Object(first)) = all.into_iter().next()
            {
                object.extend(first);
                object.remove("default");
            }
            if let Some(Value::String(reference)) = object.get_mut("$ref") {
                *reference = reference.replace("#/components/schemas/", "#/definitions/");
            }
            Value::Object(object.into_iter().map(|(k, v)| (k, downgrade(v))).collect())
        },
        Value::Array(items) => Value::Array(items.into_iter().map(downgrade).collect()),
        scalar @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => scalar,
    }
}

fn downgrade_path(item: Value) -> Value {
    let Value::Object(mut item) = item else {
        return item;
    };
    for (key, value) in &mut item {
        if key == "parameters" {
            *value = downgrade_parameters(value.take());
            continue;
        }
        let Value::Object(operation) = value else {
            continue;
        };
        let mut parameters = operation
            .remove("parameters")
            .map_or_else(|| json!([]), downgrade_parameters);
        if let Some(body) = operation.remove("requestBody")
            && let Some(content) = body["content"].as_object()
        {
            let schema = content
                .values()
                .next()
                .map(|c| downgrade(c["schema"].clone()));
            if let (Some(list), Some(schema)) = (parameters.as_array_mut(), schema) {
                list.push(json!({"name": "body", "in": "body", "schema": schema}));
            }
            operation.insert(
                "consumes".to_owned(),
                json!(content.keys().collect::<Vec<_>>()),
            );
        }
        operation.insert("parameters".to_owned(), parameters);
        operation.insert(
            "produces".to_owned(),
            json!(["application/json", "application/yaml"]),
        );
        operation.insert("schemes".to_owned(), json!(["https"]));
        if let Some(Value::Object(responses)) = operation.get_mut("responses") {
            for response in responses.values_mut() {
                if let Some(content) = response.as_object_mut().and_then(|r| r.remove("content")) {
                    let schema = content["application/json"]["schema"].clone();
                    response["schema"] = downgrade(schema);
                }
            }
        }
    }
    Value::Object(item)
}

fn downgrade_parameters(parameters: Value) -> Value {
    let Value::Array(parameters) = parameters else {
        return parameters;
    };
    parameters
        .into_iter()
        .map(|mut parameter| {
            if let Some(Value::Object(schema)) =
                parameter.as_object_mut().and_then(|p| p.remove("schema"))
            {
                for (key, value) in schema {
                    parameter[key] = value;
                }
            }
            parameter
        })
        .collect()
}
