//! Query parameters, decoded and checked: `ListOptions`, `CreateOptions`, `PatchOptions` and so on.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use super::status::{ApiError, FieldError};
use crate::codec::number::{parse_duration, parse_int, parse_uint};
use crate::codec::selector::{FieldSelector, LabelSelector};
use crate::store::Revision;

/// Group of the options kinds in errors.
const META_GROUP: &str = "meta.k8s.io";
const RV_MATCH: &str = "resourceVersionMatch";
const EXACT: &str = "Exact";
const NOT_OLDER_THAN: &str = "NotOlderThan";
/// Longest time a request other than a watch may take.
const MAX_TIMEOUT: Duration = Duration::from_mins(1);

/// A decoded query string.
#[derive(Clone, Debug, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Decodes a query string. As by Go's `url.ParseQuery`, a parameter with a semicolon or with an
    /// escape that is none is passed over.
    pub fn parse(text: &str) -> Self {
        Self(
            text.split('&')
                .filter(|pair| is_well_formed(pair))
                .flat_map(|pair| url::form_urlencoded::parse(pair.as_bytes()))
                .map(|(name, value)| (name.into_owned(), value.into_owned()))
                .collect(),
        )
    }

    /// The first value of a parameter.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(k, _)| k == name)
            .map(|(_, v)| v.as_str())
    }

    /// All values of a parameter.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0
            .iter()
            .filter(move |(k, _)| k == name)
            .map(|(_, v)| v.as_str())
    }

    fn set(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|v| !v.is_empty())
    }

    /// Whether a boolean parameter is on: present and neither `false` nor `0`.
    pub fn flag(&self, name: &str) -> bool {
        self.switch(name) == Some(true)
    }

    /// A boolean parameter, if there is one.
    fn switch(&self, name: &str) -> Option<bool> {
        self.get(name)
            .map(|v| v != "0" && !v.eq_ignore_ascii_case("false"))
    }

    /// A number above zero, if there is one.
    fn number(&self, name: &str) -> Result<Option<u64>, ApiError> {
        let Some(text) = self.get(name) else {
            return Ok(None);
        };
        let number = parse_int(text).map_err(ApiError::bad_request)?;
        Ok(u64::try_from(number).ok().filter(|n| *n > 0))
    }

    /// The time the client allows for the request; one that is not above zero says nothing.
    ///
    /// # Errors
    /// 400 when `timeout` is no duration.
    pub fn timeout(&self) -> Result<Duration, ApiError> {
        let Some(text) = self.set("timeout") else {
            return Ok(MAX_TIMEOUT);
        };
        match parse_duration(text) {
            Ok(Duration::ZERO) => Ok(MAX_TIMEOUT),
            Ok(duration) => Ok(duration.min(MAX_TIMEOUT)),
            Err(why) => Err(ApiError::bad_request(format!(
                "invalid timeout specified in the request URL - {why}"
            ))),
        }
    }
}

fn is_well_formed(pair: &str) -> bool {
    let escapes = |text: &str| {
        text.split('%').skip(1).all(|after| {
            let mut digits = after.bytes();
            let mut hex = || digits.next().is_some_and(|digit| digit.is_ascii_hexdigit());
            hex() && hex()
        })
    };
    !pair.contains(';') && escapes(pair)
}

/// How `resourceVersion` is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadAt {
    /// Every acknowledged write.
    Latest,
    /// Whatever is cached.
    Any,
    /// This revision or later.
    NotOlderThan(Revision),
    /// This revision.
    Exact(Revision),
}

/// Where the next page starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Continue {
    v: String,
    /// Revision of the first page; -1: the latest one, when the first page's is no longer kept.
    pub rv: i64,
    /// First key, relative to the list's prefix.
    pub start: String,
}

impl Continue {
    /// A token for the page that starts at `start` in the state at `rv`.
    pub fn new(rv: i64, start: String) -> Self {
        Self {
            v: "meta.k8s.io/v1".to_owned(),
            rv,
            start,
        }
    }

    /// The opaque text.
    pub fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }

    fn decode(text: &str) -> Result<Self, ApiError> {
        let refuse = |why: &str| {
            ApiError::bad_request(format!(
                "invalid continue token: continue key is not valid: {why}"
            ))
        };
        let bytes = URL_SAFE_NO_PAD
            .decode(text)
            .map_err(|e| refuse(&e.to_string()))?;
        let token: Self = serde_json::from_slice(&bytes).map_err(|e| refuse(&e.to_string()))?;
        if token.v != "meta.k8s.io/v1" {
            return Err(refuse(&format!(
                "server does not recognize this encoded version {}",
                token.v
            )));
        }
        if token.rv == 0 {
            return Err(refuse(
                "incorrect encoded start resourceVersion (version meta.k8s.io/v1)",
            ));
        }
        if token.start.is_empty() {
            return Err(refuse("encoded start key empty (version meta.k8s.io/v1)"));
        }
        // No segment may lead out of what is listed.
        let relative = token.start.strip_prefix('/').unwrap_or(&token.start);
        if relative
            .split('/')
            .any(|part| matches!(part, "" | "." | ".."))
        {
            return Err(refuse(&token.start));
        }
        Ok(token)
    }
}

