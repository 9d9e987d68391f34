//! Checks requests and responses against an extract of an API's discovery document, so that a fake
//! accepts and says nothing that the real API would not.
//!
//! The notation is that of Google's discovery format: `int64` and `uint64` of the type `string` are
//! digits in a string, `byte` is base64. Two words of OpenAPI are understood beside it: `required`
//! and `nullable`. The extract of Compute Engine is made by `hack/extract-discovery.py`; that of
//! Hetzner Cloud says itself what it was written from.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

/// An API, as far as it is faked.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Api {
    /// Where the extract comes from, with the version.
    pub source: String,
    /// The revision that the document says.
    pub revision: String,
    /// The path in front of every method's.
    pub service_path: String,
    /// Query parameters that a front end takes for every method.
    #[serde(default)]
    pub system_parameters: Vec<String>,
    /// What can be called.
    pub methods: Vec<Method>,
    schemas: BTreeMap<String, Schema>,
}

/// A method of an API.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Method {
    /// For example `compute.instances.insert`.
    pub id: String,
    /// `GET`, `POST`, `DELETE`.
    pub http_method: String,
    /// With parameters in braces, below the service path.
    pub path: String,
    parameters: BTreeMap<String, Parameter>,
    request: Option<String>,
    response: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Parameter {
    location: String,
    #[serde(default)]
    required: bool,
    #[serde(flatten)]
    shape: Limits,
}

#[derive(Debug, Deserialize)]
struct Limits {
    #[serde(rename = "type")]
    type_: String,
    format: Option<String>,
    pattern: Option<String>,
    #[serde(rename = "enum")]
    values: Option<Vec<String>>,
    minimum: Option<String>,
    maximum: Option<String>,
    #[expect(dead_code, reason = "part of the notation; no faked method reads it")]
    repeated: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct Schema {
    #[serde(rename = "$ref")]
    reference: Option<String>,
    #[serde(rename = "type")]
    type_: Option<String>,
    format: Option<String>,
    pattern: Option<String>,
    #[serde(rename = "enum")]
    values: Option<Vec<String>>,
    items: Option<Box<Self>>,
    properties: BTreeMap<String, Self>,
    additional_properties: Option<Box<Self>>,
    /// The methods whose requests need the property.
    required_by: Vec<String>,
    /// The properties that are always there.
    required: Vec<String>,
    /// Whether null is a value.
    nullable: bool,
}

/// A call of a method, taken apart.
#[derive(Debug)]
pub struct Call<'a> {
    /// What is called.
    pub method: &'a Method,
    /// Path and query parameters by name.
    pub parameters: BTreeMap<String, String>,
}

/// Why a request is not one of the API's.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No method has this path and verb.
    NoSuchMethod,
    /// Something in it is wrong; in words.
    Wrong(String),
}

// === impl Api ===

