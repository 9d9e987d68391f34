//! One watch per kind, shared by everybody who needs that kind.
//!
//! Controllers read the [`Store`] and are woken through [`Subscription`]s. Unlike kube's shared
//! streams, subscriptions hear of deletions too, and a slow subscriber delays nobody.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::hash::Hash;
use std::time::Duration;

use futures::StreamExt;
use kube::runtime::reflector::{ObjectRef, Store, store};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is there, new or changed.
    Applied,
    /// It is gone.
    Deleted,
}

/// Failures further apart than this are two outages, and each is told.
const OUTAGE: Duration = Duration::from_mins(10);

type Listener<K> = Box<dyn Fn(&K, Change) + Send + Sync>;

/// A kind to be watched, before the watch runs.
pub struct SharedWatch<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static,
{
    apis: Vec<Api<K>>,
    reader: Store<K>,
    writer: store::Writer<K>,
    listeners: Vec<Listener<K>>,
}

/// Objects to look at.
pub type Subscription<K> = mpsc::UnboundedReceiver<ObjectRef<K>>;

impl<K> SharedWatch<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    /// A watch over these parts of the API: the whole cluster, or a number of namespaces.
    pub fn new(apis: Vec<Api<K>>) -> Self {
        let (reader, writer) = store();
        Self {
            apis,
            reader,
            writer,
            listeners: Vec::new(),
        }
    }

    /// The objects, as far as they are known. It is ready when all were listed.
    pub fn store(&self) -> Store<K> {
        self.reader.clone()
    }

    /// Calls a function for each change, after the store has it.
    pub fn listen(&mut self, listener: impl Fn(&K, Change) + Send + Sync + 'static) {
        self.listeners.push(Box::new(listener));
    }

    /// Objects that are concerned by a change, as `map` has it.
    ///
    /// Why unbounded: a controller takes references into its scheduler at once, where they are
    /// merged, so the queue is never longer than one burst of events.
    pub fn subscribe<T, I>(
        &mut self,
        map: impl Fn(&K, Change) -> I + Send + Sync + 'static,
    ) -> Subscription<T>
    where
        T: Resource<DynamicType: Eq + Hash + Clone + Send + Sync> + 'static,
        I: IntoIterator<Item = ObjectRef<T>>,
    {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.listen(move |object, change| {
            for reference in map(object, change) {
                if sender.send(reference).is_err() {
                    return; // its controller has stopped
                }
            }
        });
        receiver
    }

    /// Watches until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        let Self {
            apis,
            reader,
            mut writer,
            listeners,
        } = self;
        let mut merge = Merge::new(apis.len());
        let parts = apis.into_iter().enumerate().map(|(part, api)| {
            let events = watcher(api, watcher::Config::default()).default_backoff();
            // Why: nobody reads them, and they are larger than the rest of an object.
            let events = events.modify(|object| object.meta_mut().managed_fields = None);
            events.map(move |event| (part, event)).boxed()
        });
        let mut events = futures::stream::select_all(parts);
        let mut failing = HashMap::new();
        while let Some((part, event)) = shutdown.run_until_cancelled(events.next()).await.flatten()
        {
            match event {
                Ok(event) => {
                    // Why not at Init: it says that a list is about to be asked for.
                    if !matches!(event, Event::Init) && failing.remove(&part).is_some() {
                        tracing::info!(kind = %K::kind(&()), "watch works again");
                    }
                    for event in merge.take(part, event, &reader) {
                        writer.apply_watcher_event(&event);
                        tell(&event, &listeners, &reader);
                    }
                },
                Err(error) => {
                    let error = runtime_kit::chain(&error).to_string();
                    let kind = K::kind(&());
                    let now = Instant::now();
                    let before = failing.insert(part, now);
                    if before.is_none_or(|before| now - before > OUTAGE) {
                        tracing::warn!(%kind, error, "watch failed, trying again");
                    } else {
                        tracing::debug!(%kind, error, "watch fails still");
                    }
                },
            }
        }
    }
}

fn tell<K>(event: &Event<K>, listeners: &[Listener<K>], reader: &Store<K>)
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    let each = |object: &K, change| {
        for listener in listeners {
            listener(object, change);
        }
    };
    match event {
        Event::Apply(object) => each(object, Change::Applied),
        Event::Delete(object) => each(object, Change::Deleted),
        Event::Init | Event::InitApply(_) => {},
        Event::InitDone => {
            for object in reader.state() {
                each(&object, Change::Applied);
            }
        },
    }
}

/// Makes one sequence of events out of one per namespace: the first lists of all become one list,
/// and a later list becomes the changes that it brought, deletions included.
struct Merge<K: Resource<DynamicType = ()> + 'static> {
    parts: Vec<Part<K>>,
    /// What the first lists brought, until all of them are complete.
    early: Option<HashMap<ObjectRef<K>, K>>,
}

struct Part<K: Resource<DynamicType = ()> + 'static> {
    listed: bool,
    known: HashSet<ObjectRef<K>>,
    fresh: Vec<K>,
}

