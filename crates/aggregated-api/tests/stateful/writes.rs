//! Writes at random: what is asked, what must be answered, and what follows for the truth.

use std::collections::{BTreeMap, BTreeSet};

use rand::RngExt;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use crate::truth::{Key, Revision, State, Truth, version};

pub(crate) const NAMESPACES: [&str; 2] = ["ns", "other"];
pub(crate) const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
pub(crate) const COLORS: [&str; 3] = ["red", "green", "blue"];
/// Says in every written state which write it is.
const WRITE: &str = "write";
const FINALIZER: &str = "example.com/keep";

/// A write.
#[derive(Clone, Debug)]
pub(crate) enum Write {
    Create {
        color: Option<&'static str>,
        kept: bool,
    },
    /// Sets the label, or removes it.
    Paint(Option<&'static str>),
    /// Changes the spec.
    Count(i64),
    /// Changes nothing.
    Nothing,
    /// Replaces the object by what it was at this index of its states, spec changed.
    Replace(Value),
    /// Removes all finalizers.
    Release,
    Delete,
}

/// A write to one object.
#[derive(Clone, Debug)]
pub(crate) struct Op {
    pub(crate) number: u64,
    pub(crate) key: Key,
    pub(crate) write: Write,
}

/// Path of a namespace's collection, or of all.
pub(crate) fn collection(namespace: Option<&str>) -> String {
    let group = "/apis/wardle.example.com/v1alpha1";
    namespace.map_or_else(
        || format!("{group}/flunders"),
        |namespace| format!("{group}/namespaces/{namespace}/flunders"),
    )
}

fn pick<T: Clone>(rng: &mut StdRng, of: &[T]) -> T {
    of[rng.random_range(0..of.len())].clone()
}

pub(crate) fn color(rng: &mut StdRng) -> Option<&'static str> {
    rng.random_bool(0.8).then(|| pick(rng, &COLORS))
}

impl Op {
    pub(crate) fn random(rng: &mut StdRng, truth: &Truth, number: u64) -> Self {
        let key = Key::new(pick(rng, &NAMESPACES), pick(rng, &NAMES));
        let exists = truth.now().contains_key(&key);
        let write = match rng.random_range(0..100) {
            0..20 => Write::Create {
                color: color(rng),
                kept: rng.random_bool(0.3),
            },
            _ if !exists && rng.random_bool(0.7) => Write::Create {
                color: color(rng),
                kept: false,
            },
            20..45 => Write::Paint(color(rng)),
            45..60 => Write::Count(rng.random_range(0..10)),
            60..65 => Write::Nothing,
            65..75 => {
                let count = truth.changes().len();
                let some = rng.random_range(count.saturating_sub(20)..=count);
                let state = if rng.random_bool(0.7) { count } else { some };
                match truth.state(state).get(&key) {
                    Some(object) => Write::Replace((**object).clone()),
                    None => Write::Nothing,
                }
            },
            75..82 => Write::Release,
            _ => Write::Delete,
        };
        Self { number, key, write }
    }

    /// Method, path and body.
    pub(crate) fn request(&self) -> (&'static str, String, Option<Value>) {
        let Key { namespace, name } = &self.key;
        let all = collection(Some(namespace));
        let one = format!("{all}/{name}");
        let annotations = json!({WRITE: self.number.to_string()});
        match &self.write {
            Write::Create { color, kept } => {
                let labels = color.map(|color| json!({"color": color}));
                let finalizers = kept.then(|| json!([FINALIZER]));
                let object = json!({
                    "metadata": {
                        "name": name, "labels": labels, "finalizers": finalizers,
                        "annotations": annotations,
                    },
                    "spec": {},
                });
                ("POST", all, Some(object))
            },
            Write::Paint(color) => {
                let metadata = json!({"labels": {"color": color}, "annotations": annotations});
                ("PATCH", one, Some(json!({"metadata": metadata})))
            },
            Write::Count(count) => {
                let metadata = json!({"annotations": annotations});
                let patch = json!({"metadata": metadata, "spec": {"count": count}});
                ("PATCH", one, Some(patch))
            },
            Write::Nothing => ("PATCH", one, Some(json!({}))),
            Write::Replace(old) => {
                let mut new = old.clone();
                new["spec"]["reference"] = json!(format!("r{}", self.number));
                new["metadata"]["annotations"] = annotations;
                ("PUT", one, Some(new))
            },
            Write::Release => {
                let metadata = json!({"finalizers": null, "annotations": annotations});
                ("PATCH", one, Some(json!({"metadata": metadata})))
            },
            Write::Delete => ("DELETE", one, None),
        }
    }

    /// The status that must be answered when nothing else is written meanwhile.
    pub(crate) fn status(&self, now: &State) -> u16 {
        let object = now.get(&self.key);
        match (&self.write, object) {
            (Write::Create { .. }, None) => 201,
            (Write::Create { .. }, Some(_)) => 409,
            (_, None) => 404,
            (Write::Replace(old), Some(now)) if version(old) != version(now) => 409,
            (_, Some(_)) => 200,
        }
    }
}

/// What acknowledged writes must have led to.
#[derive(Default)]
pub(crate) struct Effects {
    /// States by their revision.
    puts: BTreeMap<Revision, Value>,
    /// Deletions: of which object, by name and uid, and what its last revision was when that was told,
    /// as it is to who removes the last finalizer.
    gone: BTreeMap<(Key, String), Option<Revision>>,
    /// Objects that were marked as deleted, without telling their new state.
    marked: BTreeSet<Key>,
    /// Writes whose answer was lost.
    unknown: Vec<Op>,
}

