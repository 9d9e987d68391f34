//! Lists: whole, exact, and page by page while other things happen.

use rand::RngExt;
use serde_json::{Value, json};

use super::Driver;
use crate::truth::{Revision, View, version};
use crate::writes::collection;

/// Most lists that are read page by page at a time.
const LISTS: usize = 4;

/// A list of which some pages have been read.
pub(super) struct Paging {
    view: View,
    limit: usize,
    revision: Revision,
    token: String,
    items: Vec<Value>,
}

impl Driver {
    pub(super) async fn list(&mut self) {
        let view = self.view();
        let latest = self.truth.latest();
        let some = self.some_revision();
        let (query, exact, not_older_than) = match self.rng.random_range(0..5) {
            0 => ("resourceVersion=0".to_owned(), None, 0),
            1 => (
                format!("resourceVersion={some}&resourceVersionMatch=NotOlderThan"),
                None,
                some,
            ),
            2 | 3 => (
                format!("resourceVersion={some}&resourceVersionMatch=Exact"),
                Some(some),
                some,
            ),
            _ => (String::new(), None, latest),
        };
        let all = collection(view.namespace);
        let path = format!("{all}?{query}&{}", view.query());
        let (status, list) = self.any_client().call("GET", &path, None).await.unwrap();
        assert_eq!(status, 200, "{path}: {list}");
        let revision = version(&list).unwrap();
        assert!(revision >= not_older_than, "{path}: at {revision}");
        assert!(exact.is_none_or(|exact| revision == exact), "{path}");
        let due = self.truth.list(&view, revision);
        assert_eq!(list["items"], json!(due), "{path} at {revision}");
        self.count(match exact {
            Some(_) => "exact lists",
            None => "lists",
        });
    }

    /// Reads a page of a list that was begun, or begins one.
    pub(super) async fn page(&mut self) {
        let begin = self.lists.is_empty()
            || (self.lists.len() < LISTS && self.rng.random_bool(0.5) && self.next_write > 0);
        let mut paging = if begin {
            let view = self.view();
            Paging {
                view,
                limit: self.rng.random_range(1..4),
                revision: 0,
                token: String::new(),
                items: Vec::new(),
            }
        } else {
            let at = self.rng.random_range(0..self.lists.len());
            self.lists.swap_remove(at)
        };
        let query = url::form_urlencoded::Serializer::new(String::new())
            .append_pair("limit", &paging.limit.to_string())
            .append_pair("continue", &paging.token)
            .finish();
        let all = collection(paging.view.namespace);
        let path = format!("{all}?{query}&{}", paging.view.query());
        let (status, page) = self.any_client().call("GET", &path, None).await.unwrap();
        if status == 410 {
            assert!(paging.revision < self.compacted, "{path}: {page}");
            self.count("lists expired");
            return;
        }
        assert_eq!(status, 200, "{path}: {page}");
        let revision = version(&page).unwrap();
        if paging.revision == 0 {
            assert!(revision >= self.truth.latest(), "{path}");
            paging.revision = revision;
        }
        assert_eq!(revision, paging.revision, "all pages are of one state");
        let items = page["items"].as_array().expect("items");
        assert!(items.len() <= paging.limit);
        paging.items.extend(items.iter().cloned());
        let due = self.truth.list(&paging.view, paging.revision);
        assert_eq!(paging.items, due[..paging.items.len()], "{path}");
        let token = page["metadata"]["continue"].as_str().unwrap_or_default();
        if !paging.view.has_selector() {
            let rest = page["metadata"]["remainingItemCount"].as_u64();
            let due = u64::try_from(due.len() - paging.items.len()).unwrap();
            assert_eq!(rest.unwrap_or_default(), due, "{path}: {page}");
        }
        self.count("pages");
        if token.is_empty() {
            assert_eq!(paging.items, due, "{path}: a list that ended");
            self.count("lists in pages");
        } else {
            token.clone_into(&mut paging.token);
            self.lists.push(paging);
        }
    }
}
