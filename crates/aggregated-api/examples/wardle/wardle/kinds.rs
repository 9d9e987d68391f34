//! The kinds of upstream's sample group as its `v1alpha1` has them: what clients see and declare.
//!
//! They are declared by hand because they are not what `#[derive(kube::CustomResource)]` makes: a
//! flunder needs no spec, and a fischer has none.

use std::borrow::Cow;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionNames, CustomResourceDefinitionSpec,
    CustomResourceDefinitionVersion, CustomResourceValidation,
};
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kube::core::{ApiResource, CustomResourceExt, ObjectMeta, Resource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The group.
pub(crate) const GROUP: &str = "wardle.example.com";
/// Its version.
pub(crate) const VERSION: &str = "v1alpha1";

/// A namespaced kind.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Flunder {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    metadata: ObjectMeta,
    /// What it refers to.
    #[serde(default)]
    pub(crate) spec: FlunderSpec,
    #[serde(default)]
    status: FlunderStatus,
}

/// What a flunder refers to.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FlunderSpec {
    /// Name of another flunder or fischer.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) reference: String,
    /// Which of the two it is; `Flunder` when a reference is given without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reference_type: Option<String>,
}

/// Nothing yet.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub(crate) struct FlunderStatus {}

/// What of a flunder its schema declares.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct FlunderSchema {
    /// What it refers to.
    #[schemars(default)]
    spec: Option<FlunderSpec>,
    /// Nothing yet.
    #[schemars(default)]
    status: Option<FlunderStatus>,
}

/// A cluster-scoped kind whose one field is not in a spec.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Fischer {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    metadata: ObjectMeta,
    /// Names that no flunder may have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) disallowed_flunders: Vec<String>,
}

/// What of a fischer its schema declares.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "only its schema is used")]
struct FischerSchema {
    /// Names that no flunder may have.
    #[serde(default)]
    disallowed_flunders: Vec<String>,
}

/// Implements what the library asks of a kind.
macro_rules! declare {
    ($kind:ident, $schema:ident, $scope:ty, $plural:literal, $singular:literal, $crd:literal, $about:literal) => {
        impl Resource for $kind {
            type DynamicType = ();
            type Scope = $scope;

            fn kind((): &()) -> Cow<'_, str> {
                stringify!($kind).into()
            }

            fn group((): &()) -> Cow<'_, str> {
                GROUP.into()
            }

            fn version((): &()) -> Cow<'_, str> {
                VERSION.into()
            }

            fn plural((): &()) -> Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }

        impl CustomResourceExt for $kind {
            fn crd() -> CustomResourceDefinition {
                let names = CustomResourceDefinitionNames {
                    kind: stringify!($kind).to_owned(),
                    plural: $plural.to_owned(),
                    singular: Some($singular.to_owned()),
                    ..CustomResourceDefinitionNames::default()
                };
                definition::<$schema>(names, stringify!($scope), $about)
            }

            fn crd_name() -> &'static str {
                $crd
            }

            fn api_resource() -> ApiResource {
                ApiResource::erase::<Self>(&())
            }

            fn shortnames() -> &'static [&'static str] {
                &[]
            }
        }
    };
}

declare!(
    Flunder,
    FlunderSchema,
    NamespaceResourceScope,
    "flunders",
    "flunder",
    "flunders.wardle.example.com",
    "A namespaced kind."
);
declare!(
    Fischer,
    FischerSchema,
    ClusterResourceScope,
    "fischers",
    "fischer",
    "fischers.wardle.example.com",
    "A cluster-scoped kind."
);

fn definition<S: JsonSchema>(
    names: CustomResourceDefinitionNames,
    scope: &str,
    about: &str,
) -> CustomResourceDefinition {
    let schema = schemars::generate::SchemaSettings::openapi3()
        .with(|settings| settings.inline_subschemas = true)
        .into_generator()
        .into_root_schema_for::<S>();
    let mut schema = schema.to_value();
    if let Some(object) = schema.as_object_mut() {
        object.remove("$schema");
        object.remove("title");
        object.insert("description".to_owned(), about.into());
    }
    // Why: an absent spec or status is allowed, null is what Go makes of it, and no default is declared.
    for name in ["spec", "status"] {
        if let Some(property) = schema
            .pointer_mut(&format!("/properties/{name}"))
            .and_then(|property| property.as_object_mut())
        {
            property.remove("default");
        }
    }
    CustomResourceDefinition {
        spec: CustomResourceDefinitionSpec {
            group: GROUP.to_owned(),
            names,
            scope: match scope {
                "ClusterResourceScope" => "Cluster".to_owned(),
                _ => "Namespaced".to_owned(),
            },
            versions: vec![CustomResourceDefinitionVersion {
                name: VERSION.to_owned(),
                served: true,
                storage: true,
                schema: Some(CustomResourceValidation {
                    open_api_v3_schema: serde_json::from_value(schema).ok(),
                }),
                ..CustomResourceDefinitionVersion::default()
            }],
            ..CustomResourceDefinitionSpec::default()
        },
        ..CustomResourceDefinition::default()
    }
}
