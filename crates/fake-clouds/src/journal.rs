//! What a fake was asked, and what was wrong with it.
//!
//! | request | answer |
//! |---|---|
//! | `GET /fake/calls` | how often each method was called |
//! | `GET /fake/violations` | requests and responses that are not as the description says |

use std::collections::BTreeMap;

use http::Method as Verb;
use parking_lot::Mutex;
use serde_json::json;

use crate::serve::{Answer, Request};

/// Counts calls and keeps violations.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    calls: Mutex<BTreeMap<String, u64>>,
    violations: Mutex<Vec<String>>,
}

// === impl Journal ===

impl Journal {
    /// Counts a call of a method.
    pub(crate) fn called(&self, method: &str) {
        *self.calls.lock().entry(method.to_owned()).or_default() += 1;
    }

    /// Keeps what was wrong.
    pub(crate) fn violated(&self, what: String) {
        self.violations.lock().push(what);
    }

    /// Answers a request for the journal; `None` when it is for something else.
    pub(crate) fn answer(&self, request: &Request) -> Option<Answer> {
        match (&request.verb, request.path.as_str()) {
            (&Verb::GET, "/fake/calls") => Some(Answer::json(200, &json!(*self.calls.lock()))),
            (&Verb::GET, "/fake/violations") => {
                Some(Answer::json(200, &json!(*self.violations.lock())))
            },
            (_, _) => None,
        }
    }
}
