//! Watches: a stream that pulls from the shared history of its kind.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures::Stream;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use rand::RngExt;
use runtime_kit::clock::Clock;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::cache::{Change, ChangeKind, Snapshot, write_frame};
use super::entry::Entry;
use super::past::{Past, too_old};
use super::read::Reader;
use super::serving::AnyServing;
use crate::codec::decode::Format;
use crate::codec::negotiate::{MetaVersion, Representation, View};
use crate::codec::protobuf;
use crate::http::options::{ListOptions, ReadAt};
use crate::http::status::ApiError;
use crate::schema::table::{INITIAL_EVENTS_END, partial_metadata, table};
use crate::store::Revision;

/// Changes taken from the history at a time.
const BATCH: usize = 256;
/// A piece of the stream is not much longer than this, in bytes, unless a single event is: it is what
/// a connection holds for a watcher that does not read.
const CHUNK: usize = 16 * 1024;
/// Shortest duration of a watch that names none; the longest is twice that.
const MIN_DURATION: Duration = Duration::from_mins(30);
/// Time between bookmarks.
const BOOKMARK_EVERY: Duration = Duration::from_mins(1);
/// How long before its end a watch sends a last bookmark.
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);

/// What a watch needs beyond its options.
pub(crate) struct WatchSource {
    pub(crate) serving: Arc<dyn AnyServing>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) shutdown: CancellationToken,
}

struct Watcher {
    source: WatchSource,
    prefix: String,
    options: ListOptions,
    representation: Representation,
    progress: watch::Receiver<Revision>,
    /// Everything up to here has been sent.
    sent: Revision,
    initial: Option<Initial>,
    /// What happened before the history of the cache begins.
    past: Option<Past>,
    /// Bookmark that ends the initial events, still to be sent.
    end_of_initial: bool,
    headers: bool,
    end: Duration,
    next_bookmark: Duration,
    last_bookmark: Revision,
    over: bool,
}

/// The rest of a state with which a watch begins. All watchers that begin with one state share it.
struct Initial {
    snapshot: Snapshot,
    /// Key of the last object that was sent; at first the prefix.
    after: Arc<str>,
}

/// Starts a watch; errors found before the stream begins are ordinary answers.
pub(crate) async fn start(
    source: WatchSource,
    namespace: &str,
    options: ListOptions,
    representation: Representation,
) -> Result<Response<Body>, ApiError> {
    let reader = Reader {
        declaration: source.serving.declaration(),
        cache: source.serving.cache(),
        kind: source.serving.kind(),
    };
    let prefix = reader.prefix(namespace);
    let mut first_error = None;
    let (sent, initial) = if options.initial_events {
        // Upstream answers this inside the stream.
        first_error = reader.ready(options.read_at).await.err();
        let snapshot = source.serving.kind().snapshot();
        let initial = Initial {
            after: prefix.as_str().into(),
            snapshot,
        };
        (initial.snapshot.revision, Some(initial))
    } else {
        let sent = match options.read_at {
            ReadAt::NotOlderThan(revision) | ReadAt::Exact(revision) => revision,
            ReadAt::Latest | ReadAt::Any => {
                source.serving.cache().consistent().await?;
                source.serving.kind().snapshot().revision
            },
        };
        (sent, None)
    };
    let now = source.clock.elapsed();
    let duration = options.watch_timeout.unwrap_or_else(|| {
        MIN_DURATION + Duration::from_secs(rand::rng().random_range(0..MIN_DURATION.as_secs()))
    });
    let end = now + duration;
    let forgotten = initial.is_none() && source.serving.kind().missed(sent, 0).is_err();
    let past = forgotten.then(|| Past::new(&**source.serving.cache().store(), &prefix, sent));
    let mut watcher = Watcher {
        past,
        end_of_initial: options.initial_events && options.bookmarks,
        progress: source.serving.kind().subscribe(),
        prefix,
        representation,
        sent,
        initial,
        headers: true,
        end,
        next_bookmark: next_bookmark(now, end),
        last_bookmark: sent,
        over: false,
        options,
        source,
    };
    let first = first_error.map(|error| {
        watcher.over = true;
        error_frame(&error, representation.format)
    });
    let mut response = Response::new(Body::from_stream(watcher.into_stream(first)));
    *response.status_mut() = StatusCode::OK;
    let content_type = match representation.format {
        Format::Protobuf => protobuf::STREAM_MEDIA_TYPE,
        Format::Json | Format::Yaml => "application/json",
    };
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    Ok(response)
}

fn next_bookmark(now: Duration, end: Duration) -> Duration {
    let regular = now + BOOKMARK_EVERY;
    let last = end.saturating_sub(BOOKMARK_BEFORE_END);
    if last > now {
        regular.min(last)
    } else {
        regular
    }
}

