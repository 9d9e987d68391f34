//! Holds the events of one watch against the truth: every change once, in order, with the right type
//! and object; bookmarks that neither go back nor skip.
//!
//! A watch that begins with the state does not say which state that is until its bookmark, or never.
//! The checker then follows every state that it can be (*hypotheses*) and drops those that an event
//! contradicts; it finds a fault when none is left.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::truth::{Key, Revision, Truth, View, version};

/// Where a watch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// With the changes after this revision.
    After(Revision),
    /// With a state.
    State {
        /// The state is not older than this.
        not_older_than: Revision,
        /// Nothing that happened later is part of it.
        not_newer_than: Revision,
        /// Whether an annotated bookmark ends it.
        marked: bool,
    },
}

/// What is wrong with an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault(pub(crate) String);

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An event that is as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Observed {
    /// Part of the state at the beginning, or a change.
    Change,
    /// A bookmark.
    Bookmark,
    /// The stream tells an error, with this code; whether it may is not the checker's to know.
    Error(u64),
}

/// A state with which the watch may have begun, and how far it has come since.
#[derive(Clone)]
struct Hypothesis {
    /// Objects of that state that are still to be told.
    remaining: BTreeMap<Key, Arc<Value>>,
    /// Whether the annotated bookmark is still to come.
    unmarked: bool,
    /// Changes before this index of the history have been told or are not to be.
    next: usize,
    /// Everything up to here has been told.
    position: Revision,
}

/// The checker of one watch, through all its streams.
pub(crate) struct Checker {
    view: View,
    start: Start,
    /// `None` until the first event: only then are all candidates part of the truth.
    hypotheses: Option<Vec<Hypothesis>>,
    /// From where a client would resume.
    resume: Option<Revision>,
}

impl Checker {
    pub(crate) fn new(view: View, start: Start) -> Self {
        Self {
            view,
            resume: match start {
                Start::After(revision) => Some(revision),
                Start::State { .. } => None,
            },
            start,
            hypotheses: None,
        }
    }

    /// The revision to resume from; `None`: begin anew, since the state is not complete or its revision
    /// was not told.
    pub(crate) fn resume(&self) -> Option<Revision> {
        self.resume
    }

    /// Goes on with a new stream, which begins after [`Self::resume`].
    pub(crate) fn resumed(&mut self) {
        if let Some(revision) = self.resume {
            self.start = Start::After(revision);
            self.hypotheses = None;
        }
    }

    /// Whether events are still to come for what is part of the truth.
    pub(crate) fn is_due(&mut self, truth: &Truth) -> bool {
        let (view, hypotheses) = self.hypotheses(truth);
        hypotheses.iter().all(|hypothesis| {
            let mut changes = truth.changes()[hypothesis.next..].iter();
            !hypothesis.remaining.is_empty()
                || hypothesis.unmarked
                || changes.any(|change| change.is_shown(view))
        })
    }

