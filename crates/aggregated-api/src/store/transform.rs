//! A store whose values another one keeps in a different form, such as encrypted. It is a [`Store`]
//! itself, so nobody above it knows.

pub mod encryption;

use std::sync::Arc;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};

use super::{
    Batch, Compare, Error, Event, Listing, MAX_OPERATIONS, Mark, Op, Outcome, Record, Revision,
    Store, limits,
};

/// Records read at once, and values written at once, by [`TransformedStore::renew`].
const RENEWED: (usize, usize) = (500, 64);

/// Changes values on their way to the store and back. The key is known on both ways, so that a value
/// can be bound to it.
pub trait ValueTransformer: Send + Sync + 'static {
    /// The form in which a value is stored.
    ///
    /// # Errors
    /// [`Error::Unreadable`] when the value has no stored form.
    fn seal(&self, key: &str, value: Bytes) -> Result<Bytes, Error>;

    /// The value that is stored.
    ///
    /// # Errors
    /// [`Error::Unreadable`], with what to do about it.
    fn open(&self, key: &str, stored: Bytes) -> Result<Opened, Error>;

    /// Most bytes by which a stored value is longer.
    fn overhead(&self) -> usize;
}

/// What [`ValueTransformer::open`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The value.
    pub value: Bytes,
    /// It would be stored in another form now.
    pub stale: bool,
}

/// A store with a transformer before it.
#[derive(Clone)]
pub struct TransformedStore {
    inner: Arc<dyn Store>,
    transformer: Arc<dyn ValueTransformer>,
}

impl TransformedStore {
    /// Keeps the values in `inner`, in the form that `transformer` gives them.
    pub fn new(inner: Arc<dyn Store>, transformer: Arc<dyn ValueTransformer>) -> Self {
        Self { inner, transformer }
    }

    /// Writes those values anew that would be stored in another form now, for example after the
    /// encryption key has changed, and says how many. Each takes a revision, and watchers are told
    /// of it like of any change.
    ///
    /// # Errors
    /// Those of the store; what has been written stays.
    pub async fn renew(&self) -> Result<usize, Error> {
        let (mut renewed, mut from) = (0, None::<String>);
        loop {
            let page = self
                .inner
                .list("", None, from.as_deref(), Some(RENEWED.0))
                .await?;
            from = page.records.last().map(|last| format!("{}\0", last.key));
            let mut stale = Vec::new();
            for record in page.records {
                let opened = self.transformer.open(&record.key, record.value)?;
                if opened.stale {
                    let unchanged =
                        Compare::ModRevision(Arc::clone(&record.key), record.mod_revision);
                    stale.push((unchanged, Op::Put(record.key, opened.value)));
                }
            }
            renewed += stale.len();
            // Why a conflict is fine: whoever changed the value has written it in the new form.
            futures::stream::iter(stale.into_iter().map(Ok))
                .try_for_each_concurrent(RENEWED.1, |(unchanged, put)| async move {
                    self.txn(vec![unchanged], vec![put]).await.map(drop)
                })
                .await?;
            if !page.more {
                return Ok(renewed);
            }
        }
    }
}

fn opened(transformer: &dyn ValueTransformer, record: Record) -> Result<Record, Error> {
    let value = transformer.open(&record.key, record.value)?.value;
    Ok(Record { value, ..record })
}

fn opened_batch(transformer: &dyn ValueTransformer, batch: Batch) -> Result<Batch, Error> {
    let open = |record| opened(transformer, record);
    let events = batch.events.into_iter().map(|event| {
        Ok(Event {
            current: event.current.map(open).transpose()?,
            previous: event.previous.map(open).transpose()?,
            ..event
        })
    });
    Ok(Batch {
        events: events.collect::<Result<_, Error>>()?,
        ..batch
    })
}

#[async_trait::async_trait]
impl Store for TransformedStore {
    async fn get(&self, key: &str) -> Result<Option<Record>, Error> {
        let record = self.inner.get(key).await?;
        record
            .map(|record| opened(&*self.transformer, record))
            .transpose()
    }

    async fn list(
        &self,
        prefix: &str,
        at: Option<Revision>,
        from: Option<&str>,
        limit: Option<usize>,
    ) -> Result<Listing, Error> {
        let listing = self.inner.list(prefix, at, from, limit).await?;
        let records = listing
            .records
            .into_iter()
            .map(|record| opened(&*self.transformer, record));
        Ok(Listing {
            records: records.collect::<Result<_, _>>()?,
            ..listing
        })
    }

    async fn txn(&self, compares: Vec<Compare>, ops: Vec<Op>) -> Result<Outcome, Error> {
        let _: usize = limits::check(self.max_transaction_bytes(), &compares, &ops)?;
        // No await before the inner one: the order of first polls is the order of transactions.
        let sealed = ops.into_iter().map(|op| match op {
            Op::Put(key, value) => {
                let value = self.transformer.seal(&key, value)?;
                Ok(Op::Put(key, value))
            },
            Op::Delete(_) => Ok(op),
        });
        let sealed = sealed.collect::<Result<_, Error>>()?;
        self.inner.txn(compares, sealed).await
    }

    fn watch(&self, prefix: &str, after: Revision) -> BoxStream<'static, Result<Batch, Error>> {
        let transformer = Arc::clone(&self.transformer);
        let batches = self.inner.watch(prefix, after);
        // Why not a map: after an error there is nothing to wait for.
        let opened = futures::stream::unfold(Some(batches), move |batches| {
            let transformer = Arc::clone(&transformer);
            async move {
                let mut batches = batches?;
                let batch = batches.next().await?;
                let opened = batch.and_then(|batch| opened_batch(&*transformer, batch));
                let rest = opened.is_ok().then_some(batches);
                Some((opened, rest))
            }
        });
        opened.boxed()
    }

    fn revision(&self) -> Revision {
        self.inner.revision()
    }

    async fn current_revision(&self) -> Result<Revision, Error> {
        self.inner.current_revision().await
    }

    async fn compact(&self, revision: Revision) -> Result<(), Error> {
        self.inner.compact(revision).await
    }

    async fn mark(&self, mark: Mark) -> Result<(), Error> {
        self.inner.mark(mark).await
    }

    async fn marks(&self) -> Result<Vec<Mark>, Error> {
        self.inner.marks().await
    }

    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn max_transaction_bytes(&self) -> usize {
        let overhead = MAX_OPERATIONS * self.transformer.overhead();
        self.inner.max_transaction_bytes().saturating_sub(overhead)
    }
}
