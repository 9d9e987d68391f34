//! OpenAPI v3 as v2.

use serde_json::{Map, Value, json};

use super::walk::visit;

/// A schema: other reference paths, single-entry `allOf` unfolded, and without what v2 does not know or,
/// as for defaults, kube-apiserver leaves out of it (`k8s.io/apiserver/pkg/server/routes/openapi.go`).
pub(super) fn downgrade(schema: &mut Value) {
    visit(schema, &|node| {
        for unknown in ["nullable", "default", "anyOf", "oneOf", "not"] {
            node.remove(unknown);
        }
        if let Some(Value::Array(all)) = node.remove("allOf")
            && let Some(Value::Object(first)) = all.into_iter().next()
        {
            node.extend(first);
        }
        if let Some(Value::String(reference)) = node.get_mut("$ref") {
            *reference = reference.replace("#/components/schemas/", "#/definitions/");
        }
    });
}

/// A path with its parameters and operations.
pub(super) fn downgrade_path(item: &mut Value) {
    let Value::Object(item) = item else {
        return;
    };
    for value in item.values_mut() {
        if let Value::Array(parameters) = value {
            downgrade_parameters(parameters);
        } else if let Value::Object(operation) = value {
            downgrade_operation(operation);
        }
    }
}

fn downgrade_operation(operation: &mut Map<String, Value>) {
    let body = operation.remove("requestBody");
    if let Some(Value::Array(parameters)) = operation.get_mut("parameters") {
        downgrade_parameters(parameters);
        if let Some((_, mut schema)) = body.as_ref().and_then(content) {
            downgrade(&mut schema);
            parameters.push(json!({"name": "body", "in": "body", "schema": schema}));
        }
    }
    if let Some((media, _)) = body.as_ref().and_then(content) {
        operation.insert("consumes".to_owned(), media);
    }
    operation.insert(
        "produces".to_owned(),
        json!(["application/json", "application/yaml"]),
    );
    operation.insert("schemes".to_owned(), json!(["https"]));
    if let Some(Value::Object(responses)) = operation.get_mut("responses") {
        for response in responses.values_mut().filter_map(Value::as_object_mut) {
            if let Some((_, mut schema)) = content(&Value::Object(response.clone())) {
                downgrade(&mut schema);
                response.remove("content");
                response.insert("schema".to_owned(), schema);
            }
        }
    }
}

/// Media types and schema of a body or answer.
fn content(of: &Value) -> Option<(Value, Value)> {
    let content = of.get("content")?.as_object()?;
    let media = content.keys().collect::<Vec<_>>();
    let schema = content.values().next()?.get("schema")?.clone();
    Some((json!(media), schema))
}

/// Their schemas stand in the parameters themselves.
fn downgrade_parameters(parameters: &mut [Value]) {
    for parameter in parameters.iter_mut().filter_map(Value::as_object_mut) {
        if let Some(Value::Object(schema)) = parameter.remove("schema") {
            parameter.extend(schema);
        }
    }
}
