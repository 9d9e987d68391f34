//! The kinds of upstream's sample group: flunders in `v1beta1`, which is stored, and `v1alpha1`, fischers in
//! `v1alpha1` only.
//!
//! They are declared by hand because they are not what `#[derive(kube::CustomResource)]` makes: a
//! flunder needs no spec, and a fischer has none.

use std::borrow::Cow;

use aggregated_api::registry::version::Convert;
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
/// The version of both kinds.
pub(crate) const V1ALPHA1: &str = "v1alpha1";
/// The newer version of flunders.
pub(crate) const V1BETA1: &str = "v1beta1";

/// Type of a reference to a flunder.
pub(crate) const FLUNDER: &str = "Flunder";
/// Type of a reference to a fischer.
pub(crate) const FISCHER: &str = "Fischer";

/// A namespaced kind, as it is stored.
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

/// What a flunder refers to: another flunder, a fischer, or nothing.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FlunderSpec {
    /// Name of another flunder.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) flunder_reference: String,
    /// Name of a fischer.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) fischer_reference: String,
    /// Which of the two is set: `Flunder` or `Fischer`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) reference_type: String,
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

/// A flunder in `v1alpha1`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FlunderV1alpha1 {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: FlunderSpecV1alpha1,
    #[serde(default)]
    status: FlunderStatus,
}

/// What a flunder refers to, in one field for both kinds.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "FlunderSpec")]
struct FlunderSpecV1alpha1 {
    /// Name of another flunder or fischer.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    reference: String,
    /// Which of the two it is; `Flunder` when a reference is given without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reference_type: Option<String>,
}

/// What of a `v1alpha1` flunder its schema declares.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct FlunderSchemaV1alpha1 {
    /// What it refers to.
    #[schemars(default)]
    spec: Option<FlunderSpecV1alpha1>,
    /// Nothing yet.
    #[schemars(default)]
    status: Option<FlunderStatus>,
}

impl Convert<Flunder> for FlunderV1alpha1 {
    fn from_hub(hub: Flunder) -> Self {
        let FlunderSpec {
            flunder_reference,
            fischer_reference,
            reference_type,
        } = hub.spec;
        let reference = match reference_type.as_str() {
            FLUNDER => flunder_reference,
            FISCHER => fischer_reference,
            _ => String::new(),
        };
        let known = matches!(reference_type.as_str(), FLUNDER | FISCHER);
        Self {
            api_version: format!("{GROUP}/{V1ALPHA1}"),
            kind: hub.kind,
            metadata: hub.metadata,
            spec: FlunderSpecV1alpha1 {
                reference,
                reference_type: known.then_some(reference_type),
            },
            status: hub.status,
        }
    }

    /// A reference without a type is one to a flunder; one of an unknown type does not survive, as with
    /// upstream.
    fn into_hub(self) -> Flunder {
        let FlunderSpecV1alpha1 {
            reference,
            reference_type,
        } = self.spec;
        let named = reference_type.unwrap_or_default();
        let spec = match named.as_str() {
            "" if reference.is_empty() => FlunderSpec::default(),
            "" | FLUNDER => FlunderSpec {
                flunder_reference: reference,
                reference_type: FLUNDER.to_owned(),
                ..FlunderSpec::default()
            },
            FISCHER => FlunderSpec {
                fischer_reference: reference,
                reference_type: FISCHER.to_owned(),
                ..FlunderSpec::default()
            },
            _ => FlunderSpec::default(),
        };
        Flunder {
            api_version: format!("{GROUP}/{V1BETA1}"),
            kind: self.kind,
            metadata: self.metadata,
            spec,
            status: self.status,
        }
    }
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
    ($type:ident, $version:expr, $kind:expr, $schema:ident, $scope:ty, $plural:literal, $singular:literal, $crd:literal, $about:literal) => {
        impl Resource for $type {
            type DynamicType = ();
            type Scope = $scope;

            fn kind((): &()) -> Cow<'_, str> {
                $kind.into()
            }

            fn group((): &()) -> Cow<'_, str> {
                GROUP.into()
            }

            fn version((): &()) -> Cow<'_, str> {
                $version.into()
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

        impl CustomResourceExt for $type {
            fn crd() -> CustomResourceDefinition {
                let names = CustomResourceDefinitionNames {
                    kind: $kind.to_owned(),
                    plural: $plural.to_owned(),
                    singular: Some($singular.to_owned()),
                    ..CustomResourceDefinitionNames::default()
                };
                definition::<$schema>(names, $version, stringify!($scope), $about)
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
    V1BETA1,
    FLUNDER,
    FlunderSchema,
    NamespaceResourceScope,
    "flunders",
    "flunder",
    "flunders.wardle.example.com",
    "A namespaced kind."
);
declare!(
    FlunderV1alpha1,
    V1ALPHA1,
    FLUNDER,
    FlunderSchemaV1alpha1,
    NamespaceResourceScope,
    "flunders",
    "flunder",
    "flunders.wardle.example.com",
    "A namespaced kind."
);
declare!(
    Fischer,
    V1ALPHA1,
    FISCHER,
    FischerSchema,
    ClusterResourceScope,
    "fischers",
    "fischer",
    "fischers.wardle.example.com",
    "A cluster-scoped kind."
);

fn definition<S: JsonSchema>(
    names: CustomResourceDefinitionNames,
    version: &str,
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
                name: version.to_owned(),
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
