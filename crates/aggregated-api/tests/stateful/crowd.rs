//! Ten thousand watchers of which half do not read: the others get everything, memory stays bounded,
//! and those that fell behind are told so.

use std::fs;
use std::sync::Arc;

use aggregated_api::registry::cache::HistoryLimits;
use aggregated_api::store::Store;
use aggregated_api::store::redb::{Options, RedbStore};
use axum::body::Body;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use http::Request;
use runtime_kit::clock::SystemClock;
use serde_json::{Value, json};

use crate::common::Server;
use crate::truth::version;
use crate::writes::collection;

const WATCHERS: usize = 10_000;
/// What the server remembers, bytes. All the writes together are several times as much.
const REMEMBERED: usize = 256 * 1024;
const OBJECTS: usize = 20;
const ROUNDS: usize = 12;
/// Size of an annotation, bytes.
const FILLER: usize = 2048;
/// What the process may grow by, bytes. A watcher that does not read holds one piece of its stream, of
/// some 18 KiB; half of them would hold more than this if a piece could be of a whole round.
const GROWTH: usize = 192 * 1024 * 1024;

/// A watch, as a connection reads it.
struct Watch {
    data: BoxStream<'static, Result<Bytes, axum::Error>>,
    /// What was read and not yet looked at.
    held: Bytes,
}

impl Watch {
    async fn open(server: &Server, query: &str) -> Self {
        let request = Request::builder()
            .uri(format!("{}?watch=1&{query}", collection(Some("ns"))))
            .header("x-test-user", "bob")
            .body(Body::empty())
            .unwrap();
        let response = server.send(request).await;
        assert_eq!(response.status(), 200);
        Self {
            data: StreamExt::boxed(response.into_body().into_data_stream()),
            held: Bytes::new(),
        }
    }

    /// Holds the next piece, and does not look at it.
    async fn hold(&mut self) {
        self.held = self.data.next().await.unwrap().unwrap();
    }

    /// Reads exactly this.
    async fn expect(&mut self, mut due: &[u8]) {
        while !due.is_empty() {
            if self.held.is_empty() {
                self.hold().await;
            }
            let count = due.len().min(self.held.len());
            assert!(self.held.split_to(count) == due[..count], "other bytes");
            due = &due[count..];
        }
        assert!(self.held.is_empty(), "more than there is to tell");
    }

    /// So many events, as they were sent.
    async fn events(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while lines(&bytes).count() < count {
            self.hold().await;
            bytes.extend_from_slice(&std::mem::take(&mut self.held));
        }
        bytes
    }

    /// Everything up to the end of the stream.
    async fn rest(mut self) -> Vec<u8> {
        let mut bytes = self.held.to_vec();
        while let Some(piece) = self.data.next().await {
            bytes.extend_from_slice(&piece.unwrap());
        }
        bytes
    }
}

fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes
        .split_inclusive(|byte| *byte == b'\n')
        .filter(|line| line.ends_with(b"\n"))
}

fn parsed(bytes: &[u8]) -> Vec<Value> {
    lines(bytes)
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect()
}

/// Resident memory of this process, bytes.
fn resident() -> usize {
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    let resident = pages.split(' ').nth(1).unwrap();
    resident.parse::<usize>().unwrap() * 4096
}

/// Changes every object, and tells what it has become.
async fn round(server: &Server, number: usize) -> Vec<Value> {
    let mut objects = Vec::new();
    for n in 0..OBJECTS {
        let filler = format!("{number:04}").repeat(FILLER / 4);
        let patch = json!({"metadata": {"annotations": {"filler": filler}}});
        let path = format!("{}/o-{n}", collection(Some("ns")));
        let (status, object) = server.call("PATCH", &path, Some(patch)).await;
        assert_eq!(status, 200);
        objects.push(object);
    }
    objects
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_watchers_half_of_which_do_not_read() {
    let store: Arc<dyn Store> = Arc::new(RedbStore::in_memory(Options::default()).unwrap());
    let limits = HistoryLimits {
        bytes: REMEMBERED,
        ..HistoryLimits::default()
    };
    let server = Server::with(Arc::clone(&store), SystemClock::shared(), limits).await;
    for n in 0..OBJECTS {
        server.create(&format!("o-{n}"), json!({})).await;
    }
    let begin = version(&round(&server, 0).await[OBJECTS - 1]).unwrap();
    let before = resident();

    let changes = format!("resourceVersion={begin}");
    let state = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let (mut readers, mut stuck) = (Vec::new(), Vec::new());
    for n in 0..WATCHERS {
        let with_state = n % 4 < 2;
        let query = if with_state { state } else { &changes };
        let watch = Watch::open(&server, query).await;
        let group = if n % 2 == 0 { &mut readers } else { &mut stuck };
        group.push((with_state, watch));
    }
    let mut first = Watch::open(&server, state).await;
    let initial = first.events(OBJECTS + 1).await;
    assert_eq!(parsed(&initial)[OBJECTS]["type"], "BOOKMARK");
    for (with_state, reader) in &mut readers {
        if *with_state {
            reader.expect(&initial).await;
        }
    }

    let mut all = Vec::new();
    for number in 1..=ROUNDS {
        let objects = round(&server, number).await;
        let events = first.events(OBJECTS).await;
        let due: Vec<_> = objects
            .into_iter()
            .map(|object| json!({"type": "MODIFIED", "object": object}))
            .collect();
        assert_eq!(parsed(&events), due);
        if number == 1 {
            for (_, stuck) in &mut stuck {
                stuck.hold().await;
            }
        }
        for (_, reader) in &mut readers {
            reader.expect(&events).await;
        }
        all.extend(events);
    }
    assert!(all.len() > 2 * REMEMBERED, "they can fall behind");
    let growth = resident().saturating_sub(before);
    println!("{growth} bytes for {WATCHERS} watchers");
    assert!(growth < GROWTH, "{growth} bytes for {WATCHERS} watchers");

    store.compact(store.revision()).await.unwrap();
    for (with_state, stuck) in stuck {
        let told = stuck.rest().await;
        let end = told[..told.len() - 1].iter().rposition(|b| *b == b'\n');
        let (told, error) = told.split_at(end.unwrap() + 1);
        let error = &parsed(error)[0];
        assert_eq!(
            (&error["type"], &error["object"]["reason"]),
            (&json!("ERROR"), &json!("Expired"))
        );
        let told = if with_state {
            told.strip_prefix(&*initial).unwrap()
        } else {
            told
        };
        assert!(all.starts_with(told), "no gap before the error");
    }
    let object = &round(&server, ROUNDS + 1).await[0];
    let events = first.events(OBJECTS).await;
    assert_eq!(parsed(&events)[0]["object"], *object);
    for (_, reader) in &mut readers {
        reader.expect(&events).await;
    }
}
