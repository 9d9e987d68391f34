//! Structural schemas: pruning, defaulting and validation as kube-apiserver does them for
//! CustomResourceDefinitions.

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::{Map, Value};

use crate::http::status::FieldError;

/// Why a schema is refused at registration.
#[derive(Debug, thiserror::Error)]
#[error("schema at {path:?} {why}")]
pub struct SchemaError {
    path: String,
    why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

impl Type {
    fn name(self) -> &'static str {
        match self {
            Self::Object => "object",
            Self::Array => "array",
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
        }
    }
}

/// A node of a structural schema.
#[derive(Debug, Default)]
pub struct Schema {
    ty: Option<Type>,
    nullable: bool,
    int_or_string: bool,
    preserve_unknown: bool,
    default: Option<Value>,
    options: Option<Vec<Value>>,
    minimum: Option<f64>,
    maximum: Option<f64>,
    min_length: Option<u64>,
    max_length: Option<u64>,
    min_items: Option<u64>,
    max_items: Option<u64>,
    pattern: Option<Regex>,
    properties: BTreeMap<String, Self>,
    required: Vec<String>,
    additional: Option<Box<Self>>,
    items: Option<Box<Self>>,
}

impl Schema {
    /// Reads a schema as it stands in a CustomResourceDefinition.
    ///
    /// # Errors
    /// Anything that is not structural, or that this library would not evaluate: a constraint that
    /// is ignored in silence would be worse than none.
    pub fn parse(schema: &Value) -> Result<Self, SchemaError> {
        Self::parse_at(schema, "")
    }

    fn parse_at(schema: &Value, path: &str) -> Result<Self, SchemaError> {
        let refuse = |why: String| SchemaError {
            path: path.to_owned(),
            why,
        };
        let Some(object) = schema.as_object() else {
            return if schema == &Value::Bool(true) {
                Ok(Self {
                    preserve_unknown: true,
                    ..Self::default()
                })
            } else {
                Err(refuse("is not an object".to_owned()))
            };
        };
        let mut parsed = Self::default();
        for (key, value) in object {
            match key.as_str() {
                "type" => {
                    parsed.ty = Some(match value.as_str() {
                        Some("object") => Type::Object,
                        Some("array") => Type::Array,
                        Some("string") => Type::String,
                        Some("integer") => Type::Integer,
                        Some("number") => Type::Number,
                        Some("boolean") => Type::Boolean,
                        _ => return Err(refuse(format!("has the unknown type {value}"))),
                    });
                },
                "nullable" => parsed.nullable = value == &Value::Bool(true),
                "default" => parsed.default = Some(value.clone()),
                "enum" => parsed.options = value.as_array().cloned(),
                "minimum" => parsed.minimum = value.as_f64(),
                "maximum" => parsed.maximum = value.as_f64(),
                "minLength" => parsed.min_length = value.as_u64(),
                "maxLength" => parsed.max_length = value.as_u64(),
                "minItems" => parsed.min_items = value.as_u64(),
                "maxItems" => parsed.max_items = value.as_u64(),
                "pattern" => {
                    let text = value.as_str().unwrap_or_default();
                    let regex = Regex::new(text)
                        .map_err(|e| refuse(format!("has a pattern that is no regex: {e}")))?;
                    parsed.pattern = Some(regex);
                },
                "properties" => {
                    for (name, property) in value.as_object().into_iter().flatten() {
                        let child = Self::parse_at(property, &join(path, name))?;
                        parsed.properties.insert(name.clone(), child);
                    }
                },
                "required" => {
                    let names = value.as_array().into_iter().flatten();
                    parsed.required = names
                        .filter_map(Value::as_str)
                        .map(ToOwned::to_owned)
                        .collect();
                },
                "additionalProperties" => {
                    if value != &Value::Bool(false) {
                        parsed.additional = Some(Box::new(Self::parse_at(value, path)?));
                    }
                },
                "items" => {
                    parsed.items = Some(Box::new(Self::parse_at(value, &format!("{path}[]"))?));
                },
                "x-kubernetes-int-or-string" => parsed.int_or_string = value == &Value::Bool(true),
                "x-kubernetes-preserve-unknown-fields" => {
                    parsed.preserve_unknown = value == &Value::Bool(true);
                },
                "description"
                | "title"
                | "format"
                | "example"
                | "externalDocs"
                | "$schema"
                | "x-kubernetes-list-type"
                | "x-kubernetes-list-map-keys"
                | "x-kubernetes-map-type"
                | "x-kubernetes-embedded-resource"
                | "x-kubernetes-patch-strategy"
                | "x-kubernetes-patch-merge-key" => {},
                "exclusiveMinimum" | "exclusiveMaximum" if value == &Value::Bool(false) => {},
                other => return Err(refuse(format!("uses {other}, which is not supported"))),
            }
        }
        if parsed.ty.is_none() && !parsed.int_or_string && !parsed.preserve_unknown {
            return Err(refuse("has no type".to_owned()));
        }
        Ok(parsed)
    }