/// Options of list, watch and deletecollection.
#[derive(Clone, Debug)]
pub struct ListOptions {
    /// Which labels.
    pub labels: LabelSelector,
    /// Which fields.
    pub fields: FieldSelector,
    /// Which state.
    pub read_at: ReadAt,
    /// Most items of a page.
    pub limit: Option<usize>,
    /// Where a later page starts.
    pub continue_from: Option<Continue>,
    /// Whether BOOKMARK events may be sent.
    pub bookmarks: bool,
    /// Whether a watch begins with the state that is asked for.
    pub initial_events: bool,
    /// Duration of a watch.
    pub watch_timeout: Option<Duration>,
}

impl ListOptions {
    /// Whether every option can be read, without a look at what they mean together.
    ///
    /// # Errors
    /// 400 naming the first that cannot.
    pub(super) fn check_form(query: &Query) -> Result<(), ApiError> {
        query.number("timeoutSeconds")?;
        query.number("limit")?;
        LabelSelector::parse(query.get("labelSelector").unwrap_or_default())?;
        FieldSelector::parse(query.get("fieldSelector").unwrap_or_default())?;
        Ok(())
    }

    /// Reads and checks the options of a list (`watch` false) or watch.
    ///
    /// # Errors
    /// 400 or 422, as `k8s.io/apimachinery` answers.
    pub fn parse(query: &Query, watch: bool) -> Result<Self, ApiError> {
        let timeout = query.number("timeoutSeconds")?;
        let limit = query.number("limit")?;
        let labels = LabelSelector::parse(query.get("labelSelector").unwrap_or_default())?;
        let fields = FieldSelector::parse(query.get("fieldSelector").unwrap_or_default())?;
        let rv = query.get("resourceVersion").unwrap_or_default();
        let mut rv_match = query.get("resourceVersionMatch").unwrap_or_default();
        let mut initial_events = query.switch("sendInitialEvents");
        let token = query.set("continue");
        // As `SetListOptionsDefaults` of apimachinery: a watch without a position begins with a state.
        if watch && initial_events.is_none() && rv_match.is_empty() && matches!(rv, "" | "0") {
            initial_events = Some(true);
            rv_match = NOT_OLDER_THAN;
        }
        let errors = if watch {
            check_watch(initial_events, rv_match, token.is_some())
        } else {
            check_list(initial_events, rv, rv_match, token.is_some())
        };
        if !errors.is_empty() {
            return Err(ApiError::invalid(META_GROUP, "ListOptions", "", &errors));
        }
        let continue_from = match token {
            // A watch takes no notice of it.
            Some(token) if !watch => Some(Continue::decode(token)?),
            _ => None,
        };
        if continue_from.is_some() && !matches!(rv, "" | "0") {
            return Err(ApiError::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        let read_at = match (revision(rv)?, rv_match) {
            (None, _) => ReadAt::Latest,
            (Some(0), _) => ReadAt::Any,
            (Some(n), EXACT) => ReadAt::Exact(n),
            // Legacy: a first page at a revision is that revision's.
            (Some(n), "") if limit.is_some() && !watch => ReadAt::Exact(n),
            (Some(n), _) => ReadAt::NotOlderThan(n),
        };
        Ok(Self {
            labels,
            fields,
            read_at,
            limit: limit.and_then(|n| usize::try_from(n).ok()),
            continue_from,
            bookmarks: query.flag("allowWatchBookmarks"),
            initial_events: initial_events == Some(true),
            watch_timeout: timeout.map(Duration::from_secs),
        })
    }

    /// Whether an object belongs to the answer.
    pub fn selects(&self, entry: &crate::registry::entry::Entry) -> bool {
        self.labels.matches(&entry.labels) && self.fields.matches(&entry.namespace, &entry.name)
    }

    /// Whether everything belongs to the answer.
    pub fn selects_all(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }
}

// `ValidateListOptions` of apimachinery, causes in its order.

fn check_list(
    initial_events: Option<bool>,
    rv: &str,
    rv_match: &str,
    continuing: bool,
) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if !rv_match.is_empty() {
        if rv.is_empty() {
            errors.push(FieldError::forbidden(
                RV_MATCH,
                "resourceVersionMatch is forbidden unless resourceVersion is provided",
            ));
        }
        if continuing {
            errors.push(match_with_continue());
        }
        if !matches!(rv_match, EXACT | NOT_OLDER_THAN) {
            let supported = [EXACT, NOT_OLDER_THAN, ""].map(str::to_owned);
            errors.push(FieldError::not_supported(RV_MATCH, &rv_match, &supported));
        }
        if rv_match == EXACT && rv == "0" {
            errors.push(FieldError::forbidden(
                RV_MATCH,
                "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
            ));
        }
    }
    if initial_events.is_some() {
        errors.push(FieldError::forbidden(
            "sendInitialEvents",
            "sendInitialEvents is forbidden for list",
        ));
    }
    errors
}

fn check_watch(initial_events: Option<bool>, rv_match: &str, continuing: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if initial_events.is_some() && rv_match != NOT_OLDER_THAN {
        errors.push(FieldError::forbidden(
            RV_MATCH,
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        ));
    }
    if rv_match.is_empty() {
        return errors;
    }
    if initial_events.is_none() {
        errors.push(FieldError::forbidden(
            RV_MATCH,
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        ));
    }
    if rv_match != NOT_OLDER_THAN {
        let supported = [NOT_OLDER_THAN.to_owned()];
        errors.push(FieldError::not_supported(RV_MATCH, &rv_match, &supported));
    }
    if continuing {
        errors.push(match_with_continue());
    }
    errors
}

fn match_with_continue() -> FieldError {
    FieldError::forbidden(
        RV_MATCH,
        "resourceVersionMatch is forbidden when continue is provided",
    )
}

/// A `resourceVersion` parameter; `None` when empty.
///
/// # Errors
/// 400 when it is not a decimal number.
pub fn revision(text: &str) -> Result<Option<Revision>, ApiError> {
    if text.is_empty() {
        return Ok(None);
    }
    parse_uint(text).map(Some).map_err(|why| {
        ApiError::bad_request(format!(
            "invalid resource version: resourceVersion: Invalid value: {text:?}: {why}"
        ))
    })
}

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
fn dry_run<S: AsRef<str> + Serialize>(values: &[S], errors: &mut Vec<FieldError>) -> bool {
    if values.iter().any(|value| value.as_ref() != "All") {
        let supported = ["All".to_owned()];
        errors.push(FieldError::not_supported("dryRun", &values, &supported));
    }
    !values.is_empty()
}

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