impl Effects {
    /// Takes the answer to a write.
    pub(crate) fn answered(&mut self, op: &Op, truth: &Truth, status: u16, answer: &Value) {
        if status >= 400 {
            assert!(matches!(status, 404 | 409), "{op:?}: {answer}");
            return;
        }
        if answer["kind"] == "Status" {
            let uid = answer["details"]["uid"].as_str().expect("a uid");
            let known = self.gone.insert((op.key.clone(), uid.to_owned()), None);
            assert_eq!(known, None, "{op:?} deletes a second time");
            return;
        }
        let revision = version(answer).expect("a resourceVersion");
        let metadata = &answer["metadata"];
        if metadata.get("deletionTimestamp").is_some() && metadata.get("finalizers").is_none() {
            let uid = metadata["uid"].as_str().expect("a uid").to_owned();
            self.gone.insert((op.key.clone(), uid), Some(revision));
        } else if revision <= truth.latest() {
            let now = truth.now().get(&op.key).map(|object| &**object);
            assert_eq!(now, Some(answer), "{op:?} changed nothing");
        } else if let Some(same) = self.puts.insert(revision, answer.clone()) {
            assert_eq!(same, *answer, "two states at one revision");
        }
    }

    /// Remembers a write that was not answered.
    pub(crate) fn lost(&mut self, op: Op) {
        self.unknown.push(op);
    }

    /// Takes what deleting a collection answered.
    pub(crate) fn collection_deleted(&mut self, truth: &Truth, answer: &Value) {
        for item in answer["items"].as_array().expect("items") {
            let key = Key::of(item).expect("a name");
            let now = truth.now().get(&key).expect("what is deleted is there");
            assert_eq!(**now, *item, "the answer shows what was deleted");
            if item["metadata"].get("finalizers").is_none() {
                let uid = item["metadata"]["uid"].as_str().expect("a uid");
                self.gone.insert((key, uid.to_owned()), None);
            } else if item["metadata"].get("deletionTimestamp").is_none() {
                self.marked.insert(key);
            }
        }
    }

    /// Explains the next change that was seen, and makes it part of the truth.
    pub(crate) fn explain(&mut self, truth: &mut Truth, event: &Value) -> Result<(), String> {
        let object = &event["object"];
        let key = Key::of(object).ok_or("no name")?;
        let revision = version(object).ok_or("no resourceVersion")?;
        let before = truth.now().get(&key).cloned();
        if event["type"] == "DELETED" {
            let uid = object["metadata"]["uid"].as_str().ok_or("no uid")?;
            match self.gone.remove(&(key.clone(), uid.to_owned())) {
                Some(told) => {
                    let last = before.as_deref().and_then(version);
                    if told.is_some() && told != last {
                        return Err(format!("deleted as of {last:?}, but told {told:?}"));
                    }
                },
                None => self.explained(&key, |write| {
                    matches!(write, Write::Delete | Write::Release)
                })?,
            }
            return truth.record(revision, key, None);
        }
        if let Some(put) = self.puts.remove(&revision) {
            if put != *object {
                return Err(format!("told {put}, shown {object}"));
            }
        } else if self.marked.remove(&key) {
            let mut marked = before.as_deref().cloned().ok_or("it is not there")?;
            let now = &object["metadata"];
            let generation = marked["metadata"]["generation"]
                .as_i64()
                .unwrap_or_default();
            marked["metadata"]["generation"] = json!(generation + 1);
            for field in ["deletionTimestamp", "resourceVersion"] {
                marked["metadata"][field] = now[field].clone();
            }
            marked["metadata"]["deletionGracePeriodSeconds"] = json!(0);
            if marked != *object || !now["deletionTimestamp"].is_string() {
                return Err(format!("marked {object}, expected {marked}"));
            }
        } else {
            let number = object["metadata"]["annotations"][WRITE].as_str();
            let number = number.and_then(|number| number.parse().ok());
            let mark = before.is_some_and(|before| {
                before["metadata"]["annotations"] == object["metadata"]["annotations"]
            });
            if mark {
                self.explained(&key, |write| matches!(write, Write::Delete))?;
            } else {
                let at = self.unknown.iter().position(|op| Some(op.number) == number);
                self.unknown
                    .remove(at.ok_or_else(|| format!("nobody wrote {object}"))?);
            }
        }
        truth.record(revision, key, Some(object.clone()))
    }

    /// Uses up an unanswered write to `key`.
    fn explained(&mut self, key: &Key, fits: impl Fn(&Write) -> bool) -> Result<(), String> {
        let at = self
            .unknown
            .iter()
            .position(|op| op.key == *key && fits(&op.write));
        let at = at.ok_or_else(|| format!("nobody deleted {key}"))?;
        self.unknown.remove(at);
        Ok(())
    }

    /// Fails when an acknowledged write was not seen.
    pub(crate) fn all_seen(&self) -> Result<(), String> {
        let Self {
            puts,
            gone,
            marked,
            unknown: _,
        } = self;
        if puts.is_empty() && gone.is_empty() && marked.is_empty() {
            return Ok(());
        }
        Err(format!(
            "acknowledged but never seen: {puts:?} {gone:?} {marked:?}"
        ))
    }
}
