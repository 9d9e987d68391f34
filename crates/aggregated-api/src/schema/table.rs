//! `meta.k8s.io` tables from declared printer columns.

use jiff::Timestamp;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceColumnDefinition;
use serde::Serialize;
use serde_json::{Value, json};
use serde_json_path::JsonPath;

use super::age::human_age;
use crate::codec::negotiate::MetaVersion;

/// Why a column is refused at registration.
#[derive(Debug, thiserror::Error)]
#[error("printer column {name:?}: the path {path:?} cannot be evaluated: {why}")]
pub struct ColumnError {
    name: String,
    path: String,
    why: String,
}

/// A column of a kind's tables.
#[derive(Debug)]
pub struct Column {
    definition: ColumnDefinition,
    path: JsonPath,
}

#[derive(Clone, Debug, Serialize)]
struct ColumnDefinition {
    name: String,
    #[serde(rename = "type")]
    ty: String,
    format: String,
    description: String,
    priority: i32,
}

impl Column {
    /// Reads declared columns; the name column is added in front, and an age column when none are
    /// declared, as for CustomResourceDefinitions.
    pub(crate) fn all(
        declared: Vec<CustomResourceColumnDefinition>,
    ) -> Result<Vec<Self>, ColumnError> {
        let name = CustomResourceColumnDefinition {
            name: "Name".to_owned(),
            type_: "string".to_owned(),
            format: Some("name".to_owned()),
            description: Some("Name of the object, unique in its namespace.".to_owned()),
            json_path: ".metadata.name".to_owned(),
            priority: None,
        };
        let age = CustomResourceColumnDefinition {
            name: "Age".to_owned(),
            type_: "date".to_owned(),
            format: None,
            description: Some("Time since the object was created.".to_owned()),
            json_path: ".metadata.creationTimestamp".to_owned(),
            priority: None,
        };
        let rest = if declared.is_empty() {
            vec![age]
        } else {
            declared
        };
        std::iter::once(name).chain(rest).map(Self::parse).collect()
    }

    fn parse(declared: CustomResourceColumnDefinition) -> Result<Self, ColumnError> {
        let path =
            JsonPath::parse(&format!("${}", declared.json_path)).map_err(|e| ColumnError {
                name: declared.name.clone(),
                path: declared.json_path.clone(),
                why: e.to_string(),
            })?;
        Ok(Self {
            definition: ColumnDefinition {
                name: declared.name,
                ty: declared.type_,
                format: declared.format.unwrap_or_default(),
                description: declared.description.unwrap_or_default(),
                priority: declared.priority.unwrap_or_default(),
            },
            path,
        })
    }

    fn cell(&self, object: &Value, now: Timestamp) -> Value {
        let found: Vec<_> = self.path.query(object).into_iter().collect();
        let Some(first) = found.first() else {
            // A bookmark has no name.
            let named = self.definition.format == "name";
            return if named { Value::from("") } else { Value::Null };
        };
        match self.definition.ty.as_str() {
            "integer" | "number" | "boolean" => (*first).clone(),
            "date" => {
                let then = first.as_str().and_then(|text| text.parse().ok());
                then.map_or_else(
                    || Value::from("<invalid>"),
                    |then| Value::from(human_age(then, now)),
                )
            },
            _ => Value::from(
                first
                    .as_str()
                    .map_or_else(|| first.to_string(), ToOwned::to_owned),
            ),
        }
    }
}

/// Annotation of the bookmark that ends the initial events of a watch.
pub const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// What a row carries of its object (`includeObject`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IncludeObject {
    /// Nothing.
    None,
    /// `PartialObjectMetadata`.
    Metadata,
    /// The object.
    Object,
}

/// `PartialObjectMetadata` of an object.
pub fn partial_metadata(object: &Value, version: MetaVersion) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": version.api_version(),
        "metadata": object.get("metadata").cloned().unwrap_or_else(|| json!({})),
    })
}

/// A table with one row per object, ages counted up to `now`. `headers` is false for later events of a
/// watch, which leave the column definitions out. The bookmark that ends the initial events of a watch
/// keeps its metadata whatever `include` says, for they are what marks it.
pub fn table(
    version: MetaVersion,
    columns: &[Column],
    objects: Vec<Value>,
    metadata: &Value,
    include: IncludeObject,
    now: Timestamp,
    headers: bool,
) -> Value {
    let definitions: Vec<_> = columns.iter().map(|c| &c.definition).collect();
    let rows: Vec<_> = objects
        .into_iter()
        .map(|object| {
            let cells: Vec<_> = columns.iter().map(|c| c.cell(&object, now)).collect();
            let marked = object["metadata"]["annotations"]
                .get(INITIAL_EVENTS_END)
                .is_some();
            let included = match include {
                IncludeObject::Object => object,
                IncludeObject::None if !marked => Value::Null,
                IncludeObject::None | IncludeObject::Metadata => partial_metadata(&object, version),
            };
            json!({"cells": cells, "object": included})
        })
        .collect();
    json!({
        "kind": "Table",
        "apiVersion": version.api_version(),
        "metadata": metadata,
        "columnDefinitions": if headers { json!(definitions) } else { Value::Null },
        "rows": rows,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(path: &str, ty: &str) -> CustomResourceColumnDefinition {
        CustomResourceColumnDefinition {
            name: path.to_owned(),
            type_: ty.to_owned(),
            json_path: path.to_owned(),
            ..Default::default()
        }
    }

    #[test]
    fn cells_follow_declared_paths_and_types() {
        let columns = Column::all(vec![
            column(".status.active", "integer"),
            column(r#".status.conditions[?(@.type=="Bound")].status"#, "string"),
            column(".status.absent", "string"),
            column(".metadata.creationTimestamp", "date"),
        ])
        .unwrap();
        let object = json!({
            "metadata": {"name": "x", "creationTimestamp": "1970-01-01T00:00:00Z"},
            "status": {"active": 0, "conditions": [{"type": "Other", "status": "False"}, {"type": "Bound", "status": "True"}]},
        });
        let table = table(
            MetaVersion::V1,
            &columns,
            vec![object],
            &json!({"resourceVersion": "7"}),
            IncludeObject::Metadata,
            Timestamp::from_second(90).unwrap(),
            true,
        );
        assert_eq!(
            table["rows"][0]["cells"],
            json!(["x", 0, "True", null, "90s"])
        );
        assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
        assert_eq!(table["columnDefinitions"][0]["format"], "name");
    }

    #[test]
    fn the_marked_bookmark_keeps_its_mark_also_in_a_row_without_an_object() {
        let columns = Column::all(Vec::new()).unwrap();
        for (annotations, object) in [
            (json!({}), Value::Null),
            (
                json!({INITIAL_EVENTS_END: "true"}),
                json!("PartialObjectMetadata"),
            ),
        ] {
            let bookmark = json!({"metadata": {"annotations": annotations}});
            let table = table(
                MetaVersion::V1Beta1,
                &columns,
                vec![bookmark],
                &json!({}),
                IncludeObject::None,
                Timestamp::UNIX_EPOCH,
                false,
            );
            assert_eq!(table["apiVersion"], "meta.k8s.io/v1beta1");
            assert_eq!(table["rows"][0]["cells"], json!(["", null]));
            assert_eq!(table["rows"][0]["object"]["kind"], object);
        }
    }

    #[test]
    fn a_path_that_cannot_be_evaluated_is_refused() {
        assert!(Column::all(vec![column(".status[", "string")]).is_err());
    }
}