    fn list(text: &str, watch: bool) -> Result<ListOptions, ApiError> {
        ListOptions::parse(&Query::parse(text), watch)
    }

    #[test]
    fn resource_versions_mean_what_the_matrix_says() {
        for (text, expected) in [
            ("", ReadAt::Latest),
            ("resourceVersion=", ReadAt::Latest),
            ("resourceVersion=0", ReadAt::Any),
            ("resourceVersion=7", ReadAt::NotOlderThan(7)),
            ("resourceVersion=7&limit=5", ReadAt::Exact(7)),
            (
                "resourceVersion=7&resourceVersionMatch=NotOlderThan&limit=5",
                ReadAt::NotOlderThan(7),
            ),
            (
                "resourceVersion=7&resourceVersionMatch=Exact",
                ReadAt::Exact(7),
            ),
        ] {
            assert_eq!(list(text, false).unwrap().read_at, expected, "{text}");
        }
        assert_eq!(list("resourceVersion=abc", false).unwrap_err().code(), 400);
    }

    // Rows of `ValidateListOptions` of apimachinery.
    #[test]
    fn contradicting_list_options_are_invalid() {
        const REQUIRES: &str =
            "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        const CONTINUE: &str =
            "Forbidden: resourceVersionMatch is forbidden when continue is provided";
        for (text, watch, causes) in [
            (
                "resourceVersionMatch=Exact",
                false,
                vec![
                    "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
                ],
            ),
            (
                "resourceVersionMatch=Foo&resourceVersion=1&continue=abc",
                false,
                vec![
                    CONTINUE,
                    r#"Unsupported value: "Foo": supported values: "Exact", "NotOlderThan", """#,
                ],
            ),
            (
                "resourceVersionMatch=Exact&resourceVersion=0",
                false,
                vec![
                    r#"Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0""#,
                ],
            ),
            (
                "sendInitialEvents=true",
                false,
                vec!["Forbidden: sendInitialEvents is forbidden for list"],
            ),
            ("sendInitialEvents=true", true, vec![REQUIRES]),
            ("sendInitialEvents=", true, vec![REQUIRES]),
            (
                "sendInitialEvents=true&resourceVersionMatch=Exact&resourceVersion=5",
                true,
                vec![
                    REQUIRES,
                    r#"Unsupported value: "Exact": supported values: "NotOlderThan""#,
                ],
            ),
            (
                "resourceVersionMatch=NotOlderThan",
                true,
                vec![
                    "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                ],
            ),
            // A watch from nothing is one with initial events, which cannot be continued.
            ("continue=abc", true, vec![CONTINUE]),
        ] {
            let error = list(text, watch).expect_err(text);
            assert_eq!(
                (error.code().as_u16(), error.reason()),
                (422, "Invalid"),
                "{text}"
            );
            let status: serde_json::Value = serde_json::from_slice(&error.to_json()).unwrap();
            let told: Vec<_> = status["details"]["causes"]
                .as_array()
                .unwrap()
                .iter()
                .map(|cause| cause["message"].as_str().unwrap())
                .collect();
            assert_eq!(told, causes, "{text}");
        }
    }

    #[test]
    fn a_watch_begins_with_a_state_unless_it_names_a_position() {
        for (text, read_at, initial_events) in [
            ("", ReadAt::Latest, true),
            ("resourceVersion=0", ReadAt::Any, true),
            ("resourceVersion=7", ReadAt::NotOlderThan(7), false),
            (
                "resourceVersion=7&continue=abc&limit=1",
                ReadAt::NotOlderThan(7),
                false,
            ),
            (
                "sendInitialEvents=1&resourceVersionMatch=NotOlderThan&resourceVersion=7",
                ReadAt::NotOlderThan(7),
                true,
            ),
            (
                "sendInitialEvents=False&resourceVersionMatch=NotOlderThan",
                ReadAt::Latest,
                false,
            ),
        ] {
            let options = list(text, true).expect(text);
            assert_eq!(
                (options.read_at, options.initial_events),
                (read_at, initial_events),
                "{text}"
            );
        }
    }

    #[test]
    fn numbers_that_are_none_are_refused_and_those_below_one_are_not_there() {
        for (text, why) in [
            (
                "limit=many",
                r#"strconv.ParseInt: parsing "many": invalid syntax"#,
            ),
            (
                "timeoutSeconds=",
                r#"strconv.ParseInt: parsing "": invalid syntax"#,
            ),
        ] {
            let error = list(text, true).unwrap_err();
            assert_eq!(
                (error.code().as_u16(), error.to_string()),
                (400, why.to_owned())
            );
        }
        let options = list("limit=-1&timeoutSeconds=0", false).unwrap();
        assert_eq!((options.limit, options.watch_timeout), (None, None));
    }

    // The texts are those of k8s.io/apiserver/pkg/storage/continue.go.
    #[test]
    fn continue_tokens_round_trip_and_garbage_is_refused() {
        let token = Continue::new(9, "ns/x\0".to_owned());
        assert_eq!(Continue::decode(&token.encode()).unwrap(), token);
        for (bad, why) in [
            ("%%%".to_owned(), ""),
            ("e30".to_owned(), ""),
            (Continue::new(9, "../x".to_owned()).encode(), "../x"),
            (Continue::new(9, "a//x".to_owned()).encode(), "a//x"),
            (
                Continue::new(9, String::new()).encode(),
                "encoded start key empty (version meta.k8s.io/v1)",
            ),
            (
                Continue::new(0, "x".to_owned()).encode(),
                "incorrect encoded start resourceVersion (version meta.k8s.io/v1)",
            ),
            (
                Continue {
                    v: "v9".to_owned(),
                    ..token.clone()
                }
                .encode(),
                "server does not recognize this encoded version v9",
            ),
        ] {
            let error = Continue::decode(&bad).unwrap_err();
            assert_eq!(error.code(), 400, "{bad}");
            let told = error.to_string();
            assert!(
                told.starts_with("invalid continue token: continue key is not valid: ")
                    && told.ends_with(why),
                "{told}"
            );
        }
        let both = format!("continue={}&resourceVersion=9", token.encode());
        assert_eq!(list(&both, false).unwrap_err().code(), 400);
    }

    #[test]
    fn timeouts_are_go_durations_capped_at_a_minute() {
        for (text, seconds) in [
            ("timeout=30s", 30.0),
            ("timeout=1m30s", 60.0),
            ("timeout=0s", 60.0),
            ("timeout=500ms", 0.5),
            ("", 60.0),
        ] {
            let timeout = Query::parse(text).timeout().unwrap().as_secs_f64();
            assert!((timeout - seconds).abs() < 1e-9, "{text}");
        }
        assert!(Query::parse("timeout=foo").timeout().is_err());
    }

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