impl Api {
    /// Reads an extract.
    ///
    /// # Errors
    /// It is not one.
    pub fn read(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// Finds the method of a request, and checks its parameters.
    ///
    /// # Errors
    /// The API has no such method, or it takes no such parameters.
    pub fn route<'a>(
        &'a self,
        verb: &str,
        path: &str,
        query: &[(String, String)],
    ) -> Result<Call<'a>, Refusal> {
        let below = path
            .strip_prefix('/')
            .and_then(|path| path.strip_prefix(&self.service_path))
            .ok_or(Refusal::NoSuchMethod)?;
        let mut calls = self.methods.iter().filter_map(|method| {
            let parameters = match_path(&method.path, below)?;
            (method.http_method == verb).then_some(Call { method, parameters })
        });
        let mut call = calls.next().ok_or(Refusal::NoSuchMethod)?;
        for (name, value) in query {
            if self.system_parameters.contains(name) {
                continue;
            }
            let known = call.method.parameters.get(name);
            if known.is_none_or(|parameter| parameter.location != "query") {
                return Err(Refusal::Wrong(format!(
                    "Unknown name \"{name}\": Cannot bind query parameter."
                )));
            }
            if call
                .parameters
                .insert(name.clone(), value.clone())
                .is_some()
            {
                return Err(Refusal::Wrong(format!("{name} is given twice")));
            }
        }
        for (name, parameter) in &call.method.parameters {
            match call.parameters.get(name) {
                Some(value) => parameter
                    .shape
                    .check(value)
                    .map_err(|what| Refusal::Wrong(format!("parameter {name}: {what}")))?,
                None if parameter.required => {
                    return Err(Refusal::Wrong(format!(
                        "Required parameter: {name} not specified"
                    )));
                },
                None => {},
            }
        }
        Ok(call)
    }

    /// Checks the body of a request.
    ///
    /// # Errors
    /// In words, what is not as the document says.
    pub fn check_request(&self, method: &Method, body: Option<&Value>) -> Result<(), String> {
        match (&method.request, body) {
            (None, None) => Ok(()),
            (None, Some(_)) => Err("this method takes no body".into()),
            (Some(_), None) => Err("this method needs a body".into()),
            (Some(name), Some(body)) => {
                self.check_named(name, body, "")?;
                let schema = self.schemas.get(name);
                let properties = schema.into_iter().flat_map(|schema| &schema.properties);
                for (property, schema) in properties {
                    if schema.required_by.contains(&method.id) && body.get(property).is_none() {
                        return Err(format!("Required field '{property}' not specified"));
                    }
                }
                Ok(())
            },
        }
    }

    /// Checks the body of a response.
    ///
    /// # Errors
    /// In words, what is not as the document says.
    pub fn check_response(&self, method: &Method, body: &Value) -> Result<(), String> {
        match &method.response {
            Some(name) => self.check_named(name, body, ""),
            None => Err("this method answers without a body".into()),
        }
    }

    fn check_named(&self, name: &str, value: &Value, at: &str) -> Result<(), String> {
        let schema = self.schemas.get(name);
        let schema = schema.ok_or_else(|| format!("the extract lacks the schema {name}"))?;
        self.check(schema, value, at)
    }

    fn check(&self, schema: &Schema, value: &Value, at: &str) -> Result<(), String> {
        if schema.nullable && value.is_null() {
            return Ok(());
        }
        if let Some(name) = &schema.reference {
            return self.check_named(name, value, at);
        }
        let wrong = |what: &str| Err(format!("Invalid value at '{at}': {what}, found {value}"));
        match (schema.type_.as_deref().unwrap_or("any"), value) {
            ("any", _) | ("boolean", Value::Bool(_)) | ("number", Value::Number(_)) => Ok(()),
            ("string", Value::String(text)) => {
                let shape = Limits {
                    type_: "string".into(),
                    format: schema.format.clone(),
                    pattern: schema.pattern.clone(),
                    values: schema.values.clone(),
                    minimum: None,
                    maximum: None,
                    repeated: None,
                };
                shape
                    .check(text)
                    .map_err(|what| format!("Invalid value at '{at}': {what}"))
            },
            ("integer", Value::Number(number)) if number.is_i64() || number.is_u64() => Ok(()),
            ("array", Value::Array(items)) => {
                let Some(schema) = &schema.items else {
                    return Ok(());
                };
                let mut items = items.iter().enumerate();
                items.try_for_each(|(n, item)| self.check(schema, item, &format!("{at}[{n}]")))
            },
            ("object", Value::Object(fields)) => {
                let missing = schema
                    .required
                    .iter()
                    .find(|name| !fields.contains_key(*name));
                if let Some(name) = missing {
                    return Err(format!("Required field '{name}' is missing at '{at}'"));
                }
                for (name, field) in fields {
                    let below = if at.is_empty() {
                        name.clone()
                    } else {
                        format!("{at}.{name}")
                    };
                    let known = schema.properties.get(name);
                    match known.or(schema.additional_properties.as_deref()) {
                        Some(schema) => self.check(schema, field, &below)?,
                        None => {
                            return Err(format!(
                                "Invalid JSON payload received. Unknown name \"{name}\" at \
                                 '{at}': Cannot find field."
                            ));
                        },
                    }
                }
                Ok(())
            },
            (type_, _) => wrong(&format!("want {type_}")),
        }
    }
}

impl Limits {
    fn check(&self, text: &str) -> Result<(), String> {
        let Self {
            type_,
            format,
            pattern,
            values,
            minimum,
            maximum,
            repeated: _,
        } = self;
        let fits = match (type_.as_str(), format.as_deref()) {
            (_, Some("uint64")) => text.parse::<u64>().is_ok(),
            (_, Some("int64")) => text.parse::<i64>().is_ok(),
            (_, Some("uint32")) => text.parse::<u32>().is_ok(),
            (_, Some("int32")) => text.parse::<i32>().is_ok(),
            (_, Some("byte")) => STANDARD.decode(text).is_ok() || URL_SAFE.decode(text).is_ok(),
            (_, Some("google-datetime")) => text.parse::<jiff::Timestamp>().is_ok(),
            ("boolean", _) => text.parse::<bool>().is_ok(),
            (_, _) => true,
        };
        if !fits {
            let wanted = format.as_deref().unwrap_or(type_);
            return Err(format!("{text:?} is no {wanted}"));
        }
        if let Some(values) = values
            && !values.iter().any(|value| value == text)
        {
            return Err(format!("{text:?} is not one of {values:?}"));
        }
        if let Some(pattern) = pattern {
            let whole = Regex::new(&format!("^(?:{pattern})$")).map_err(|e| e.to_string())?;
            if !whole.is_match(text) {
                return Err(format!(
                    "Must be a match of regex '{pattern}', found {text:?}"
                ));
            }
        }
        let number = |limit: &Option<String>| limit.as_ref().and_then(|l| l.parse::<i64>().ok());
        let below = |limit: i64| text.parse::<i64>().is_ok_and(|value| value < limit);
        let above = |limit: i64| text.parse::<i64>().is_ok_and(|value| value > limit);
        if number(minimum).is_some_and(below) || number(maximum).is_some_and(above) {
            return Err(format!("{text:?} is out of range"));
        }
        Ok(())
    }
}

