//! What happens to leases by itself: expiry, binding of waiters, the fate of drained proxies, the
//! projection of proxies, and the reading again of what is not known for sure.
//!
//! Each task waits for its bell at the allocator, takes the work, and does it with bounded
//! concurrency. All of them may be killed at any moment: what they do is one transaction each, and
//! what they have not done is found again after a restart.

mod binding;
mod doubts;
mod endpoints;
mod expiry;
mod fates;
mod prolonging;
mod retention;
mod start;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use aggregated_api::http::status::ApiError;
use aggregated_api::registry::cache::StoreCache;
use aggregated_api::registry::capability::Companion;
use aggregated_api::registry::collection::{Collection, Written};
use aggregated_api::store::{Outcome, Store};
use crawl_api::endpoint::ProxyEndpoint;
use crawl_api::lease::ProxyLease;
use futures::StreamExt;
use http::StatusCode;
use runtime_kit::clock::Clock;
use runtime_kit::tasks::Spawner;

use crate::allocator::leases::LeaseKey;
use crate::allocator::{Allocator, Release, Unsettled};
use crate::ended::Ended;
use crate::status::{self, End};

/// Writes of one task at the same time.
const CONCURRENT: usize = 32;
/// Pause after a failure of the store.
const PAUSE: Duration = Duration::from_millis(500);

/// What the tasks work with.
#[derive(Clone)]
pub struct Desk {
    /// Who gets which proxy.
    pub allocator: Arc<Allocator>,
    /// The leases.
    pub leases: Collection<ProxyLease>,
    /// The projection of proxies.
    pub endpoints: Collection<ProxyEndpoint>,
    /// Leases that are over.
    pub ended: Arc<Ended>,
    /// For internal keys by themselves.
    pub store: Arc<dyn Store>,
    /// What the collections read from; it tells when it lost the store.
    pub cache: Arc<StoreCache>,
    /// Time.
    pub clock: Arc<dyn Clock>,
}

/// Why a piece of work must be done again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store, or the cache above it.
    #[error("the store failed: {0}")]
    Store(#[from] ApiError),
    /// Transactions on their way.
    #[error(transparent)]
    Unsettled(#[from] Unsettled),
}

impl From<aggregated_api::store::Error> for Error {
    fn from(error: aggregated_api::store::Error) -> Self {
        Self::Store(error.into())
    }
}

/// Whether the store has no space.
fn is_full(error: &ApiError) -> bool {
    error.code() == StatusCode::INSUFFICIENT_STORAGE
}

// === impl Desk ===

impl Desk {
    /// Starts all tasks.
    pub fn spawn(&self, spawner: &Spawner) {
        self.spawn_one(spawner, "lease expiry", |desk| async move {
            desk.expire().await;
        });
        self.spawn_one(spawner, "waiter binding", |desk| async move {
            desk.bind_waiters().await;
        });
        self.spawn_one(spawner, "doubts", |desk| async move {
            desk.settle_doubts().await;
        });
        self.spawn_one(spawner, "lease fates", |desk| async move {
            desk.tell_fates().await;
        });
        self.spawn_one(spawner, "prolonged leases", |desk| async move {
            desk.show_prolonged().await;
        });
        self.spawn_one(spawner, "proxy endpoints", |desk| async move {
            desk.project().await;
        });
        self.spawn_one(spawner, "lease retention", |desk| async move {
            desk.retain().await;
        });
    }

    fn spawn_one<F>(&self, spawner: &Spawner, name: &str, task: impl FnOnce(Self) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let stop = spawner.shutdown();
        let task = task(self.clone());
        spawner.spawn(name, async move {
            tokio::select! {
                () = task => {},
                () = stop.cancelled() => {},
            }
        });
    }

    /// Does something for each item, a bounded number at a time.
    async fn each<I, F>(&self, items: Vec<I>, work: impl Fn(Self, I) -> F)
    where
        F: Future<Output = ()>,
    {
        let work = items.into_iter().map(|item| work(self.clone(), item));
        futures::stream::iter(work)
            .for_each_concurrent(CONCURRENT, |work| work)
            .await;
    }

    /// The lease as it stands now, if it is still this very one.
    async fn read(&self, key: &LeaseKey) -> Result<Option<ProxyLease>, Error> {
        let lease = self.leases.get_latest(&key.namespace, &key.name).await?;
        Ok(lease.filter(|lease| lease.metadata.uid.as_deref() == Some(&*key.uid)))
    }

    /// Ends a lease as it was read, giving its slot back in the same transaction. `false`: it
    /// changed in between.
    async fn end(&self, mut lease: ProxyLease, end: End) -> Result<bool, Error> {
        let key = status::key(&lease);
        let companion = match self.allocator.release(&key.uid).await? {
            Release::Slot(companion) => companion,
            Release::Nothing => Companion::default(),
        };
        let read = lease.clone();
        status::set_over(&mut lease, end, self.clock.now());
        let written = match self.leases.replace(lease, companion).await {
            // Why: a deletion needs no space, and nobody waits for the minute that it is shown.
            Err(error) if is_full(&error) => return Box::pin(self.remove(&read)).await,
            written => written?,
        };
        match written {
            Written::Committed(_) => {
                self.allocator.dequeue(&key.uid);
                self.ended.push(key);
                Ok(true)
            },
            Written::Conflict => Ok(false),
        }
    }

    /// Removes a lease, giving its slot back in the same transaction. `false`: it changed in
    /// between.
    pub async fn remove(&self, lease: &ProxyLease) -> Result<bool, Error> {
        let key = status::key(lease);
        let companion = match self.allocator.release(&key.uid).await? {
            Release::Slot(companion) => companion,
            Release::Nothing => Companion::default(),
        };
        match self.leases.remove(lease, companion).await? {
            Written::Committed(_) => {
                self.allocator.dequeue(&key.uid);
                self.ended.forget(&key);
                Ok(true)
            },
            Written::Conflict => Ok(false),
        }
    }

    /// A transaction of internal keys only. `false`: a compare did not hold.
    async fn commit(&self, companion: Companion) -> Result<bool, Error> {
        let Companion {
            compares,
            ops,
            reservation,
        } = companion;
        match self.store.txn(compares, ops).await? {
            Outcome::Committed(revision) => {
                if let Some(reservation) = reservation {
                    reservation.committed(revision);
                }
                Ok(true)
            },
            Outcome::Conflict => Ok(false),
        }
    }

    /// Logs a failure and waits a little, so that a broken store is not asked in a loop.
    async fn pause(&self, what: &str, error: &Error) {
        tracing::warn!(error = %runtime_kit::chain(error), "{what} failed, trying again");
        self.clock.sleep(PAUSE).await;
    }
}
