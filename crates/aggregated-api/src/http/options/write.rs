//! Options of create, update and patch.

use serde::Serialize;

use super::{META_GROUP, Query};
use crate::http::status::{ApiError, FieldError};

/// What happens to unknown and duplicate fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldValidation {
    /// Dropped in silence.
    Ignore,
    /// Dropped with a warning.
    Warn,
    /// Refused.
    Strict,
}

/// Options of create, update and patch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteOptions {
    /// Process, persist nothing.
    pub dry_run: bool,
    /// What happens to unknown fields.
    pub field_validation: FieldValidation,
}

impl WriteOptions {
    /// Reads and checks the options; `kind` is the options kind named in errors.
    ///
    /// # Errors
    /// 422 naming the parameter.
    pub fn parse(query: &Query, kind: &str) -> Result<Self, ApiError> {
        let mut errors = Vec::new();
        let manager = query.get("fieldManager").unwrap_or_default();
        if manager.len() > 128 {
            errors.push(FieldError::too_long("fieldManager", 128));
        }
        for (position, character) in manager.char_indices() {
            if character.is_control() || (character.is_whitespace() && character != ' ') {
                let code = u32::from(character);
                let why = format!("invalid character U+{code:04X} (at position {position})");
                errors.push(FieldError::invalid("fieldManager", &manager, &why));
            }
        }
        let values: Vec<_> = query.all("dryRun").collect();
        let dry_run = dry_run(&values, &mut errors);
        if kind == "PatchOptions" && query.set("force").is_some() {
            errors.push(FieldError::forbidden(
                "force",
                "may not be specified for non-apply patch",
            ));
        }
        let field_validation = match query.get("fieldValidation").unwrap_or_default() {
            "" | "Warn" => FieldValidation::Warn,
            "Ignore" => FieldValidation::Ignore,
            "Strict" => FieldValidation::Strict,
            other => {
                let supported = ["", "Ignore", "Strict", "Warn"].map(str::to_owned);
                errors.push(FieldError::not_supported(
                    "fieldValidation",
                    &other,
                    &supported,
                ));
                FieldValidation::Warn
            },
        };
        if errors.is_empty() {
            Ok(Self {
                dry_run,
                field_validation,
            })
        } else {
            Err(ApiError::invalid(META_GROUP, kind, "", &errors))
        }
    }
}

/// Whether there are stages not to be run; the only one there is is `All`.
pub(super) fn dry_run<S: AsRef<str> + Serialize>(
    values: &[S],
    errors: &mut Vec<FieldError>,
) -> bool {
    if values.iter().any(|value| value.as_ref() != "All") {
        let supported = ["All".to_owned()];
        errors.push(FieldError::not_supported("dryRun", &values, &supported));
    }
    !values.is_empty()
}