impl<K: Resource<DynamicType = ()> + Clone + 'static> Merge<K> {
    fn new(parts: usize) -> Self {
        let part = || Part {
            listed: false,
            known: HashSet::new(),
            fresh: Vec::new(),
        };
        Self {
            parts: std::iter::repeat_with(part).take(parts).collect(),
            early: Some(HashMap::new()),
        }
    }

    fn take(&mut self, part: usize, event: Event<K>, store: &Store<K>) -> Vec<Event<K>> {
        let Some(state) = self.parts.get_mut(part) else {
            return Vec::new();
        };
        let changes = state.changes(event, |reference| match &self.early {
            Some(early) => early.get(reference).cloned(),
            None => store.get(reference).map(|object| K::clone(&object)),
        });
        let Some(early) = &mut self.early else {
            return changes;
        };
        for change in changes {
            match change {
                Event::Apply(object) => {
                    early.insert(ObjectRef::from_obj(&object), object);
                },
                Event::Delete(object) => {
                    early.remove(&ObjectRef::from_obj(&object));
                },
                Event::Init | Event::InitApply(_) | Event::InitDone => {},
            }
        }
        if !self.parts.iter().all(|part| part.listed) {
            return Vec::new();
        }
        let first = self.early.take().unwrap_or_default();
        let objects = first.into_values().map(Event::InitApply);
        [Event::Init]
            .into_iter()
            .chain(objects)
            .chain([Event::InitDone])
            .collect()
    }
}

impl<K: Resource<DynamicType = ()> + Clone + 'static> Part<K> {
    fn changes(
        &mut self,
        event: Event<K>,
        look_up: impl Fn(&ObjectRef<K>) -> Option<K>,
    ) -> Vec<Event<K>> {
        match event {
            Event::Init => {
                self.fresh.clear();
                Vec::new()
            },
            Event::InitApply(object) => {
                self.fresh.push(object);
                Vec::new()
            },
            Event::InitDone => {
                self.listed = true;
                let fresh = std::mem::take(&mut self.fresh);
                let now = fresh.iter().map(ObjectRef::from_obj).collect();
                let before = std::mem::replace(&mut self.known, now);
                let gone = before
                    .iter()
                    .filter(|reference| !self.known.contains(reference));
                let gone: Vec<_> = gone.filter_map(look_up).map(Event::Delete).collect();
                gone.into_iter()
                    .chain(fresh.into_iter().map(Event::Apply))
                    .collect()
            },
            Event::Apply(object) => {
                self.known.insert(ObjectRef::from_obj(&object));
                vec![Event::Apply(object)]
            },
            Event::Delete(object) => {
                self.known.remove(&ObjectRef::from_obj(&object));
                vec![Event::Delete(object)]
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::ResourceExt;

    use super::*;

    fn object(namespace: &str, name: &str) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.namespace = Some(namespace.into());
        object.metadata.name = Some(name.into());
        object
    }

    /// Feeds a list of one part, and says what came out.
    fn list(
        merge: &mut Merge<ConfigMap>,
        part: usize,
        objects: &[ConfigMap],
        writer: &mut store::Writer<ConfigMap>,
    ) -> Vec<String> {
        let applied = objects.iter().cloned().map(Event::InitApply);
        let events = [Event::Init]
            .into_iter()
            .chain(applied)
            .chain([Event::InitDone]);
        events
            .flat_map(|event| feed(merge, part, event, writer))
            .collect()
    }

    fn feed(
        merge: &mut Merge<ConfigMap>,
        part: usize,
        event: Event<ConfigMap>,
        writer: &mut store::Writer<ConfigMap>,
    ) -> Vec<String> {
        let out = merge.take(part, event, &writer.as_reader());
        out.iter()
            .map(|event| {
                writer.apply_watcher_event(event);
                match event {
                    Event::Init => "init".into(),
                    Event::InitApply(o) => format!("init {}", o.name_any()),
                    Event::InitDone => "done".into(),
                    Event::Apply(o) => format!("apply {}", o.name_any()),
                    Event::Delete(o) => format!("delete {}", o.name_any()),
                }
            })
            .collect()
    }

    #[test]
    fn the_store_is_ready_when_every_namespace_was_listed() {
        let (_, mut writer) = store();
        let mut merge = Merge::new(2);
        assert!(list(&mut merge, 0, &[object("a", "x")], &mut writer).is_empty());
        assert!(feed(&mut merge, 0, Event::Delete(object("a", "x")), &mut writer).is_empty());
        let out = list(&mut merge, 1, &[object("b", "y")], &mut writer);
        assert_eq!(out, ["init", "init y", "done"]);
    }

    #[test]
    fn a_later_list_of_one_namespace_leaves_the_others_and_tells_of_deletions() {
        let (reader, mut writer) = store();
        let mut merge = Merge::new(2);
        list(
            &mut merge,
            0,
            &[object("a", "x"), object("a", "z")],
            &mut writer,
        );
        list(&mut merge, 1, &[object("b", "y")], &mut writer);
        let out = list(&mut merge, 0, &[object("a", "z")], &mut writer);
        assert_eq!(out, ["delete x", "apply z"]);
        assert_eq!(reader.len(), 2);
    }
}
