//! Get and list, from the cache where it has the asked-for state and from the store's history
//! where it has not.

use std::ops::Bound;
use std::sync::Arc;

use bytes::{BufMut, BytesMut};
use http::StatusCode;
use imbl::OrdMap;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::cache::{KindCache, Snapshot, StoreCache};
use super::entry::Entry;
use super::serving::AnyServing;
use crate::codec::negotiate::{MetaVersion, Representation, View};
use crate::codec::selector::is_path_segment;
use crate::http::options::{Continue, ListOptions, ReadAt};
use crate::http::response::{Answer, json_bytes, value};
use crate::http::status::ApiError;
use crate::schema::declaration::Declaration;
use crate::schema::table::{partial_metadata, table};
use crate::store::{self, Revision};

/// What reads of one kind need.
pub(crate) struct Reader<'a> {
    pub(crate) declaration: &'a Declaration,
    pub(crate) cache: &'a StoreCache,
    pub(crate) kind: &'a KindCache,
}

/// A page of a list.
pub(crate) struct Page {
    pub(crate) entries: Vec<Arc<Entry>>,
    pub(crate) revision: Revision,
    pub(crate) continue_token: Option<String>,
    pub(crate) remaining: Option<usize>,
}

impl Reader<'_> {
    /// Waits for the state that `read_at` asks for.
    pub(crate) async fn ready(&self, read_at: ReadAt) -> Result<(), ApiError> {
        match read_at {
            ReadAt::Latest => self.cache.consistent().await,
            ReadAt::Any => Ok(()),
            ReadAt::NotOlderThan(revision) | ReadAt::Exact(revision) => {
                self.cache.reached(revision).await
            },
        }
    }

    /// One object.
    pub(crate) async fn get(
        &self,
        namespace: &str,
        name: &str,
        read_at: ReadAt,
    ) -> Result<Arc<Entry>, ApiError> {
        self.ready(read_at).await?;
        self.kind
            .get(&self.declaration.key(namespace, name))
            .ok_or_else(|| ApiError::not_found(&self.declaration.resource, name))
    }

    /// A page of the objects below `namespace` (all, when empty).
    pub(crate) async fn list(
        &self,
        namespace: &str,
        options: &ListOptions,
    ) -> Result<Page, ApiError> {
        let narrowed = options.fields.exact_namespace();
        let namespace = match narrowed.filter(|name| is_path_segment(name).is_ok()) {
            // As upstream: pages of a list that is narrowed to a namespace are those of the namespace.
            Some(narrowed) if self.declaration.namespaced && namespace.is_empty() => narrowed,
            _ => namespace,
        };
        let prefix = self.prefix(namespace);
        let (snapshot, start) = match &options.continue_from {
            Some(token) => (
                self.resume(token, &prefix).await?,
                Some(format!("{prefix}{}", token.start)),
            ),
            None => (self.state(options.read_at).await?, None),
        };
        let limit = match options.read_at {
            ReadAt::Any if options.continue_from.is_none() => None,
            ReadAt::Any | ReadAt::Latest | ReadAt::NotOlderThan(_) | ReadAt::Exact(_) => {
                options.limit
            },
        };
        let mut page = page(&snapshot, &prefix, start.as_deref(), limit, options);
        if options.fields.exact_name().is_some()
            && (!namespace.is_empty() || !self.declaration.namespaced)
        {
            // There is no other object of that name to go on to.
            page.continue_token = None;
        }
        Ok(page)
    }

    pub(crate) fn prefix(&self, namespace: &str) -> String {
        if namespace.is_empty() {
            self.declaration.prefix()
        } else {
            format!("{}{namespace}/", self.declaration.prefix())
        }
    }

    async fn state(&self, read_at: ReadAt) -> Result<Snapshot, ApiError> {
        self.ready(read_at).await?;
        let snapshot = self.kind.snapshot();
        match read_at {
            ReadAt::Exact(revision) if snapshot.changed > revision => {
                Ok(self.history(revision).await?)
            },
            ReadAt::Exact(revision) => Ok(Snapshot {
                revision,
                ..snapshot
            }),
            ReadAt::Latest | ReadAt::Any | ReadAt::NotOlderThan(_) => Ok(snapshot),
        }
    }

    /// The snapshot that a continue token belongs to.
    async fn resume(&self, token: &Continue, prefix: &str) -> Result<Snapshot, ApiError> {
        let Ok(revision) = Revision::try_from(token.rv) else {
            return self.state(ReadAt::Latest).await;
        };
        match self.state(ReadAt::Exact(revision)).await {
            Err(error) if error.code() == StatusCode::GONE => {
                tracing::debug!(%prefix, revision, "a continue token outlived its snapshot");
                Err(ApiError::expired(
                    "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.",
                )
                .continue_token(Continue::new(-1, token.start.clone()).encode()))
            },
            other => other,
        }
    }

    async fn history(&self, revision: Revision) -> Result<Snapshot, store::Error> {
        let prefix = self.declaration.prefix();
        let listing = self
            .cache
            .store()
            .list(&prefix, Some(revision), None, None)
            .await?;
        let mut objects = OrdMap::new();
        for record in &listing.records {
            let entry = Entry::decode(&record.key, &record.value, record.mod_revision)
                .map_err(|e| store::Error::Corrupt(e.to_string()))?;
            objects.insert(Arc::clone(&record.key), Arc::new(entry));
        }
        Ok(Snapshot {
            objects,
            revision,
            changed: revision,
        })
    }
}

