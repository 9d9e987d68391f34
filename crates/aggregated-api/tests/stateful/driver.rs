//! Does things at random, one after the other, and holds everything that is told against the truth.

mod lists;
mod watches;

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use self::lists::Paging;
use self::watches::Watcher;
use crate::checker::{Checker, Observed, Start};
use crate::client::Client;
use crate::truth::{Key, Label, Revision, Truth, View, version};
use crate::world::World;
use crate::writes::{COLORS, Effects, NAMES, NAMESPACES, Op, collection, color};

/// As long as a watch may go without a bookmark, and more.
const BETWEEN_BOOKMARKS: Duration = Duration::from_secs(61);
/// More than the longest time a watch is given when it asks for none.
const LONG: Duration = Duration::from_hours(2);

/// What can be done next.
#[derive(Clone, Copy)]
enum Step {
    Write,
    WriteAtOnce,
    DeleteCollection,
    OpenWatch,
    ReadWatch,
    DropWatch,
    List,
    Page,
    Restart,
    KillWhileWriting,
    PassTime(Duration),
    Compact,
}

/// How often each is done in 50 steps.
const DECK: [(Step, usize); 13] = [
    (Step::Write, 12),
    (Step::WriteAtOnce, 4),
    (Step::DeleteCollection, 1),
    (Step::OpenWatch, 6),
    (Step::ReadWatch, 9),
    (Step::DropWatch, 2),
    (Step::List, 5),
    (Step::Page, 6),
    (Step::Restart, 1),
    (Step::KillWhileWriting, 1),
    (Step::PassTime(BETWEEN_BOOKMARKS), 1),
    (Step::PassTime(LONG), 1),
    (Step::Compact, 1),
];

/// The state of a run.
pub(crate) struct Driver {
    rng: StdRng,
    /// What is done next, from the end.
    deck: Vec<Step>,
    world: World,
    truth: Truth,
    next_write: u64,
    /// Sees everything; from it the truth is known.
    journal: Watcher,
    watchers: Vec<Watcher>,
    lists: Vec<Paging>,
    /// History up to here was compacted.
    compacted: Revision,
    /// How often what happened.
    counts: BTreeMap<&'static str, usize>,
}

impl Driver {
    pub(crate) async fn new(seed: u64, world: World) -> Self {
        let first = world.client(0);
        let (_, list) = first.call("GET", &collection(None), None).await.unwrap();
        let begin = version(&list).unwrap();
        assert!(begin > 0, "0 means any state, so no state is at it");
        let everything = View::default();
        let journal = Watcher {
            checker: Checker::new(everything.clone(), Start::After(begin)),
            view: everything,
            query: String::new(),
            stream: None,
            bookmarks: false,
            opened: Duration::ZERO,
            may_end: false,
        };
        let mut driver = Self {
            rng: StdRng::seed_from_u64(seed),
            deck: Vec::new(),
            world,
            truth: Truth::new(begin),
            next_write: 0,
            journal,
            watchers: Vec::new(),
            lists: Vec::new(),
            compacted: 0,
            counts: BTreeMap::new(),
        };
        let sentinel = json!({"metadata": {"name": "sentinel"}, "spec": {}});
        let path = collection(Some("ns"));
        let (status, created) = first.call("POST", &path, Some(sentinel)).await.unwrap();
        assert_eq!(status, 201);
        driver
            .settle(Effects::default(), version(&created).unwrap(), &created)
            .await;
        driver
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// How often what happened.
    pub(crate) fn counts(&self) -> &BTreeMap<&'static str, usize> {
        &self.counts
    }

    fn any_client(&mut self) -> Client {
        let replica = self.rng.random_range(0..self.world.replicas());
        self.world.client(replica)
    }

    /// Does one thing. Every [`DECK`] of steps has the same things in it, so that none is left out.
    pub(crate) async fn step(&mut self) {
        if self.deck.is_empty() {
            for (step, times) in DECK {
                self.deck.extend(std::iter::repeat_n(step, times));
            }
            self.deck.shuffle(&mut self.rng);
        }
        match self.deck.pop().expect("just filled") {
            Step::Write => self.write(1, None).await,
            Step::WriteAtOnce => {
                let writes = self.rng.random_range(2..8);
                self.write(writes, None).await;
            },
            Step::DeleteCollection => self.delete_collection().await,
            Step::OpenWatch => self.open_watch().await,
            Step::ReadWatch => self.read_watch().await,
            Step::DropWatch => self.drop_watch(),
            Step::List => self.list().await,
            Step::Page => self.page().await,
            Step::Restart => self.restart().await,
            Step::KillWhileWriting => self.kill_while_writing().await,
            Step::PassTime(by) => self.let_time_pass(by).await,
            Step::Compact => self.compact().await,
        }
    }