    /// Removes fields that are not declared; returns their paths.
    pub fn prune(&self, value: &mut Value) -> Vec<String> {
        let mut unknown = Vec::new();
        self.prune_at(value, "", &mut unknown);
        unknown
    }

    fn prune_at(&self, value: &mut Value, path: &str, unknown: &mut Vec<String>) {
        match value {
            Value::Object(object) => {
                if !self.preserve_unknown && self.additional.is_none() {
                    let names: Vec<_> = object
                        .keys()
                        .filter(|name| !self.properties.contains_key(*name))
                        .cloned()
                        .collect();
                    for name in names {
                        object.remove(&name);
                        unknown.push(join(path, &name));
                    }
                }
                for (name, child) in object.iter_mut() {
                    if let Some(schema) = self.child(name) {
                        schema.prune_at(child, &join(path, name), unknown);
                    }
                }
            },
            Value::Array(items) => {
                if let Some(schema) = &self.items {
                    for (index, item) in items.iter_mut().enumerate() {
                        schema.prune_at(item, &format!("{path}[{index}]"), unknown);
                    }
                }
            },
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {},
        }
    }

    fn child(&self, name: &str) -> Option<&Self> {
        self.properties.get(name).or(self.additional.as_deref())
    }

    /// Sets declared defaults, drops nulls of fields that need not be there, as Go's decoder does, and
    /// writes whole numbers of integer fields (`30.0`) as integers, as kube-apiserver does.
    pub fn set_defaults(&self, value: &mut Value) {
        if self.ty == Some(Type::Integer)
            && let Some(whole) = whole_number(value)
        {
            *value = Value::from(whole);
        }
        match value {
            Value::Object(object) => {
                self.default_object(object);
                for (name, child) in object.iter_mut() {
                    if let Some(schema) = self.child(name) {
                        schema.set_defaults(child);
                    }
                }
            },
            Value::Array(items) => {
                if let Some(schema) = &self.items {
                    for item in items {
                        schema.set_defaults(item);
                    }
                }
            },
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {},
        }
    }

    fn default_object(&self, object: &mut Map<String, Value>) {
        for (name, schema) in &self.properties {
            let drop_null = object.get(name).is_some_and(Value::is_null)
                && !(schema.nullable && self.required.contains(name));
            if drop_null {
                object.remove(name);
            }
            if let Some(default) = &schema.default
                && !object.contains_key(name)
            {
                object.insert(name.clone(), default.clone());
            }
        }
    }

    /// What is wrong with a value, field by field.
    pub fn validate(&self, value: &Value) -> Vec<FieldError> {
        let mut errors = Vec::new();
        self.validate_at(value, "", &mut errors);
        errors
    }

