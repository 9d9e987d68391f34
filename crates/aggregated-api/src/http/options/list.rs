//! Options of list, watch and deletecollection.

use std::time::Duration;

use super::{Continue, META_GROUP, Query};
use crate::codec::number::parse_uint;
use crate::codec::selector::{FieldSelector, LabelSelector};
use crate::http::status::{ApiError, FieldError};
use crate::store::Revision;

const RV_MATCH: &str = "resourceVersionMatch";
const EXACT: &str = "Exact";
const NOT_OLDER_THAN: &str = "NotOlderThan";

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
    pub(in crate::http) fn check_form(query: &Query) -> Result<(), ApiError> {
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

    #[test]
    fn a_later_page_names_no_resource_version() {
        let token = Continue::new(9, "ns/x".to_owned());
        let both = format!("continue={}&resourceVersion=9", token.encode());
        assert_eq!(list(&both, false).unwrap_err().code(), 400);
    }
}
