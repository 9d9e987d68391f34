//! Changes that are older than what the cache keeps: the store still knows them until they are
//! compacted, so a client that was away for minutes need not list anew.

use std::sync::Arc;

use futures::StreamExt;
use futures::stream::BoxStream;

use super::cache::{Change, ChangeKind};
use super::entry::{Entry, EntryError};
use crate::http::status::ApiError;
use crate::store::{self, Batch, Event, Record, Revision, Store};

/// The store's own history, read from a revision on.
pub(crate) struct Past {
    batches: BoxStream<'static, Result<Batch, store::Error>>,
    after: Revision,
}

impl Past {
    /// Changes of keys under `prefix` newer than `after`.
    pub(crate) fn new(store: &dyn Store, prefix: &str, after: Revision) -> Self {
        Self {
            batches: store.watch(prefix, after),
            after,
        }
    }

    /// The next changes, and the revision up to which all are known then.
    ///
    /// # Errors
    /// 410 when the store has forgotten them too, and whatever the store fails with.
    pub(crate) async fn next(&mut self) -> Result<(Vec<Change>, Revision), ApiError> {
        let batch = match self.batches.next().await {
            Some(Ok(batch)) => batch,
            Some(Err(store::Error::Compacted { oldest, .. })) => {
                return Err(too_old(self.after, oldest));
            },
            Some(Err(error)) => return Err(error.into()),
            None => return Err(ApiError::service_unavailable("the store was closed")),
        };
        self.after = batch.revision;
        let changes: Result<Vec<_>, _> = batch.events.iter().filter_map(change).collect();
        let changes =
            changes.map_err(|e| ApiError::internal("the store holds an unreadable object", e))?;
        Ok((changes, batch.revision))
    }
}

/// A change as the store tells it; `None` when nothing came of it.
fn change(event: &Event) -> Option<Result<Change, EntryError>> {
    let read = |record: &Record| {
        Entry::decode(&record.key, &record.value, record.mod_revision).map(Arc::new)
    };
    let previous = event.previous.as_ref().map(read).transpose();
    let current = event.current.as_ref().map(read).transpose();
    let revision = event.revision;
    let (kind, entry, previous) = match (current, previous) {
        (Err(error), _) | (_, Err(error)) => return Some(Err(error)),
        (Ok(None), Ok(None)) => return None,
        (Ok(Some(current)), Ok(None)) => (ChangeKind::Added, current, None),
        (Ok(Some(current)), Ok(previous)) => (ChangeKind::Modified, current, previous),
        (Ok(None), Ok(Some(previous))) => {
            let last = Arc::new(previous.at(revision));
            (ChangeKind::Deleted, last, Some(previous))
        },
    };
    Some(Ok(Change {
        revision,
        kind,
        entry,
        previous,
    }))
}

/// 410: a watch cannot begin at `asked` any more.
pub(crate) fn too_old(asked: Revision, oldest: Revision) -> ApiError {
    ApiError::expired(format!("too old resource version: {asked} ({oldest})"))
}
