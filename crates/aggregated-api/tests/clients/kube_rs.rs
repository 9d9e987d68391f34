//! kube-rs watchers in every mode, each with a reflector, while flunders change and the server restarts.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use devcluster::{Options, wait_for};
use futures::StreamExt as _;
use kube::api::{ApiResource, DynamicObject, ListParams, PartialObjectMeta};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher::{self, Config, Event, watcher};
use kube::{Api, Resource};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::watch;

use crate::churn::churn;
use crate::site::{PATIENCE, Site, flunders, run};

const NAMESPACE: &str = "kube-rs";

/// What a watcher has told.
#[derive(Clone, Debug, Default)]
struct Told {
    /// How often it began with the state of all objects.
    beginnings: usize,
    /// Whether the state is complete.
    ready: bool,
    /// Highest resource version since it began.
    newest: u64,
    /// Resource versions of the changes it told, over all.
    changes: Vec<u64>,
    /// How often it was told that its resource version is too old.
    expired: usize,
    /// Changes that did not come in order or came twice, and what could not be understood.
    faults: Vec<String>,
}

impl Told {
    fn note<K: Resource>(&mut self, event: &Event<K>) {
        match event {
            Event::Init => {
                self.beginnings += 1;
                self.ready = false;
                self.newest = 0;
            },
            Event::InitDone => self.ready = true,
            Event::InitApply(object) => self.newest = self.newest.max(version(object)),
            Event::Apply(object) | Event::Delete(object) => {
                let version = version(object);
                if version <= self.newest {
                    let name = object.meta().name.as_deref();
                    let fault = format!("{version} of {name:?} after {}", self.newest);
                    self.faults.push(fault);
                }
                self.newest = version;
                self.changes.push(version);
            },
        }
    }

    /// Anything that a server on its way out or in may cause is in order.
    fn note_error(&mut self, error: &watcher::Error) {
        match error {
            watcher::Error::WatchError(status) if status.code == 410 => self.expired += 1,
            watcher::Error::WatchError(_) | watcher::Error::NoResourceVersion => {
                self.faults.push(error.to_string());
            },
            watcher::Error::InitialListFailed(error)
            | watcher::Error::WatchStartFailed(error)
            | watcher::Error::WatchFailed(error) => {
                let refused =
                    matches!(error, kube::Error::Api(status) if (400..500).contains(&status.code));
                if refused || matches!(error, kube::Error::SerdeError(_)) {
                    self.faults.push(error.to_string());
                }
            },
        }
    }
}

fn version<K: Resource>(object: &K) -> u64 {
    let version = object.meta().resource_version.as_deref().unwrap();
    version.parse().unwrap()
}

/// A watcher of some view of flunders.
#[async_trait]
trait Follower {
    fn name(&self) -> &str;
    fn selects(&self) -> bool;
    fn told(&self) -> Told;
    /// What its reflector and the server do not have in common.
    async fn difference(&self) -> Option<String>;
}

struct Following<K: Resource<DynamicType = ApiResource> + Clone + 'static> {
    name: String,
    api: Api<K>,
    labels: Option<String>,
    store: Store<K>,
    told: Arc<Mutex<Told>>,
}

impl<K> Following<K>
where
    K: Resource<DynamicType = ApiResource>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    /// Starts to follow; takes no events while `going` is false.
    fn start(name: String, api: Api<K>, config: Config, mut going: watch::Receiver<bool>) -> Self {
        let writer = Writer::new(flunders());
        let store = writer.as_reader();
        let told = Arc::new(Mutex::new(Told::default()));
        let labels = config.label_selector.clone();
        let noted = Arc::clone(&told);
        let events = watcher(api.clone(), config).default_backoff();
        let events = reflector::reflector(writer, events);
        tokio::spawn(async move {
            let mut events = std::pin::pin!(events);
            while going.wait_for(|going| *going).await.is_ok() {
                tokio::select! {
                    biased;
                    _ = going.changed() => {},
                    event = events.next() => match event.expect("a watcher never ends") {
                        Ok(event) => noted.lock().note(&event),
                        Err(error) => noted.lock().note_error(&error),
                    },
                }
            }
        });
        Self {
            name,
            api,
            labels,
            store,
            told,
        }
    }
}

/// Objects by name, without the type, which lists give once for all.
fn by_name<'a, K: Resource + Serialize + 'a>(
    objects: impl IntoIterator<Item = &'a K>,
) -> BTreeMap<String, Value> {
    let shown = |object: &K| {
        let mut value = serde_json::to_value(object).unwrap();
        for field in ["apiVersion", "kind"] {
            value.as_object_mut().unwrap().remove(field);
        }
        (object.meta().name.clone().unwrap(), value)
    };
    objects.into_iter().map(shown).collect()
}

