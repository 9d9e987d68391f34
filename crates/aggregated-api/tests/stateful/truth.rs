//! What really happened: every change with its revision, and the state after each.

use std::fmt;
use std::sync::Arc;

use imbl::OrdMap;
use serde_json::{Value, json};

/// Number of a change.
pub(crate) type Revision = u64;

/// Objects of one kind at one revision.
pub(crate) type State = OrdMap<Key, Arc<Value>>;

/// Where an object is. Sorted as lists are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Key {
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    /// The key in an object's metadata.
    pub(crate) fn of(object: &Value) -> Option<Self> {
        let text = |field: &str| object["metadata"][field].as_str();
        Some(Self::new(
            text("namespace").unwrap_or_default(),
            text("name")?,
        ))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// An object's resource version.
pub(crate) fn version(object: &Value) -> Option<Revision> {
    object["metadata"]["resourceVersion"].as_str()?.parse().ok()
}

/// What a label must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Label {
    Is(&'static str, &'static str),
    IsNot(&'static str, &'static str),
    Absent(&'static str),
}

/// Which objects a client asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) namespace: Option<&'static str>,
    pub(crate) name: Option<&'static str>,
    pub(crate) label: Option<Label>,
}

impl View {
    pub(crate) fn selects(&self, key: &Key, object: &Value) -> bool {
        let label = |name: &str| object["metadata"]["labels"][name].as_str();
        self.namespace.is_none_or(|wanted| wanted == key.namespace)
            && self.name.is_none_or(|wanted| wanted == key.name)
            && match &self.label {
                None => true,
                Some(Label::Is(name, value)) => label(name) == Some(value),
                Some(Label::IsNot(name, value)) => label(name) != Some(value),
                Some(Label::Absent(name)) => label(name).is_none(),
            }
    }

    /// Whether a selector narrows it.
    pub(crate) fn has_selector(&self) -> bool {
        self.name.is_some() || self.label.is_some()
    }

    /// The selectors as query parameters.
    pub(crate) fn query(&self) -> String {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        if let Some(name) = self.name {
            query.append_pair("fieldSelector", &format!("metadata.name={name}"));
        }
        let label = self.label.as_ref().map(|label| match label {
            Label::Is(name, value) => format!("{name}={value}"),
            Label::IsNot(name, value) => format!("{name}!={value}"),
            Label::Absent(name) => format!("!{name}"),
        });
        if let Some(label) = label {
            query.append_pair("labelSelector", &label);
        }
        query.finish()
    }
}

/// One change of one object.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) revision: Revision,
    pub(crate) key: Key,
    pub(crate) before: Option<Arc<Value>>,
    pub(crate) after: Option<Arc<Value>>,
}

/// A change as a view shows it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shown {
    pub(crate) revision: Revision,
    pub(crate) kind: &'static str,
    pub(crate) object: Value,
}

impl Change {
    /// Whether a watcher of `view` is told.
    pub(crate) fn is_shown(&self, view: &View) -> bool {
        let selected = |object: &Arc<Value>| view.selects(&self.key, object);
        self.before.as_ref().is_some_and(selected) || self.after.as_ref().is_some_and(selected)
    }

    /// How a watcher of `view` is told, if at all. What leaves a selection is shown as it was, at the
    /// revision of the change, as is what was deleted (`k8s.io/apiserver`, cacher and etcd3 watcher).
    pub(crate) fn shown(&self, view: &View) -> Option<Shown> {
        let seen = |state: &Option<Arc<Value>>| {
            state
                .as_ref()
                .filter(|object| view.selects(&self.key, object))
                .cloned()
        };
        let (kind, object) = match (seen(&self.before), seen(&self.after)) {
            (None, None) => return None,
            (None, Some(after)) => ("ADDED", (*after).clone()),
            (Some(_), Some(after)) => ("MODIFIED", (*after).clone()),
            (Some(before), None) => {
                let mut gone = (*before).clone();
                gone["metadata"]["resourceVersion"] = json!(self.revision.to_string());
                ("DELETED", gone)
            },
        };
        Some(Shown {
            revision: self.revision,
            kind,
            object,
        })
    }
}

/// The ordered history.
pub(crate) struct Truth {
    begin: Revision,
    changes: Vec<Change>,
    /// `states[n]` is the state after `n` changes.
    states: Vec<State>,
}

impl Truth {
    /// Nothing exists at `begin`.
    pub(crate) fn new(begin: Revision) -> Self {
        Self {
            begin,
            changes: Vec::new(),
            states: vec![State::new()],
        }
    }

    /// Adds the next change.
    pub(crate) fn record(
        &mut self,
        revision: Revision,
        key: Key,
        after: Option<Value>,
    ) -> Result<(), String> {
        if revision <= self.latest() {
            return Err(format!(
                "{key} changed at {revision}, which is not after {}",
                self.latest()
            ));
        }
        let mut state = self.now().clone();
        let after = after.map(Arc::new);
        let before = match &after {
            Some(object) => state.insert(key.clone(), Arc::clone(object)),
            None => state.remove(&key),
        };
        if before.is_none() && after.is_none() {
            return Err(format!("{key} was deleted at {revision}, but is not there"));
        }
        self.changes.push(Change {
            revision,
            key,
            before,
            after,
        });
        self.states.push(state);
        Ok(())
    }

    pub(crate) fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Revision of the last change.
    pub(crate) fn latest(&self) -> Revision {
        self.revision_after(self.changes.len())
    }

    /// Revision from which on there have been `count` changes.
    pub(crate) fn revision_after(&self, count: usize) -> Revision {
        let last = count.checked_sub(1).and_then(|at| self.changes.get(at));
        last.map_or(self.begin, |change| change.revision)
    }

    /// How many changes there were up to and including `revision`.
    pub(crate) fn count_at(&self, revision: Revision) -> usize {
        self.changes
            .partition_point(|change| change.revision <= revision)
    }

    /// The state after `count` changes.
    pub(crate) fn state(&self, count: usize) -> &State {
        &self.states[count]
    }

    /// The state at a revision.
    pub(crate) fn at(&self, revision: Revision) -> &State {
        self.state(self.count_at(revision))
    }

    /// The latest state.
    pub(crate) fn now(&self) -> &State {
        self.state(self.changes.len())
    }

    /// What a list of `view` in the state at `revision` holds, in order.
    pub(crate) fn list(&self, view: &View, revision: Revision) -> Vec<Value> {
        self.at(revision)
            .iter()
            .filter(|(key, object)| view.selects(key, object))
            .map(|(_, object)| (**object).clone())
            .collect()
    }
}
