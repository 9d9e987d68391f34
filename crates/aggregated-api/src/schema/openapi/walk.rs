//! Changes of schemas, node by node.

use serde_json::{Map, Value, json};

/// Calls `change` for a schema and then for every schema within it. A property may have any name, so
/// only where JSON schema has schemas is looked.
pub(super) fn visit(schema: &mut Value, change: &impl Fn(&mut Map<String, Value>)) {
    let Value::Object(node) = schema else {
        return;
    };
    change(node);
    for (key, value) in node.iter_mut() {
        match (key.as_str(), value) {
            ("properties", Value::Object(properties)) => {
                for property in properties.values_mut() {
                    visit(property, change);
                }
            },
            ("allOf" | "anyOf" | "oneOf", Value::Array(schemas)) => {
                for schema in schemas {
                    visit(schema, change);
                }
            },
            ("items" | "additionalProperties" | "not", schema) => visit(schema, change),
            _ => {},
        }
    }
}

/// A declared schema as clients read it: `anyOf: [X, null]` becomes X, since kubectl explain does not
/// read anyOf, and doc comments lose the line breaks of the source file.
pub(crate) fn collapse(mut schema: Value) -> Value {
    visit(&mut schema, &|node| {
        if let Some(Value::Array(options)) = node.get_mut("anyOf") {
            options.retain(|option| {
                option.get("type") != Some(&json!("null"))
                    && option.get("enum") != Some(&json!([null]))
            });
            if let [Value::Object(only)] = options.as_mut_slice() {
                let only = std::mem::take(only);
                node.remove("anyOf");
                node.extend(only);
            }
        }
        node.remove("nullable");
        wrap_reference(node);
        if let Some(Value::String(text)) = node.get_mut("description") {
            let paragraphs: Vec<_> = text.split("\n\n").map(|p| p.replace('\n', " ")).collect();
            *text = paragraphs.join("\n\n");
        }
    });
    schema
}

/// A reference may have no siblings in OpenAPI 3.0: beside others it goes into an `allOf`.
pub(super) fn wrap_reference(node: &mut Map<String, Value>) {
    if node.len() > 1
        && let Some(reference) = node.remove("$ref")
    {
        node.insert("allOf".to_owned(), json!([{"$ref": reference}]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_optional_reference_is_a_reference() {
        let declared = json!({
            "type": "object",
            "properties": {
                "when": {
                    "description": "When it\nwas.\n\nOr not.",
                    "anyOf": [{"$ref": "#/x"}, {"type": "null"}],
                },
                "nullable": {"type": "string", "nullable": true},
            },
        });
        assert_eq!(
            collapse(declared),
            json!({
                "type": "object",
                "properties": {
                    "when": {"description": "When it was.\n\nOr not.", "allOf": [{"$ref": "#/x"}]},
                    "nullable": {"type": "string"},
                },
            })
        );
    }
}