    fn validate_at(&self, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
        if value.is_null() && self.nullable {
            return;
        }
        if !self.has_type(value) {
            let wanted = if self.int_or_string {
                "integer,string"
            } else {
                self.ty.map_or("value", Type::name)
            };
            errors.push(FieldError::type_invalid(
                path,
                &type_name(value),
                &format!(
                    "{} in body must be of type {wanted}: {:?}",
                    place(path),
                    type_name(value)
                ),
            ));
            return;
        }
        if let Some(options) = &self.options
            && !options.contains(value)
        {
            let supported: Vec<_> = options
                .iter()
                .map(|o| o.as_str().map_or_else(|| o.to_string(), ToOwned::to_owned))
                .collect();
            errors.push(FieldError::not_supported(path, value, &supported));
        }
        match value {
            Value::Number(number) => self.validate_number(number, path, errors),
            Value::String(text) => errors.extend(self.string_fault(text, path)),
            Value::Array(items) => {
                let count = count(items.len());
                if let Some(max) = self.max_items.filter(|max| count > *max) {
                    errors.push(FieldError::too_many(path, count, max));
                }
                if let Some(min) = self.min_items.filter(|min| count < *min) {
                    let detail =
                        format!("{} in body should have at least {min} items", place(path));
                    errors.push(FieldError::invalid(path, &count, &detail));
                }
                if let Some(schema) = &self.items {
                    for (index, item) in items.iter().enumerate() {
                        schema.validate_at(item, &format!("{path}[{index}]"), errors);
                    }
                }
            },
            Value::Object(object) => {
                for name in &self.required {
                    if !object.contains_key(name) {
                        errors.push(FieldError::required(join(path, name), ""));
                    }
                }
                for (name, child) in object {
                    if let Some(schema) = self.child(name) {
                        schema.validate_at(child, &join(path, name), errors);
                    }
                }
            },
            Value::Null | Value::Bool(_) => {},
        }
    }

    fn has_type(&self, value: &Value) -> bool {
        if self.int_or_string {
            return value.is_i64() || value.is_u64() || value.is_string();
        }
        match self.ty {
            None => true,
            Some(Type::Object) => value.is_object(),
            Some(Type::Array) => value.is_array(),
            Some(Type::String) => value.is_string(),
            Some(Type::Integer) => {
                value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|n| n.fract() == 0.0)
            },
            Some(Type::Number) => value.is_number(),
            Some(Type::Boolean) => value.is_boolean(),
        }
    }

    fn validate_number(
        &self,
        number: &serde_json::Number,
        path: &str,
        errors: &mut Vec<FieldError>,
    ) {
        let Some(n) = number.as_f64() else { return };
        if let Some(min) = self.minimum.filter(|min| n < *min) {
            let detail = format!(
                "{} in body should be greater than or equal to {min}",
                place(path)
            );
            errors.push(FieldError::invalid(path, number, &detail));
        }
        if let Some(max) = self.maximum.filter(|max| n > *max) {
            let detail = format!(
                "{} in body should be less than or equal to {max}",
                place(path)
            );
            errors.push(FieldError::invalid(path, number, &detail));
        }
    }

    /// The first fault of a text: `k8s.io/kube-openapi/pkg/validation/validate` stops there.
    fn string_fault(&self, text: &str, path: &str) -> Option<FieldError> {
        let length = count(text.chars().count());
        if let Some(max) = self.max_length.filter(|max| length > *max) {
            return Some(FieldError::too_long(path, max));
        }
        let place = place(path);
        let detail = if let Some(min) = self.min_length.filter(|min| length < *min) {
            format!("{place} in body should be at least {min} chars long")
        } else {
            let pattern = self.pattern.as_ref().filter(|p| !p.is_match(text))?;
            format!("{place} in body should match '{pattern}'")
        };
        Some(FieldError::invalid(path, &text, &detail))
    }
}

/// The integer that a number with a decimal point stands for.
fn whole_number(value: &Value) -> Option<i64> {
    let number = value.as_number().filter(|number| number.is_f64())?;
    let text = format!("{:.0}", number.as_f64().filter(|n| n.fract() == 0.0)?);
    text.parse().ok()
}

fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

