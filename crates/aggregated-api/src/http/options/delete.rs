//! Options of delete and deletecollection.

use serde::Deserialize;

use super::write::dry_run;
use super::{META_GROUP, Query};
use crate::codec::number::parse_int;
use crate::http::status::{ApiError, FieldError};

/// What becomes of dependents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// The garbage collector deletes them afterwards.
    Background,
    /// The object stays until they are gone.
    Foreground,
    /// They stay.
    Orphan,
}

/// Options of delete and deletecollection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// Process, persist nothing.
    pub dry_run: bool,
    /// What becomes of dependents; `None`: as existing finalizers say, else Background.
    pub propagation: Option<Propagation>,
    /// The object must have this uid.
    pub uid: Option<String>,
    /// The object must be at this resourceVersion.
    pub resource_version: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawDeleteOptions {
    kind: Option<String>,
    /// Read to be refused when it is no number: no kind here has a grace period.
    #[serde(rename = "gracePeriodSeconds")]
    _grace_period_seconds: Option<i64>,
    propagation_policy: Option<String>,
    orphan_dependents: Option<bool>,
    dry_run: Option<Vec<String>>,
    preconditions: Option<RawPreconditions>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawPreconditions {
    uid: Option<String>,
    resource_version: Option<String>,
}

impl DeleteOptions {
    /// Reads the body or, when there is none, the query.
    ///
    /// # Errors
    /// 400 for a body that is no DeleteOptions, 422 for options that contradict each other.
    pub fn parse(query: &Query, body: Option<serde_json::Value>) -> Result<Self, ApiError> {
        let raw = match body {
            // Why: serde would take a list for the members in their order.
            Some(value) if !value.is_object() => {
                return Err(ApiError::bad_request(
                    "the body cannot be handled as DeleteOptions: it is no object",
                ));
            },
            Some(value) => serde_json::from_value::<RawDeleteOptions>(value).map_err(|e| {
                ApiError::bad_request(format!("the body cannot be handled as DeleteOptions: {e}"))
            })?,
            None => RawDeleteOptions {
                _grace_period_seconds: query
                    .get("gracePeriodSeconds")
                    .map(parse_int)
                    .transpose()
                    .map_err(ApiError::bad_request)?,
                propagation_policy: query.set("propagationPolicy").map(ToOwned::to_owned),
                orphan_dependents: query
                    .set("orphanDependents")
                    .map(|_| query.flag("orphanDependents")),
                dry_run: Some(query.all("dryRun").map(ToOwned::to_owned).collect()),
                ..RawDeleteOptions::default()
            },
        };
        if raw
            .kind
            .as_deref()
            .is_some_and(|kind| !kind.is_empty() && kind != "DeleteOptions")
        {
            return Err(ApiError::bad_request(format!(
                "the body must be DeleteOptions, not {}",
                raw.kind.unwrap_or_default()
            )));
        }
        let mut errors = Vec::new();
        if raw.orphan_dependents.is_some() && raw.propagation_policy.is_some() {
            errors.push(FieldError::invalid(
                "propagationPolicy",
                &raw.propagation_policy,
                "orphanDependents and deletionPropagation cannot be both set",
            ));
        }
        let propagation = match (raw.propagation_policy.as_deref(), raw.orphan_dependents) {
            (None | Some(""), None) => None,
            (None | Some(""), Some(true)) | (Some("Orphan"), _) => Some(Propagation::Orphan),
            (None | Some(""), Some(false)) | (Some("Background"), _) => {
                Some(Propagation::Background)
            },
            (Some("Foreground"), _) => Some(Propagation::Foreground),
            (Some(other), _) => {
                let supported = ["Foreground", "Background", "Orphan", "nil"].map(str::to_owned);
                errors.push(FieldError::not_supported(
                    "propagationPolicy",
                    &other,
                    &supported,
                ));
                None
            },
        };
        let dry = dry_run(&raw.dry_run.unwrap_or_default(), &mut errors);
        if !errors.is_empty() {
            return Err(ApiError::invalid(META_GROUP, "DeleteOptions", "", &errors));
        }
        let preconditions = raw.preconditions.unwrap_or_default();
        Ok(Self {
            dry_run: dry,
            propagation,
            uid: preconditions.uid,
            resource_version: preconditions.resource_version,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delete_options_come_from_body_or_query() {
        fn from(query: &str, body: Option<serde_json::Value>) -> Result<DeleteOptions, ApiError> {
            DeleteOptions::parse(&Query::parse(query), body)
        }
        assert_eq!(
            from("propagationPolicy=Orphan", None).unwrap().propagation,
            Some(Propagation::Orphan)
        );
        let body = serde_json::json!({"kind": "DeleteOptions", "preconditions": {"uid": "u"}, "dryRun": ["All"]});
        let options = from("", Some(body)).unwrap();
        assert_eq!((options.uid.as_deref(), options.dry_run), (Some("u"), true));
        assert_eq!(from("dryRun=x", None).unwrap_err().code(), 422);
        assert_eq!(
            from("", Some(serde_json::json!({"kind": "Flunder"})))
                .unwrap_err()
                .code(),
            400
        );
        assert_eq!(
            from(
                "",
                Some(serde_json::json!({"propagationPolicy": "Orphan", "orphanDependents": true}))
            )
            .unwrap_err()
            .code(),
            422
        );
    }
}
