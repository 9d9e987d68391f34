//! What upstream's sample does with its kinds: defaults, the validation of references, and names
//! that fischers ban.

use aggregated_api::http::status::{ApiError, FieldError};
use aggregated_api::registry::capability::{Companion, Create, CreatePlan, Delete, Object, Update};
use aggregated_api::registry::collection::Collection;
use aggregated_api::registry::context::RequestCtx;
use async_trait::async_trait;
use kube::core::Resource as _;

use crate::wardle::kinds::{Fischer, Flunder};

const FLUNDER: &str = "Flunder";
const FISCHER: &str = "Fischer";

/// The rules of flunders.
pub(crate) struct FlunderRules {
    /// Flunders, for naming them in errors.
    pub(crate) flunders: Collection<Flunder>,
    /// Fischers, whose lists of banned names are consulted.
    pub(crate) fischers: Collection<Fischer>,
}

/// A reference without a type is one to a flunder; one of an unknown type does not survive upstream's
/// conversion.
fn complete(flunder: &mut Flunder) {
    let spec = &mut flunder.spec;
    let named = spec.reference_type.as_deref().unwrap_or_default();
    if named.is_empty() && !spec.reference.is_empty() {
        spec.reference_type = Some(FLUNDER.to_owned());
    } else if named != FLUNDER && named != FISCHER {
        spec.reference_type = None;
        spec.reference.clear();
    }
}

#[async_trait]
impl Create<Flunder> for FlunderRules {
    fn prepare(&self, _: &RequestCtx, flunder: &mut Flunder) -> Result<(), ApiError> {
        complete(flunder);
        Ok(())
    }

    fn validate(&self, _: &RequestCtx, flunder: &Flunder) -> Vec<FieldError> {
        let empty = flunder.spec.reference.is_empty();
        let field = match flunder.spec.reference_type.as_deref() {
            Some(FLUNDER) if empty => "flunderReference",
            Some(FISCHER) if empty => "fischerReference",
            _ => return Vec::new(),
        };
        let kind = flunder.spec.reference_type.as_deref().unwrap_or_default();
        vec![FieldError::invalid(
            format!("spec.{field}"),
            &"",
            &format!("cannot be empty if referenceType is {kind}"),
        )]
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
    fn prepare(&self, _: &RequestCtx, new: &mut Flunder, _: &Flunder) -> Result<(), ApiError> {
        complete(new);
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

/// The rules of fischers: none.
pub(crate) struct FischerRules(pub(crate) Collection<Fischer>);

#[async_trait]
impl Create<Fischer> for FischerRules {
    fn prepare(&self, _: &RequestCtx, _: &mut Fischer) -> Result<(), ApiError> {
        Ok(())
    }

    async fn plan(
        &self,
        _: &RequestCtx,
        object: Fischer,
        existing: Option<Fischer>,
    ) -> Result<CreatePlan<Fischer>, ApiError> {
        write_new(&self.0, object, existing)
    }
}

#[async_trait]
impl Update<Fischer> for FischerRules {
    fn prepare(&self, _: &RequestCtx, _: &mut Fischer, _: &Fischer) -> Result<(), ApiError> {
        Ok(())
    }

    fn validate(&self, _: &RequestCtx, _: &Fischer, _: &Fischer) -> Vec<FieldError> {
        Vec::new()
    }
}

#[async_trait]
impl Delete<Fischer> for FischerRules {
    async fn plan(&self, _: &RequestCtx, _: &Fischer) -> Result<Companion, ApiError> {
        Ok(Companion::default())
    }
}
