//! `/scale`: an object as `Scale` of `autoscaling/v1`, by the paths that its kind declares, as
//! CustomResourceDefinitions have it (`k8s.io/apiextensions-apiserver/pkg/registry/customresource/etcd.go`).

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceSubresourceScale;
use serde_json::{Map, Value, json};

use crate::http::status::ApiError;

/// Group and version of the kind.
pub const GROUP_VERSION: (&str, &str) = ("autoscaling", "v1");
/// The kind.
pub const KIND: &str = "Scale";

/// Where an object keeps what its scale tells, as JSON pointers.
#[derive(Debug)]
pub struct Scaling {
    wanted: String,
    observed: String,
    selector: Option<String>,
}

impl Scaling {
    pub(crate) fn new(declared: &CustomResourceSubresourceScale) -> Self {
        let pointer = |path: &String| path.replace('.', "/");
        Self {
            wanted: pointer(&declared.spec_replicas_path),
            observed: pointer(&declared.status_replicas_path),
            selector: declared.label_selector_path.as_ref().map(pointer),
        }
    }

    /// The scale of an object. Zero replicas are left out, as by Go.
    ///
    /// # Errors
    /// 500 when the object does not say how many replicas it wants.
    pub(crate) fn read(&self, object: &Value) -> Result<Value, ApiError> {
        let wanted = object.pointer(&self.wanted).and_then(Value::as_i64);
        let wanted = wanted.ok_or_else(|| {
            let path = self.wanted.replace('/', ".");
            let what = format!("the spec replicas field {path:?} does not exist");
            ApiError::internal(&what, "it has no default, and is not set")
        })?;
        let observed = object.pointer(&self.observed).and_then(Value::as_i64);
        let metadata: Map<_, _> = [
            "name",
            "namespace",
            "uid",
            "resourceVersion",
            "creationTimestamp",
        ]
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), object["metadata"].get(name)?.clone())))
        .collect();
        let mut scale = json!({
            "kind": KIND,
            "apiVersion": format!("{}/{}", GROUP_VERSION.0, GROUP_VERSION.1),
            "metadata": metadata,
            "spec": {},
            "status": {"replicas": observed.unwrap_or_default()},
        });
        if wanted != 0 {
            scale["spec"]["replicas"] = json!(wanted);
        }
        let selector = self.selector.as_ref().and_then(|at| object.pointer(at));
        if let Some(selector) = selector {
            scale["status"]["selector"] = selector.clone();
        }
        Ok(scale)
    }

    /// Sets what `scale` wants in its object.
    ///
    /// # Errors
    /// 400 when that is no number of replicas.
    pub(crate) fn write(&self, object: &mut Value, scale: &Value) -> Result<(), ApiError> {
        let wanted = scale.pointer("/spec/replicas").unwrap_or(&Value::Null);
        let wanted = match wanted.as_i64() {
            None if wanted.is_null() => 0,
            Some(number) if i32::try_from(number).is_ok() => number,
            _ => {
                return Err(ApiError::bad_request(format!(
                    "{KIND} in version \"v1\" cannot be handled as a {KIND}: spec.replicas is no 32-bit number: {wanted}"
                )));
            },
        };
        let mut place = object;
        for name in self.wanted.split('/').skip(1) {
            place = &mut place[name];
        }
        *place = json!(wanted);
        Ok(())
    }
}
