//! What upstream's sample does with its kinds: defaults, the validation of references, and names
//! that fischers ban.

use aggregated_api::http::status::{ApiError, FieldError};
use aggregated_api::registry::capability::{Companion, Create, CreatePlan, Delete, Object, Update};
use aggregated_api::registry::collection::Collection;
use aggregated_api::registry::context::RequestCtx;
use async_trait::async_trait;
use kube::core::Resource as _;

use crate::wardle::kinds::{FISCHER, FLUNDER, Fischer, Flunder, FlunderSpec};

/// The rules of flunders.
pub(crate) struct FlunderRules {
    /// Flunders, for naming them in errors.
    pub(crate) flunders: Collection<Flunder>,
    /// Fischers, whose lists of banned names are consulted.
    pub(crate) fischers: Collection<Fischer>,
}

/// References are of the named type, and only one is given.
fn check(spec: &FlunderSpec) -> Vec<FieldError> {
    let (flunder, fischer) = (&spec.flunder_reference, &spec.fischer_reference);
    let kind = spec.reference_type.as_str();
    let wrong = |field: &str, value: &str, why: &str| {
        FieldError::invalid(format!("spec.{field}"), &value, why)
    };
    let unset = |named| format!("cannot be empty if referenceType is {named}");
    let mistyped = |named| format!("cannot be set if referenceType is not {named}");
    let mut errors = Vec::new();
    if !flunder.is_empty() && !fischer.is_empty() {
        let why = "cannot be set with flunderReference at the same time";
        errors.push(wrong("fischerReference", fischer, why));
    } else if !flunder.is_empty() && kind != FLUNDER {
        errors.push(wrong("flunderReference", flunder, &mistyped(FLUNDER)));
    } else if !fischer.is_empty() && kind != FISCHER {
        errors.push(wrong("fischerReference", fischer, &mistyped(FISCHER)));
    } else if fischer.is_empty() && kind == FISCHER {
        errors.push(wrong("fischerReference", fischer, &unset(FISCHER)));
    } else if flunder.is_empty() && kind == FLUNDER {
        errors.push(wrong("flunderReference", flunder, &unset(FLUNDER)));
    }
    if !matches!(kind, "" | FLUNDER | FISCHER) {
        errors.push(wrong("referenceType", kind, "must be Flunder or Fischer"));
    }
    errors
}

#[async_trait]
impl Create<Flunder> for FlunderRules {
    fn prepare(&self, _: &RequestCtx, _: &mut Flunder) -> Result<(), ApiError> {
        Ok(())
    }

    fn validate(&self, _: &RequestCtx, flunder: &Flunder) -> Vec<FieldError> {
        check(&flunder.spec)
    }

    // Upstream's strategies take any segment of a path.
    fn name_faults(&self, _: &str) -> Vec<String> {
        Vec::new()
    }

    async fn plan(
        &self,
        _: &RequestCtx,
        object: Flunder,
        existing: Option<Flunder>,
    ) -> Result<CreatePlan<Flunder>, ApiError> {
        let name = object.meta().name.clone().unwrap_or_default();
        let banned = self
            .fischers
            .list()
            .iter()
            .any(|fischer| fischer.disallowed_flunders.contains(&name));
        if banned {
            let why = "this name may not be used, please change the resource name";
            return Err(ApiError::forbidden(self.flunders.resource(), &name, why));
        }
        write_new(&self.flunders, object, existing)
    }
}

fn write_new<T: Object>(
    collection: &Collection<T>,
    object: T,
    existing: Option<T>,
) -> Result<CreatePlan<T>, ApiError> {
    match existing {
        Some(existing) => {
            let name = existing.meta().name.clone().unwrap_or_default();
            Err(ApiError::already_exists(collection.resource(), &name))
        },
        None => Ok(CreatePlan::Write {
            object,
            companion: Companion::default(),
        }),
    }
}

#[async_trait]
impl Update<Flunder> for FlunderRules {
    fn prepare(&self, _: &RequestCtx, _: &mut Flunder, _: &Flunder) -> Result<(), ApiError> {
        Ok(())
    }

    fn validate(&self, _: &RequestCtx, _: &Flunder, _: &Flunder) -> Vec<FieldError> {
        Vec::new()
    }
}

#[async_trait]
impl Delete<Flunder> for FlunderRules {
    async fn plan(&self, _: &RequestCtx, _: &Flunder) -> Result<Companion, ApiError> {
        Ok(Companion::default())
    }
}

/// The rules of a kind that has none.
pub(crate) struct Plain<T>(pub(crate) Collection<T>);

#[async_trait]
impl<T: Object> Create<T> for Plain<T> {
    fn prepare(&self, _: &RequestCtx, _: &mut T) -> Result<(), ApiError> {
        Ok(())
    }

    async fn plan(
        &self,
        _: &RequestCtx,
        object: T,
        existing: Option<T>,
    ) -> Result<CreatePlan<T>, ApiError> {
        write_new(&self.0, object, existing)
    }
}

#[async_trait]
impl<T: Object> Update<T> for Plain<T> {
    fn prepare(&self, _: &RequestCtx, _: &mut T, _: &T) -> Result<(), ApiError> {
        Ok(())
    }

    fn validate(&self, _: &RequestCtx, _: &T, _: &T) -> Vec<FieldError> {
        Vec::new()
    }
}

#[async_trait]
impl<T: Object> Delete<T> for Plain<T> {
    async fn plan(&self, _: &RequestCtx, _: &T) -> Result<Companion, ApiError> {
        Ok(Companion::default())
    }
}