    /// Takes the next event.
    pub(crate) fn observe(&mut self, truth: &Truth, event: &Value) -> Result<Observed, Fault> {
        let object = &event["object"];
        let kind = event["type"].as_str().unwrap_or_default();
        if kind == "ERROR" {
            return Ok(Observed::Error(object["code"].as_u64().unwrap_or_default()));
        }
        let revision =
            version(object).ok_or_else(|| Fault(format!("no resourceVersion in {event}")))?;
        let marks = object["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true";
        let not_older_than = match self.start {
            Start::State { not_older_than, .. } => not_older_than,
            Start::After(_) => 0,
        };
        let resume = self.resume.unwrap_or_default();
        let (view, hypotheses) = self.hypotheses(truth);
        let mut fault = Fault(format!("nothing explains {event}"));
        let mut only_changes = true;
        let mut left = Vec::new();
        for mut hypothesis in hypotheses.drain(..) {
            let verdict = if kind == "BOOKMARK" {
                let old = revision < not_older_than.max(resume);
                let verdict = hypothesis.bookmark(truth, view, revision, marks);
                if old {
                    Err(Fault(format!("the bookmark goes back to {revision}")))
                } else {
                    verdict
                }
            } else if hypothesis.remaining.is_empty() && !hypothesis.unmarked {
                hypothesis.change(truth, view, kind, revision, object)
            } else {
                only_changes = false;
                hypothesis.initial(kind, object)
            };
            match verdict {
                Ok(()) => left.push(hypothesis),
                Err(why) => fault = why,
            }
        }
        if left.is_empty() {
            return Err(fault);
        }
        *hypotheses = left;
        if only_changes {
            self.resume = Some(revision);
        }
        Ok(if kind == "BOOKMARK" {
            Observed::Bookmark
        } else {
            Observed::Change
        })
    }

    fn hypotheses(&mut self, truth: &Truth) -> (&View, &mut Vec<Hypothesis>) {
        let (view, start) = (&self.view, self.start);
        let hypotheses = self.hypotheses.get_or_insert_with(|| match start {
            Start::After(revision) => vec![Hypothesis {
                remaining: BTreeMap::new(),
                unmarked: false,
                next: truth.count_at(revision),
                position: revision,
            }],
            Start::State {
                not_older_than,
                not_newer_than,
                marked,
            } => (truth.count_at(not_older_than)..=truth.count_at(not_newer_than))
                .map(|count| Hypothesis {
                    remaining: truth
                        .state(count)
                        .iter()
                        .filter(|(key, object)| view.selects(key, object))
                        .map(|(key, object)| (key.clone(), Arc::clone(object)))
                        .collect(),
                    unmarked: marked,
                    next: count,
                    position: truth.revision_after(count),
                })
                .collect(),
        });
        (view, hypotheses)
    }
}

impl Hypothesis {
    fn initial(&mut self, kind: &str, object: &Value) -> Result<(), Fault> {
        let key = Key::of(object).ok_or_else(|| Fault(format!("no name in {object}")))?;
        if kind != "ADDED" {
            return Err(Fault(format!("{kind} {key} among the initial events")));
        }
        match self.remaining.remove(&key) {
            Some(expected) if *expected == *object => Ok(()),
            Some(expected) => Err(Fault(format!(
                "the initial event shows {object}, the state has {expected}"
            ))),
            None => Err(Fault(format!("{key} is no initial event of this state"))),
        }
    }

    fn change(
        &mut self,
        truth: &Truth,
        view: &View,
        kind: &str,
        revision: Revision,
        object: &Value,
    ) -> Result<(), Fault> {
        if revision <= self.position {
            return Err(Fault(format!(
                "{kind} at {revision} after everything up to {} was told",
                self.position
            )));
        }
        let Some((at, expected)) = self.expected(truth, view) else {
            return Err(Fault(format!("{kind} at {revision} did not happen")));
        };
        if revision != expected.revision {
            return Err(Fault(format!(
                "{kind} at {revision} comes where {} at {} belongs",
                expected.kind, expected.revision
            )));
        }
        if kind != expected.kind {
            return Err(Fault(format!(
                "{kind} at {revision}, which was {}",
                expected.kind
            )));
        }
        if *object != expected.object {
            return Err(Fault(format!(
                "{kind} at {revision} shows {object}, not {}",
                expected.object
            )));
        }
        self.next = at + 1;
        self.position = revision;
        Ok(())
    }

    fn bookmark(
        &mut self,
        truth: &Truth,
        view: &View,
        revision: Revision,
        marks: bool,
    ) -> Result<(), Fault> {
        if marks != self.unmarked {
            return Err(Fault(format!(
                "the bookmark at {revision} is {}annotated as the end of the initial events",
                if marks { "" } else { "not " }
            )));
        }
        if let Some(key) = self.remaining.keys().next() {
            return Err(Fault(format!("the bookmark at {revision} skips {key}")));
        }
        if revision < self.position {
            return Err(Fault(format!(
                "the bookmark at {revision} goes back behind {}",
                self.position
            )));
        }
        if let Some((_, skipped)) = self.expected(truth, view)
            && skipped.revision <= revision
        {
            return Err(Fault(format!(
                "the bookmark at {revision} skips {} at {}",
                skipped.kind, skipped.revision
            )));
        }
        self.unmarked = false;
        self.position = revision;
        self.next = self.next.max(truth.count_at(revision));
        Ok(())
    }

    /// The next change that the view shows.
    fn expected(&self, truth: &Truth, view: &View) -> Option<(usize, crate::truth::Shown)> {
        truth
            .changes()
            .iter()
            .enumerate()
            .skip(self.next)
            .find_map(|(at, change)| Some((at, change.shown(view)?)))
    }
}

#[cfg(test)]
mod tests;