    /// Reads everything that is still to come.
    pub(crate) async fn finish(&mut self) {
        for namespace in NAMESPACES {
            for name in NAMES {
                let path = format!("{}/{name}", collection(Some(namespace)));
                let client = self.any_client();
                let (_, object) = client.call("GET", &path, None).await.unwrap();
                assert_eq!(
                    self.truth
                        .now()
                        .get(&Key::new(namespace, name))
                        .map_or("NotFound", |_| ""),
                    object["reason"].as_str().unwrap_or_default()
                );
            }
        }
        // So that what a watcher is told beyond the truth comes before something that it is due.
        for _ in 0..20 {
            self.write(4, None).await;
        }
        while !self.lists.is_empty() {
            self.page().await;
        }
        for at in 0..self.watchers.len() {
            self.read(at, usize::MAX).await;
        }
    }

    // === what is asked for ===

    fn view(&mut self) -> View {
        let namespace = self.rng.random_bool(0.6);
        let namespace = namespace.then(|| NAMESPACES[self.rng.random_range(0..NAMESPACES.len())]);
        let mut view = View {
            namespace,
            ..View::default()
        };
        match self.rng.random_range(0..10) {
            0..2 => view.name = Some(NAMES[self.rng.random_range(0..NAMES.len())]),
            2..6 => {
                let color = color(&mut self.rng);
                view.label = Some(match (color, self.rng.random_bool(0.7)) {
                    (None, _) => Label::Absent("color"),
                    (Some(color), true) => Label::Is("color", color),
                    (Some(color), false) => Label::IsNot("color", color),
                });
            },
            _ => {},
        }
        view
    }

    /// A revision that is still kept.
    fn some_revision(&mut self) -> Revision {
        let oldest = self.compacted.max(self.truth.revision_after(0));
        self.rng.random_range(oldest..=self.truth.latest())
    }

    // === writes ===

    /// Writes at once; with a `kill`, that replica dies meanwhile.
    async fn write(&mut self, count: usize, kill: Option<usize>) {
        let mut ops = Vec::new();
        for _ in 0..count {
            self.next_write += 1;
            let op = Op::random(&mut self.rng, &self.truth, self.next_write);
            ops.push((self.any_client(), op));
        }
        let writing = ops.iter().map(|(client, op)| async move {
            let (method, path, body) = op.request();
            client.call(method, &path, body).await
        });
        let patience = Duration::from_micros(self.rng.random_range(0..4000));
        let killing = async {
            if let Some(replica) = kill {
                tokio::time::sleep(patience).await;
                self.world.kill(replica);
            }
        };
        let (answers, ()) = tokio::join!(join_all(writing), killing);
        if let Some(replica) = kill {
            self.world.start(replica).await;
            self.cut();
        }
        let mut effects = Effects::default();
        for ((_, op), answer) in ops.into_iter().zip(answers) {
            let Ok((status, answer)) = answer else {
                self.count("lost answers");
                effects.lost(op);
                continue;
            };
            if count == 1 && kill.is_none() {
                let due = op.status(self.truth.now());
                assert_eq!(status, due, "{op:?}: {answer}");
            }
            effects.answered(&op, &self.truth, status, &answer);
        }
        self.sentinel(effects).await;
    }

    async fn delete_collection(&mut self) {
        let namespace = NAMESPACES[self.rng.random_range(0..NAMESPACES.len())];
        let view = View {
            namespace: Some(namespace),
            name: None,
            label: Some(Label::Is(
                "color",
                COLORS[self.rng.random_range(0..COLORS.len())],
            )),
        };
        let path = format!("{}?{}", collection(view.namespace), view.query());
        let client = self.any_client();
        let (status, answer) = client.call("DELETE", &path, None).await.unwrap();
        assert_eq!(status, 200, "{answer}");
        let due = self.truth.list(&view, self.truth.latest());
        assert_eq!(answer["items"], json!(due));
        let mut effects = Effects::default();
        effects.collection_deleted(&self.truth, &answer);
        self.count("collections deleted");
        self.sentinel(effects).await;
    }