fn place(path: &str) -> &str {
    if path.is_empty() { "value" } else { path }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Schema {
        Schema::parse(&json!({
            "type": "object",
            "required": ["spec"],
            "properties": {
                "spec": {
                    "type": "object",
                    "required": ["host"],
                    "properties": {
                        "host": {"type": "string", "minLength": 1, "maxLength": 5, "pattern": "^[a-z]*$"},
                        "ttl": {"type": "integer", "minimum": 10.0, "maximum": 20.0, "default": 15},
                        "mode": {"type": "string", "enum": ["A", "B"]},
                        "tags": {"type": "object", "additionalProperties": {"type": "string"}},
                        "list": {"type": "array", "maxItems": 1, "items": {
                            "type": "object", "properties": {"x": {"type": "boolean", "default": true}}}},
                        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                        "port": {"x-kubernetes-int-or-string": true},
                    },
                },
            },
        }))
        .unwrap()
    }

    #[test]
    fn undeclared_fields_are_pruned_and_named() {
        let mut value = json!({"spec": {
            "host": "a", "nope": 1, "tags": {"k": "v"}, "free": {"y": {"z": 1}}, "list": [{"x": true, "q": 1}],
        }, "more": {}});
        let mut unknown = schema().prune(&mut value);
        unknown.sort();
        assert_eq!(unknown, ["more", "spec.list[0].q", "spec.nope"]);
        assert_eq!(
            value,
            json!({"spec": {"host": "a", "tags": {"k": "v"}, "free": {"y": {"z": 1}}, "list": [{"x": true}]}})
        );
    }

    #[test]
    fn defaults_fill_absent_and_null_fields_and_leave_zero_alone() {
        let mut value = json!({"spec": {"ttl": null, "list": [{}]}});
        schema().set_defaults(&mut value);
        assert_eq!(value, json!({"spec": {"ttl": 15, "list": [{"x": true}]}}));
        let mut whole = json!({"spec": {"ttl": 30.0}});
        schema().set_defaults(&mut whole);
        assert_eq!(whole, json!({"spec": {"ttl": 30}}));
        let mut zero = json!({"spec": {"ttl": 0}});
        schema().set_defaults(&mut zero);
        assert_eq!(zero, json!({"spec": {"ttl": 0}}));
    }

    #[test]
    fn each_constraint_is_reported_at_its_field() {
        for (spec, expected) in [
            (json!({}), "spec.host: Required value"),
            (
                json!({"host": 1}),
                r#"spec.host: Invalid value: "integer": spec.host in body must be of type string: "integer""#,
            ),
            (
                json!({"host": ""}),
                r#"spec.host: Invalid value: "": spec.host in body should be at least 1 chars long"#,
            ),
            (
                json!({"host": "abcdef"}),
                "spec.host: Too long: may not be more than 5 bytes",
            ),
            (
                json!({"host": "A"}),
                r#"spec.host: Invalid value: "A": spec.host in body should match '^[a-z]*$'"#,
            ),
            (
                json!({"host": "a", "ttl": 9}),
                "spec.ttl: Invalid value: 9: spec.ttl in body should be greater than or equal to 10",
            ),
            (
                json!({"host": "a", "ttl": 21}),
                "spec.ttl: Invalid value: 21: spec.ttl in body should be less than or equal to 20",
            ),
            (
                json!({"host": "a", "mode": "C"}),
                r#"spec.mode: Unsupported value: "C": supported values: "A", "B""#,
            ),
            (
                json!({"host": "a", "list": [{}, {}]}),
                "spec.list: Too many: 2: must have at most 1 items",
            ),
            (
                json!({"host": "a", "port": true}),
                r#"spec.port: Invalid value: "boolean": spec.port in body must be of type integer,string: "boolean""#,
            ),
        ] {
            let errors = schema().validate(&json!({"spec": spec}));
            let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(texts, [expected]);
        }
        assert!(
            schema()
                .validate(&json!({"spec": {"host": "a", "ttl": 10, "port": "http"}}))
                .is_empty()
        );
    }

    #[test]
    fn schemas_that_would_not_be_evaluated_are_refused() {
        for (bad, what) in [
            (json!({"type": "object", "oneOf": []}), "oneOf"),
            (json!({"properties": {}}), "no type"),
            (
                json!({"type": "object", "x-kubernetes-validations": []}),
                "x-kubernetes-validations",
            ),
            (json!({"$ref": "#/x"}), "$ref"),
        ] {
            let error = Schema::parse(&bad).expect_err(what).to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