fn error_frame(error: &ApiError, format: Format) -> Bytes {
    if format == Format::Protobuf {
        return serde_json::from_slice(&error.to_json())
            .and_then(|status| protobuf::encode_event("ERROR", &status))
            .unwrap_or_default();
    }
    let mut line = BytesMut::from(&br#"{"type":"ERROR","object":"#[..]);
    line.extend_from_slice(&error.to_json());
    line.extend_from_slice(b"}\n");
    line.freeze()
}

impl Watcher {
    fn into_stream(
        self,
        first: Option<Bytes>,
    ) -> impl Stream<Item = Result<Bytes, std::convert::Infallible>> {
        futures::stream::unfold((self, first), |(mut watcher, first)| async move {
            let chunk = match first {
                Some(chunk) => Some(chunk),
                None => watcher.next().await,
            };
            chunk.map(|chunk| (Ok(chunk), (watcher, None)))
        })
    }

    /// The next piece of the stream; `None` ends it.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.over {
                return None;
            }
            if let Some(chunk) = self.initial_chunk() {
                return Some(chunk);
            }
            if self.past.is_some() {
                if let Some(chunk) = self.past_chunk().await {
                    return Some(chunk);
                }
                continue;
            }
            // Seen before the history is read, so that no change falls in between.
            self.progress.mark_unchanged();
            match self.pull() {
                Ok(Some(chunk)) => return Some(chunk),
                Ok(None) => {},
                Err(oldest) => {
                    self.over = true;
                    let expired = too_old(self.sent, oldest);
                    return Some(error_frame(&expired, self.representation.format));
                },
            }
            let now = self.source.clock.elapsed();
            if now >= self.end {
                return None;
            }
            if self.options.bookmarks && now >= self.next_bookmark {
                self.next_bookmark = next_bookmark(now, self.end);
                if self.sent > self.last_bookmark {
                    self.last_bookmark = self.sent;
                    return Some(self.bookmark(false));
                }
            }
            let wake = if self.options.bookmarks {
                self.end.min(self.next_bookmark)
            } else {
                self.end
            };
            tokio::select! {
                () = self.source.shutdown.cancelled() => return None,
                () = self.source.clock.sleep(wake.saturating_sub(now)) => {},
                moved = self.progress.changed() => if moved.is_err() { return None },
            }
        }
    }

    fn initial_chunk(&mut self) -> Option<Bytes> {
        let mut chunk = BytesMut::new();
        if let Some(mut initial) = self.initial.take() {
            let rest = (Bound::Excluded(&initial.after), Bound::Unbounded);
            let mut after = None;
            for (key, entry) in initial.snapshot.objects.range::<_, Arc<str>>(rest) {
                if !key.starts_with(&self.prefix) {
                    break;
                }
                if self.options.selects(entry) {
                    self.render(&mut chunk, ChangeKind::Added, entry);
                    if chunk.len() >= CHUNK {
                        after = Some(Arc::clone(key));
                        break;
                    }
                }
            }
            if let Some(after) = after {
                initial.after = after;
                self.initial = Some(initial);
            }
        }
        if !chunk.is_empty() {
            return Some(chunk.freeze());
        }
        if self.end_of_initial {
            self.end_of_initial = false;
            self.last_bookmark = self.sent;
            return Some(self.bookmark(true));
        }
        None
    }

    /// The next changes from before the history of the cache, until the two meet.
    async fn past_chunk(&mut self) -> Option<Bytes> {
        let left = self.end.saturating_sub(self.source.clock.elapsed());
        let told = tokio::select! {
            () = self.source.shutdown.cancelled() => None,
            () = self.source.clock.sleep(left) => None,
            told = self.past.as_mut()?.next() => Some(told),
        };
        let Some(told) = told else {
            self.over = true;
            return None;
        };
        let (changes, revision) = match told {
            Ok(told) => told,
            Err(error) => {
                self.over = true;
                return Some(error_frame(&error, self.representation.format));
            },
        };
        let mut chunk = BytesMut::new();
        for change in &changes {
            self.show(&mut chunk, change);
        }
        self.sent = revision;
        if self.source.serving.kind().missed(revision, 0).is_ok() {
            self.past = None;
        }
        (!chunk.is_empty()).then(|| chunk.freeze())
    }

    /// What has happened since `sent`, as far as this watcher sees it.
    fn pull(&mut self) -> Result<Option<Bytes>, Revision> {
        let mut chunk = BytesMut::new();
        loop {
            let missed = self.source.serving.kind().missed(self.sent, BATCH)?;
            for change in &missed.changes {
                self.show(&mut chunk, change);
                self.sent = change.revision;
                if chunk.len() >= CHUNK {
                    return Ok(Some(chunk.freeze()));
                }
            }
            self.sent = missed.revision;
            if !chunk.is_empty() {
                return Ok(Some(chunk.freeze()));
            }
            if missed.changes.is_empty() {
                return Ok(None);
            }
        }
    }

    /// Appends a change as this watcher sees it: leaving the selection is a deletion, entering it
    /// an addition.
    fn show(&mut self, chunk: &mut BytesMut, change: &Change) {
        if !change.entry.key.starts_with(&self.prefix) {
            return;
        }
        let gone = change.kind == ChangeKind::Deleted;
        let now = !gone && self.options.selects(&change.entry);
        let before = change
            .previous
            .as_ref()
            .filter(|entry| self.options.selects(entry));
        match (now, before) {
            (true, Some(_)) => self.render(chunk, ChangeKind::Modified, &change.entry),
            (true, None) => self.render(chunk, ChangeKind::Added, &change.entry),
            (false, Some(_)) if gone => self.render(chunk, ChangeKind::Deleted, &change.entry),
            (false, Some(previous)) => {
                self.render(
                    chunk,
                    ChangeKind::Deleted,
                    &Arc::new(previous.at(change.revision)),
                );
            },
            (false, None) => {},
        }
    }

    fn render(&mut self, chunk: &mut BytesMut, kind: ChangeKind, entry: &Arc<Entry>) {
        if self.over {
            return;
        }
        // The metadata are the same in all versions.
        match self.representation.view {
            View::Metadata(MetaVersion::V1) if self.representation.format == Format::Json => {
                write_frame(chunk, kind, entry.metadata_body());
                return;
            },
            View::Metadata(version) => {
                let object = partial_metadata(&entry.value(), version);
                let event = self.metadata_event(kind.name(), &object);
                chunk.extend_from_slice(&event);
                return;
            },
            View::Whole | View::Table(_) => {},
        }
        let entry = match self.source.serving.shared(entry) {
            Ok(entry) => entry,
            Err(error) => {
                tracing::error!(%error, key = %entry.key, "an object cannot be sent to a watcher");
                self.over = true;
                chunk.extend_from_slice(&error_frame(&error, self.representation.format));
                return;
            },
        };
        if let View::Table(version) = self.representation.view {
            let metadata = json!({"resourceVersion": entry.revision.to_string()});
            let line = self.table_line(version, kind.name(), entry.value(), &metadata);
            chunk.extend_from_slice(&line);
        } else {
            write_frame(chunk, kind, &entry.body);
        }
    }

    /// Metadata that cannot be encoded end the watch.
    fn metadata_event(&mut self, kind: &str, object: &Value) -> Bytes {
        if self.representation.format != Format::Protobuf {
            return line(&json!({"type": kind, "object": object}));
        }
        protobuf::encode_event(kind, object).unwrap_or_else(|error| {
            tracing::error!(%error, "metadata cannot be sent to a watcher");
            self.over = true;
            let error = ApiError::internal("the metadata cannot be encoded", error);
            error_frame(&error, Format::Protobuf)
        })
    }

    fn table_line(
        &mut self,
        version: MetaVersion,
        kind: &str,
        object: Value,
        metadata: &Value,
    ) -> Bytes {
        let headers = std::mem::take(&mut self.headers);
        let columns = &self.source.serving.declaration().columns;
        let table = table(
            version,
            columns,
            vec![object],
            metadata,
            self.representation.include,
            self.source.clock.now(),
            headers,
        );
        line(&json!({"type": kind, "object": table}))
    }

    fn bookmark(&mut self, end_of_initial: bool) -> Bytes {
        let declaration = self.source.serving.declaration();
        let mut metadata =
            json!({"resourceVersion": self.sent.to_string(), "creationTimestamp": null});
        if end_of_initial {
            metadata["annotations"] = json!({INITIAL_EVENTS_END: "true"});
        }
        let object = json!({
            "kind": declaration.kind, "apiVersion": declaration.api_version, "metadata": metadata,
        });
        match self.representation.view {
            View::Whole => line(&json!({"type": "BOOKMARK", "object": object})),
            View::Metadata(version) => {
                let object = partial_metadata(&object, version);
                self.metadata_event("BOOKMARK", &object)
            },
            View::Table(version) => {
                let metadata = json!({"resourceVersion": self.sent.to_string()});
                self.table_line(version, "BOOKMARK", object, &metadata)
            },
        }
    }
}

fn line(event: &Value) -> Bytes {
    let mut text = event.to_string().into_bytes();
    text.push(b'\n');
    text.into()
}