#[async_trait]
impl<K> Follower for Following<K>
where
    K: Resource<DynamicType = ApiResource>
        + Clone
        + Debug
        + DeserializeOwned
        + Serialize
        + Send
        + Sync
        + 'static,
{
    fn name(&self) -> &str {
        &self.name
    }

    fn selects(&self) -> bool {
        self.labels.is_some()
    }

    fn told(&self) -> Told {
        self.told.lock().clone()
    }

    async fn difference(&self) -> Option<String> {
        let params = ListParams {
            label_selector: self.labels.clone(),
            ..ListParams::default()
        };
        let listed = self.api.list(&params).await.unwrap();
        let served = by_name(&listed.items);
        let kept = self.store.state();
        let kept = by_name(kept.iter().map(Arc::as_ref));
        (served != kept).then(|| format!("served {served:#?}\nkept {kept:#?}"))
    }
}

/// A watcher of whole objects and one of metadata for each way of watching; `going` stops and starts
/// them all.
fn follow(site: &Site, going: &watch::Receiver<bool>) -> Vec<Box<dyn Follower>> {
    let ways = [
        ("lists", Config::default()),
        ("pages of three", Config::default().page_size(3)),
        ("any version", Config::default().any_semantic()),
        ("no bookmarks", Config::default().disable_bookmarks()),
        ("short watches", Config::default().timeout(1)),
        ("selected", Config::default().labels("app=x").page_size(2)),
        ("streams", Config::default().streaming_lists()),
        (
            "streams selected",
            Config::default().streaming_lists().labels("app=x"),
        ),
    ];
    let mut followers: Vec<Box<dyn Follower>> = Vec::new();
    for (name, config) in ways {
        let whole: Api<DynamicObject> = site.flunders(NAMESPACE);
        let metadata: Api<PartialObjectMeta<DynamicObject>> =
            Api::namespaced_with(site.client.clone(), NAMESPACE, &flunders());
        let of_metadata = format!("metadata, {name}");
        let going = || going.clone();
        followers.push(Box::new(Following::start(
            name.to_owned(),
            whole,
            config.clone(),
            going(),
        )));
        followers.push(Box::new(Following::start(
            of_metadata,
            metadata,
            config,
            going(),
        )));
    }
    followers
}

/// Waits until every follower has what the server has.
async fn all_agree(followers: &[Box<dyn Follower>]) {
    for follower in followers {
        let mut last = None;
        let agreed = wait_for(follower.name(), PATIENCE, async || {
            last = follower.difference().await;
            Ok((last.is_none() && follower.told().ready).then_some(()))
        });
        if let Err(error) = agreed.await {
            unreachable!("{error}: {}", last.unwrap_or_default());
        }
        let told = follower.told();
        assert!(
            told.faults.is_empty(),
            "{}: {:?}",
            follower.name(),
            told.faults
        );
    }
}

#[test]
fn watchers_of_every_mode_follow_through_restarts_and_start_over_when_the_past_is_forgotten() {
    run(async {
        let site = Site::start(Options::default()).await;
        site.namespace(NAMESPACE).await;
        let api = site.flunders(NAMESPACE);
        churn(&api, "seed", 40).await;
        let (switch, going) = watch::channel(true);
        let followers = follow(&site, &going);
        all_agree(&followers).await;

        let (a, b, ()) = tokio::join!(
            churn(&api, "a", 150),
            churn(&api, "b", 150),
            site.restart(std::future::ready(())),
        );
        all_agree(&followers).await;
        let acknowledged: Vec<u64> = a.into_iter().chain(b).collect();
        assert!(acknowledged.len() > 100, "{}", acknowledged.len());
        for follower in &followers {
            let (name, told) = (follower.name(), follower.told());
            assert_eq!(
                (told.beginnings, told.expired),
                (1, 0),
                "{name} lost its place"
            );
            let missed: Vec<_> = acknowledged
                .iter()
                .filter(|version| !follower.selects() && !told.changes.contains(version))
                .collect();
            assert!(missed.is_empty(), "{name} was not told of {missed:?}");
        }

        // Nobody looks while the server they know goes, and the next one, and all it knew of the past.
        switch.send(false).unwrap();
        site.restart(std::future::ready(())).await;
        churn(&api, "c", 60).await;
        site.restart(site.forget()).await;
        site.available().await;
        switch.send(true).unwrap();
        all_agree(&followers).await;
        for follower in &followers {
            let (name, told) = (follower.name(), follower.told());
            assert_eq!(
                (told.beginnings, told.expired),
                (2, 1),
                "{name} started over once"
            );
        }
    });
}
