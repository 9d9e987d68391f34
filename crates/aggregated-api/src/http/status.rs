//! Every refusal and failure as the `metav1.Status` a Kubernetes client understands.
//!
//! This is the only place where an error becomes an HTTP answer. [`ApiError`] carries what the
//! client reads; what only the log should read goes into [`ApiError::internal`].

use std::fmt;

use http::StatusCode;
use serde::Serialize;

/// A group and a plural resource name: how errors name what they are about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupResource {
    /// API group.
    pub group: String,
    /// Plural resource name.
    pub resource: String,
}

impl fmt::Display for GroupResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() {
            f.write_str(&self.resource)
        } else {
            write!(f, "{}.{}", self.resource, self.group)
        }
    }
}

/// One entry of `details.causes`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cause {
    /// CamelCase reason.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Text for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Path of the field at fault, such as `spec.ttlSeconds`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
}

/// What is wrong with one field: a line of an `Invalid` answer.
///
/// Texts and reasons follow `k8s.io/apimachinery/pkg/util/validation/field`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    field: String,
    reason: &'static str,
    message: String,
}

impl FieldError {
    /// A required field is missing.
    pub fn required(field: impl Into<String>, detail: &str) -> Self {
        let message = if detail.is_empty() {
            "Required value".to_owned()
        } else {
            format!("Required value: {detail}")
        };
        Self {
            field: field.into(),
            reason: "FieldValueRequired",
            message,
        }
    }

    /// The value is not one that is allowed here; `value` is shown as JSON.
    pub fn invalid(field: impl Into<String>, value: &impl Serialize, detail: &str) -> Self {
        let shown = serde_json::to_string(value).unwrap_or_else(|_| "?".to_owned());
        Self {
            field: field.into(),
            reason: "FieldValueInvalid",
            message: format!("Invalid value: {shown}: {detail}"),
        }
    }

    /// The value has the wrong JSON type.
    pub fn type_invalid(field: impl Into<String>, value: &impl Serialize, detail: &str) -> Self {
        Self {
            reason: "FieldValueTypeInvalid",
            ..Self::invalid(field, value, detail)
        }
    }

    /// The value is none of the supported ones.
    pub fn not_supported(
        field: impl Into<String>,
        value: &impl Serialize,
        supported: &[String],
    ) -> Self {
        let shown = serde_json::to_string(value).unwrap_or_else(|_| "?".to_owned());
        let quoted: Vec<_> = supported.iter().map(|s| format!("{s:?}")).collect();
        Self {
            field: field.into(),
            reason: "FieldValueNotSupported",
            message: format!(
                "Unsupported value: {shown}: supported values: {}",
                quoted.join(", ")
            ),
        }
    }

