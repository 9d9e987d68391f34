//! A kind as it is served, read once from what `#[derive(kube::CustomResource)]` declares.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::schema::StructuralSchemaRewriter;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::openapi::collapse;
use super::scale::Scaling;
use super::structural::{Schema, SchemaError};
use super::table::{Column, ColumnError};
use crate::http::status::GroupResource;
use crate::registry::capability::Object;

/// Why a kind cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum DeclarationError {
    /// The schema is not structural, or uses what this library does not evaluate.
    #[error("{kind}: {error}")]
    Schema {
        /// The kind.
        kind: String,
        /// What is wrong.
        #[source]
        error: SchemaError,
    },
    /// A printer column cannot be evaluated.
    #[error("{kind}: {error}")]
    Column {
        /// The kind.
        kind: String,
        /// What is wrong.
        #[source]
        error: ColumnError,
    },
    /// Versions of a kind have the same group, names and scope, and no two are the same version.
    #[error(
        "{version} is not another version of the kind it was added to: group, plural, kind and scope must be the same, and the version one that is not there yet"
    )]
    NotAVersion {
        /// `<group>/<version>` of what was added.
        version: String,
    },
    /// The derived definition lacks something.
    #[error("{kind}: the CustomResourceDefinition has no {missing}")]
    Incomplete {
        /// The kind.
        kind: String,
        /// What is missing.
        missing: &'static str,
    },
}

/// Everything the library needs to know about a kind.
#[derive(Debug)]
pub struct Declaration {
    /// Group and plural.
    pub resource: GroupResource,
    /// Version.
    pub version: String,
    /// Kind.
    pub kind: String,
    /// Singular name.
    pub singular: String,
    /// Short names.
    pub short_names: Vec<String>,
    /// Categories such as `all`.
    pub categories: Vec<String>,
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// Whether the kind has a status, which main-resource writes do not touch.
    pub has_status: bool,
    /// How it is scaled, when it can be.
    pub scaling: Option<Scaling>,
    /// Schema of the whole object.
    pub schema: Schema,
    /// Columns of its tables.
    pub columns: Vec<Column>,
    /// `<group>/<version>`.
    pub api_version: String,
    /// The schema as declared, for the OpenAPI documents: spec and status only.
    pub(crate) openapi: Value,
}

impl Declaration {
    /// Reads the declaration of a kind.
    ///
    /// # Errors
    /// A schema that is not structural, a column that cannot be evaluated.
    pub fn of<T: Object>() -> Result<Self, DeclarationError> {
        let crd = T::crd();
        let names = crd.spec.names;
        let kind = names.kind;
        let incomplete = |missing| DeclarationError::Incomplete {
            kind: kind.clone(),
            missing,
        };
        let version = crd
            .spec
            .versions
            .into_iter()
            .next()
            .ok_or_else(|| incomplete("version"))?;
        let declared = version
            .schema
            .and_then(|s| s.open_api_v3_schema)
            .ok_or_else(|| incomplete("schema"))?;
        let openapi =
            serde_json::to_value(declared).map_err(|_| incomplete("schema that is JSON"))?;
        let schema = whole_schema(&openapi).map_err(|error| DeclarationError::Schema {
            kind: kind.clone(),
            error,
        })?;
        let columns = Column::all(version.additional_printer_columns.unwrap_or_default()).map_err(
            |error| DeclarationError::Column {
                kind: kind.clone(),
                error,
            },
        )?;
        let scale = version.subresources.and_then(|s| s.scale);
        Ok(Self {
            scaling: scale.as_ref().map(Scaling::new),
            has_status: openapi.pointer("/properties/status").is_some(),
            api_version: format!("{}/{}", crd.spec.group, version.name),
            resource: GroupResource {
                group: crd.spec.group,
                resource: names.plural,
            },
            version: version.name,
            singular: names.singular.unwrap_or_else(|| kind.to_lowercase()),
            short_names: names.short_names.unwrap_or_default(),
            categories: names.categories.unwrap_or_default(),
            namespaced: crd.spec.scope == "Namespaced",
            schema,
            columns,
            openapi,
            kind,
        })
    }

    /// Key prefix of this kind in the store, with a final slash.
    pub fn prefix(&self) -> String {
        format!(
            "{}{}/{}/",
            crate::store::SERVED_PREFIX,
            self.resource.group,
            self.resource.resource
        )
    }

    /// Store key of one object.
    pub fn key(&self, namespace: &str, name: &str) -> String {
        if self.namespaced {
            format!("{}{namespace}/{name}", self.prefix())
        } else {
            format!("{}{name}", self.prefix())
        }
    }
}

/// The declared spec and status, completed with what every object has.
fn whole_schema(declared: &Value) -> Result<Schema, SchemaError> {
    let mut whole = declared.clone();
    let metadata = SchemaSettings::openapi3()
        .with(|settings| settings.inline_subschemas = true)
        .into_generator()
        .into_root_schema_for::<ObjectMeta>();
    if let Some(object) = whole.as_object_mut() {
        let properties = object.entry("properties").or_insert_with(|| json!({}));
        properties["apiVersion"] = json!({"type": "string"});
        properties["kind"] = json!({"type": "string"});
        properties["metadata"] = strip_bounds(metadata.to_value());
    }
    Schema::parse(&whole)
}

/// The schema of a subresource's body: as it is published, and as bodies are checked by it. Metadata
/// and status of a body are the server's: there, only unknown fields are looked for.
pub(crate) fn body_schema<B: JsonSchema>(kind: &str) -> Result<(Value, Schema), DeclarationError> {
    let schema = SchemaSettings::openapi3()
        .with(|settings| settings.inline_subschemas = true)
        .with_transform(StructuralSchemaRewriter)
        .into_generator()
        .into_root_schema_for::<B>();
    let mut schema = schema.to_value();
    if let Some(object) = schema.as_object_mut() {
        object.remove("$schema");
        object.remove("title");
        let properties = object.entry("properties").or_insert_with(|| json!({}));
        properties["apiVersion"] = json!({"type": "string"});
        properties["kind"] = json!({"type": "string"});
    }
    let mut checked = collapse(schema.clone());
    for part in ["metadata", "status"] {
        if let Some(of_server) = checked["properties"].get_mut(part) {
            *of_server = strip_bounds(of_server.take());
        }
    }
    if let Some(Value::Array(required)) = checked.get_mut("required") {
        required.retain(|name| name != "metadata" && name != "status");
    }
    let parsed = Schema::parse(&checked).map_err(|error| DeclarationError::Schema {
        kind: kind.to_owned(),
        error,
    })?;
    Ok((schema, parsed))
}

/// `ObjectMeta` is validated by its own rules; its schema only serves to find unknown fields.
/// `fieldsV1` is an object without declared fields that must keep its content.
fn strip_bounds(mut schema: Value) -> Value {
    if let Some(object) = schema.as_object_mut() {
        for noise in [
            "format", "required", "$schema", "title", "minimum", "maximum",
        ] {
            object.remove(noise);
        }
        let open = object.get("type") == Some(&json!("object"))
            && !object.contains_key("properties")
            && !object.contains_key("additionalProperties");
        if open {
            object.insert(
                "x-kubernetes-preserve-unknown-fields".to_owned(),
                json!(true),
            );
        }
        if let Some(Value::Object(properties)) = object.get_mut("properties") {
            for value in properties.values_mut() {
                *value = strip_bounds(value.take());
            }
        }
        if let Some(items) = object.get_mut("items") {
            *items = strip_bounds(items.take());
        }
    }
    schema
}