    /// Writes something that is known to come last, and reads up to it.
    async fn sentinel(&mut self, effects: Effects) {
        self.next_write += 1;
        let path = format!("{}/sentinel", collection(Some("ns")));
        let annotations = json!({"write": self.next_write.to_string()});
        let patch = json!({"metadata": {"annotations": annotations}});
        let client = self.any_client();
        let (status, object) = client.call("PATCH", &path, Some(patch)).await.unwrap();
        assert_eq!(status, 200, "{object}");
        let revision = version(&object).unwrap();
        self.settle(effects, revision, &object).await;
    }

    /// Reads the journal up to `last`, the revision of `sentinel`.
    async fn settle(&mut self, mut effects: Effects, last: Revision, sentinel: &Value) {
        while self.truth.latest() < last {
            if self.journal.stream.is_none() {
                self.connect_journal().await;
            }
            let stream = self.journal.stream.as_mut().expect("just connected");
            let Some(event) = stream.next().await else {
                assert!(self.journal.may_end, "the journal's stream has ended");
                self.journal.stream = None;
                continue;
            };
            let explained = if version(&event["object"]) == Some(last) {
                assert_eq!(event["object"], *sentinel);
                let key = Key::of(sentinel).expect("a name");
                self.truth.record(last, key, Some(sentinel.clone()))
            } else {
                effects.explain(&mut self.truth, &event)
            };
            if let Err(why) = explained {
                panic!("{event}: {why}");
            }
            if let Err(fault) = self.journal.checker.observe(&self.truth, &event) {
                panic!("{event}: {fault}");
            }
            self.count(match event["type"].as_str() {
                Some("ADDED") => "created",
                Some("DELETED") => "deleted",
                _ => "modified",
            });
        }
        if let Err(why) = effects.all_seen() {
            panic!("{why}");
        }
    }

    async fn connect_journal(&mut self) {
        let after = self.journal.checker.resume().expect("it never begins anew");
        let path = format!("{}?watch=1&resourceVersion={after}", collection(None));
        let client = self.any_client();
        self.journal.stream = Some(client.watch(&path).await.unwrap());
        self.journal.may_end = false;
        self.journal.checker.resumed();
    }

    // === servers ===

    /// All streams may end, at once or when they are read.
    fn cut(&mut self) {
        self.journal.may_end = true;
        for watcher in &mut self.watchers {
            watcher.may_end = true;
        }
    }

    async fn restart(&mut self) {
        let replica = self.rng.random_range(0..self.world.replicas());
        self.world.kill(replica);
        self.world.start(replica).await;
        self.cut();
        // As a client of a process that is gone.
        for watcher in &mut self.watchers {
            if self.rng.random_bool(0.5) {
                watcher.stream = None;
            }
        }
        self.journal.stream = None;
        self.count("restarts");
    }

    async fn kill_while_writing(&mut self) {
        let replica = self.rng.random_range(0..self.world.replicas());
        let writes = self.rng.random_range(1..8);
        self.write(writes, Some(replica)).await;
        self.count("kills while writing");
    }

    async fn let_time_pass(&mut self, by: Duration) {
        if !self.world.advance(by) {
            return;
        }
        // Many short times end a watch, too.
        self.cut();
        for at in 0..self.watchers.len() {
            self.read(at, usize::MAX).await;
            let Some(mut stream) = self.watchers[at].stream.take() else {
                continue;
            };
            if self.watchers[at].opened + LONG <= self.world.elapsed() {
                let mut watcher = self.watchers.remove(at);
                while let Some(event) = stream.next().await {
                    match watcher.checker.observe(&self.truth, &event) {
                        Ok(Observed::Change | Observed::Bookmark) => {},
                        Ok(Observed::Error(410)) => self.expired(&watcher, &event),
                        other => panic!("{}: {event}: {other:?}", watcher.query),
                    }
                }
                self.watchers.insert(at, watcher);
                self.count("streams ended");
            } else {
                self.watchers[at].stream = Some(stream);
            }
        }
    }

    async fn compact(&mut self) {
        let revision = self.some_revision();
        // Keeps the journal, which is always at the end.
        let latest = self.truth.latest();
        let revision = revision.min(latest.saturating_sub(1));
        if revision > self.compacted && self.world.compact(revision).await {
            self.compacted = revision;
            self.count("compactions");
        }
    }
}