/// The parameters of a path that has the form of a template.
fn match_path(template: &str, path: &str) -> Option<BTreeMap<String, String>> {
    let mut parameters = BTreeMap::new();
    let mut parts = path.split('/');
    for wanted in template.split('/') {
        let part = parts.next()?;
        let name = wanted.strip_prefix('{').and_then(|w| w.strip_suffix('}'));
        match name {
            Some(name) if !part.is_empty() => {
                parameters.insert(name.to_owned(), part.to_owned());
            },
            None if wanted == part => {},
            Some(_) | None => return None,
        }
    }
    parts.next().is_none().then_some(parameters)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn api() -> Api {
        Api::read(include_str!("../data/compute-v1.json")).unwrap()
    }

    const INSTANCES: &str = "/compute/v1/projects/p/zones/z-1/instances";

    fn query(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    }

    #[test]
    fn a_request_is_matched_by_verb_and_path_and_its_parameters_are_found() {
        let api = api();
        let call = api
            .route(
                "GET",
                &format!("{INSTANCES}/17"),
                &query(&[("$alt", "json")]),
            )
            .unwrap();
        assert_eq!(call.method.id, "compute.instances.get");
        assert_eq!(call.parameters["instance"], "17");
        for (verb, path) in [
            ("PUT", INSTANCES),
            ("GET", "/compute/v1/projects/p"),
            ("GET", "/compute/beta/projects/p/zones/z-1/instances"),
        ] {
            let refused = api.route(verb, path, &[]).unwrap_err();
            assert_eq!(refused, Refusal::NoSuchMethod, "{verb} {path}");
        }
    }

    #[test]
    fn parameters_that_the_document_does_not_know_are_refused() {
        let api = api();
        for (verb, path, pairs) in [
            ("GET", INSTANCES, query(&[("labels", "x")])),
            ("GET", INSTANCES, query(&[("maxResults", "many")])),
            ("GET", INSTANCES, query(&[("filter", "a"), ("filter", "b")])),
            ("GET", "/compute/v1/projects/p/zones/Z/instances", vec![]),
        ] {
            let refused = api.route(verb, path, &pairs);
            assert!(
                matches!(refused, Err(Refusal::Wrong(_))),
                "{path} {pairs:?}"
            );
        }
    }

    #[test]
    fn bodies_are_checked_to_the_last_field() {
        let api = api();
        let insert = api.route("POST", INSTANCES, &[]).unwrap().method;
        let good = json!({
            "name": "a",
            "labels": {"any": "thing"},
            "disks": [{"boot": true, "initializeParams": {"diskSizeGb": "10"}}],
            "networkInterfaces": [{"accessConfigs": [{"type": "ONE_TO_ONE_NAT"}]}],
        });
        api.check_request(insert, Some(&good)).unwrap();
        for (case, body) in [
            ("no name", json!({})),
            ("unknown field", json!({"name": "a", "colour": "red"})),
            (
                "unknown nested field",
                json!({"name": "a", "disks": [{"initializeParams": {"size": "10"}}]}),
            ),
            (
                "64-bit integer as a number",
                json!({"name": "a", "disks": [{"initializeParams": {"diskSizeGb": 10}}]}),
            ),
            (
                "value outside of an enumeration",
                json!({"name": "a", "networkInterfaces": [{"accessConfigs": [{"type": "NAT"}]}]}),
            ),
            ("list for an object", json!({"name": "a", "labels": []})),
            (
                "label that is no text",
                json!({"name": "a", "labels": {"n": 1}}),
            ),
        ] {
            assert!(api.check_request(insert, Some(&body)).is_err(), "{case}");
        }
        assert!(api.check_request(insert, None).is_err());
    }
}