fn page(
    snapshot: &Snapshot,
    prefix: &str,
    start: Option<&str>,
    limit: Option<usize>,
    options: &ListOptions,
) -> Page {
    let from: Arc<str> = start.unwrap_or(prefix).into();
    let mut below = snapshot
        .objects
        .range::<_, Arc<str>>((Bound::Included(from), Bound::Unbounded))
        .take_while(|(key, _)| key.starts_with(prefix));
    let limit = limit.unwrap_or(usize::MAX);
    let mut entries: Vec<Arc<Entry>> = Vec::new();
    while entries.len() < limit {
        let Some((_, entry)) = below.next() else {
            break;
        };
        if options.selects(entry) {
            entries.push(Arc::clone(entry));
        }
    }
    let rest = if entries.len() == limit {
        below.count()
    } else {
        0
    };
    let continue_token = (rest > 0).then(|| entries.last()).flatten().map(|last| {
        let relative = last.key.strip_prefix(prefix).unwrap_or_default();
        let revision = i64::try_from(snapshot.revision).unwrap_or(i64::MAX);
        Continue::new(revision, format!("{relative}\0")).encode()
    });
    Page {
        remaining: (continue_token.is_some() && options.selects_all()).then_some(rest),
        entries,
        revision: snapshot.revision,
        continue_token,
    }
}

impl Page {
    /// The page with its objects in a served version.
    pub(crate) fn convert(mut self, version: &dyn AnyServing) -> Result<Self, ApiError> {
        for entry in &mut self.entries {
            *entry = version.convert(entry)?;
        }
        Ok(self)
    }

    fn metadata(&self) -> Value {
        let mut metadata = json!({"resourceVersion": self.revision.to_string()});
        if let Some(token) = &self.continue_token {
            metadata["continue"] = json!(token);
        }
        if let Some(remaining) = self.remaining {
            metadata["remainingItemCount"] = json!(remaining);
        }
        metadata
    }

    /// The page in the negotiated representation.
    pub(crate) fn answer(
        self,
        declaration: &Declaration,
        representation: Representation,
        now: Timestamp,
    ) -> Answer {
        let plain =
            !representation.pretty && representation.format == crate::codec::decode::Format::Json;
        let (api_version, kind) = match representation.view {
            View::Metadata(version) => (
                version.api_version().to_owned(),
                "PartialObjectMetadataList".to_owned(),
            ),
            View::Whole | View::Table(_) => (
                declaration.api_version.clone(),
                format!("{}List", declaration.kind),
            ),
        };
        let metadata = self.metadata();
        if let View::Table(version) = representation.view {
            let rows = self.entries.iter().map(|e| e.value()).collect();
            let table = table(
                version,
                &declaration.columns,
                rows,
                &metadata,
                representation.include,
                now,
                true,
            );
            return value(StatusCode::OK, &table, representation);
        }
        let whole = representation.view == View::Whole;
        if plain && representation.view != View::Metadata(MetaVersion::V1Beta1) {
            let bodies: Vec<_> = self
                .entries
                .iter()
                .map(|e| if whole { &e.body } else { e.metadata_body() })
                .collect();
            let size: usize = bodies.iter().map(|b| b.len() + 1).sum();
            let mut text = BytesMut::with_capacity(size + 256);
            let head = json!({"kind": kind, "apiVersion": api_version, "metadata": metadata});
            let head = head.to_string();
            text.put_slice(head.strip_suffix('}').unwrap_or(&head).as_bytes());
            text.put_slice(br#","items":["#);
            for (index, body) in bodies.into_iter().enumerate() {
                if index > 0 {
                    text.put_u8(b',');
                }
                text.put_slice(body);
            }
            text.put_slice(b"]}\n");
            return Ok(json_bytes(StatusCode::OK, text.freeze()));
        }
        let items: Vec<_> = self
            .entries
            .iter()
            .map(|e| match representation.view {
                View::Metadata(version) => partial_metadata(&e.value(), version),
                View::Whole | View::Table(_) => e.value(),
            })
            .collect();
        let list =
            json!({"kind": kind, "apiVersion": api_version, "metadata": metadata, "items": items});
        value(StatusCode::OK, &list, representation)
    }
}
