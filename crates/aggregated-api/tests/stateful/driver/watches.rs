//! Watches of all kinds, which are read at their own pace, given up and resumed.

use std::time::Duration;

use rand::RngExt;
use serde_json::Value;

use super::Driver;
use crate::checker::{Checker, Observed, Start};
use crate::client::Stream;
use crate::truth::View;
use crate::writes::collection;

/// Most watchers at a time.
const WATCHERS: usize = 12;

/// A client that watches.
pub(super) struct Watcher {
    pub(super) view: View,
    pub(super) checker: Checker,
    /// What it asked for beyond the view, for complaints.
    pub(super) query: String,
    pub(super) stream: Option<Stream>,
    pub(super) bookmarks: bool,
    /// When its stream was opened.
    pub(super) opened: Duration,
    /// Whether its stream may have ended by itself.
    pub(super) may_end: bool,
}

impl Driver {
    pub(super) async fn open_watch(&mut self) {
        if self.watchers.len() == WATCHERS {
            let at = self.rng.random_range(0..WATCHERS);
            self.read(at, usize::MAX).await;
            self.watchers.swap_remove(at);
        }
        let view = self.view();
        let latest = self.truth.latest();
        let bookmarks = self.rng.random_bool(0.5);
        let some = self.some_revision();
        let whole = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
        let (query, start) = match self.rng.random_range(0..8) {
            0 => (
                "resourceVersion=0".to_owned(),
                Start::State {
                    not_older_than: 0,
                    not_newer_than: latest,
                    marked: bookmarks,
                },
            ),
            1 => (
                String::new(),
                Start::State {
                    not_older_than: latest,
                    not_newer_than: latest,
                    marked: bookmarks,
                },
            ),
            2 => (
                whole.to_owned(),
                Start::State {
                    not_older_than: latest,
                    not_newer_than: latest,
                    marked: bookmarks,
                },
            ),
            3 => (
                format!("{whole}&resourceVersion={some}"),
                Start::State {
                    not_older_than: some,
                    not_newer_than: latest,
                    marked: bookmarks,
                },
            ),
            4 => (format!("resourceVersion={latest}"), Start::After(latest)),
            _ => (format!("resourceVersion={some}"), Start::After(some)),
        };
        self.count(match start {
            Start::After(_) => "watches from a revision",
            Start::State { marked: true, .. } => "watches from a marked state",
            Start::State { marked: false, .. } => "watches from a state",
        });
        let stream = self.connect(&view, &query, bookmarks).await;
        self.watchers.push(Watcher {
            checker: Checker::new(view.clone(), start),
            view,
            query,
            stream: Some(stream),
            bookmarks,
            opened: self.world.elapsed(),
            may_end: false,
        });
    }

    async fn connect(&mut self, view: &View, query: &str, bookmarks: bool) -> Stream {
        let all = collection(view.namespace);
        let selectors = view.query();
        let path = format!("{all}?watch=1&allowWatchBookmarks={bookmarks}&{query}&{selectors}");
        self.any_client().watch(&path).await.unwrap()
    }

    pub(super) async fn read_watch(&mut self) {
        if !self.watchers.is_empty() {
            let at = self.rng.random_range(0..self.watchers.len());
            let most = if self.rng.random_bool(0.4) {
                self.rng.random_range(1..4)
            } else {
                usize::MAX
            };
            self.read(at, most).await;
        }
    }

    /// Reads what is still to come, at most so many events.
    pub(super) async fn read(&mut self, at: usize, most: usize) {
        let mut watcher = self.watchers.remove(at);
        let mut read = 0;
        while read < most && watcher.checker.is_due(&self.truth) {
            let Some(stream) = &mut watcher.stream else {
                self.reconnect(&mut watcher).await;
                continue;
            };
            let Some(event) = stream.next().await else {
                assert!(watcher.may_end, "{}: the stream has ended", watcher.query);
                watcher.stream = None;
                self.count("streams ended");
                continue;
            };
            read += 1;
            match watcher.checker.observe(&self.truth, &event) {
                Ok(Observed::Change) => self.count("events"),
                Ok(Observed::Bookmark) => self.count("bookmarks"),
                Ok(Observed::Error(410)) => {
                    self.expired(&watcher, &event);
                    // As clients do: a new state.
                    watcher.stream = None;
                    watcher.checker = self.anew(&watcher);
                },
                Ok(Observed::Error(code)) => panic!("{}: {code}: {event}", watcher.query),
                Err(fault) => panic!("{:?} {}: {fault}", watcher.view, watcher.query),
            }
        }
        self.watchers.insert(at, watcher);
    }

    /// Checks that a watcher was cut with a reason.
    pub(super) fn expired(&mut self, watcher: &Watcher, event: &Value) {
        self.count("expired");
        let from = watcher.checker.resume().unwrap_or_default();
        let behind = self.truth.changes().len() - self.truth.count_at(from);
        assert!(
            from < self.compacted || behind >= self.world.kept_changes(),
            "{}: {behind} changes behind, compacted up to {}: {event}",
            watcher.query,
            self.compacted
        );
    }

    fn anew(&self, watcher: &Watcher) -> Checker {
        let start = Start::State {
            not_older_than: self.truth.latest(),
            not_newer_than: self.truth.latest(),
            marked: true,
        };
        Checker::new(watcher.view.clone(), start)
    }

    async fn reconnect(&mut self, watcher: &mut Watcher) {
        if let Some(revision) = watcher.checker.resume() {
            watcher.query = format!("resourceVersion={revision}");
            watcher.checker.resumed();
            self.count("watches resumed");
        } else {
            "sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
                .clone_into(&mut watcher.query);
            watcher.bookmarks = true;
            watcher.checker = self.anew(watcher);
            self.count("watches begun anew");
        }
        let stream = self
            .connect(&watcher.view, &watcher.query, watcher.bookmarks)
            .await;
        watcher.stream = Some(stream);
        watcher.opened = self.world.elapsed();
        watcher.may_end = false;
    }

    pub(super) fn drop_watch(&mut self) {
        if !self.watchers.is_empty() {
            let at = self.rng.random_range(0..self.watchers.len());
            self.watchers[at].stream = None;
        }
    }
}