    /// The field may not be set, or not be changed, here.
    pub fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self {
            field: field.into(),
            reason: "FieldValueForbidden",
            message: format!("Forbidden: {detail}"),
        }
    }

    /// The text is longer than allowed. Upstream says bytes wherever it counts.
    pub fn too_long(field: impl Into<String>, max: u64) -> Self {
        Self {
            field: field.into(),
            reason: "FieldValueTooLong",
            message: format!("Too long: may not be more than {max} bytes"),
        }
    }

    /// The list has more items than allowed.
    pub fn too_many(field: impl Into<String>, given: u64, max: u64) -> Self {
        Self {
            field: field.into(),
            reason: "FieldValueTooMany",
            message: format!("Too many: {given}: must have at most {max} items"),
        }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Details {
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    group: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    uid: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    causes: Vec<Cause>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_seconds: Option<u32>,
}

/// A request that is not answered with what it asked for.
#[derive(Clone, Debug)]
pub struct ApiError(Box<Refusal>);

#[derive(Clone, Debug)]
struct Refusal {
    code: StatusCode,
    reason: String,
    message: String,
    details: Option<Details>,
    continue_token: Option<String>,
    internal: Option<String>,
    /// Whether the store could not be asked, or did not say what became of a write.
    unreachable: bool,
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        match &self.0.internal {
            Some(internal) => write!(f, " ({internal})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ApiError {}

impl ApiError {
    fn new(code: StatusCode, reason: &str, message: String) -> Self {
        Self(Box::new(Refusal {
            code,
            reason: reason.to_owned(),
            message,
            details: None,
            continue_token: None,
            internal: None,
            unreachable: false,
        }))
    }

    fn about(mut self, gr: &GroupResource, name: &str) -> Self {
        let details = self.0.details.get_or_insert_default();
        details.group.clone_from(&gr.group);
        details.kind.clone_from(&gr.resource);
        name.clone_into(&mut details.name);
        self
    }

    pub(crate) fn with_empty_details(mut self) -> Self {
        self.0.details = Some(Details::default());
        self
    }

    /// A refusal of the API's own: `reason` is CamelCase and what clients branch on.
    pub fn refusal(code: StatusCode, reason: &str, message: impl Into<String>) -> Self {
        Self::new(code, reason, message.into())
    }

    /// 404: the object does not exist.
    pub fn not_found(gr: &GroupResource, name: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "NotFound",
            format!("{gr} {name:?} not found"),
        )
        .about(gr, name)
    }

    /// 404: no such resource or path inside a served version.
    pub fn unknown_resource() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "NotFound",
            "the server could not find the requested resource".to_owned(),
        )
        .with_empty_details()
    }

    /// 409: an object of this name exists.
    pub fn already_exists(gr: &GroupResource, name: &str) -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "AlreadyExists",
            format!("{gr} {name:?} already exists"),
        )
        .about(gr, name)
    }

    /// 409: no unused name was found for a generateName.
    pub fn generate_name_exhausted(gr: &GroupResource, name: &str) -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "AlreadyExists",
            format!(
                "{gr} {name:?} already exists, the server was not able to generate a unique name for the object"
            ),
        )
        .about(gr, name)
        .retry_after(1)
    }

    /// 409: the object was changed since the caller read it.
    pub fn modified(gr: &GroupResource, name: &str) -> Self {
        Self::conflict(
            gr,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// 409: a precondition does not hold.
    pub fn conflict(gr: &GroupResource, name: &str, why: &str) -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "Conflict",
            format!("Operation cannot be fulfilled on {gr} {name:?}: {why}"),
        )
        .about(gr, name)
    }

    /// 422: fields are wrong. `kind` is the Kind, qualified by `group` in the message.
    pub fn invalid(group: &str, kind: &str, name: &str, errors: &[FieldError]) -> Self {
        let list = match errors {
            [one] => one.to_string(),
            many => {
                let lines: Vec<_> = many.iter().map(ToString::to_string).collect();
                format!("[{}]", lines.join(", "))
            },
        };
        let qualified = if group.is_empty() {
            kind.to_owned()
        } else {
            format!("{kind}.{group}")
        };
        let mut error = Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "Invalid",
            format!("{qualified} {name:?} is invalid: {list}"),
        );
        error.0.details = Some(Details {
            name: name.to_owned(),
            group: group.to_owned(),
            kind: kind.to_owned(),
            causes: errors
                .iter()
                .map(|e| Cause {
                    reason: e.reason.to_owned(),
                    message: e.message.clone(),
                    field: e.field.clone(),
                })
                .collect(),
            ..Details::default()
        });
        error
    }

    /// 400: the request cannot be understood.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message.into())
    }

    /// 401: the credentials are not accepted.
    pub fn unauthorized() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "Unauthorized",
            "Unauthorized".to_owned(),
        )
    }

    /// 403 for a request about an object or collection; `why` follows the standard prefix.
    pub fn forbidden(gr: &GroupResource, name: &str, why: &str) -> Self {
        let nothing = gr.resource.is_empty() && gr.group.is_empty();
        let message = match name {
            _ if nothing => format!("forbidden: {why}"),
            "" => format!("{gr} is forbidden: {why}"),
            name => format!("{gr} {name:?} is forbidden: {why}"),
        };
        let error = Self::new(StatusCode::FORBIDDEN, "Forbidden", message);
        if nothing {
            error.with_empty_details()
        } else {
            error.about(gr, name)
        }
    }

    /// 405: the route does not know this HTTP method.
    pub fn method_not_allowed() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource".to_owned(),
        )
        .with_empty_details()
    }

    /// 406: none of the accepted media types can be produced.
    pub fn not_acceptable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message.into())
    }

    /// 415: the body has a media type that is not understood.
    pub fn unsupported_media_type(accepted: &[&str]) -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "UnsupportedMediaType",
            format!(
                "the body of the request was in an unknown format - accepted media types include: {}",
                accepted.join(", ")
            ),
        )
    }

    /// 413: the body is larger than `limit` bytes.
    pub fn entity_too_large(limit: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestEntityTooLarge",
            format!("Request entity too large: limit is {limit}"),
        )
    }

    /// 410: the asked-for resourceVersion is no longer kept.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "Expired", message.into())
    }

    /// 504: the asked-for resourceVersion has not been reached.
    pub fn resource_version_too_large(asked: u64, current: u64) -> Self {
        Self::new(
            StatusCode::GATEWAY_TIMEOUT,
            "Timeout",
            format!("Timeout: Too large resource version: {asked}, current: {current}"),
        )
        .cause("ResourceVersionTooLarge", "Too large resource version", "")
        .retry_after(1)
    }

    /// 504: the request's deadline passed.
    pub fn timeout() -> Self {
        Self::new(
            StatusCode::GATEWAY_TIMEOUT,
            "Timeout",
            "Timeout: request did not complete within the allotted timeout".to_owned(),
        )
        .with_empty_details()
    }

    /// 503: something this server needs is not there (yet).
    pub fn service_unavailable(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "ServiceUnavailable",
            message.into(),
        )
    }

    /// 500: a fault of the server. `cause` is for the log only.
    pub fn internal(what: &str, cause: impl fmt::Display) -> Self {
        let mut error = Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "InternalError",
            format!("Internal error occurred: {what}"),
        )
        .cause("", what, "");
        error.0.internal = Some(cause.to_string());
        error
    }

    /// Adds an entry to `details.causes`.
    #[must_use]
    pub fn cause(mut self, reason: &str, message: impl Into<String>, field: &str) -> Self {
        self.0.details.get_or_insert_default().causes.push(Cause {
            reason: reason.to_owned(),
            message: message.into(),
            field: field.to_owned(),
        });
        self
    }

    /// Sets `details.retryAfterSeconds` and the `Retry-After` header.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.0.details.get_or_insert_default().retry_after_seconds = Some(seconds);
        self
    }

    /// What a failure of the store is for a client whose request had this verb: 500, as
    /// `storage/errors.Interpret*Error` of `k8s.io/apiserver` has it. Other errors stay what they are.
    pub(crate) fn during(self, verb: &str, gr: &GroupResource) -> Self {
        if !self.0.unreachable {
            return self;
        }
        let operation = match verb {
            "patch" => "update",
            "deletecollection" => "delete",
            verb => verb,
        };
        let mut error = Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "ServerTimeout",
            format!(
                "The {operation} operation against {gr} could not be completed at this time, please try again."
            ),
        )
        .about(gr, operation)
        .retry_after(2);
        error.0.internal = Some(self.0.message);
        error
    }

    /// Says something before the message.
    pub(crate) fn prefixed(mut self, prefix: &str) -> Self {
        self.0.message.insert_str(0, prefix);
        self
    }

    /// Names the object the refusal is about in `details`.
    #[must_use]
    pub fn regarding(self, gr: &GroupResource, name: &str) -> Self {
        self.about(gr, name)
    }

    /// Adds a token with which an expired list can be resumed.
    #[must_use]
    pub fn continue_token(mut self, token: String) -> Self {
        self.0.continue_token = Some(token);
        self
    }

    /// HTTP status.
    pub fn code(&self) -> StatusCode {
        self.0.code
    }

    /// CamelCase reason.
    pub fn reason(&self) -> &str {
        &self.0.reason
    }

    /// Seconds after which a repeat makes sense.
    pub fn retry_after_seconds(&self) -> Option<u32> {
        self.0.details.as_ref().and_then(|d| d.retry_after_seconds)
    }

    /// The `Status` object as JSON, without a final newline.
    pub fn to_json(&self) -> Vec<u8> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Meta<'a> {
            #[serde(rename = "continue", skip_serializing_if = "Option::is_none")]
            continue_token: Option<&'a str>,
        }
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Body<'a> {
            #[serde(rename = "kind")]
            type_name: &'static str,
            api_version: &'static str,
            metadata: Meta<'a>,
            status: &'static str,
            message: &'a str,
            #[serde(skip_serializing_if = "str::is_empty")]
            reason: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            details: Option<&'a Details>,
            code: u16,
        }
        serde_json::to_vec(&Body {
            type_name: "Status",
            api_version: "v1",
            metadata: Meta {
                continue_token: self.0.continue_token.as_deref(),
            },
            status: "Failure",
            message: &self.0.message,
            reason: &self.0.reason,
            details: self.0.details.as_ref(),
            code: self.0.code.as_u16(),
        })
        .unwrap_or_default()
    }
}

impl From<crate::store::Error> for ApiError {
    fn from(error: crate::store::Error) -> Self {
        use crate::store::Error;
        let text = error.to_string();
        match error {
            Error::Compacted { .. } => {
                Self::expired("The resourceVersion for the provided list is too old.")
            },
            Error::Future { asked, current } => Self::resource_version_too_large(asked, current),
            Error::Limit(_) => Self::bad_request(text),
            Error::NoSpace => Self::refusal(
                StatusCode::INSUFFICIENT_STORAGE,
                "InsufficientStorage",
                text,
            ),
            Error::Corrupt(_) => Self::internal("the store's data is damaged", text),
            Error::Unreadable(_) => Self::internal("a stored value cannot be read", text),
            Error::Unavailable { .. } => {
                let mut error = Self::service_unavailable(text).retry_after(2);
                error.0.unreachable = true;
                error
            },
        }
    }
}
