//! The checker notices every way in which a stream can be wrong, and nothing else.

use serde_json::{Value, json};

use super::{Checker, Observed, Start};
use crate::truth::{Key, Label, Truth, View};

fn object(name: &str, color: &str, revision: u64) -> Value {
    json!({"metadata": {
        "namespace": "ns", "name": name, "labels": {"color": color},
        "resourceVersion": revision.to_string(),
    }})
}

/// Five changes of two objects, with gaps in the revisions.
fn truth() -> Truth {
    let mut truth = Truth::new(5);
    let mut put = |revision, name, color| {
        let after = Some(object(name, color, revision));
        truth.record(revision, Key::new("ns", name), after).unwrap();
    };
    put(10, "a", "red");
    put(12, "b", "green");
    put(20, "a", "green");
    put(21, "b", "red");
    truth.record(30, Key::new("ns", "b"), None).unwrap();
    truth
}

fn event(kind: &str, name: &str, color: &str, revision: u64) -> Value {
    json!({"type": kind, "object": object(name, color, revision)})
}

fn bookmark(revision: u64) -> Value {
    json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": revision.to_string()}}})
}

fn mark(revision: u64) -> Value {
    let mut mark = bookmark(revision);
    mark["object"]["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    mark
}

fn everything() -> Vec<Value> {
    vec![
        event("ADDED", "a", "red", 10),
        event("ADDED", "b", "green", 12),
        bookmark(15),
        event("MODIFIED", "a", "green", 20),
        event("MODIFIED", "b", "red", 21),
        event("DELETED", "b", "red", 30),
        bookmark(40),
    ]
}

fn red() -> View {
    View {
        label: Some(Label::Is("color", "red")),
        ..View::default()
    }
}

/// Of those that are red: what turns green is told as deleted, as it was.
fn only_red() -> Vec<Value> {
    vec![
        event("ADDED", "a", "red", 10),
        event("DELETED", "a", "red", 20),
        event("ADDED", "b", "red", 21),
        event("DELETED", "b", "red", 30),
    ]
}

const STATE: Start = Start::State {
    not_older_than: 12,
    not_newer_than: 30,
    marked: true,
};
const UNMARKED: Start = Start::State {
    not_older_than: 12,
    not_newer_than: 30,
    marked: false,
};

/// The state at 20, and what followed.
fn from_state() -> Vec<Value> {
    vec![
        event("ADDED", "b", "green", 12),
        event("ADDED", "a", "green", 20),
        mark(20),
        event("MODIFIED", "b", "red", 21),
        event("DELETED", "b", "red", 30),
    ]
}

/// Whether the checker is content with a whole stream.
fn accepts(view: View, start: Start, events: &[Value]) -> bool {
    let truth = truth();
    let mut checker = Checker::new(view, start);
    let good = events
        .iter()
        .all(|event| checker.observe(&truth, event).is_ok());
    good && !checker.is_due(&truth)
}

fn streams() -> Vec<(View, Start, Vec<Value>)> {
    let mut unmarked = from_state();
    unmarked.remove(2);
    vec![
        (View::default(), Start::After(5), everything()),
        (red(), Start::After(5), only_red()),
        (View::default(), STATE, from_state()),
        (View::default(), UNMARKED, unmarked),
    ]
}

#[test]
fn right_streams_are_accepted() {
    for (view, start, events) in streams() {
        assert!(accepts(view, start, &events), "{events:?}");
    }
}

#[test]
fn a_dropped_event_is_noticed() {
    for (view, start, events) in streams() {
        for at in 0..events.len() {
            let mut mutated = events.clone();
            // A later bookmark is nobody's due.
            if mutated.remove(at)["type"] == "BOOKMARK" && matches!(start, Start::After(_)) {
                continue;
            }
            assert!(!accepts(view.clone(), start, &mutated), "{mutated:?}");
        }
    }
}

#[test]
fn a_repeated_event_is_noticed() {
    for (view, start, events) in streams() {
        for at in 0..events.len() {
            if events[at]["type"] == "BOOKMARK" && events[at] != mark(20) {
                continue;
            }
            let mut mutated = events.clone();
            mutated.insert(at + 1, events[at].clone());
            assert!(!accepts(view.clone(), start, &mutated), "{mutated:?}");
            mutated.remove(at + 1);
            mutated.push(events[at].clone());
            assert!(!accepts(view.clone(), start, &mutated), "{mutated:?}");
        }
    }
}

#[test]
fn two_events_in_the_wrong_order_are_noticed() {
    for (view, start, events) in streams() {
        let ordered = match start {
            Start::After(_) => 0,
            // The objects of a state come in any order.
            Start::State { .. } => 2,
        };
        for at in ordered..events.len() - 1 {
            let mut mutated = events.clone();
            mutated.swap(at, at + 1);
            assert!(!accepts(view.clone(), start, &mutated), "{mutated:?}");
        }
    }
}

#[test]
fn a_wrong_type_is_noticed() {
    for (view, start, events) in streams() {
        for at in 0..events.len() {
            for kind in ["ADDED", "MODIFIED", "DELETED", "OTHER"] {
                let mut mutated = events.clone();
                if mutated[at]["type"] == kind || mutated[at]["type"] == "BOOKMARK" {
                    continue;
                }
                mutated[at]["type"] = json!(kind);
                assert!(!accepts(view.clone(), start, &mutated), "{mutated:?}");
            }
        }
    }
}

#[test]
fn a_wrong_object_is_noticed() {
    for (view, start, events) in streams() {
        for at in 0..events.len() {
            if events[at]["type"] == "BOOKMARK" {
                continue;
            }
            for (pointer, value) in [
                ("/object/metadata/labels/color", json!("blue")),
                ("/object/metadata/name", json!("c")),
                ("/object/metadata/resourceVersion", json!("13")),
                ("/object/metadata/resourceVersion", json!("x")),
            ] {
                let mut mutated = events.clone();
                *mutated[at].pointer_mut(pointer).unwrap() = value;
                assert!(!accepts(view.clone(), start, &mutated), "{mutated:?}");
            }
        }
    }
}

#[test]
fn an_event_that_did_not_happen_is_noticed() {
    for (view, start, events) in streams() {
        for at in 0..=events.len() {
            for extra in [
                event("MODIFIED", "a", "blue", 50),
                event("ADDED", "a", "red", 11),
            ] {
                let mut mutated = events.clone();
                mutated.insert(at, extra);
                assert!(!accepts(view.clone(), start, &mutated), "{mutated:?}");
            }
        }
    }
}

#[test]
fn bookmarks_that_skip_or_go_back_are_noticed() {
    for (position, revision) in [(0, 10), (1, 12), (1, 9), (4, 21), (4, 19), (6, 29), (7, 39)] {
        let mut mutated = everything();
        mutated.insert(position, bookmark(revision));
        assert!(
            !accepts(View::default(), Start::After(5), &mutated),
            "{mutated:?}"
        );
    }
    let mut annotated = everything();
    annotated[2] = mark(15);
    assert!(!accepts(View::default(), Start::After(5), &annotated));
}

#[test]
fn the_end_of_the_initial_events_is_at_the_revision_of_their_state() {
    for (revision, right) in [
        (11, false),
        (12, false),
        (19, false),
        (20, true),
        (21, false),
    ] {
        let mut events = from_state();
        events[2] = mark(revision);
        assert_eq!(
            accepts(View::default(), STATE, &events),
            right,
            "{revision}"
        );
    }
    let mut plain = from_state();
    plain[2] = bookmark(20);
    assert!(!accepts(View::default(), STATE, &plain), "not annotated");
}

#[test]
fn a_state_that_is_too_old_is_noticed() {
    let too_new = Start::State {
        not_older_than: 21,
        not_newer_than: 30,
        marked: true,
    };
    assert!(!accepts(View::default(), too_new, &from_state()));
}

#[test]
fn a_state_that_is_too_new_is_noticed() {
    let too_old = Start::State {
        not_older_than: 5,
        not_newer_than: 12,
        marked: true,
    };
    assert!(!accepts(View::default(), too_old, &from_state()));
}

#[test]
fn a_client_resumes_only_from_what_it_was_told() {
    let truth = truth();
    let mut checker = Checker::new(View::default(), STATE);
    let mut resumes = vec![checker.resume()];
    for event in from_state() {
        checker.observe(&truth, &event).unwrap();
        resumes.push(checker.resume());
    }
    assert_eq!(
        resumes,
        [None, None, None, Some(20), Some(21), Some(30)],
        "not before the state is complete"
    );
    let mut resumed = Checker::new(View::default(), Start::After(20));
    resumed.observe(&truth, &from_state()[3]).unwrap();
    resumed.resumed();
    assert!(resumed.is_due(&truth), "of the deletion");
    assert!(resumed.observe(&truth, &from_state()[3]).is_err(), "twice");
}

#[test]
fn errors_are_passed_on() {
    let truth = truth();
    let mut checker = Checker::new(View::default(), Start::After(5));
    let error = json!({"type": "ERROR", "object": {"kind": "Status", "code": 410}});
    assert_eq!(checker.observe(&truth, &error), Ok(Observed::Error(410)));
}
